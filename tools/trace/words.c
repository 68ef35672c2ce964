/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for all forms that `culimbo trace` writes: see words.h. */
#include "config.h"

#include <inttypes.h>
#include <string.h>

#include "tools/trace/words.h"

/* Returns the length of the UTF-8 character at @s; 0: it is none. */
static size_t letter(const unsigned char *s)
{
	size_t n = *s < 0x80 ? 1 : *s >= 0xc2 && *s < 0xe0 ? 2 : *s >= 0xe0 && *s < 0xf0 ? 3 :
		   *s >= 0xf0 && *s < 0xf5 ? 4 : 0;

	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	/* an overlong form, half of a surrogate pair, beyond the last code point */
	if ((*s == 0xe0 && s[1] < 0xa0) || (*s == 0xed && s[1] > 0x9f) ||
	    (*s == 0xf0 && s[1] < 0x90) || (*s == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

void cu_put_json_text(FILE *out, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	fputc('"', out);
	while (*s) {
		size_t n = letter(s);

		if (!n) {
			fputs("\\ufffd", out);
			n = 1;
		} else if (*s < ' ' || *s == 0x7f || strchr("\"\\<>&'", *s)) {
			fprintf(out, "\\u%04x", *s);
		} else if (n == 3 && s[0] == 0xe2 && s[1] == 0x80 && (s[2] & 0xfe) == 0xa8) {
			fprintf(out, "\\u20%02x", s[2] & 0x7f); /* line ends to a script */
		} else {
			fwrite(s, 1, n, out);
		}
		s += n;
	}
	fputc('"', out);
}

void cu_put_plain_text(FILE *out, const char *text)
{
	for (const unsigned char *s = (const unsigned char *)text; *s;) {
		size_t n = letter(s);
		/* 0x80 to 0x9f, as two bytes, are commands to some terminals */
		bool shown = n && *s >= ' ' && *s != 0x7f && !(n == 2 && *s == 0xc2 && s[1] < 0xa0);

		if (shown)
			fwrite(s, 1, n, out);
		else
			fputc('?', out);
		s += n ? n : 1;
	}
}

const char *cu_bytes_text(uint64_t bytes, char text[32])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	int unit = 0;

	for (; value >= 1024 && unit < 6; unit++)
		value /= 1024;
	snprintf(text, 32, value < 10 && value != (double)(int)value ? "%.1f %s" : "%.0f %s", value,
		 units[unit]);
	return text;
}

const char *cu_time_text(int64_t ns, char text[32])
{
	double value = (double)ns;

	if (value >= 100e9)
		snprintf(text, 32, "%.0f s", value / 1e9);
	else if (value >= 1e9)
		snprintf(text, 32, "%.2f s", value / 1e9);
	else if (value >= 1e6)
		snprintf(text, 32, "%.1f ms", value / 1e6);
	else
		snprintf(text, 32, "%.0f us", value / 1e3);
	return text;
}

int64_t cu_span_of(int64_t begin, int64_t end)
{
	return (int64_t)((uint64_t)end - (uint64_t)begin);
}

const char *cu_state_name(enum cu_trace_state state)
{
	static const char *const names[] = { "running", "ended", "killed" };

	return names[state];
}

const char *cu_kind_name(uint8_t kind)
{
	return kind == CL_EVENT ? "event" : "block";
}

const char *cu_mark_name(const struct cu_trace_mark *m)
{
	switch ((enum cl_trace_what)m->event.what) {
	case CL_TRACE_WAITED:
		return "allocation waited for memory";
	case CL_TRACE_ASKED:
		return "asked another process for memory";
	case CL_TRACE_SERVED:
		return "gave what it could, asked for memory";
	case CL_TRACE_STALE:
		return "stale handle refused";
	default:
		return "hold of a dead process reclaimed";
	}
}

void cu_put_mark(FILE *out, const struct cu_trace_mark *m)
{
	const struct cl_trace_event *e = &m->event;
	char size[32], took[32];

	cu_bytes_text(e->size, size);
	cu_time_text(e->value > INT64_MAX ? INT64_MAX : (int64_t)e->value, took);
	switch ((enum cl_trace_what)e->what) {
	case CL_TRACE_WAITED:
		fprintf(out, "%s wanted; %s after %s", size,
			e->flags & CL_TRACE_DONE ? "memory came free" : "nothing came free", took);
		break;
	case CL_TRACE_ASKED:
		fprintf(out, "process %" PRIu32 ", with %s in limbo, %s after %s", e->pid, size,
			e->flags & CL_TRACE_DONE ? "answered" : "had not answered", took);
		break;
	case CL_TRACE_STALE:
		fprintf(out, "exporter file %06" PRIx32 ", record %" PRIu32 ", generation %" PRIu32,
			e->file_id, e->record, e->generation);
		break;
	case CL_TRACE_RECLAIMED:
		fprintf(out, "process %" PRIu32 " ended holding %s 0x%" PRIx64 " of %s", e->pid,
			cu_kind_name(e->kind), e->key, size);
		break;
	default:
		break;
	}
}

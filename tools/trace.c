/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo trace`: what CULIMBO_TRACE recorded, as a summary, as a trace for
 * Perfetto (ui.perfetto.dev, chrome://tracing), or as a page for a browser.
 *
 * Must always hold: names and command lines are other people's words, so they
 * are escaped for whatever they are written into.
 */
#include "config.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands/commands.h"
#include "tools/trace.h"
#include "tools/trace_page.h"

enum { OPTION_FORMAT = 128 };
enum format { TEXT, JSON, HTML };

/* ------------------------------------------------------------------- writing */
/* The length of the letter of UTF-8 at @s, or 0: it is none. */
static size_t letter(const unsigned char *s)
{
	size_t n = *s < 0x80 ? 1 : *s >= 0xc2 && *s < 0xe0 ? 2 : *s >= 0xe0 && *s < 0xf0 ? 3 :
		   *s >= 0xf0 && *s < 0xf5 ? 4 : 0;

	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	/* too long a form, half a pair, beyond the last */
	if ((*s == 0xe0 && s[1] < 0xa0) || (*s == 0xed && s[1] > 0x9f) ||
	    (*s == 0xf0 && s[1] < 0x90) || (*s == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

/* A JSON string that may also stand in an HTML script: no '<', '>', '&'. */
static void json_text(FILE *out, const char *text)
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

/* For a terminal: no control bytes. */
static void plain_text(FILE *out, const char *text)
{
	for (const unsigned char *s = (const unsigned char *)text; *s;) {
		size_t n = letter(s);
		/* (0x80 to 0x9f, as two bytes, are commands to some terminals) */
		bool shown = n && *s >= ' ' && *s != 0x7f && !(n == 2 && *s == 0xc2 && s[1] < 0xa0);

		if (shown)
			fwrite(s, 1, n, out);
		else
			fputc('?', out);
		s += n ? n : 1;
	}
}

static const char *bytes_text(uint64_t bytes, char text[32])
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

static const char *time_text(int64_t ns, char text[32])
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

static int64_t span_of(int64_t begin, int64_t end)
{
	return (int64_t)((uint64_t)end - (uint64_t)begin);
}

static const char *state_name(enum cu_trace_state state)
{
	static const char *const names[] = { "running", "ended", "killed" };

	return names[state];
}

static const char *kind_name(uint8_t kind)
{
	return kind == CL_EVENT ? "event" : "block";
}

/* -------------------------------------------------------- for Perfetto: JSON */
struct json {
	FILE *out;
	bool more;
};

/* Opens an event; its other members follow, and a '}'. */
static void event(struct json *j, const char *phase, uint32_t id, uint32_t thread, int64_t when)
{
	uint64_t ns = when < 0 ? 0 : (uint64_t)when;

	fprintf(j->out, "%s\n{\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32 ",\"ts\":%" PRIu64
			".%03u",
		j->more ? "," : "", phase, id, thread, ns / 1000, (unsigned int)(ns % 1000));
	j->more = true;
}

static void slice(struct json *j, uint32_t id, uint32_t thread, int64_t begin, int64_t end)
{
	uint64_t ns;

	if (begin < 0)
		begin = 0;
	if (end < begin)
		end = begin;
	ns = (uint64_t)(end - begin);
	event(j, "X", id, thread, begin);
	fprintf(j->out, ",\"dur\":%" PRIu64 ".%03u,", ns / 1000, (unsigned int)(ns % 1000));
}

static void named(struct json *j, const char *what, uint32_t id, uint32_t thread, const char *name)
{
	event(j, "M", id, thread, 0);
	fprintf(j->out, ",\"name\":\"%s\",\"args\":{\"name\":", what);
	json_text(j->out, name);
	fputs("}}", j->out);
}

/* Threads of a track: 0 is for instants, blocks and opens have a row each. */
enum { EVENTS_ROW = 0, BLOCK_ROW = 1, OPEN_ROW = 1 << 30 };

static void json_process(struct json *j, const struct cu_trace_process *p, uint32_t place)
{
	char text[400];

	snprintf(text, sizeof text, "%s (%s)", p->name, state_name(p->state));
	named(j, "process_name", p->id, 0, text);
	named(j, "process_labels", p->id, 0, p->command);
	event(j, "M", p->id, 0, 0);
	fprintf(j->out, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}", place);
	named(j, "thread_name", p->id, EVENTS_ROW, "events");
	for (uint32_t row = 0; row < p->rows; row++)
		named(j, "thread_name", p->id, BLOCK_ROW + row, "blocks");
	for (uint32_t row = 0; row < p->open_rows; row++)
		named(j, "thread_name", p->id, OPEN_ROW + row, "opened from others");
	for (size_t i = 0; i < p->limbo_n; i++) {
		event(j, "C", p->id, 0, p->limbo[i].when);
		fprintf(j->out, ",\"name\":\"limbo bytes\",\"args\":{\"bytes\":%" PRIu64 "}}",
			p->limbo[i].bytes);
	}
	if (p->limbo_n && p->limbo[p->limbo_n - 1].bytes && p->state != CU_TRACE_RUNNING) {
		event(j, "i", p->id, EVENTS_ROW, p->end);
		fprintf(j->out,
			",\"s\":\"p\",\"name\":\"ended with blocks in limbo\",\"args\":{\"bytes\":%" PRIu64
			"}}",
			p->limbo[p->limbo_n - 1].bytes);
		event(j, "C", p->id, 0, p->end);
		fputs(",\"name\":\"limbo bytes\",\"args\":{\"bytes\":0}}", j->out);
	}
}

/* A part of @b's life, within its slice. */
static void json_phase(struct json *j, const struct cu_trace *t, const struct cu_trace_block *b,
		       const char *name, int64_t begin, int64_t end)
{
	if (begin == CU_NEVER)
		return;
	slice(j, t->process[b->process].id, BLOCK_ROW + b->row, begin, end);
	fprintf(j->out, "\"name\":\"%s\",\"cat\":\"%s\"}", name, kind_name(b->kind));
}

static int64_t first_of(int64_t a, int64_t b, int64_t c)
{
	return a != CU_NEVER ? a : b != CU_NEVER ? b : c;
}

static void json_block(struct json *j, const struct cu_trace *t, const struct cu_trace_block *b)
{
	int64_t limbo_until = first_of(b->held, b->ready, b->end);
	char text[32];

	slice(j, t->process[b->process].id, BLOCK_ROW + b->row, b->begin, b->end);
	fprintf(j->out, "\"name\":\"%s 0x%" PRIx64 ", %s\",\"cat\":\"%s\",\"args\":{\"address\":\"0x%" PRIx64
			"\",\"bytes\":%" PRIu64 ",\"device\":%u,\"exports\":%" PRIu32
			",\"opens\":%" PRIu32 ",\"released\":%s",
		kind_name(b->kind), b->key, b->kind == CL_EVENT ? "shared" : bytes_text(b->size, text),
		kind_name(b->kind), b->key, b->size, b->device, b->exports, b->opens,
		b->released == CU_NEVER ? "false" : "true");
	if (b->file_id && b->record != CL_NO_RECORD)
		fprintf(j->out, ",\"file\":\"%06" PRIx32 "\",\"record\":%" PRIu32 ",\"generation\":%" PRIu32,
			b->file_id, b->record, b->generation);
	if (b->gone)
		fputs(",\"note\":\"its context ended\"", j->out);
	fputs("}}", j->out);
	json_phase(j, t, b, "exported", b->exported, first_of(b->limbo, b->kept, b->end));
	json_phase(j, t, b, "limbo: grace", b->limbo, limbo_until);
	json_phase(j, t, b, "limbo: held by importers", b->held, first_of(b->ready, CU_NEVER, b->end));
	json_phase(j, t, b, "limbo: may go", b->ready, b->end);
	json_phase(j, t, b, "kept: nobody can say who holds it", b->kept, b->end);
}

static void json_open(struct json *j, const struct cu_trace *t, size_t n)
{
	const struct cu_trace_open *o = &t->open[n];
	const struct cu_trace_process *p = &t->process[o->process];
	const struct cu_trace_block *b = o->block == CU_NO_BLOCK ? NULL : &t->block[o->block];
	char text[32];

	slice(j, p->id, OPEN_ROW + o->row, o->opened, o->end);
	fprintf(j->out, "\"name\":\"%s 0x%" PRIx64 " of %s%" PRIu32 "\",\"cat\":\"open\",\"args\":{"
			"\"address\":\"0x%" PRIx64 "\",\"size\":\"%s\",\"exporter_pid\":%" PRIu32
			",\"file\":\"%06" PRIx32 "\",\"record\":%" PRIu32 ",\"generation\":%" PRIu32
			",\"closed\":\"%s\"}}",
		kind_name(o->kind), o->key, o->own ? "its own " : "", o->own ? p->pid : o->pid, o->key,
		bytes_text(o->size, text), o->pid, o->file_id, o->record, o->generation,
		o->reclaimed ? "by the exporter: its holder died" :
		o->closed != CU_NEVER ? "yes" : "never");
	if (!b || b->exported == CU_NEVER)
		return;
	event(j, "s", t->process[b->process].id, BLOCK_ROW + b->row, b->exported);
	fprintf(j->out, ",\"id\":%zu,\"name\":\"opened\",\"cat\":\"flow\"}", n + 1);
	event(j, "f", p->id, OPEN_ROW + o->row, o->opened);
	fprintf(j->out, ",\"id\":%zu,\"name\":\"opened\",\"cat\":\"flow\",\"bp\":\"e\"}", n + 1);
}

/* What a mark says, as a name and details of plain letters. */
static const char *mark_name(const struct cu_trace_mark *m)
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

static void mark_details(FILE *out, const struct cu_trace_mark *m)
{
	const struct cl_trace_event *e = &m->event;
	char size[32], took[32];

	bytes_text(e->size, size);
	time_text(e->value > INT64_MAX ? INT64_MAX : (int64_t)e->value, took);
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
		fprintf(out, "process %" PRIu32 " died holding %s 0x%" PRIx64 " of %s", e->pid,
			kind_name(e->kind), e->key, size);
		break;
	default:
		break;
	}
}

static void json_mark(struct json *j, const struct cu_trace *t, const struct cu_trace_mark *m)
{
	event(j, "i", t->process[m->process].id, EVENTS_ROW, m->when);
	fprintf(j->out, ",\"s\":\"p\",\"name\":\"%s\",\"args\":{\"details\":\"", mark_name(m));
	mark_details(j->out, m);
	fprintf(j->out, "\",\"thread\":%" PRIu32 ",\"pid\":%" PRIu32 "}}", m->event.tid, m->event.pid);
}

static void write_json(FILE *out, const struct cu_trace *t)
{
	struct json j = { .out = out };

	fprintf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"maker\":\"culimbo %s\",\"zero\":\"%" PRIu64
		     " ns since 1970\"},\"traceEvents\":[",
		PACKAGE_VERSION, t->zero_realtime);
	for (uint32_t i = 0; i < t->processes; i++)
		json_process(&j, &t->process[i], i);
	for (size_t i = 0; i < t->blocks; i++)
		json_block(&j, t, &t->block[i]);
	for (size_t i = 0; i < t->opens; i++)
		json_open(&j, t, i);
	for (size_t i = 0; i < t->marks; i++)
		json_mark(&j, t, &t->mark[i]);
	fputs("\n]}\n", out);
}

/* --------------------------------------------------------- for a browser: HTML */
static void page_time(FILE *out, int64_t when)
{
	if (when == CU_NEVER)
		fputs(",-1", out);
	else
		fprintf(out, ",%" PRId64, when < 0 ? 0 : when);
}

/* The page's data; its members are named in trace.html. */
static void page_data(FILE *out, const struct cu_trace *t)
{
	fprintf(out, "{\"v\":1,\"zero\":%" PRIu64 ",\"span\":%" PRId64 ",\"procs\":[",
		t->zero_realtime / 1000000, t->span < 0 ? 0 : t->span);
	for (size_t i = 0; i < t->processes; i++) {
		const struct cu_trace_process *p = &t->process[i];

		fprintf(out, "%s\n{\"id\":%" PRIu32 ",\"pid\":%" PRIu32 ",\"name\":", i ? "," : "", p->id,
			p->pid);
		json_text(out, p->name);
		fputs(",\"command\":", out);
		json_text(out, p->command);
		fprintf(out, ",\"state\":\"%s\",\"begin\":%" PRId64 ",\"end\":%" PRId64
			     ",\"records\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"damaged\":%" PRIu64
			     ",\"peak\":%" PRIu64 ",\"limbo\":[",
			state_name(p->state), p->begin, p->end, p->records, p->lost, p->damaged,
			p->limbo_peak);
		for (size_t k = 0; k < p->limbo_n; k++)
			fprintf(out, "%s[%" PRId64 ",%" PRIu64 "]", k ? "," : "", p->limbo[k].when,
				p->limbo[k].bytes);
		fputs("]}", out);
	}
	fputs("],\"blocks\":[", out);
	for (size_t i = 0; i < t->blocks; i++) {
		const struct cu_trace_block *b = &t->block[i];

		fprintf(out, "%s\n[%" PRIu32 ",%u,%u,\"0x%" PRIx64 "\",%" PRIu64, i ? "," : "",
			b->process, b->kind, b->device, b->key, b->size);
		page_time(out, b->begin);
		page_time(out, b->end);
		page_time(out, b->allocated);
		page_time(out, b->exported);
		page_time(out, b->freed);
		page_time(out, b->limbo);
		page_time(out, b->held);
		page_time(out, b->ready);
		page_time(out, b->released);
		page_time(out, b->kept);
		fprintf(out, ",%" PRIu32 ",%d,\"%06" PRIx32 "/%" PRIu32 "/%" PRIu32 "\"]", b->exports,
			(int)b->gone | (int)b->assumed << 1 | (int)b->at_once << 2, b->file_id,
			b->record == CL_NO_RECORD ? 0 : b->record, b->generation);
	}
	fputs("],\"opens\":[", out);
	for (size_t i = 0; i < t->opens; i++) {
		const struct cu_trace_open *o = &t->open[i];

		fprintf(out, "%s\n[%" PRIu32 ",%u,%d,\"0x%" PRIx64 "\",%" PRIu64, i ? "," : "",
			o->process, o->kind, o->block == CU_NO_BLOCK ? -1 : (int)o->block, o->key,
			o->size);
		page_time(out, o->opened);
		page_time(out, o->end);
		page_time(out, o->closed);
		fprintf(out, ",%d,%" PRIu32 "]", (int)o->own | (int)o->reclaimed << 1, o->pid);
	}
	fputs("],\"marks\":[", out);
	for (size_t i = 0; i < t->marks; i++) {
		const struct cu_trace_mark *m = &t->mark[i];

		fprintf(out, "%s\n[%" PRIu32 ",%" PRId64 ",%u,%d,\"%s\",\"", i ? "," : "", m->process,
			m->when, m->event.what, m->block == CU_NO_BLOCK ? -1 : (int)m->block,
			mark_name(m));
		mark_details(out, m);
		fputs("\"]", out);
	}
	fputs("]}\n", out);
}

static void write_html(FILE *out, const struct cu_trace *t)
{
	for (size_t i = 0; i < sizeof page / sizeof page[0]; i++)
		if (!strcmp(page[i], "@DATA@\n"))
			page_data(out, t);
		else
			fputs(page[i], out);
}

/* -------------------------------------------------------------------- summary */
static const struct cu_trace *sorted;
static int by_limbo(const void *a, const void *b)
{
	const struct cu_trace_block *x = &sorted->block[*(const size_t *)a],
				    *y = &sorted->block[*(const size_t *)b];
	int64_t p = span_of(x->limbo, x->end), q = span_of(y->limbo, y->end);

	return p != q ? (p > q ? -1 : 1) : *(const size_t *)a < *(const size_t *)b ? -1 : 1;
}

static void text_block(FILE *out, const struct cu_trace *t, const struct cu_trace_block *b)
{
	const struct cu_trace_process *p = &t->process[b->process];
	char size[32], took[32];
	int said = 0;

	fprintf(out, "  %s 0x%" PRIx64 ", %s, of process %" PRIu32 " (", kind_name(b->kind), b->key,
		b->kind == CL_EVENT ? "shared" : bytes_text(b->size, size), p->pid);
	plain_text(out, p->name);
	fprintf(out, "): %s in limbo%s\n", time_text(span_of(b->limbo, b->end), took),
		b->released == CU_NEVER ? ", to the end" : "");
	for (uint32_t at = b->first_open; at != UINT32_MAX; at = t->open[at].next_of_block) {
		const struct cu_trace_open *o = &t->open[at];
		const struct cu_trace_process *q = &t->process[o->process];

		if (o->end <= b->limbo || said++ >= 4)
			continue;
		fprintf(out, "    held by process %" PRIu32 " (", q->pid);
		plain_text(out, q->name);
		fprintf(out, ", %s) for %s of it%s\n", state_name(q->state),
			time_text(span_of(b->limbo > o->opened ? b->limbo : o->opened,
					  o->end < b->end ? o->end : b->end), took),
			o->reclaimed ? ", until it was found dead" : "");
	}
	if (said > 4)
		fprintf(out, "    and %d more\n", said - 4);
}

enum { LONGEST = 5 };
static int write_text(FILE *out, const struct cu_trace *t)
{
	size_t *list = malloc((t->blocks + 1) * sizeof *list), n = 0, seen[CL_TRACE_WHATS] = { 0 };
	char text[32];

	if (!list)
		return -ENOMEM;
	fprintf(out, "%zu process%s, %s; %zu blocks and events, %zu open%s\n\n", t->processes,
		t->processes == 1 ? "" : "es", time_text(t->span, text), t->blocks, t->opens,
		t->opens == 1 ? "" : "s");
	fprintf(out, "%10s %-16s %-8s %9s %9s %9s %9s %9s %11s\n", "PID", "NAME", "STATE", "RECORDS",
		"LOST", "BLOCKS", "EXPORTED", "OPENED", "LIMBO-PEAK");
	for (uint32_t i = 0; i < t->processes; i++) {
		const struct cu_trace_process *p = &t->process[i];
		size_t blocks = 0, exports = 0, opens = 0;
		char name[17];

		for (size_t k = 0; k < t->blocks; k++)
			if (t->block[k].process == i) {
				blocks++;
				exports += t->block[k].exports != 0;
			}
		for (size_t k = 0; k < t->opens; k++)
			opens += t->open[k].process == i;
		for (size_t k = 0; k < sizeof name; k++)
			name[k] = p->name[k] && ((unsigned char)p->name[k] < ' ' ||
						 (unsigned char)p->name[k] > '~') ? '?' : p->name[k];
		fprintf(out, "%10" PRIu32 " %-16s %-8s %9" PRIu64 " %9" PRIu64 " %9zu %9zu %9zu %11s\n",
			p->pid, name, state_name(p->state), p->records, p->lost, blocks, exports, opens,
			bytes_text(p->limbo_peak, text));
	}
	for (size_t i = 0; i < t->blocks; i++)
		if (t->block[i].limbo != CU_NEVER)
			list[n++] = i;
	sorted = t;
	qsort(list, n, sizeof *list, by_limbo);
	if (n)
		fprintf(out, "\nLongest in limbo:\n");
	for (size_t i = 0; i < n && i < LONGEST; i++)
		text_block(out, t, &t->block[list[i]]);
	if (n > LONGEST)
		fprintf(out, "  and %zu more\n", n - LONGEST);
	free(list);
	for (size_t i = 0; i < t->marks; i++)
		seen[t->mark[i].event.what]++;
	for (unsigned int what = 0, said = 0; what < CL_TRACE_WHATS; what++)
		for (size_t i = 0; seen[what] && i < t->marks; i++)
			if (t->mark[i].event.what == what) {
				fprintf(out, "%s  %s, %zu time%s; the first: ", said++ ? "" : "\nAlso:\n",
					mark_name(&t->mark[i]), seen[what], seen[what] == 1 ? "" : "s");
				mark_details(out, &t->mark[i]);
				fprintf(out, "\n");
				break;
			}
	fprintf(out, "\nFor a picture: culimbo trace FILE -o out.html, or -o out.json for ui.perfetto.dev\n");
	return 0;
}

/* ---------------------------------------------------------------------- files */
static const struct cu_command *speaking;

static void warn(const char *path, const char *text)
{
	cu_error(speaking, "%s %s", path, text);
}

/* Whether @path is @base.PID or @base.PID.N. */
static bool is_family(const char *path, const char *base)
{
	size_t length = strlen(base), digits;

	for (int part = 0; part < 2; part++) {
		if (path[length] != '.')
			return false;
		digits = strspn(path + length + 1, "0123456789");
		length += 1 + digits;
		if (!digits)
			return false;
		if (!path[length])
			return true;
	}
	return false;
}

static int add_file(const struct cu_command *command, struct cu_trace *t, const char *path)
{
	const char *why;
	int err = cu_trace_add(t, path, &why, warn);

	if (err == -ENOMEM)
		cu_error(command, "no memory to read '%s'", path);
	else if (err)
		cu_error(command, "'%s' %s", path, why ? why : strerror(-err));
	return err;
}

/* The trace file @name, or all of the family that CULIMBO_TRACE=@name made.  How many could be read. */
static size_t add_argument(const struct cu_command *command, struct cu_trace *t, const char *name)
{
	size_t n = 0, tried = 0, length = 0;
	char *pattern;
	glob_t found;

	if (access(name, F_OK) == 0) {
		n += add_file(command, t, name) == 0;
		return n;
	}
	/* FILE.* with FILE taken as it is */
	pattern = malloc(2 * strlen(name) + 3);
	if (!pattern)
		return 0;
	for (const char *c = name; *c; c++) {
		if (strchr("*?[\\", *c))
			pattern[length++] = '\\';
		pattern[length++] = *c;
	}
	memcpy(pattern + length, ".*", 3);
	if (glob(pattern, 0, NULL, &found) == 0) {
		for (size_t i = 0; i < found.gl_pathc; i++)
			if (is_family(found.gl_pathv[i], name)) {
				tried++;
				n += add_file(command, t, found.gl_pathv[i]) == 0;
			}
		globfree(&found);
	}
	free(pattern);
	if (!tried)
		cu_error(command,
			 "there is no '%s', and no '%s.PID'; did the programs run with CULIMBO_TRACE set, and "
			 "did they call CUDA?", name, name);
	return n;
}

static bool format_by_name(const char *path, enum format *format)
{
	const char *dot = strrchr(path, '.');

	if (dot && !strcmp(dot, ".json"))
		*format = JSON;
	else if (dot && (!strcmp(dot, ".html") || !strcmp(dot, ".htm")))
		*format = HTML;
	else if (dot && !strcmp(dot, ".txt"))
		*format = TEXT;
	else
		return false;
	return true;
}

static int write_out(const struct cu_command *command, const struct cu_trace *t, const char *path,
		     enum format format)
{
	bool to_stdout = !path || !strcmp(path, "-");
	FILE *out = to_stdout ? stdout : fopen(path, "we");
	int err = 0;

	if (!out) {
		cu_error(command, "cannot write '%s': %s", path, strerror(errno));
		return CU_FAILED;
	}
	if (format == JSON)
		write_json(out, t);
	else if (format == HTML)
		write_html(out, t);
	else
		err = write_text(out, t);
	if (to_stdout)
		return err ? CU_FAILED : CU_OK; /* (culimbo.c looks whether stdout took it) */
	if (ferror(out))
		err = -EIO;
	if (fclose(out) && !err)
		err = -errno;
	if (!err)
		return CU_OK;
	cu_error(command, "cannot write '%s': %s", path, strerror(-err));
	return CU_FAILED;
}

static int trace(const struct cu_command *command, int argc, char **argv)
{
	struct cu_trace t = { .processes = 0 };
	const char *path = NULL, *word = NULL;
	enum format format = TEXT;
	size_t n = 0;
	int got, status = CU_OK;

	speaking = command;
	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case 'o':
			path = optarg;
			break;
		case OPTION_FORMAT:
			word = optarg;
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (word && !strcmp(word, "json"))
		format = JSON;
	else if (word && !strcmp(word, "html"))
		format = HTML;
	else if (word && strcmp(word, "text"))
		return cu_usage_error(command, "--format is text, json or html, not '%s'", word);
	else if (!word && path && strcmp(path, "-") && !format_by_name(path, &format))
		return cu_usage_error(command, "what is '%s' to be? Give it the ending .json, .html or .txt, "
				      "or say --format", path);
	if (optind == argc)
		return cu_usage_error(command, "no FILE: the one that CULIMBO_TRACE named");
	for (int i = optind; i < argc; i++) {
		size_t read = add_argument(command, &t, argv[i]);

		n += read;
		if (!read)
			status = CU_FAILED;
	}
	if (n && cu_trace_join(&t)) {
		cu_error(command, "no memory for a trace this long; give it fewer files");
		n = 0;
	}
	if (!n)
		status = CU_FAILED;
	else if (write_out(command, &t, path, format) != CU_OK)
		status = CU_FAILED;
	cu_trace_free(&t);
	return status;
}

static const struct cu_option options[] = {
	{ "output", 'o', "FILE", "write to FILE ('-': stdout); .json, .html or .txt tells the format" },
	{ "format", OPTION_FORMAT, "text|json|html", "what to make (default: text, a summary)" },
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "it was done" },
	{ CU_FAILED, "nothing of a FILE could be read, or the output not written" },
	{ CU_USAGE, "the command line is wrong" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "CULIMBO_TRACE=/tmp/t culimbo run -- python3 serve.py", "record: /tmp/t.PID, one a process" },
	{ "culimbo trace /tmp/t -o t.html", "a page with all of them, for any browser" },
	{ "culimbo trace /tmp/t.4711 --format=json -o - | gzip > t.json.gz", "one, for ui.perfetto.dev" },
	{ .line = NULL },
};

const struct cu_command cu_trace = {
	.name = "trace",
	.arguments = "FILE...",
	.summary = "turn what CULIMBO_TRACE recorded into a picture",
	.help = "Reads the trace files that processes run with CULIMBO_TRACE=FILE have made, and\n"
		"shows the lives of the blocks that they shared: a summary, a trace for Perfetto\n"
		"(ui.perfetto.dev or chrome://tracing), or a page for any browser, which needs no\n"
		"server. FILE is a trace file, or the name that CULIMBO_TRACE had: then all\n"
		"FILE.PID are read. Of a damaged file what can be read is read.",
	.options = options,
	.exits = exits,
	.examples = examples,
	.run = trace,
};

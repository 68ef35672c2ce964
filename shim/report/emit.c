/* SPDX-License-Identifier: Apache-2.0 */
/* Writes text or JSON Lines: see emit.h. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim/report/emit.h"
#include "shim/report/fold.h"
#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/base/utf8.h"

/* -------------------------------------------------------------------- writing */
static void write_out(struct cl_emit *emit, size_t length)
{
	for (size_t at = 0; at < length && !emit->error;) {
		size_t part = length - at;
		const char *last;
		long n;

		if (emit->patience && part > PIPE_BUF) {
			last = memrchr(emit->text + at, '\n', PIPE_BUF);
			part = last ? (size_t)(last + 1 - (emit->text + at)) : PIPE_BUF;
		}
		if (emit->patience && !cl_is_writable(emit->fd, emit->patience)) {
			emit->error = ETIMEDOUT;
			break;
		}
		n = cl_write_quietly(emit->fd, emit->text + at, part);

		if (n < 0)
			emit->error = (int)-n;
		else if (!n)
			break;
		else
			at += (size_t)n;
	}
	memmove(emit->text, emit->text + length, emit->n - length);
	emit->n -= length;
}

/* Puts the text, or only counts its lines. */
static void put_as_it_is(struct cl_emit *emit, const char *text, size_t length)
{
	if (emit->dry) {
		for (; length; length--)
			emit->lines += *text++ == '\n';
		return;
	}
	while (length) {
		size_t room = sizeof(emit->text) - emit->n, part = length < room ? length : room;

		memcpy(emit->text + emit->n, text, part);
		emit->n += part;
		text += part;
		length -= part;
		if (emit->n == sizeof(emit->text)) {
			const char *last = memrchr(emit->text, '\n', emit->n);

			/* whole lines, so that those of several processes mix less */
			write_out(emit, last ? (size_t)(last + 1 - emit->text) : emit->n);
		}
	}
}

/* Puts the line that was gathered, folded. */
static void put_line(struct cl_emit *emit)
{
	const char *line = emit->line;
	size_t n = emit->line_n, part, next;

	for (bool rest = false; n; rest = true) {
		part = cl_fold(line, n, rest, &next);
		if (rest)
			put_as_it_is(emit, CL_FOLD_INDENT, sizeof(CL_FOLD_INDENT) - 1);
		put_as_it_is(emit, line, part);
		if (next < n)
			put_as_it_is(emit, "\n", 1);
		line += next;
		n -= next;
	}
	emit->line_n = 0;
}

static void put(struct cl_emit *emit, const char *text, size_t length)
{
	if (!emit->fold || emit->json) {
		put_as_it_is(emit, text, length);
		return;
	}
	while (length) {
		const char *end = memchr(text, '\n', length);
		size_t room = sizeof(emit->line) - emit->line_n, part = end ? (size_t)(end - text) : length;

		part = part < room ? part : room;
		memcpy(emit->line + emit->line_n, text, part);
		emit->line_n += part;
		text += part;
		length -= part;
		/* a line that does not fit into .line is folded in parts: each is folded as if a line began with it */
		if (!end && emit->line_n < sizeof(emit->line))
			break;
		put_line(emit);
		if (length && *text == '\n') {
			put_as_it_is(emit, text++, 1);
			length--;
		}
	}
}

void cl_emit_flush(struct cl_emit *emit)
{
	put_line(emit);
	write_out(emit, emit->n);
}

static void puts_to(struct cl_emit *emit, const char *text)
{
	put(emit, text, strlen(text));
}

void cl_emit_begin(struct cl_emit *emit, int fd, bool json)
{
	emit->fd = fd;
	emit->json = json;
	emit->comma = false;
	emit->dry = false;
	emit->lines = 0;
	emit->colour = false;
	emit->fold = false;
	emit->line_n = 0;
	emit->error = 0;
	emit->patience = 0;
	emit->n = 0;
}

/* ------------------------------------------------------------------- escaping */
static void put_escaped(struct cl_emit *emit, const char *value)
{
	const unsigned char *s = (const unsigned char *)value;
	char escape[16];
	uint32_t code;

	while (*s) {
		unsigned int n = cl_utf8(s, &code);

		if (!n) {
			/* JSON cannot have such a byte: U+FFFD stands for it */
			snprintf(escape, sizeof(escape), emit->json ? "\\ufffd" : "\\x%02x", *s);
			puts_to(emit, escape);
			n = 1;
		} else if (code == '\\' || (code == '"' && emit->json)) {
			escape[0] = '\\';
			escape[1] = (char)code;
			put(emit, escape, 2);
		} else if (cl_is_control(code)) {
			if (emit->json || code > 0xff)
				snprintf(escape, sizeof(escape), "\\u%04x", code);
			else if (code == '\n')
				snprintf(escape, sizeof(escape), "\\n");
			else
				snprintf(escape, sizeof(escape), "\\x%02x", code);
			puts_to(emit, escape);
		} else {
			put(emit, (const char *)s, n);
		}
		s += n;
	}
}

/* ------------------------------------------------------------ JSON's structure */
static void comma(struct cl_emit *emit)
{
	if (emit->comma)
		put(emit, ",", 1);
	emit->comma = true;
}

static void member(struct cl_emit *emit, const char *key)
{
	comma(emit);
	if (key) {
		put(emit, "\"", 1);
		puts_to(emit, key);
		put(emit, "\":", 2);
	}
}

static void open_with(struct cl_emit *emit, const char *key, const char *bracket)
{
	if (!emit->json)
		return;
	member(emit, key);
	puts_to(emit, bracket);
	emit->comma = false;
}

static void close_with(struct cl_emit *emit, const char *bracket)
{
	if (!emit->json)
		return;
	puts_to(emit, bracket);
	emit->comma = true;
}

void cl_emit_line(struct cl_emit *emit, const char *type)
{
	char text[64];

	if (!emit->json)
		return;
	snprintf(text, sizeof(text), "{\"culimbo\":%u,\"type\":\"%s\"", CL_EMIT_VERSION, type);
	puts_to(emit, text);
	emit->comma = true;
}

void cl_emit_line_end(struct cl_emit *emit)
{
	if (!emit->json)
		return;
	put(emit, "}\n", 2);
	emit->comma = false;
}

void cl_emit_array(struct cl_emit *emit, const char *key)
{
	open_with(emit, key, "[");
}

void cl_emit_array_end(struct cl_emit *emit)
{
	close_with(emit, "]");
}

void cl_emit_object(struct cl_emit *emit, const char *key)
{
	open_with(emit, key, "{");
}

void cl_emit_object_end(struct cl_emit *emit)
{
	close_with(emit, "}");
}

/* ----------------------------------------------------------------------- facts */
void cl_emit_words(struct cl_emit *emit, const char *format, ...)
{
	char line[512];
	va_list args;
	int n;

	if (emit->json)
		return;
	va_start(args, format);
	n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (n > 0)
		put(emit, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

const char *const cl_emit_colours[] = { [CL_EMIT_PLAIN] = "\033[0m", [CL_EMIT_FAULT] = "\033[1;31m",
					[CL_EMIT_HINT] = "\033[36m" };

void cl_emit_paint(struct cl_emit *emit, enum cl_emit_colour colour)
{
	if (emit->colour && !emit->json)
		puts_to(emit, cl_emit_colours[colour]);
}

bool cl_emit_wants_colour(int fd)
{
	return cl_options.color.number == CL_COLOR_ALWAYS ||
	       (cl_options.color.number == CL_COLOR_AUTO && isatty(fd));
}

/* Writes a value that needs no escapes, as @json or as @text. */
static void fact(struct cl_emit *emit, const char *key, const char *json, const char *text,
		 const char *before, const char *after)
{
	if (emit->json && key) {
		member(emit, key);
		puts_to(emit, json);
	} else if (!emit->json && before) {
		puts_to(emit, before);
		puts_to(emit, text);
		puts_to(emit, after);
	}
}

void cl_emit_number(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		    const char *after)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	fact(emit, key, text, text, before, after);
}

const char *cl_emit_format_bytes(char to[32], uint64_t n)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	unsigned int u = 0;
	uint64_t rest = 0;

	while (n >= 1024 && u < sizeof(unit) / sizeof(unit[0]) - 1) {
		rest = n % 1024;
		n /= 1024;
		u++;
	}
	if (u && rest * 10 / 1024)
		snprintf(to, 32, "%llu.%llu %s", (unsigned long long)n,
			 (unsigned long long)(rest * 10 / 1024), unit[u]);
	else
		snprintf(to, 32, "%llu %s", (unsigned long long)n, unit[u]);
	return to;
}

const char *cl_emit_format_age(char to[32], uint64_t ns)
{
	uint64_t ms = ns / 1000000, minutes = ms / 60000;

	if (ms < 1000)
		snprintf(to, 32, "%llu ms", (unsigned long long)ms);
	else if (ms < 120000)
		snprintf(to, 32, "%llu.%llu s", (unsigned long long)(ms / 1000),
			 (unsigned long long)(ms % 1000 / 100));
	else if (minutes < 120)
		snprintf(to, 32, "%llu min", (unsigned long long)minutes);
	else if (minutes < 48 * 60)
		snprintf(to, 32, "%llu h %llu min", (unsigned long long)(minutes / 60),
			 (unsigned long long)(minutes % 60));
	else
		snprintf(to, 32, "%llu days", (unsigned long long)(minutes / 1440));
	return to;
}

void cl_emit_bytes(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		   const char *after)
{
	char json[32], text[32];

	snprintf(json, sizeof(json), "%llu", (unsigned long long)value);
	fact(emit, key, json, cl_emit_format_bytes(text, value), before, after);
}

void cl_emit_age(struct cl_emit *emit, const char *key, uint64_t ns, const char *before,
		 const char *after)
{
	char json[32], text[32];

	snprintf(json, sizeof(json), "%llu", (unsigned long long)ns);
	fact(emit, key, json, cl_emit_format_age(text, ns), before, after);
}

void cl_emit_address(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		     const char *after)
{
	char json[40], text[32];

	snprintf(text, sizeof(text), "0x%llx", (unsigned long long)value);
	snprintf(json, sizeof(json), "\"%s\"", text);
	fact(emit, key, json, text, before, after);
}

void cl_emit_string(struct cl_emit *emit, const char *key, const char *value, const char *before,
		    const char *after)
{
	if (emit->json && key) {
		member(emit, key);
		put(emit, "\"", 1);
		put_escaped(emit, value);
		put(emit, "\"", 1);
	} else if (!emit->json && before) {
		puts_to(emit, before);
		put_escaped(emit, value);
		puts_to(emit, after);
	}
}

void cl_emit_flag(struct cl_emit *emit, const char *key, bool value)
{
	fact(emit, key, value ? "true" : "false", "", NULL, "");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* JUnit and GitHub: see check_format.h. */
#include "config.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/report/report.h"
#include "tools/commands/check_format.h"

bool cu_check_format_read(const char *word, enum cu_check_format *format)
{
	static const char *const words[CU_CHECK_FORMATS] = { "text", "json", "junit", "github" };

	for (int i = 0; i < CU_CHECK_FORMATS; i++)
		if (!strcmp(word, words[i])) {
			*format = (enum cu_check_format)i;
			return true;
		}
	return false;
}

/* ------------------------------------------------------------------ the objects */
/* Returns the end of the JSON string that begins at @s. */
static const char *string_end(const char *s)
{
	while (*s && *s != '"')
		s += *s == '\\' && s[1] ? 2 : 1;
	return s;
}

/*
 * Returns the value of @key in the object that begins at @object, but not in objects within it;
 * NULL if there is none.
 */
static const char *value_of(const char *object, const char *key)
{
	size_t length = strlen(key);
	int depth = 0;

	for (const char *at = object; *at; at++) {
		if (*at == '"') {
			const char *end = string_end(at + 1);

			if (!*end)
				return NULL;
			if (depth == 1 && end[1] == ':' && (size_t)(end - at - 1) == length &&
			    !strncmp(at + 1, key, length))
				return end + 2;
			at = end;
		} else if (*at == '{' || *at == '[') {
			depth++;
		} else if ((*at == '}' || *at == ']') && --depth == 0) {
			return NULL;
		}
	}
	return NULL;
}

static uint64_t number_of(const char *object, const char *key)
{
	const char *at = value_of(object, key);

	return at ? strtoull(at, NULL, 10) : 0;
}

static bool flag_of(const char *object, const char *key)
{
	const char *at = value_of(object, key);

	return at && !strncmp(at, "true", 4);
}

/* Copies the text of @key to @to, "" if there is none.  A control byte becomes '?'. */
static const char *text_of(const char *object, const char *key, char *to, size_t size)
{
	const char *at = value_of(object, key), *end;
	size_t n = 0;

	*to = 0;
	if (!at || *at != '"')
		return to;
	end = string_end(++at);
	for (; at < end && n < size - 1; at++) {
		if (*at == '\\' && at + 1 < end) {
			at++;
			if (*at == 'u') {
				at += at + 4 < end ? 4 : end - at - 1;
				to[n++] = '?';
				continue;
			}
			if (strchr("bfnrt", *at)) {
				to[n++] = '?';
				continue;
			}
		}
		to[n++] = *at;
	}
	to[n] = 0;
	return to;
}

/* -------------------------------------------------------------------- a finding */
struct frame {
	char function[256], file[512], module[512];
	uint64_t line;
};

struct finding {
	char class[64], command[256], hint[512], what[1024];
	struct frame at; /* where in the program; "" if that is not known */
	const char *object;
};

static void read_frame(struct frame *frame, const char *object)
{
	text_of(object, "function", frame->function, sizeof(frame->function));
	text_of(object, "file", frame->file, sizeof(frame->file));
	text_of(object, "module", frame->module, sizeof(frame->module));
	frame->line = number_of(object, "line");
}

/* Calls @each with the frames of the array at @stack, until it returns false. */
static void each_frame(const char *stack, bool (*each)(void *data, const struct frame *frame), void *data)
{
	int depth = 0;

	for (const char *at = stack; at && *at; at++) {
		struct frame frame;

		if (*at == '"') {
			at = string_end(at + 1);
			if (!*at)
				return;
		} else if (*at == '[' || *at == '{') {
			if (++depth == 2) {
				read_frame(&frame, at);
				if (!each(data, &frame))
					return;
			}
		} else if ((*at == ']' || *at == '}') && --depth == 0) {
			return;
		}
	}
}

static bool take_place(void *data, const struct frame *frame)
{
	if (!frame->file[0] || !frame->line || cl_report_is_runtime(frame->module))
		return true;
	*(struct frame *)data = *frame;
	return false;
}

/* Returns the path within the repository, the only one that GitHub and its readers know. */
static const char *relative(const char *file)
{
	const char *const roots[] = { getenv("GITHUB_WORKSPACE"), getcwd(NULL, 0) };
	const char *path = file;

	for (int i = 0; i < 2; i++) {
		size_t length = roots[i] ? strlen(roots[i]) : 0;

		if (path == file && length > 1 && !strncmp(file, roots[i], length) && file[length] == '/')
			path = file + length + 1;
	}
	free((void *)roots[1]);
	return path;
}

/* Reads the finding in @object.  Returns false if it has none.  @command is the process's. */
static bool take_finding(struct finding *f, const char *object, const char *type, const char *command)
{
	uint64_t count = number_of(object, "count"), bytes = number_of(object, "bytes");
	char kind[16], size[32];

	if (!flag_of(object, "finding"))
		return false;
	memset(f, 0, sizeof(*f));
	f->object = object;
	if (!strcmp(type, "descendant")) {
		snprintf(f->class, sizeof(f->class), "unprotected");
		text_of(object, "command", f->command, sizeof(f->command));
		snprintf(f->hint, sizeof(f->hint), "start it under culimbo too: LD_PRELOAD got lost on the way to it");
		snprintf(f->what, sizeof(f->what), "process %" PRIu64 " (%s) uses CUDA without culimbo",
			 number_of(object, "pid"), f->command);
		return true;
	}
	if (strcmp(type, "group"))
		return false;
	text_of(object, "class", f->class, sizeof(f->class));
	text_of(object, "hint", f->hint, sizeof(f->hint));
	text_of(object, "kind", kind, sizeof(kind));
	snprintf(f->command, sizeof(f->command), "%s", command);
	each_frame(value_of(object, "stack"), take_place, &f->at);
	if (!f->at.file[0])
		each_frame(value_of(object, "other_stack"), take_place, &f->at);
	cl_emit_format_bytes(size, bytes);
	snprintf(f->what, sizeof(f->what), "%s: %" PRIu64 " %s%s%s%s%s%s of process %" PRIu64 " (%s)", f->class, count,
		 strcmp(kind, "event") ? "block" : "event", count == 1 ? "" : "s", bytes ? ", " : "",
		 bytes ? size : "", f->at.function[0] ? " in " : "", f->at.function, number_of(object, "pid"),
		 command);
	return true;
}

/* ------------------------------------------------------------------------ GitHub */
/* The end of a line ends a message; a comma or colon also ends a property. */
static void put_github(FILE *to, const char *text, bool property)
{
	for (; *text; text++)
		if (*text == '%' || *text == '\n' || *text == '\r' || (property && (*text == ':' || *text == ',')))
			fprintf(to, "%%%02X", (unsigned char)*text);
		else
			fputc(*text, to);
}

static void write_github(FILE *to, const struct finding *f)
{
	fputs("::error ", to);
	if (f->at.file[0]) {
		fputs("file=", to);
		put_github(to, relative(f->at.file), true);
		fprintf(to, ",line=%" PRIu64 ",", f->at.line);
	}
	fputs("title=culimbo ", to);
	put_github(to, f->class, true);
	fputs("::", to);
	put_github(to, f->what, false);
	if (f->hint[0]) {
		fputs(". ", to);
		put_github(to, f->hint, false);
	}
	fputc('\n', to);
}

/* ------------------------------------------------------------------------- JUnit */
static void put_xml(FILE *to, const char *text)
{
	for (; *text; text++)
		if (strchr("<>&\"'", *text))
			fprintf(to, "&#%d;", *text);
		else if ((unsigned char)*text < ' ' && *text != '\n' && *text != '\t')
			fputc('?', to);
		else
			fputc(*text, to);
}

struct lines {
	FILE *to;
	unsigned int n;
};

static bool write_frame(void *data, const struct frame *frame)
{
	struct lines *lines = data;

	fprintf(lines->to, "  #%u ", lines->n++);
	put_xml(lines->to, frame->function[0] ? frame->function : frame->module);
	if (frame->file[0]) {
		fputc(' ', lines->to);
		put_xml(lines->to, relative(frame->file));
		fprintf(lines->to, ":%" PRIu64, frame->line);
	}
	fputc('\n', lines->to);
	return true;
}

static void write_failure(FILE *to, const char *class, const char *name, const char *message, const char *object)
{
	static const char *const stacks[] = { "stack", "other_stack" };

	fputs("  <testcase classname=\"culimbo.", to);
	put_xml(to, class);
	fputs("\" name=\"", to);
	put_xml(to, name);
	if (!message) {
		fputs("\"/>\n", to);
		return;
	}
	fputs("\">\n   <failure type=\"", to);
	put_xml(to, class);
	fputs("\" message=\"", to);
	put_xml(to, message);
	fputs("\">\n", to);
	put_xml(to, name);
	fputs("\n", to);
	for (int i = 0; object && i < 2; i++) {
		struct lines lines = { .to = to };

		if (i && value_of(object, stacks[i]))
			fputs("  clashes with\n", to);
		each_frame(value_of(object, stacks[i]), write_frame, &lines);
	}
	fputs("   </failure>\n  </testcase>\n", to);
}

/* -------------------------------------------------------------------------- both */
void cu_check_format_write(enum cu_check_format format, FILE *from, FILE *to, const char *cmd,
			   const char *failed)
{
	char *line = NULL, *cases = NULL, type[32], command[256] = "";
	uint64_t processes = 0, findings = 0;
	unsigned int tests = 0, failures = 0;
	struct finding *f = malloc(sizeof(*f));
	size_t size = 0, length = 0;
	FILE *body = open_memstream(&cases, &length);

	while (f && body && getline(&line, &size, from) > 0) {
		text_of(line, "type", type, sizeof(type));
		if (!strcmp(type, "process"))
			text_of(line, "command", command, sizeof(command));
		if (!strcmp(type, "check")) {
			processes = number_of(line, "processes");
			findings = number_of(line, "findings");
		}
		if (!take_finding(f, line, type, command))
			continue;
		tests++;
		failures++;
		if (format == CU_CHECK_GITHUB)
			write_github(body, f);
		else
			write_failure(body, f->class, f->what, f->hint[0] ? f->hint : f->what, f->object);
	}
	if (!f || !body)
		goto out;
	if (format == CU_CHECK_GITHUB && failed) {
		fputs("::error title=culimbo check::", body);
		put_github(body, failed, false);
		fputc('\n', body);
	}
	/* a test case that says what was checked: an empty suite would look like no check */
	if (format == CU_CHECK_JUNIT) {
		write_failure(body, "check", cmd, failed, NULL);
		tests++;
		failures += failed != NULL;
	}
	fclose(body);
	body = NULL;
	if (format == CU_CHECK_JUNIT)
		fprintf(to,
			"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
			"<testsuites tests=\"%u\" failures=\"%u\" errors=\"0\">\n"
			" <testsuite name=\"culimbo check\" tests=\"%u\" failures=\"%u\" errors=\"0\" skipped=\"0\">\n",
			tests, failures, tests, failures);
	fputs(cases, to);
	if (format == CU_CHECK_JUNIT)
		fputs(" </testsuite>\n</testsuites>\n", to);
	else
		fprintf(to, "culimbo: CHECK processes=%" PRIu64 " findings=%" PRIu64 "\n", processes, findings);
out:
	if (body)
		fclose(body);
	free(cases);
	free(line);
	free(f);
}

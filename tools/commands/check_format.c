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

enum { SIDES = 4, FRAMES = 64 };

/* A process of the other side of a finding: it holds the block, or has freed it. */
struct side {
	char who[400];	   /* with a verb in front: "held by process 12 (./worker)" */
	struct frame at;   /* where it did that, in the program; "" if that is not known */
	const char *stack; /* in JSON; NULL: not known */
};

struct finding {
	char class[64], command[256], hint[512], what[1024], title[512];
	char ends[512]; /* how its processes ended, by which signal; "": none by a signal */
	struct frame at; /* where in the program; "" if that is not known */
	struct side side[SIDES];
	unsigned int sides;
	const char *object;
};

/* A process that a signal ended; 0: which one is not known. */
struct killed {
	uint64_t pid, signal;
	char command[256];
};

struct killed_list {
	struct killed *list;
	size_t n;
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

/* Finds where in the program a stack is: @python has its Python frames, and may be NULL. */
static void find_place(struct frame *at, const char *stack, const char *python)
{
	each_frame(python, take_place, at);
	if (!at->file[0])
		each_frame(stack, take_place, at);
}

static void add_side(struct finding *f, const char *verb, const char *process, const char *stack, const char *python)
{
	struct side *side = &f->side[f->sides];
	char command[256];
	uint64_t pid = number_of(process, "pid");

	if (f->sides == SIDES || !pid)
		return;
	text_of(process, "command", command, sizeof(command));
	if (!*command)
		text_of(process, "name", command, sizeof(command));
	snprintf(side->who, sizeof(side->who), "%s process %" PRIu64 "%s%s%s", verb, pid, *command ? " (" : "", command,
		 *command ? ")" : "");
	find_place(&side->at, stack, python);
	side->stack = python ? python : stack;
	f->sides++;
}

/* Writes how it ended, with @command if that is not NULL. */
static void write_end(char *to, size_t size, const struct killed *killed, const char *command)
{
	char how[96] = "ended without a report: probably killed, by which signal is not known";

	if (killed->signal)
		snprintf(how, sizeof(how), "was killed by signal %d (%s)", (int)killed->signal, strsignal((int)killed->signal));
	snprintf(to, size, "process %" PRIu64 "%s%s%s %s", killed->pid, command ? " (" : "", command ? command : "",
		 command ? ")" : "", how);
}

static void add_end(struct finding *f, uint64_t pid, const struct killed_list *killed)
{
	size_t used = strlen(f->ends);

	for (size_t i = 0; i < killed->n && pid; i++)
		if (killed->list[i].pid == pid && used < sizeof(f->ends)) {
			char how[160];

			write_end(how, sizeof(how), &killed->list[i], NULL);
			snprintf(f->ends + used, sizeof(f->ends) - used, "%s%s", used ? "; " : "", how);
			return;
		}
}

/* Reads who is on the other side of the finding in @object, and how the processes ended. */
static void take_sides(struct finding *f, const char *object, const struct killed_list *killed)
{
	const char *exporter = value_of(object, "exporter"), *other = value_of(object, "other");
	const char *holders = value_of(object, "holders"), *stack;
	int depth = 0;

	add_end(f, number_of(object, "pid"), killed);
	if (exporter) {
		stack = value_of(exporter, "free_stack");
		add_side(f, stack ? "freed by" : "exported by", exporter, stack,
			 value_of(exporter, "free_stack_python"));
		add_end(f, number_of(exporter, "pid"), killed);
	}
	for (const char *at = holders; at && *at; at++) {
		if (*at == '"') {
			at = string_end(at + 1);
			if (!*at)
				break;
		} else if (*at == '[' || *at == '{') {
			if (++depth != 2)
				continue;
			add_side(f, "held by", at, value_of(at, "open_stack"), value_of(at, "open_stack_python"));
			add_end(f, number_of(at, "pid"), killed);
		} else if ((*at == ']' || *at == '}') && --depth == 0) {
			break;
		}
	}
	if (!other)
		return;
	add_side(f, !strcmp(f->class, "opened-after-free") || !strcmp(f->class, "stale-open") ? "freed by" : "held by", other,
		 value_of(object, "other_stack"), value_of(object, "other_stack_python"));
	add_end(f, number_of(other, "pid"), killed);
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
static bool take_finding(struct finding *f, const char *object, const char *type, const char *command,
			 const struct killed_list *killed)
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
		add_end(f, number_of(object, "pid"), killed);
		return true;
	}
	if (strcmp(type, "group"))
		return false;
	text_of(object, "class", f->class, sizeof(f->class));
	text_of(object, "hint", f->hint, sizeof(f->hint));
	text_of(object, "kind", kind, sizeof(kind));
	snprintf(f->command, sizeof(f->command), "%s", command);
	text_of(object, "title", f->title, sizeof(f->title));
	find_place(&f->at, value_of(object, "stack"), value_of(object, "stack_python"));
	if (!f->at.file[0])
		find_place(&f->at, value_of(object, "other_stack"), value_of(object, "other_stack_python"));
	take_sides(f, object, killed);
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
	for (unsigned int i = 0; i < f->sides; i++) {
		const struct side *side = &f->side[i];

		fputs(i ? ", " : "; ", to);
		put_github(to, side->who, false);
		if (!side->at.file[0])
			continue;
		fputs(" in ", to);
		put_github(to, side->at.function, false);
		fputc(' ', to);
		put_github(to, relative(side->at.file), false);
		fprintf(to, ":%" PRIu64, side->at.line);
	}
	if (f->ends[0]) {
		fputs(". ", to);
		put_github(to, f->ends, false);
	}
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

struct stack {
	struct frame frame[FRAMES];
	unsigned int n;
};

static bool take_frame(void *data, const struct frame *frame)
{
	struct stack *stack = data;

	if (stack->n == FRAMES)
		return false;
	stack->frame[stack->n++] = *frame;
	return true;
}

/* Writes a stack, as the text has it: from the program's first function to its main(). */
static void write_stack(FILE *to, const char *object)
{
	struct stack *stack = calloc(1, sizeof(*stack));
	unsigned int first = 0, end, n = 0;

	if (!stack)
		return;
	each_frame(object, take_frame, stack);
	while (first < stack->n && cl_report_is_runtime(stack->frame[first].module))
		first++;
	for (end = first; end < stack->n && strcmp(stack->frame[end].function, "main") != 0;)
		end++;
	end += end < stack->n;
	if (first == end) { /* nothing but libraries */
		first = 0;
		end = stack->n;
	}
	for (; first < end; first++) {
		const struct frame *frame = &stack->frame[first];

		fprintf(to, "  #%u ", n++);
		put_xml(to, frame->function[0] ? frame->function : frame->module);
		if (frame->file[0]) {
			fputc(' ', to);
			put_xml(to, relative(frame->file));
			fprintf(to, ":%" PRIu64, frame->line);
		}
		fputc('\n', to);
	}
	free(stack);
}

static void write_details(FILE *to, const struct finding *f)
{
	const char *python = value_of(f->object, "stack_python"), *stack = python ? python : value_of(f->object, "stack");
	bool other = false;

	if (f->title[0]) {
		put_xml(to, f->title);
		fputc('\n', to);
	}
	if (f->ends[0]) {
		put_xml(to, f->ends);
		fputc('\n', to);
	}
	if (stack)
		write_stack(to, stack);
	for (unsigned int i = 0; i < f->sides; i++) {
		put_xml(to, f->side[i].who);
		fputs(f->side[i].stack ? " from\n" : "\n", to);
		if (f->side[i].stack)
			write_stack(to, f->side[i].stack);
		other |= f->side[i].stack != NULL;
	}
	/* both calls were of one process */
	stack = value_of(f->object, "other_stack");
	if (stack && !other) {
		fputs("clashes with\n", to);
		write_stack(to, stack);
	}
}

/*
 * Writes a test case.  It passes if @message is NULL.  @f has details of a finding, @notes what else
 * is to be said; both may be NULL.
 */
static void write_case(FILE *to, const char *class, const char *name, const char *message, const struct finding *f,
		       const char *notes)
{
	fputs("  <testcase classname=\"culimbo.", to);
	put_xml(to, class);
	fputs("\" name=\"", to);
	put_xml(to, name);
	fputs("\">\n", to);
	if (message) {
		fputs("   <failure type=\"", to);
		put_xml(to, class);
		fputs("\" message=\"", to);
		put_xml(to, message);
		fputs("\">\n", to);
		put_xml(to, name);
		fputs("\n", to);
		if (f)
			write_details(to, f);
		fputs("   </failure>\n", to);
	}
	if (notes && *notes) {
		fputs("   <system-out>\n", to);
		put_xml(to, notes);
		fputs("   </system-out>\n", to);
	}
	fputs("  </testcase>\n", to);
}

/* -------------------------------------------------------------------------- both */
/* Reads the processes that a signal ended: their lines follow those of the findings. */
static void take_killed(struct killed_list *killed, FILE *from)
{
	char *line = NULL, type[32], ended[16];
	size_t size = 0;

	while (getline(&line, &size, from) > 0) {
		struct killed one = { .pid = number_of(line, "pid"), .signal = number_of(line, "signal") }, *list;

		text_of(line, "type", type, sizeof(type));
		text_of(line, "ended", ended, sizeof(ended));
		if (strcmp(type, "descendant") != 0 || (!one.signal && (strcmp(ended, "unknown") || flag_of(line, "unprotected"))))
			continue;
		text_of(line, "command", one.command, sizeof(one.command));
		list = realloc(killed->list, (killed->n + 1) * sizeof(*list));
		if (!list)
			break;
		killed->list = list;
		killed->list[killed->n++] = one;
	}
	free(line);
	rewind(from);
}

/* Says of each process that a signal ended so, whether or not a finding is of it. */
static void say_killed(enum cu_check_format format, FILE *body, FILE *notes, const struct killed_list *killed)
{
	for (size_t i = 0; i < killed->n; i++) {
		char text[400];

		write_end(text, sizeof(text), &killed->list[i], killed->list[i].command);
		fprintf(notes, "%s\n", text);
		if (format != CU_CHECK_GITHUB)
			continue;
		fputs("::warning title=culimbo check::", body);
		put_github(body, text, false);
		fputc('\n', body);
	}
}

void cu_check_format_write(enum cu_check_format format, FILE *from, FILE *to, const char *cmd,
			   const char *failed)
{
	char *line = NULL, *cases = NULL, *said = NULL, type[32], command[256] = "";
	uint64_t processes = 0, findings = 0;
	unsigned int tests = 0, failures = 0;
	struct finding *f = malloc(sizeof(*f));
	struct killed_list killed = { .n = 0 };
	size_t size = 0, length = 0, said_length = 0;
	FILE *body = open_memstream(&cases, &length), *notes = open_memstream(&said, &said_length);

	if (!f || !body || !notes)
		goto out;
	take_killed(&killed, from);
	while (getline(&line, &size, from) > 0) {
		text_of(line, "type", type, sizeof(type));
		if (!strcmp(type, "process"))
			text_of(line, "command", command, sizeof(command));
		if (!strcmp(type, "check")) {
			processes = number_of(line, "processes");
			findings = number_of(line, "findings");
		}
		if (!take_finding(f, line, type, command, &killed))
			continue;
		tests++;
		failures++;
		if (format == CU_CHECK_GITHUB)
			write_github(body, f);
		else
			write_case(body, f->class, f->what, f->hint[0] ? f->hint : f->what, f, NULL);
	}
	say_killed(format, body, notes, &killed);
	fflush(notes);
	if (format == CU_CHECK_GITHUB && failed) {
		fputs("::error title=culimbo check::", body);
		put_github(body, failed, false);
		fputc('\n', body);
	}
	/* a test case that says what was checked: an empty suite would look like no check */
	if (format == CU_CHECK_JUNIT) {
		write_case(body, "check", cmd, failed, NULL, said);
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
	if (notes)
		fclose(notes);
	free(cases);
	free(said);
	free(killed.list);
	free(line);
	free(f);
}

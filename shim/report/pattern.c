/* SPDX-License-Identifier: Apache-2.0 */
/* Prints suppressions: those that matched, and a new one for each group that is reported. */
#include <stdio.h>
#include <string.h>

#include "shim/report/peer_files.h"
#include "shim/report/say_group.h"
#include "shim/report/say_python.h"
#include "shim/report/title.h"

bool cl_report_is_runtime(const char *path)
{
	/* how the names of their files begin */
	static const char *const runtime[] = {
		"libffi.", "libffi-", "_ctypes.", "libpython", "python", "pypy", "libc.so", "libc-", "libc.musl",
		"ld-linux", "ld-musl", "ld.so", "libpthread", "libdl.", "libdl-", "libgcc_s.", "libstdc++.",
		"libc++", "libtorch", "libc10", "libnvrtc", "libcupy", "libnccl",
	};
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	for (unsigned int i = 0; i < sizeof(runtime) / sizeof(runtime[0]); i++)
		if (!strncmp(name, runtime[i], strlen(runtime[i])))
			return true;
	return cl_report_is_inner(path);
}

/*
 * Leaves out a frame of the program that no pattern can name, such as code made at run time.  If it is the
 * innermost one, its callers alone would also hide what they call elsewhere: so there is no pattern.
 */
static void leave_out(struct cl_pattern *pattern)
{
	pattern->gap = true;
	if (!pattern->text[0])
		pattern->cut = true;
}

/* Adds a pattern for a frame: its @function, or @place if @function is NULL. */
static void add(struct cl_pattern *pattern, const char *function, const char *place)
{
	const char *before = pattern->text[0] ? pattern->gap ? ";...;" : ";" : pattern->gap ? "...;" : "";
	size_t n = strlen(pattern->text), room = sizeof(pattern->text) - n;
	int length;

	if (pattern->cut)
		return;
	/* in the pattern of a frame a semicolon would begin the next one */
	if (strchr(function ? function : place, ';')) {
		leave_out(pattern);
		return;
	}
	if (function)
		length = snprintf(pattern->text + n, room, "%s^%s$", before, function);
	else
		length = snprintf(pattern->text + n, room, "%s%s", before, place);
	pattern->gap = false;
	if (length >= (int)room) {
		/* a pattern that is cut would match nothing; the frames before it are enough */
		pattern->text[n] = 0;
		pattern->cut = true;
	}
}

void cl_pattern_add(struct cl_pattern *pattern, const char *function, const char *path, uint64_t offset)
{
	const char *slash = strrchr(path, '/');
	bool named = function[0] && !strchr(function, ';') && (pattern->text[0] || strcmp(function, "main"));
	char place[1100];

	if (cl_report_is_runtime(path) || !strcmp(function, "_start")) {
		pattern->gap = true;
		return;
	}
	if (!named && !path[0]) {
		leave_out(pattern);
		return;
	}
	snprintf(place, sizeof(place), "%s+%#llx$", slash ? slash : path, (unsigned long long)offset);
	add(pattern, named ? function : NULL, place);
}

void cl_pattern_add_python(struct cl_pattern *pattern, const char *function, const char *file)
{
	const char *slash = strrchr(file, '/');
	bool named = function[0] != '<' && strcmp(function, "main") != 0;
	char place[256];

	if (!cl_report_is_own_python(file)) {
		pattern->gap = true;
		return;
	}
	/* code outside of all functions, "<module>", is named by its file, as is main */
	snprintf(place, sizeof(place), "%s$", slash ? slash : file);
	add(pattern, named ? function : NULL, place);
}

void cl_report_say_pattern(struct cl_emit *e, const struct cl_suppressible *of,
			   const struct cl_pattern *pattern)
{
	char before[64];

	if (!pattern->text[0]) {
		cl_emit_words(e, "# %s: %llu %s, process %u: %s\n", of->class, (unsigned long long)of->n, of->what, of->pid,
			      of->many ? "a process has opened them at several places, and a suppression of one of these "
					 "would hide the others" :
			      pattern->cut ? "the code that called CUDA was made at run time and has no name, and a "
					     "suppression of its callers would hide other bugs" :
					     "no function of the program is known, and a suppression "
					     "of what all programs have in their stacks would hide other bugs");
		return;
	}
	snprintf(before, sizeof(before), "%s:stack:", of->class);
	cl_emit_line(e, "suppression");
	cl_emit_words(e, "# %s: %llu %s, process %u\n", of->class, (unsigned long long)of->n, of->what,
		      of->pid);
	cl_emit_string(e, "class", of->class, NULL, "");
	cl_emit_string(e, "pattern", pattern->text, before, "\n");
	cl_emit_flag(e, "stack", true);
	cl_emit_number(e, "count", of->n, NULL, "");
	cl_emit_bytes(e, "bytes", of->bytes, NULL, "");
	cl_emit_line_end(e);
}

/* Adds the frames of a stack. */
static void add_stack(struct cl_report *report, const struct cl_view *view, uint32_t stack, struct cl_pattern *pattern)
{
	/* static: there is one report at a time in a process, and its stack may be small */
	static struct cl_report_symbol symbol;
	unsigned int depth = cl_view_stack_depth(view, stack);
	unsigned int python_depth = cl_view_python_depth(view, stack, NULL);
	struct cl_view_python python;
	struct cl_view_frame frame;

	for (unsigned int i = 0; i < python_depth; i++)
		if (cl_view_python_frame(view, stack, i, &python))
			cl_pattern_add_python(pattern, python.function, python.file);
	/* below Python's frames there is only the interpreter */
	for (unsigned int i = 0; i < depth && !(python_depth && pattern->text[0]); i++) {
		if (!cl_view_stack_frame(view, stack, i, &frame))
			continue;
		symbol = (struct cl_report_symbol){ .line = 0 };
		if (report->resolve)
			report->resolve(report->data, view, &frame, &symbol);
		cl_pattern_add(pattern, symbol.function, frame.path, frame.offset);
	}
}

void cl_report_say_group_pattern(struct cl_report *report, const struct cl_report_group *g)
{
	static struct cl_pattern pattern, before;
	struct cl_suppressible of = { .class = cl_report_classes[g->class].name,
				      .what = cl_report_what(g, g->n != 1), .n = g->n, .bytes = g->bytes,
				      .pid = report->process.who.pid };

	/* the holder of a block is the culprit */
	for (unsigned int i = 0; i < g->holders; i++) {
		const struct cl_view *its;
		uint32_t stack = cl_report_holder_stack(report, g, i, &its);

		pattern = (struct cl_pattern){ .cut = false };
		of.many = cl_report_holder_has_more_stacks(report, g, i);
		if (stack && !of.many)
			add_stack(report, its, stack, &pattern);
		if (i == 0 || strcmp(pattern.text, before.text))
			cl_report_say_pattern(&report->emit, &of, &pattern);
		before = pattern;
	}
	pattern = (struct cl_pattern){ .cut = false };
	for (int s = 0; s < 2 && !pattern.text[0] && !pattern.cut; s++)
		add_stack(report, report->view, g->stack[s], &pattern);
	if (!g->holders)
		cl_report_say_pattern(&report->emit, &of, &pattern);
}

void cl_report_say_suppressions(struct cl_report *report)
{
	struct cl_emit *e = &report->emit;
	bool any = false;

	for (unsigned int i = 0; report->suppressions && i < report->suppressions->n; i++) {
		const struct cl_suppression *s = &report->suppressions->list[i];
		char before[64];

		if (!s->blocks)
			continue;
		snprintf(before, sizeof(before), ": %s%s%s", s->class ? s->class : "", s->class ? ":" : "",
			 s->stack ? "stack:" : "leak:");
		if (!any)
			cl_emit_words(e, "culimbo: suppressions that matched:\n");
		any = true;
		cl_emit_line(e, "suppressed");
		cl_emit_number(e, "count", s->blocks, "  ", "");
		cl_emit_bytes(e, "bytes", s->bytes, ", ", "");
		if (s->class)
			cl_emit_string(e, "class", s->class, NULL, "");
		cl_emit_string(e, "pattern", s->pattern, before, "\n");
		cl_emit_flag(e, "stack", s->stack);
		cl_emit_line_end(e);
	}
	if (!any)
		cl_emit_words(e, "culimbo: no suppression matched\n");
}

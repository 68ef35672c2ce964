/* SPDX-License-Identifier: Apache-2.0 */
/* Suppressions as they are printed: those that matched, and new ones for what is found. */
#include <stdio.h>
#include <string.h>

#include "shim/report/say_group.h"

bool cl_report_is_inner(const char *path)
{
	static const char *const inner[] = { "libculimbo.so", "libcuda.so", "libcudart.so",
					     "libcudart_static" };

	for (unsigned int i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
		if (strstr(path, inner[i]))
			return true;
	return false;
}

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

void cl_pattern_add(struct cl_pattern *pattern, const char *function, const char *path, uint64_t offset)
{
	const char *slash = strrchr(path, '/'), *before = pattern->text[0] ? pattern->gap ? ";...;" : ";" :
							   pattern->gap ? "...;" : "";
	size_t n = strlen(pattern->text), room = sizeof(pattern->text) - n;
	/* in the pattern of a frame a semicolon would begin the next one */
	bool named = function[0] && !strchr(function, ';') && (n || strcmp(function, "main"));
	int length;

	if (pattern->cut)
		return;
	if (cl_report_is_runtime(path) || !strcmp(function, "_start") ||
	    (!named && (!path[0] || strchr(path, ';')))) {
		pattern->gap = true;
		return;
	}
	if (named)
		length = snprintf(pattern->text + n, room, "%s^%s$", before, function);
	else
		length = snprintf(pattern->text + n, room, "%s%s+%#llx$", before, slash ? slash : path,
				  (unsigned long long)offset);
	pattern->gap = false;
	if (length >= (int)room) {
		/* a pattern that is cut would match nothing; the frames before it are enough */
		pattern->text[n] = 0;
		pattern->cut = true;
	}
}

void cl_report_say_pattern(struct cl_emit *e, const struct cl_suppressible *of,
			   const struct cl_pattern *pattern)
{
	if (!pattern->text[0]) {
		cl_emit_words(e, "# %s: %llu %s, process %u: no function of the program is known, and a suppression "
				 "of what all programs have in their stacks would hide other bugs\n", of->class,
			      (unsigned long long)of->n, of->what, of->pid);
		return;
	}
	cl_emit_line(e, "suppression");
	cl_emit_words(e, "# %s: %llu %s, process %u\n", of->class, (unsigned long long)of->n, of->what,
		      of->pid);
	cl_emit_string(e, "pattern", pattern->text, "stack:", "\n");
	cl_emit_flag(e, "stack", true);
	cl_emit_number(e, "count", of->n, NULL, "");
	cl_emit_bytes(e, "bytes", of->bytes, NULL, "");
	cl_emit_line_end(e);
}

void cl_report_say_group_pattern(struct cl_report *report, const struct cl_report_group *g)
{
	/* static: there is one report at a time in a process, and its stack may be small */
	static struct cl_report_symbol symbol;
	static struct cl_pattern pattern;
	struct cl_view_frame frame;
	struct cl_suppressible of = { .class = cl_report_classes[g->class].name,
				      .what = cl_report_what(g, g->n != 1), .n = g->n, .bytes = g->bytes,
				      .pid = report->process.who.pid };

	pattern = (struct cl_pattern){ .cut = false };
	for (int s = 0; s < 2 && !pattern.text[0]; s++) {
		unsigned int depth = cl_view_stack_depth(report->view, g->stack[s]);

		for (unsigned int i = 0; i < depth; i++) {
			if (!cl_view_stack_frame(report->view, g->stack[s], i, &frame))
				continue;
			symbol = (struct cl_report_symbol){ .line = 0 };
			if (report->resolve)
				report->resolve(report->data, report->view, &frame, &symbol);
			cl_pattern_add(&pattern, symbol.function, frame.path, frame.offset);
		}
	}
	cl_report_say_pattern(&report->emit, &of, &pattern);
}

void cl_report_say_suppressions(struct cl_report *report)
{
	struct cl_emit *e = &report->emit;
	bool any = false;

	for (unsigned int i = 0; report->suppressions && i < report->suppressions->n; i++) {
		const struct cl_suppression *s = &report->suppressions->list[i];

		if (!s->blocks)
			continue;
		if (!any)
			cl_emit_words(e, "culimbo: suppressions that matched:\n");
		any = true;
		cl_emit_line(e, "suppressed");
		cl_emit_number(e, "count", s->blocks, "  ", "");
		cl_emit_bytes(e, "bytes", s->bytes, ", ", "");
		cl_emit_string(e, "pattern", s->pattern, s->stack ? ": stack:" : ": leak:", "\n");
		cl_emit_flag(e, "stack", s->stack);
		cl_emit_line_end(e);
	}
	if (!any)
		cl_emit_words(e, "culimbo: no suppression matched\n");
}

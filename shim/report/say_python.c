/* SPDX-License-Identifier: Apache-2.0 */
/* Prints Python frames: see say_python.h. */
#include <stdio.h>
#include <string.h>

#include "shim/report/limit.h"
#include "shim/report/say_python.h"

bool cl_report_is_interpreter(const char *path)
{
	static const char *const names[] = { "python3", "python.", "libpython", "libffi.", "_ctypes.", "_cffi_backend." };
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(name, names[i], strlen(names[i])))
			return true;
	return !strcmp(name, "python");
}

bool cl_report_is_own_python(const char *file)
{
	return !strstr(file, "/site-packages/") && !strstr(file, "/dist-packages/") &&
	       !strstr(file, "/lib/python3") && file[0] != '<';
}

/*
 * Returns how many frames the text shows, of @depth: it ends at the program's outermost one, as the stacks of C
 * end at main.  What called that is multiprocessing, threading, a test runner or the like.
 */
static unsigned int shown_depth(struct cl_report *report, const struct cl_view *view, uint32_t stack, unsigned int depth)
{
	struct cl_view_python frame;

	if (report->emit.json || report->full_stacks)
		return depth;
	for (unsigned int i = depth; i > 0; i--)
		if (cl_view_python_frame(view, stack, i - 1, &frame) && cl_report_is_own_python(frame.file))
			return i;
	return depth;
}

void cl_report_say_python(struct cl_report *report, const struct cl_view *view, uint32_t stack,
			  const char *key, unsigned int number)
{
	struct cl_emit *e = &report->emit;
	struct cl_view_python frame;
	unsigned int depth;
	char name[64];
	bool unread;

	if (!view)
		return;
	depth = cl_view_python_depth(view, stack, &unread);
	if (!depth && !unread)
		return;
	snprintf(name, sizeof(name), "%s_python", key);
	cl_emit_array(e, name);
	depth = shown_depth(report, view, stack, depth);
	for (unsigned int i = 0; i < depth && cl_view_python_frame(view, stack, i, &frame); i++) {
		if (!cl_limit_frame(report))
			continue;
		cl_emit_object(e, NULL);
		cl_emit_words(e, "      #%u", number + i);
		cl_emit_string(e, "function", frame.function, " ", "");
		cl_emit_string(e, "file", frame.file, " (", "");
		if (frame.line)
			cl_emit_number(e, "line", frame.line, ":", "");
		cl_emit_words(e, ")\n");
		cl_emit_object_end(e);
	}
	cl_emit_array_end(e);
	if (unread) {
		snprintf(name, sizeof(name), "%s_python_unread", key);
		if (cl_limit_frame(report))
			cl_emit_words(e, depth ? "      further Python frames not read\n" : "      Python frames not read\n");
		cl_emit_flag(e, name, true);
	}
}

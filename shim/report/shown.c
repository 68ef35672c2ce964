/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the frames that are shown: see shown.h. */
#include <string.h>

#include "shim/base/options.h"
#include "shim/report/shown.h"

bool cl_report_is_inner(const char *path)
{
	static const char *const inner[] = { "libculimbo.so", "libcuda.so", "libcudart.so",
					     "libcudart_static" };

	for (unsigned int i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
		if (strstr(path, inner[i]))
			return true;
	return false;
}

bool cl_report_is_c_library(const char *path)
{
	static const char *const c[] = { "libc.so", "libc-", "libpthread", "ld-linux", "ld-musl" };
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	for (unsigned int i = 0; i < sizeof(c) / sizeof(c[0]); i++)
		if (!strncmp(name, c[i], strlen(c[i])))
			return true;
	return false;
}

enum owner { THE_PROGRAM, C_LIBRARY, A_GO_BETWEEN /* between the program and the driver */ };

static enum owner owner_of(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	if (cl_report_is_inner(path) || !strncmp(name, "libffi.so", 9))
		return A_GO_BETWEEN;
	return cl_report_is_c_library(path) ? C_LIBRARY : THE_PROGRAM;
}

static bool is_start(const struct cl_view *view, uint32_t stack, unsigned int index)
{
	struct cl_view_frame frame;

	return cl_view_stack_frame(view, stack, index, &frame) && frame.is_start;
}

static enum owner owner_of_frame(const struct cl_view *view, uint32_t stack, unsigned int index)
{
	struct cl_view_frame frame;

	return cl_view_stack_frame(view, stack, index, &frame) ? owner_of(frame.path) : THE_PROGRAM;
}

void cl_report_shown(const struct cl_report *report, const struct cl_view *view, uint32_t stack,
		     unsigned int *first, unsigned int *end)
{
	unsigned int depth = view ? cl_view_stack_depth(view, stack) : 0, from = 0, to = depth;

	*first = 0;
	*end = depth;
	if (report->full_stacks)
		return;
	while (from < to && owner_of_frame(view, stack, from) != THE_PROGRAM)
		from++;
	/*
	 * The C library calls main(), and _start calls the C library.  The stacks of an older culimbo do not say whether
	 * they end at _start.  If such a stack was not cut short (its depth is below CULIMBO_STACK), the program's last frame
	 * behind the C library's is taken for _start.  Where it was cut short, that frame may be one that called the C library.
	 */
	if (to - from > 1 && is_start(view, stack, to - 1))
		to--;
	else if (depth < cl_options.stack.number && to - from > 2 &&
		 owner_of_frame(view, stack, to - 1) == THE_PROGRAM &&
		 owner_of_frame(view, stack, to - 2) == C_LIBRARY)
		to--;
	while (to > from && owner_of_frame(view, stack, to - 1) == C_LIBRARY)
		to--;
	if (from == to)
		return;
	*first = from;
	*end = to;
}

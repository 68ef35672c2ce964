/* SPDX-License-Identifier: Apache-2.0 */
/* Tells places in the program from each other: see place.h. */
#include <string.h>

#include "shim/report/place.h"
#include "shim/report/say_python.h"
#include "shim/report/shown.h"

#define OF_PYTHON (UINT64_C(1) << 63) /* set in the number of a place with Python; other places are stacks, of 32 bits */

/* One step of FNV-1a. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x100000001b3u;
	return hash ^ hash >> 32;
}

/* Mixes @text and its end into @hash, so that two texts are not taken for one. */
static uint64_t mix_text(uint64_t hash, const char *text)
{
	do
		hash = mix(hash, (unsigned char)*text);
	while (*text++);
	return hash;
}

static uint64_t mix_frames(uint64_t hash, const struct cl_view *view, uint32_t stack)
{
	unsigned int depth = cl_view_stack_depth(view, stack);
	struct cl_view_frame frame;

	for (unsigned int i = 0; i < depth; i++) {
		if (!cl_view_stack_frame(view, stack, i, &frame) || cl_report_is_interpreter(frame.path) ||
		    cl_report_is_c_library(frame.path))
			continue;
		hash = mix(hash, frame.address);
	}
	return hash;
}

uint64_t cl_report_place_of(const struct cl_view *view, uint32_t stack)
{
	uint64_t hash = 0xcbf29ce484222325u;
	struct cl_view_python frame;
	bool unread = false;
	unsigned int depth = stack ? cl_view_python_depth(view, stack, &unread) : 0;

	if (!depth || unread)
		return stack;
	for (unsigned int i = 0; i < depth; i++) {
		if (!cl_view_python_frame(view, stack, i, &frame) || !frame.line)
			return stack;
		hash = mix_text(mix_text(mix(hash, frame.line), frame.function), frame.file);
	}
	return mix_frames(hash, view, stack) | OF_PYTHON;
}

/* Answers that are remembered, in static memory: there is one report at a time in a process. */
enum { REMEMBERED = 256 };
static struct {
	uint32_t stack;
	uint64_t place;
} remembered[REMEMBERED];

uint64_t cl_report_place(const struct cl_view *view, uint32_t stack)
{
	unsigned int at = stack % REMEMBERED;

	if (remembered[at].stack != stack) {
		remembered[at].place = cl_report_place_of(view, stack);
		remembered[at].stack = stack;
	}
	return remembered[at].place;
}

void cl_report_place_forget(void)
{
	memset(remembered, 0, sizeof(remembered));
}

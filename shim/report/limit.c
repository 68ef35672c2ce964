/* SPDX-License-Identifier: Apache-2.0 */
/* The limit on the lines of one group: see limit.h. */
#include "shim/report/fit.h"
#include "shim/report/limit.h"

static struct {
	bool on;
	bool measuring;
	unsigned int stacks, frame; /* so many stacks were begun; the next frame of the last one */
	struct cl_fit fit;
} limit;

void cl_limit_begin(bool on)
{
	limit.on = on;
	limit.measuring = false;
	limit.stacks = limit.fit.n = 0;
}

bool cl_limit_measure(struct cl_report *report)
{
	if (limit.on) {
		limit.measuring = report->emit.dry = true;
		report->emit.lines = 0;
	}
	return limit.on;
}

void cl_limit_fit(struct cl_report *report)
{
	unsigned int others = report->emit.lines;

	limit.measuring = report->emit.dry = false;
	limit.stacks = 0;
	for (unsigned int i = 0; i < limit.fit.n; i++)
		others -= 1 + limit.fit.stack[i].lines;
	cl_fit(&limit.fit, others);
}

bool cl_limit_stack(struct cl_report *report, bool last)
{
	if (report->emit.json || !limit.on)
		return true;
	limit.frame = 0;
	if (limit.measuring && limit.fit.n < CL_FIT_STACKS)
		limit.fit.stack[limit.fit.n++] = (struct cl_fit_stack){ .last = last };
	return limit.stacks++ < limit.fit.n && (limit.measuring || limit.fit.stack[limit.stacks - 1].shown);
}

bool cl_limit_frame(struct cl_report *report)
{
	unsigned int more;
	bool shown;

	if (report->emit.json || !limit.on)
		return true;
	if (limit.measuring) {
		limit.fit.stack[limit.stacks - 1].lines++;
		return true;
	}
	shown = cl_fit_is_shown(&limit.fit.stack[limit.stacks - 1], limit.frame++, &more);
	if (more)
		cl_emit_words(&report->emit, CL_FIT_MORE_FRAMES, more, more == 1 ? "" : "s");
	return shown;
}

void cl_limit_say_left_out(struct cl_report *report)
{
	if (limit.on && !limit.measuring && limit.fit.left_out)
		cl_emit_words(&report->emit, CL_FIT_MORE_STACKS, limit.fit.left_out, limit.fit.left_out == 1 ? "" : "s");
}

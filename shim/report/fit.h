/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A finding has at most CL_FIT_LINES lines of text, however deep its stacks are.  If they do not fit, frames in the
 * middle of its stacks are left out, and so are the stacks that say least.
 */
#ifndef CL_FIT_H
#define CL_FIT_H

enum { CL_FIT_LINES = 15, CL_FIT_STACKS = 24 };

struct cl_fit {
	unsigned int n;		/* stacks, in the order of the text: the first is the culprit's */
	unsigned int left_out;	/* stacks that are not shown; if there are any, one line says how many */
	struct cl_fit_stack {
		unsigned int lines; /* frames, without the title */
		/* lines that are shown, with the one that says how many frames are not; 0: not even the title is */
		unsigned int shown;
		unsigned int head;  /* frames that are shown before that line */
		int last;	    /* 1: left out before others: of a holder but the first, or of the free of an import */
	} stack[CL_FIT_STACKS];
};

#define CL_FIT_MORE_FRAMES "      ... %u more frame%s; --full-stacks shows them\n"
#define CL_FIT_MORE_STACKS "    ... %u more stack%s; --full-stacks shows them\n"

/* Sets which lines of the stacks of @fit are shown.  @others: lines of the finding that belong to no stack. */
void cl_fit(struct cl_fit *fit, unsigned int others);
/*
 * Returns 1 if frame @index of @stack is to be shown, else 0.  If the line that says how many frames are not shown is
 * to be printed in the place of this frame, *more becomes that number, else 0.
 */
int cl_fit_is_shown(const struct cl_fit_stack *stack, unsigned int index, unsigned int *more);

#endif

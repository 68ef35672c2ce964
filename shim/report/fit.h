/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A finding has at most CL_FIT_LINES lines of text, however deep its stacks are.  Where they do not fit,
 * their middle is cut out, and stacks that say least are left out.
 */
#ifndef CL_FIT_H
#define CL_FIT_H

enum { CL_FIT_LINES = 15, CL_FIT_STACKS = 24 };

struct cl_fit {
	unsigned int n;		/* stacks, in the order of the text: the first is the culprit's */
	unsigned int left_out;	/* stacks; if any, one line says so */
	struct cl_fit_stack {
		unsigned int lines; /* frames, without the title */
		unsigned int shown; /* lines that are shown, with the one that says how many are not; 0: no line, and no title */
		unsigned int head;  /* so many frames stand before that line */
		int last;	    /* 1: of a holder other than the first: these are left out before the others */
	} stack[CL_FIT_STACKS];
};

#define CL_FIT_MORE_FRAMES "      ... %u more frame%s; --full-stacks shows them\n"
#define CL_FIT_MORE_STACKS "    ... %u more stack%s; --full-stacks shows them\n"

/* Fits the stacks of @fit into what @others lines, which are no part of stacks, leave. */
void cl_fit(struct cl_fit *fit, unsigned int others);
/*
 * Returns 1 if frame @index of @stack is to be shown.  *more becomes how many are not shown, if the line
 * that says so stands in the place of this one, or else 0.
 */
int cl_fit_is_shown(const struct cl_fit_stack *stack, unsigned int index, unsigned int *more);

#endif

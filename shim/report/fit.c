/* SPDX-License-Identifier: Apache-2.0 */
/* Which frames of a finding are shown: see fit.h. */
#include "shim/report/fit.h"

enum { CULPRITS = 6 }; /* lines that the culprit's stack gets before other stacks get more than their least */

/* Returns the lines that a stack takes at least: its title, its innermost frame, and how many frames are left out. */
static unsigned int least(const struct cl_fit_stack *stack)
{
	return 1 + (stack->lines < 2 ? stack->lines : 2);
}

/* Gives each stack whose .last is @last its least number of lines, as long as *room has them. */
static void take_least(struct cl_fit *fit, int last, unsigned int *room)
{
	for (unsigned int i = 0; i < fit->n; i++) {
		struct cl_fit_stack *stack = &fit->stack[i];
		unsigned int need = least(stack);

		if (stack->last != last)
			continue;
		if (i && need > *room) {
			fit->left_out++;
			continue;
		}
		stack->shown = need - 1;
		*room -= need < *room ? need : *room;
	}
}

static void take_all(struct cl_fit *fit)
{
	for (unsigned int i = 0; i < fit->n; i++)
		fit->stack[i].shown = fit->stack[i].head = fit->stack[i].lines;
}

void cl_fit(struct cl_fit *fit, unsigned int others)
{
	unsigned int all = others, room = others < CL_FIT_LINES ? CL_FIT_LINES - others : 0;
	int more = 1;

	fit->left_out = 0;
	for (unsigned int i = 0; i < fit->n; i++)
		all += 1 + fit->stack[i].lines;
	if (all <= CL_FIT_LINES) {
		take_all(fit);
		return;
	}
	for (unsigned int reserve = 0; reserve < 2; reserve++) {
		unsigned int left = room > reserve ? room - reserve : 0;

		fit->left_out = 0;
		for (unsigned int i = 0; i < fit->n; i++)
			fit->stack[i].shown = 0;
		take_least(fit, 0, &left);
		take_least(fit, 1, &left);
		if (!fit->left_out || reserve) {
			room = left;
			break;
		}
	}
	/* first lines for the culprit's stack, then one for each stack in turn */
	while (room && fit->n && fit->stack[0].shown < CULPRITS && fit->stack[0].shown < fit->stack[0].lines) {
		fit->stack[0].shown++;
		room--;
	}
	while (room && more) {
		more = 0;
		for (unsigned int i = 0; i < fit->n && room; i++) {
			struct cl_fit_stack *stack = &fit->stack[i];

			if (!stack->shown || stack->shown >= stack->lines)
				continue;
			stack->shown++;
			room--;
			more = 1;
		}
	}
	for (unsigned int i = 0; i < fit->n; i++) {
		struct cl_fit_stack *stack = &fit->stack[i];

		if (stack->shown >= stack->lines)
			stack->head = stack->lines;
		else if (stack->shown)
			/* the outermost frame is kept: it tells in which thread or program the stack was taken */
			stack->head = stack->shown < 4 ? stack->shown - 1 : stack->shown - 2;
	}
}

int cl_fit_is_shown(const struct cl_fit_stack *stack, unsigned int index, unsigned int *more)
{
	unsigned int tail;

	*more = 0;
	if (stack->shown >= stack->lines || index < stack->head)
		return 1;
	tail = stack->shown - 1 - stack->head;
	if (index == stack->head)
		*more = stack->lines - (stack->shown - 1);
	return index >= stack->lines - tail;
}

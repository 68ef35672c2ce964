/* SPDX-License-Identifier: Apache-2.0 */
/* Which stacks are of one place in the program: a report groups findings by their places. */
#ifndef CL_PLACE_H
#define CL_PLACE_H

#include "shim/shm/view.h"

/*
 * Returns a number that is the same for all stacks of @view that are of one place.  Returns 0 for no stack.
 *
 * Without Python two stacks are of one place only if they are equal.  CPython however comes to the same line of Python
 * through different functions of its own: it specialises an instruction after it has run a few times.  So if the line of
 * each Python frame is known, the frames of the interpreter and of the C library are not compared.  The Python
 * frames and those of all other code are.
 */
uint64_t cl_report_place_of(const struct cl_view *view, uint32_t stack);
/*
 * The same, but remembers the last answers.  The caller calls cl_report_place_forget() before it asks about another
 * @view.
 */
uint64_t cl_report_place(const struct cl_view *view, uint32_t stack);
void cl_report_place_forget(void);

#endif

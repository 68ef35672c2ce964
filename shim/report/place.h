/* SPDX-License-Identifier: Apache-2.0 */
/* Tells places in the program from each other: what the report groups by. */
#ifndef CL_PLACE_H
#define CL_PLACE_H

#include "shim/shm/view.h"

/*
 * Returns a number that stacks of @view have in common if they are of one place, 0 for no stack.
 *
 * In general that is the stack itself.  CPython comes to the same line of Python by several ways: the
 * first time it runs an instruction in general, and later as specialised for what it has met.  So where
 * all Python frames are known, with their lines, a place is these and the frames of other code.  Left
 * out are those of the interpreter and of the C library.
 */
uint64_t cl_report_place_of(const struct cl_view *view, uint32_t stack);
/* The same, which remembers the last answers.  cl_report_place_forget() is to be called before another view. */
uint64_t cl_report_place(const struct cl_view *view, uint32_t stack);
void cl_report_place_forget(void);

#endif

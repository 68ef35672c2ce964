/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit on the lines of one group (fit.h).  The caller prints such a group twice: the first time its lines
 * are counted and nothing is written.  There is one report at a time in a process.
 */
#ifndef CL_LIMIT_H
#define CL_LIMIT_H

#include "shim/report/report.h"

/* The caller is about to print a group.  @on: the group has a limit. */
void cl_limit_begin(bool on);
/*
 * measure() returns true if the group has a limit.  Then the caller prints the group, which only counts its lines,
 * calls fit(), and prints the group once more.
 */
bool cl_limit_measure(struct cl_report *report);
void cl_limit_fit(struct cl_report *report);

/* The caller is about to print a stack in the text.  Returns false if the stack is left out.  @last: see fit.h. */
bool cl_limit_stack(struct cl_report *report, bool last);
/*
 * The caller is about to print a frame in the text.  Returns true if that frame is shown.  In the place of the first
 * one that is not, prints how many are not.
 */
bool cl_limit_frame(struct cl_report *report);
/* Prints how many stacks were left out, if any. */
void cl_limit_say_left_out(struct cl_report *report);

#endif

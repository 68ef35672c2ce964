/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit on the lines of one group (fit.h).  The caller prints such a group twice: the first time its lines
 * are counted and nothing is written.  There is one report at a time in a process.
 */
#ifndef CL_LIMIT_H
#define CL_LIMIT_H

#include "shim/report/report.h"

/* A group begins.  @on: it has a limit. */
void cl_limit_begin(bool on);
/* Returns true if the group has a limit: then it is to be printed once more, before cl_limit_fit(). */
bool cl_limit_measure(struct cl_report *report);
void cl_limit_fit(struct cl_report *report);

/* Begins a stack of the text.  @last: see fit.h.  Returns false if it is left out. */
bool cl_limit_stack(struct cl_report *report, bool last);
/*
 * Returns true if the next frame of the text belongs to those that are shown.  Where the others would
 * stand, prints how many they are.
 */
bool cl_limit_frame(struct cl_report *report);
/* Prints how many stacks were left out, if any. */
void cl_limit_say_left_out(struct cl_report *report);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The hint of a group: what a user should do about it. */
#ifndef CL_HINT_H
#define CL_HINT_H

#include "shim/report/report_table.h"

/* Writes to @to what to do about @group, in one line without a newline. */
void cl_report_make_hint(struct cl_report *report, const struct cl_report_group *group, char to[512]);

/*
 * Under CULIMBO_MODE=observe: writes what CULIMBO_MODE=protect would have done about @group to @to.  Else
 * writes "".
 */
void cl_report_make_would(struct cl_report *report, const struct cl_report_group *group, char to[256]);

#endif

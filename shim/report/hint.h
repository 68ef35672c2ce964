/* SPDX-License-Identifier: Apache-2.0 */
/* The hint of a group: what a user should do about it. */
#ifndef CL_HINT_H
#define CL_HINT_H

#include "shim/report/report_table.h"

/* Writes to @to what to do about @group, in one line without a newline. */
void cl_report_make_hint(struct cl_report *report, const struct cl_report_group *group, char to[512]);

/*
 * If this process observes (CULIMBO_MODE=observe), or the exporter did when it freed the blocks of @group: writes to @to
 * what CULIMBO_MODE=protect would have done about @group.  Else, and for a group of others, writes "".
 */
void cl_report_make_would(struct cl_report *report, const struct cl_report_group *group, char to[256]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one group of the report. */
#ifndef CL_SAY_GROUP_H
#define CL_SAY_GROUP_H

#include "shim/report/report_table.h"

/* Prints @group to report->emit, with @hint: in the text only if @say_hint. */
void cl_report_say_group(struct cl_report *report, const struct cl_report_group *group, const char *hint,
			 bool say_hint);

/*
 * Prints suppressions for @group: one of its first stack, or else of its second.  If processes hold its blocks, prints
 * one of the stack of each holder's open instead.
 */
void cl_report_say_group_pattern(struct cl_report *report, const struct cl_report_group *group);

#endif

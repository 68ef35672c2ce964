/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one group of the report. */
#ifndef CL_SAY_GROUP_H
#define CL_SAY_GROUP_H

#include "shim/report/report_table.h"

/* Prints @group to report->emit.  @hint is its hint for JSON; in the text say.c prints it. */
void cl_report_say_group(struct cl_report *report, const struct cl_report_group *group, const char *hint);

/* Returns "block", "event" or "import", as the group has; with @many in the plural. */
const char *cl_report_what(const struct cl_report_group *group, bool many);

/* Prints a suppression for @group: of its first stack, or else of its second. */
void cl_report_say_group_pattern(struct cl_report *report, const struct cl_report_group *group);

#endif

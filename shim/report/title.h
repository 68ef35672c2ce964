/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the title of a group in the text: it names the bug, and its culprit first. */
#ifndef CL_TITLE_H
#define CL_TITLE_H

#include "shim/report/report_table.h"

/* Writes to @to what happened to @group and who did it, in one line without a newline. */
void cl_report_make_title(struct cl_report *report, const struct cl_report_group *group, char to[512]);
/* Returns true if a user should act on @group, and false for what a living process just uses. */
bool cl_report_is_fault(const struct cl_report *report, const struct cl_report_group *group);

/* Returns the name of an enum cl_kind in JSON. */
const char *cl_report_kind_name(int kind);
/* Returns "block", "block of a pool" or "event", as the group has; with @many in the plural. */
const char *cl_report_what(const struct cl_report_group *group, bool many);

#endif

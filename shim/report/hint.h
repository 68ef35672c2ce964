/* SPDX-License-Identifier: Apache-2.0 */
/* What somebody should do about a group of the report. */
#ifndef CL_HINT_H
#define CL_HINT_H

#include "shim/report/report_table.h"

/* Says in @to what to do about @group, in one line without its end. */
void cl_report_make_hint(struct cl_report *report, const struct cl_report_group *group, char to[512]);

#endif

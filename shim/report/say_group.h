/* SPDX-License-Identifier: Apache-2.0 */
/* One group of the report. */
#ifndef CL_SAY_GROUP_H
#define CL_SAY_GROUP_H

#include "shim/report/report_table.h"

/* Says @group to report->emit.  @hint: what to do about it, which the text says only once. */
void cl_report_say_group(struct cl_report *report, const struct cl_report_group *group, const char *hint);

/* What there are some of in @group: "block", "event" or "import"; more than one where @many. */
const char *cl_report_what(const struct cl_report_group *group, bool many);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Where and when a report was made, and of whose child: for the report's head. */
#ifndef CL_ORIGIN_H
#define CL_ORIGIN_H

#include "shim/report/report.h"

/* Fills report->origin for the process that was looked at.  A few system calls; no malloc. */
void cl_report_find_origin(struct cl_report *report);
/* Writes the facts of report->origin: JSON members, or the rest of the head's line. */
void cl_report_say_origin(struct cl_report *report);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Where and when a report was made, and who is the parent of its process: for the report's head. */
#ifndef CL_ORIGIN_H
#define CL_ORIGIN_H

#include "shim/report/report.h"

/* Fills report->origin for the process that was looked at.  A few system calls; no malloc. */
void cl_report_find_origin(struct cl_report *report);
/* Writes the facts of report->origin: JSON members, or the rest of the head's line. */
void cl_report_say_origin(struct cl_report *report);

/* Copies the first 12 of 64 hexadecimal digits in @text, a cgroup's path: so runtimes name containers. */
void cl_report_take_container(const char *text, char to[16]);
/* Copies the version in @text, /proc/driver/nvidia/version: the first word with a digit and a dot. */
void cl_report_take_driver(const char *text, char *to, size_t size);
/*
 * Writes @seconds since 1970 as UTC.  gmtime_r() takes a lock of the C library, which the thread may
 * have that a signal handler ends the process in.
 */
void cl_report_format_time(uint64_t seconds, char *to, size_t size);

#endif

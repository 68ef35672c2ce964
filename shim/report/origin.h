/* SPDX-License-Identifier: Apache-2.0 */
/* Where and when a report was made, and who is the parent of its process: for the report's head. */
#ifndef CL_ORIGIN_H
#define CL_ORIGIN_H

#include "shim/report/report.h"

/* Fills in report->origin for the process that was looked at.  Makes a few system calls, and calls no malloc(). */
void cl_report_find_origin(struct cl_report *report);
/* Writes the facts of report->origin: JSON members, or the rest of the head's line. */
void cl_report_say_origin(struct cl_report *report);

/* @text is the path of a cgroup.  If it has 64 hexadecimal digits, a container's id, copies the first 12 of them. */
void cl_report_take_container(const char *text, char to[16]);
/* Copies the version in @text, /proc/driver/nvidia/version: the first word that begins with a digit and has a dot. */
void cl_report_take_driver(const char *text, char *to, size_t size);
/*
 * Writes the time @seconds after the start of 1970, in UTC.  Does not use gmtime_r(), which takes a lock of the C
 * library: a process may end in a signal handler that has interrupted a thread with that lock.
 */
void cl_report_format_time(uint64_t seconds, char *to, size_t size);

#endif

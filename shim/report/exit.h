/* SPDX-License-Identifier: Apache-2.0 */
/* The report that a process makes of itself: when it ends, and when the program asks for it. */
#ifndef CL_EXIT_H
#define CL_EXIT_H

#include "shim/shm/view.h"

/*
 * Writes the report of a process that has shared and is ending, to stderr or to CULIMBO_REPORT_FILE.  With
 * CULIMBO_REPORT=auto it does so only if there is something to report, with CULIMBO_REPORT=off never.  Returns the number
 * of findings, with those that another process has reported; or 0 if CULIMBO_REPORT=off and no CULIMBO_ERROR_EXITCODE.
 * @exit_status is the process's own, or -1 if it is not known.  The caller holds cl_imports_lock and
 * cl_exports_lock.
 */
uint64_t cl_report_write(int exit_status);
/* Writes the report of a process that shared nothing, for CULIMBO_REPORT=always. */
void cl_report_nothing(void);

/*
 * These two write the same to @fd while the process runs on.  write_now() is for a process that shares: its caller holds
 * both locks, and it returns the number of findings.  nothing_to() is for any other process, and takes no lock.
 */
uint64_t cl_report_write_now(int fd, bool json);
void cl_report_nothing_to(int fd, bool json);

/* Makes a view of this process's own region (cl_own).  The caller holds cl_exports_lock. */
void cl_view_own(struct cl_view *view);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The report that a process makes of itself when it ends. */
#ifndef CL_EXIT_H
#define CL_EXIT_H

#include "shim/shm/view.h"

/*
 * Writes the report of a process that shared, to stderr or CULIMBO_REPORT_FILE; with
 * CULIMBO_REPORT=auto only if there is something to say.  Returns the number of findings.
 * @exit_status is the process's own, or -1 if it is not known.  The caller holds cl_imports_lock and
 * cl_exports_lock.
 */
uint64_t cl_report_write(int exit_status);
/* Writes the report of a process that shared nothing, for CULIMBO_REPORT=always. */
void cl_report_nothing(void);

/* Makes a view of this process's own region (cl_own).  The caller holds cl_exports_lock. */
void cl_view_own(struct cl_view *view);

#endif

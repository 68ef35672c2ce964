/* SPDX-License-Identifier: Apache-2.0 */
/* The report that a process gives of itself when it ends. */
#ifndef CL_EXIT_H
#define CL_EXIT_H

#include "shim/shm/view.h"

/*
 * Of a process that shared; the caller holds cl_imports_lock and cl_exports_lock.
 * To stderr or CULIMBO_REPORT_FILE; with CULIMBO_REPORT=auto only when there is
 * something to say.  Returns the number of findings.
 */
uint64_t cl_report_write(void);
/* Of a process that did not, with CULIMBO_REPORT=always. */
void cl_report_nothing(void);

/* A view of this process itself, which has a file (cl_own.header); the caller holds cl_exports_lock. */
void cl_view_own(struct cl_view *view);

#endif

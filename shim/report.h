/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report at exit: what is held, by whom, since when, and what to do.
 *
 * To stderr or CULIMBO_REPORT_FILE; with CULIMBO_REPORT=auto only when there
 * is something to say.  No malloc, no stdio streams: a process may end anywhere.
 */
#ifndef CL_REPORT_H
#define CL_REPORT_H

/* Of a process that shared; the caller holds cl_imports_lock and cl_exports_lock. */
void cl_report_write(void);
/* Of a process that did not, with CULIMBO_REPORT=always. */
void cl_report_nothing(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One bug, one finding: a block that its importer never closes is known to two processes, each with a report
 * of its own.  The one that ends first tells, and leaves a mark in the importer's slot: enum cl_told.
 * The other does not tell it again.
 *
 * No bug is lost: only who has written a report without an error, with all of it, leaves a mark.  So who is
 * killed leaves none, nor who has no report (CULIMBO_REPORT=off), or leaves something out.  `culimbo check`
 * and `run --names` join both sides themselves, so their processes neither leave marks nor obey them.
 */
#ifndef CL_TOLD_H
#define CL_TOLD_H

#include "shim/report/report.h"

/*
 * The report at exit, @report, was written, or there was nothing to write: leaves the marks.  The caller
 * holds cl_imports_lock and cl_exports_lock.
 */
void cl_told_locked(struct cl_report *report, bool written);

#endif

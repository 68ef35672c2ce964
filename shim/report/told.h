/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One bug, one finding.  A block that its importer never closes is known to two processes, its exporter and
 * its importer, and each writes a report of its own.  The process that ends first reports the block, and
 * leaves a mark in the importer's slot (enum cl_told).  The other process then does not report it again.
 *
 * No bug is lost: a process leaves marks only if it has written a whole report without an error, or had nothing
 * to report.  So a process that is killed leaves none, nor does one without a report (CULIMBO_REPORT=off), or one
 * whose report leaves something out.  `culimbo check` and `run --names` join both sides themselves, so processes under these
 * neither leave marks nor obey them.
 */
#ifndef CL_TOLD_H
#define CL_TOLD_H

#include "shim/report/report.h"

/*
 * Leaves the marks of the report at exit, @report.  @written: it was written to the end without an error; false: there
 * was nothing to write.  A caller whose report could not be written does not call this.  The caller holds
 * cl_imports_lock and cl_exports_lock.
 */
void cl_told_locked(struct cl_report *report, bool written);

#endif

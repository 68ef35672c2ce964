/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the files of other processes that a report names, which say more about these processes than ours does. */
#ifndef CL_PEER_FILES_H
#define CL_PEER_FILES_H

#include "shim/report/report_table.h"

/*
 * Opens the exporter file of process @who or, if @who is NULL, the file @file_id.  Returns a view of it, which stays
 * open until the next look or cl_report_end().  Returns NULL if there is no such file, if report->dirfd is negative, or
 * if the report has looked at CL_REPORT_PEERS others before.
 */
const struct cl_view *cl_report_peer(struct cl_report *report, const struct cl_identity *who,
				     uint32_t file_id);

/* Returns "alive", "dead" or "ending". */
const char *cl_report_state_name(enum cl_liveness state);
/* The same for the text, which also says that a process has left by exec. */
const char *cl_report_state_words(enum cl_liveness state, bool called_exec);
/* Returns the ns from @since (CLOCK_MONOTONIC, ns) to the look at the process, or 0 if @since was later. */
uint64_t cl_report_age(const struct cl_report *report, uint64_t since);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the files of the other processes that a report names: they say more of those processes than our file does. */
#ifndef CL_PEER_FILES_H
#define CL_PEER_FILES_H

#include "shim/report/report_table.h"

/*
 * Returns the file of process @who or, if @who is NULL, file @file_id.  Returns NULL if there is
 * none, or CL_REPORT_PEERS have been looked at.  The file stays open as long as the report.
 */
const struct cl_view *cl_report_peer(struct cl_report *report, const struct cl_identity *who,
				     uint32_t file_id);

/* Returns "alive", "dead" or "ending". */
const char *cl_report_state_name(enum cl_liveness state);
/* Returns how long ago @since was at the look (CLOCK_MONOTONIC, ns), or 0 if it was later. */
uint64_t cl_report_age(const struct cl_report *report, uint64_t since);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the other processes that a report names: they say more of them than ours does. */
#ifndef CL_PEER_FILES_H
#define CL_PEER_FILES_H

#include "shim/report/report_table.h"

/*
 * The file of process @who, or by its @file_id when @who is NULL.  NULL: it has none, or
 * CL_REPORT_PEERS have been looked at.  It stays open as long as the report.
 */
const struct cl_view *cl_report_peer(struct cl_report *report, const struct cl_identity *who,
				     uint32_t file_id);

/* In the words of the report. */
const char *cl_report_state_name(enum cl_liveness state);
/* How long ago @since is (both CLOCK_MONOTONIC, ns), as of the look; 0: it is to come. */
uint64_t cl_report_age(const struct cl_report *report, uint64_t since);

#endif

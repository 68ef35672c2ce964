/* SPDX-License-Identifier: Apache-2.0 */
/* What the exporter's file says of the imports of a group: how each of them ended there, and who waits. */
#ifndef CL_EXPORTER_SIDE_H
#define CL_EXPORTER_SIDE_H

#include "shim/report/report_table.h"

/* Of the items of a group of imports. */
struct cl_report_ends {
	unsigned int freed;	 /* how many its program has freed, destroyed or unmapped there */
	uint64_t first;		 /* when the first of these was, CLOCK_MONOTONIC ns */
	bool is_virtual;	 /* all of these were unmapped */
	unsigned int given_back; /* how many the driver has back though they are open here: they may be others' by now */
	const char *why;	 /* the option there by which that happened to the first of these */
	unsigned int gone;	 /* how many went with their context */
	bool waits;		 /* the exporter lives, and keeps one of those freed until it is closed */
};
/* @its: the exporter's file, or NULL.  Then only group->stays, which the importer knows, decides of .waits. */
void cl_report_ends_there(const struct cl_report_group *group, const struct cl_view *its, struct cl_report_ends *ends);

#endif

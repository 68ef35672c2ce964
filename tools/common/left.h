/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes still have open of exporters that have ended and have taken their files along.
 *
 * An exporter that is killed leaves its file, which says who has what of it open.  One that ends by itself removes it,
 * though the driver keeps the memory until the last importer closes it.  Only the importers' files tell of such memory.
 */
#ifndef CU_LEFT_H
#define CU_LEFT_H

#include "tools/common/scan.h"

/* On which GPU it lies nobody says: an importer knows only the device for which it was opened. */
struct cu_left {
	uint32_t process; /* index of the importer in the scan */
	bool again;	  /* the one before is the same block, of another process */
	struct cl_view_import is;
};

/* Keeps @import, which process @process has open, if its memory may be left so.  Returns false without memory. */
bool cu_left_add(struct cu_scan *scan, uint32_t process, const struct cl_view_import *import);
/*
 * All files of directory @dirfd were read.  Drops those whose exporter is among them or may live, and those of importers
 * in another PID namespace.  Counts the others as pins of their importers, each block once for a process, and sorts
 * them by block.
 */
void cu_left_settle(struct cu_scan *scan, int dirfd);
/* Returns true if @import of process @process is one of these.  @scan is of one directory. */
bool cu_left_has(const struct cu_scan *scan, uint32_t process, const struct cl_view_import *import);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The counts that a process has kept in its file since it began to share.  They only grow. */
#ifndef CU_COUNTERS_H
#define CU_COUNTERS_H

#include "shim/shm/view.h"

struct cu_counters {
	uint64_t exports;	 /* blocks and events; each counts once, however often exported */
	uint64_t entered_bytes;	 /* freed blocks that culimbo kept, in whole pages of 2 MiB */
	uint64_t returned_bytes; /* those that the driver has back */
	uint64_t refused;	 /* opens by this process of freed blocks, refused */
	uint64_t reclaimed;	 /* holds taken back from importers that had died */
	uint64_t forced_out;	 /* given back while others had them, since an option's limit was reached */
	uint64_t misuse;	 /* calls that CUDA's rules forbid: freed twice, closed twice and so on */
	uint64_t asked;		 /* how often processes short of memory asked this one to collect */
	/*
	 * CUDA's refusals, which are no findings; those with known details are in the next two as
	 * well
	 */
	uint64_t refused_by_cuda;
	uint64_t handles_refused[CL_MADE_KINDS]; /* by enum cl_made */
	uint64_t opens_refused;
	/* memory shared by descriptors; an allocation that is shared twice counts twice */
	uint64_t fd_exports, fd_export_bytes, fd_imports, fd_import_bytes;
	uint64_t fabric; /* exports and imports by fabric handles */
	/* the counts of shim/shm/live.h */
	bool has_live;		 /* false: the process's culimbo does not keep the rest, which is 0 */
	uint64_t handles, opens, closes;
	uint64_t kept, kept_mapped;
	uint64_t memory_waits, memory_wait_ns;
};

/* Reads the counts.  To be called under cu_guarded(): the file may be cut meanwhile. */
void cu_counters_read(struct cu_counters *counters, const struct cl_view *view);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a process has counted in its file since it began to share: numbers that only grow. */
#ifndef CU_COUNTERS_H
#define CU_COUNTERS_H

#include "shim/shm/view.h"

struct cu_counters {
	uint64_t exports;	 /* blocks and events, each once in its life, however often it was exported */
	uint64_t entered_bytes;	 /* freed blocks that culimbo kept, in whole pages of 2 MiB */
	uint64_t returned_bytes; /* of these, what the driver has back */
	uint64_t refused;	 /* opens of this process whose block had been freed */
	uint64_t reclaimed;	 /* holds that were taken back from importers that had died */
	uint64_t forced_out;	 /* what went to the driver although others had it: limits of options */
	uint64_t misuse;	 /* calls that CUDA's rules forbid: freed twice, closed twice and so on */
	uint64_t asked;		 /* how often others that were short of memory asked for this one's limbo */
	/* what CUDA refused, which is no finding; those of which more is known are in the next two as well */
	uint64_t refused_by_cuda;
	uint64_t handles_refused[CL_MADE_KINDS]; /* by enum cl_made */
	uint64_t opens_refused;
	/* what was shared by descriptors; an allocation that is shared twice counts twice */
	uint64_t fd_exports, fd_export_bytes, fd_imports, fd_import_bytes;
	uint64_t fabric; /* exports and imports by fabric handles */
	/* what shim/shm/live.h has */
	bool has_live;		 /* false: its version of culimbo does not keep the rest, which is 0 */
	uint64_t handles, opens, closes;
	uint64_t kept, kept_mapped;
	uint64_t memory_waits, memory_wait_ns;
};

/* Reads them.  To be called under cu_guarded(): the file may be cut meanwhile. */
void cu_counters_read(struct cu_counters *counters, const struct cl_view *view);

#endif

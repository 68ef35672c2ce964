/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says which blocks may go, gives them back to the driver in batches, and asks it whether streams
 * have reached fences.
 *
 * Any thread may call these.  Functions that end in _locked want cl_exports_lock held, and let
 * go of it around CUDA calls.  A block that the driver refuses is forgotten all the same; a
 * batch logs that once.
 */
#ifndef CL_RELEASE_H
#define CL_RELEASE_H

#include "shim/driver/visit.h"
#include "shim/limbo/limbo.h"

enum { CL_BATCH = 64 }; /* blocks that one thread takes to the driver at a time */

struct cl_collected {
	uint64_t blocks, bytes; /* given back to the driver */
	uint64_t next;	       /* when to collect again, CLOCK_MONOTONIC ns; UINT64_MAX: time alone makes nothing due */
	bool held;	       /* some block waits for holders, so somebody must look for dead ones */
};

/*
 * Returns true if the program's free of @block can go straight to the driver.  So it can if nobody
 * holds @block, and it gets no grace (grace.h) or its memory is needed; then its record is DYING until
 * the caller passes the driver's answer and *before to cl_record_release_end().  A block without a
 * record goes if it is an event, or memory of 2 MiB and more that is not of a pool; *before is not set.
 */
bool cl_limbo_can_skip_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now,
			      uint64_t *before);

/* Looks at the records that importers made ready: their blocks leave HELD, or are deleted. */
void cl_release_take_ready_locked(struct cl_exporter *ex, uint64_t now);
/* Gives the READY blocks back in batches, a context at a time, and adds them to @sum. */
void cl_release_ready_locked(struct cl_exporter *ex, struct cl_collected *sum);
/* Counts that @block has gone back to the driver, also in @sum. */
void cl_release_account_locked(struct cl_exporter *ex, const struct cl_block *block, struct cl_collected *sum);
/* Gives back @block alone, and returns when the driver has its memory.  An error is logged once. */
void cl_give_back_alone_locked(struct cl_exporter *ex, struct cl_block *block);

/* Has the driver destroy the pools that the program has destroyed, and of which the limbo has no block any more. */
void cl_release_pools_locked(struct cl_exporter *ex);
/* Destroys the events of all detached fences whose context is not ending, and frees the fences. */
void cl_release_detached_locked(struct cl_exporter *ex);
/* Runs a round of fence.h.  A block whose fence is reached goes from FENCED to READY. */
void cl_release_ask_streams_locked(struct cl_exporter *ex);

#endif

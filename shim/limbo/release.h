/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives blocks back to the driver in batches, and asks it whether streams have reached fences.
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

/* Blocks of one context, which this thread gives back in one visit. */
struct cl_batch {
	struct cl_visit visit;
	struct cl_block *block[CL_BATCH];
	CUresult result[CL_BATCH];
	unsigned int n, seen; /* seen: how many READY blocks were looked at to find .n */
};
/* Takes up to CL_BATCH READY blocks of one context into @batch, and releases their records. */
void cl_batch_take_locked(struct cl_exporter *ex, struct cl_batch *batch);
/* Gives the blocks of @batch back, deletes them, and adds them to @sum. */
void cl_batch_release_locked(struct cl_exporter *ex, struct cl_batch *batch,
			     struct cl_collected *sum);
/* Gives @block back, in a visit to its context.  *wait: the caller must wait for our own @stream there. */
CUresult cl_give_back(struct cl_exporter *ex, struct cl_block *block, CUstream stream, bool *wait);
/* Gives back @block alone, and returns when the driver has its memory.  An error is ignored. */
void cl_give_back_alone_locked(struct cl_exporter *ex, struct cl_block *block);

/* Destroys the events of all detached fences whose context is not ending, and frees the fences. */
void cl_release_detached_locked(struct cl_exporter *ex);
/* Runs a round of fence.h.  A block whose fence is reached goes from FENCED to READY. */
void cl_release_ask_streams_locked(struct cl_exporter *ex);

/* Returns how many exported events the driver has back, by any way; and counts one more. */
uint64_t cl_limbo_events_back(const struct cl_exporter *ex);
void cl_limbo_event_went(struct cl_exporter *ex);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving blocks back to the driver, in batches, and asking it about streams.
 *
 * Functions that end in _locked want cl_exports_lock held, and let go of it around CUDA calls.
 */
#ifndef CL_RELEASE_H
#define CL_RELEASE_H

#include "shim/driver/visit.h"
#include "shim/limbo/limbo.h"

enum { CL_BATCH = 64 }; /* blocks that one thread takes to the driver at a time */

struct cl_collected {
	uint64_t blocks, bytes; /* given back to the driver */
	uint64_t next;	       /* when something will be due, CLOCK_MONOTONIC ns; UINT64_MAX: not by time */
	bool held;	       /* something waits for holders, so their death matters */
};

/* A batch: blocks of one context that this thread is in the driver with, in a visit. */
struct cl_batch {
	struct cl_visit visit;
	struct cl_block *block[CL_BATCH];
	CUresult result[CL_BATCH];
	unsigned int n, seen; /* seen: how many were looked at to find these */
};
/* Up to CL_BATCH blocks of one context that are ready. */
void cl_batch_take_locked(struct cl_batch *batch);
/* Takes the batch's blocks, whose records are released, out of this world. */
void cl_batch_release_locked(struct cl_batch *batch, struct cl_collected *sum);
/* In a visit to the context of @block.  @stream: of our own there, or NULL.  *wait: it must be waited for. */
CUresult cl_give_back(struct cl_block *block, CUstream stream, bool *wait);
/* Gives @block alone back, and waits until it is. */
void cl_give_back_alone_locked(struct cl_block *block);

/* Fences whose events nobody needs. */
void cl_release_detached_locked(void);
/*
 * Asks each stream for which some block waits whether it has got to its fences, the oldest
 * first and no further than the first that it has not: what waits costs nothing.
 */
void cl_release_ask_streams_locked(void);

/* How many exported events have gone to the driver, whoever gave them; one has. */
uint64_t cl_limbo_events_back(void);
void cl_limbo_event_went(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory pools of this process of which it has exported blocks, and their end.
 *
 * A program may free its blocks and then destroy their pool.  As long as such a block waits in the
 * limbo, the driver would see the two in the other order: it destroys the pool first, and gets the block
 * later.  The driver 580.159.04 then crashes, now and then, when another pool is destroyed (seen with
 * cuda.core's tests).
 *
 * What must hold: the driver destroys a pool after it has got back each shared block of that pool that
 * the program has freed until then.  The program's call to destroy the pool returns CUDA_SUCCESS.
 *
 * The pool also keeps the memory of other freed blocks until then.  A trim would not help: it gives nothing back
 * from a pool of which a block was exported, and a trim of a pool that another process has imported has ended the
 * process (measured, doc/measurements.md).
 *
 * A pool that another process has shared with this one is on these lists if the program has destroyed it
 * while frees of its imports are kept back.  It waits for these frees as a pool of this process waits for
 * its blocks.
 *
 * Everything here is under cl_exports_lock, which the caller holds.  Nothing makes a CUDA call.
 */
#ifndef CL_OWN_POOLS_H
#define CL_OWN_POOLS_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/list.h"
#include "shim/base/own_fd.h"

struct cl_own_pool {
	struct cl_node node; /* on the list of its phase */
	uint64_t handle;     /* its CUmemoryPool */
	/* how many structs of blocks point here, and one more while a call that destroys it (NOW) is in the driver */
	uint64_t blocks;
	/*
	 * How many of these blocks the program has freed and the driver has not got back, and one more while a call
	 * that destroys it (LATER) is under way.  Of a pool of another process: how many imports are kept back.
	 */
	uint64_t in_limbo;
	uint8_t phase;	     /* enum cl_own_pool_phase */
	uint64_t number;     /* which handles of its blocks have (exporter/async.h); 0: none yet */
	/* a descriptor of it, once the program has destroyed it; none if .ino is 0, as in a new struct */
	struct cl_own_fd kept;
	struct cl_node keeps;  /* on the list of those that keep one */
};
enum cl_own_pool_phase {
	CL_OWN_POOL_LIVE,   /* the program has it: each pool begins so */
	CL_OWN_POOL_ENDING, /* the program has destroyed it, and the limbo has blocks of it */
	CL_OWN_POOL_READY,  /* the program has destroyed it and the limbo has no block of it: the driver may destroy it */
	CL_OWN_POOL_DEAD,   /* the driver has destroyed it; another pool may get its handle */
};
struct cl_own_pools {
	/* by phase.  A process has few pools, and destroys few before their blocks are back. */
	struct cl_list live, ending, ready;
	struct cl_list keeping; /* a descriptor, whatever their phase */
};

/*
 * Returns the LIVE pool with @handle, and counts one more block of it.  NULL if @handle is 0 or there is
 * no memory: then nobody knows of which pool the block is, and its end is not waited for.
 */
struct cl_own_pool *cl_own_pool_get(struct cl_own_pools *pools, uint64_t handle);
/* The struct of a block of @pool is freed.  @pool may be NULL. */
void cl_own_pool_put(struct cl_own_pools *pools, struct cl_own_pool *pool);

/*
 * entered(): a block of @pool enters the limbo.  left(): the driver has got that block back, or has refused
 * it.  @pool may be NULL.
 */
void cl_own_pool_entered(struct cl_own_pool *pool);
void cl_own_pool_left(struct cl_own_pools *pools, struct cl_own_pool *pool);

/*
 * The program destroys the pool with @handle.  Returns what the caller has to do:
 *	NOW	has the driver destroy the pool, and then calls cl_own_pool_destroyed() with *pool
 *	LATER	gives the program CUDA_SUCCESS, and calls cl_own_pool_left() with *pool.  The pool becomes
 *		READY when that is done and its blocks have left the limbo
 *	AGAIN	refuses: the program has destroyed the pool before
 */
enum cl_own_pool_end { CL_OWN_POOL_NOW, CL_OWN_POOL_LATER, CL_OWN_POOL_AGAIN };
enum cl_own_pool_end cl_own_pool_destroy(struct cl_own_pools *pools, uint64_t handle,
					 struct cl_own_pool **pool);
/* Returns true if destroy() would return LATER. */
bool cl_own_pool_would_wait(const struct cl_own_pools *pools, uint64_t handle);
/* The driver has destroyed @pool, which may be NULL, or refused to (@gone is false). */
void cl_own_pool_destroyed(struct cl_own_pools *pools, struct cl_own_pool *pool, bool gone);

/*
 * destroy_imported(): the driver has refused to destroy a pool of another process, because frees of @imports
 * of its blocks are kept back.  Returns true if the pool waits for them (LATER).  Returns false if @imports
 * is 0, if the pool waits already, or without memory.  left_imported(): the driver has unmapped one of
 * them.  After the last one the pool is READY.
 */
bool cl_own_pool_destroy_imported(struct cl_own_pools *pools, uint64_t handle, uint64_t imports);
void cl_own_pool_left_imported(struct cl_own_pools *pools, uint64_t handle);
/* Returns true if the program has destroyed the pool with @handle, and the driver has yet to. */
bool cl_own_pool_is_ending(const struct cl_own_pools *pools, uint64_t handle);

/*
 * The program destroys the pool with @handle, of which handles were made.  Keeps @fd, a descriptor of it, for
 * importers, until the last block of the pool is gone.  An @fd of -1 closes the descriptor that was kept before.
 * Returns false, and has not taken @fd, if no block of the pool is known.
 */
bool cl_own_pool_keep(struct cl_own_pools *pools, uint64_t handle, int fd);

/* In a forked child: closes what is kept, which would keep the pools' memory.  The memory of the structs stays. */
void cl_own_pools_forget(struct cl_own_pools *pools);

/* Takes a READY pool and returns its handle, or 0 if there is none.  The caller has the driver destroy it. */
uint64_t cl_own_pool_take_ready(struct cl_own_pools *pools);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory pools of this process of which it has exported blocks, and their end.
 *
 * A program may free its blocks and then destroy their pool.  As long as such a block waits in the
 * limbo, the driver would see the two in the other order: it destroys the pool first, and gets the block
 * later.  The driver 580.159.04 then crashes, now and then, where another pool is destroyed (seen with
 * cuda.core's tests).
 *
 * What must hold: the driver destroys a pool after it has got back each shared block of that pool that
 * the program has freed until then.  The program's destroy gives 0, and what the pool has kept of other
 * freed blocks goes back to the device at once, if nobody has imported from the pool: the trim of one
 * that was imported from has ended its process (measured, fact 31), and bare gives little back there.
 *
 * A pool that another process has shared with this one is on these lists from the time when the program
 * destroys it while frees of its imports are kept back.  It waits for these frees as a pool of this process
 * waits for its blocks.
 *
 * All of it is under cl_exports_lock, which the caller holds, and nothing makes a CUDA call.
 */
#ifndef CL_OWN_POOLS_H
#define CL_OWN_POOLS_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/list.h"
#include "shim/descriptors/socket.h"

struct cl_own_pool {
	struct cl_node node; /* on the list of its phase */
	uint64_t handle;     /* its CUmemoryPool */
	uint64_t blocks;     /* structs of blocks that point here */
	uint64_t in_limbo;   /* how many of these blocks the program has freed and the driver has not got back */
	uint8_t phase;	     /* enum cl_own_pool_phase */
	bool imported;	     /* somebody has imported a block of it, so far as the limbo has seen */
	uint64_t number;     /* which handles of its blocks have (exporter/async.h); 0: none yet */
	struct cl_own_fd kept; /* a descriptor of it, once the program has destroyed it; .ino 0: none */
};
enum cl_own_pool_phase {
	CL_OWN_POOL_LIVE, /* the first */
	CL_OWN_POOL_ENDING, /* the program has destroyed it, the limbo has blocks of it */
	CL_OWN_POOL_DUE,    /* the program has destroyed it and the limbo has no block of it: the driver may destroy it */
	CL_OWN_POOL_GONE,   /* the driver has destroyed it; another pool may get its handle */
};
struct cl_own_pools {
	/* by phase.  A process has few pools, and destroys few before their blocks are back. */
	struct cl_list live, ending, due;
};

/*
 * Returns the LIVE pool with @handle, and counts one more block of it.  NULL if @handle is 0 or there is
 * no memory: then nobody knows of which pool the block is, and its end is not waited for.
 */
struct cl_own_pool *cl_own_pool_get(struct cl_own_pools *pools, uint64_t handle);
/* A struct of a block that points to @pool, which may be NULL, is freed. */
void cl_own_pool_put(struct cl_own_pools *pools, struct cl_own_pool *pool);

/*
 * A block of @pool, which may be NULL, enters the limbo; and the driver has got it back, or refused it.
 * @imported: somebody has imported the block.
 */
void cl_own_pool_entered(struct cl_own_pool *pool, bool imported);
void cl_own_pool_left(struct cl_own_pools *pools, struct cl_own_pool *pool, bool imported);

/*
 * The program destroys the pool with @handle.  Says what is to be done:
 *	NOW	the driver destroys it, and the caller then calls cl_own_pool_destroyed() with *pool
 *	LATER	the program gets 0, and the pool is DUE in time, but not before the caller has called
 *		cl_own_pool_left() with *pool
 *	AGAIN	nothing: the program has destroyed it before
 */
enum cl_own_pool_end { CL_OWN_POOL_NOW, CL_OWN_POOL_LATER, CL_OWN_POOL_AGAIN };
enum cl_own_pool_end cl_own_pool_destroy(struct cl_own_pools *pools, uint64_t handle,
					 struct cl_own_pool **pool);
/* The driver has destroyed @pool, which may be NULL, or refused to (@gone is false). */
void cl_own_pool_destroyed(struct cl_own_pools *pools, struct cl_own_pool *pool, bool gone);

/*
 * The same for a pool of another process, which the driver has refused to destroy, while only frees of
 * @imports of it are kept back.  Returns true for LATER.  Then the second function is called when the
 * driver has unmapped one of them; it returns true if that was the last.
 */
bool cl_own_pool_destroy_imported(struct cl_own_pools *pools, uint64_t handle, uint64_t imports);
bool cl_own_pool_left_imported(struct cl_own_pools *pools, uint64_t handle);

/*
 * The program destroys the pool with @handle, of which handles were made.  Keeps @fd, a descriptor of it, for who
 * opens its blocks, as long as there are any; -1: closes what it kept.  Returns false, and has not taken @fd, if
 * no block of it is known.
 */
bool cl_own_pool_keep(struct cl_own_pools *pools, uint64_t handle, int fd);

/* Takes a DUE pool, which the caller has the driver destroy, and returns its handle; 0: there is none. */
uint64_t cl_own_pool_take_due(struct cl_own_pools *pools);

#endif

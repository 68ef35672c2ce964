/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of other processes that this process has imported, in order to open handles of their blocks
 * (shm/pool_handle.h).
 *
 * What must hold:
 *  - A pool is imported once, however many of its blocks are open, and our use of it ends when none is.  Otherwise
 *    its memory would not go back to the device when its exporter has ended.
 *  - No thread imports a pool while another imports or destroys it: a pool has a turn (turns.h) for that.
 *  - If a device opens a block, the devices that have peer access to it reach the pool as well, as with a mirror.
 *  - An import waits for the exporter for a bounded time.
 *
 * Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_IMPORTED_POOLS_H
#define CL_IMPORTED_POOLS_H

#include "shim/importer/open.h"
#include "shim/shm/pool_data.h"
#include "shim/shm/pool_handle.h"

struct cl_imported_pool;

/* A resolved handle of a pool's block. */
struct cl_pool_resolved {
	struct cl_pool_handle handle;
	struct cl_stamp stamp;
	struct cl_peer *peer;	  /* stays open until cl_pool_resolved_put(); NULL: the handle is our own */
	struct cl_pool_form form; /* the block's export data, with our stamp */
	uint64_t size;		  /* of the block, in bytes */
};
/*
 * Reads the export data of the block that @handle names from the exporter's file, and keeps that file open until
 * cl_pool_resolved_put().  Returns 0.  Returns -ENOENT if there is no such file or record, or the record is another
 * block's: the handle is stale or damaged, or the exporter can't be seen from here.
 */
int cl_pool_resolve(struct cl_pool_resolved *resolved, const void *handle);
void cl_pool_resolved_put(struct cl_pool_resolved *resolved);

/*
 * Takes a reference to the pool of @resolved, for @device, and imports the pool first if nobody here has it.  Returns:
 *	CUDA_SUCCESS			*@pool is the pool
 *	CUDA_ERROR_INVALID_HANDLE	the handle is stale or its exporter is dead
 *	any other			the driver's refusal; or (logged) the exporter does not hand the pool over
 */
CUresult cl_imported_pool_get(const struct cl_pool_resolved *resolved, CUdevice device, struct cl_imported_pool **pool);
CUmemoryPool cl_imported_pool_handle(const struct cl_imported_pool *pool);
/* Lets @device and its peers reach @pool.  Returns CUDA_SUCCESS, or the driver's refusal for @device itself. */
CUresult cl_imported_pool_give_access(struct cl_imported_pool *pool, CUdevice device);
/*
 * Gives a reference back.  If it was the last, our use of the pool ends (pool_uses.h).  Returns the pool if the driver
 * has refused to destroy it, so that the caller has that done later.  Else returns NULL.
 */
CUmemoryPool cl_imported_pool_put(struct cl_imported_pool *pool) __attribute__((warn_unused_result));
/*
 * @device has got access to the memory of contexts of @of: gives it access to the pools that @of reaches.  Has a reference
 * to each of them meanwhile, and gives it to @give_up, which calls cl_imported_pool_put().
 */
void cl_imported_pools_add_device(CUdevice of, CUdevice device, void (*give_up)(struct cl_imported_pool *pool));

void cl_imported_pools_forget(void); /* in a forked child */

#endif

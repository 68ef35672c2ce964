/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of other processes that were imported to open handles of their blocks (shm/pool_handle.h).
 *
 * What must hold:
 *  - A pool is imported once, whatever number of its blocks is open, and destroyed when none is: else its
 *    memory would not go back to the device when its exporter has ended.
 *  - Devices that have peer access to one that opens a block reach the pool, too, as they reach a mirror.
 *  - It is found out in bounded time whether the exporter hands its pool over.
 *
 * Any thread may call these functions, without a lock of ours.
 */
#ifndef CL_IMPORTED_POOLS_H
#define CL_IMPORTED_POOLS_H

#include "shim/importer/open.h"
#include "shim/shm/pool_data.h"
#include "shim/shm/pool_handle.h"

struct cl_imported_pool;

/* What a handle of a pool's block names. */
struct cl_pool_named {
	struct cl_pool_handle handle;
	struct cl_stamp stamp;
	struct cl_peer *peer;	  /* stays open until cl_pool_named_put(); NULL: the handle is our own */
	struct cl_pool_form form; /* the block's export data, with our stamp */
};
/*
 * Finds the export data that @handle, of a pool's block, names.  Returns 0, or -ENOENT if there is no file
 * or record of that: the handle is stale or damaged, or its exporter can't be seen.
 */
int cl_pool_named_get(struct cl_pool_named *named, const void *handle);
void cl_pool_named_put(struct cl_pool_named *named);

/*
 * Takes one reference to the pool of @named, which some device may reach: that is @device and its peers.  Returns
 * the driver's error, CUDA_ERROR_INVALID_HANDLE if the handle is stale or its exporter dead, or an error that was
 * logged: the exporter does not hand it over.
 */
CUresult cl_imported_pool_get(const struct cl_pool_named *named, CUdevice device, struct cl_imported_pool **pool);
CUmemoryPool cl_imported_pool_handle(const struct cl_imported_pool *pool);
/* Gives a reference back.  Returns the pool, which the caller destroys, if it was the last; else NULL. */
CUmemoryPool cl_imported_pool_put(struct cl_imported_pool *pool);
/* @device has got access to the memory of contexts of @of. */
void cl_imported_pools_add_device(CUdevice of, CUdevice device);

void cl_imported_pools_forget(void); /* in a forked child */

#endif

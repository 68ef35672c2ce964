/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handle of ours for a block of a memory pool.  A process with culimbo opens it by cuIpcOpenMemHandle().
 *
 * The stamp names a record of the exporter, and that record has the block's export data (pool_data.h).  The handle
 * has only their fingerprint, by which an open sees whether the record is still the same block's.  It names
 * the pool by a number that the exporter gives to no other pool.  Where a handle of the driver's has the
 * number of bytes, ours has 0, as a virtual handle has (virtual_handle.h): so the driver of a process
 * without culimbo refuses it.
 */
#ifndef CL_POOL_HANDLE_H
#define CL_POOL_HANDLE_H

#include <stdbool.h>
#include <string.h>
#include "shim/shm/layout.h"

#define CL_POOL_HANDLE_MARK UINT64_C(0x314c4f4f50554c43) /* "CLUPOOL1" */

struct cl_pool_handle {
	uint64_t none;	     /* 0 */
	uint32_t pid;	     /* of the exporter, as in a driver's handle */
	uint32_t zero;
	uint64_t bytes, more; /* 0 */
	uint64_t pool;	     /* its number, which the exporter gives to no other pool */
	uint64_t mark;
	uint64_t fingerprint; /* of the block's export data */
	uint64_t stamp;
};
_Static_assert(sizeof(struct cl_pool_handle) == 64, "a handle");
_Static_assert(offsetof(struct cl_pool_handle, mark) == 40, "all versions");

static inline bool cl_is_pool_handle(const void *handle)
{
	uint64_t mark;

	memcpy(&mark, (const char *)handle + offsetof(struct cl_pool_handle, mark), sizeof mark);
	return __builtin_expect(mark == CL_POOL_HANDLE_MARK, 0);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * These functions say how memory was made: they read the driver's pointer attributes.  Any thread may call
 * them.
 */
#ifndef CL_MADE_H
#define CL_MADE_H

#include "shim/driver/driver.h"
#include "shim/shm/layout.h"

struct cl_memory_made {
	enum cl_made made;
	CUdeviceptr base; /* of the allocation; the address itself if that is not known */
	size_t size;	  /* bytes; 0: not known */
	int device;	  /* 0 if that is not known */
};

/*
 * Asks the driver about the memory at @dptr.  For the slow path after a refusal: a dozen calls at most,
 * which wait for nothing and spoil no stream capture.  No lock of ours may be held.
 */
struct cl_memory_made cl_memory_made(CUdeviceptr dptr);

/*
 * Returns the ordinal of the device that a pool's memory at @dptr is on, 0 if the driver does not say it,
 * or CL_NO_DEVICE: of a pool on the host, for which the driver names a device that means nothing, or on a device that has
 * no number in this process.
 */
int cl_pool_memory_device(CUdeviceptr dptr);
/* Returns the pool that has the memory at @dptr, NULL if the driver does not say. */
CUmemoryPool cl_pool_of_memory(CUdeviceptr dptr);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts.
 *
 * What must hold (all except the last measured, on driver 580.159):
 * - a green context retains its device's primary context, which owns everything made
 *   in the green one: memory, imports and events outlive it, and end with the
 *   primary context;
 * - its CUcontext has an id of its own;
 * - making a destroyed one current crashes at once; the real driver returns 0, and
 *   the process's heap is corrupt from then on.
 *
 * They have no multiprocessors: there are none here.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define GREEN_MAGIC UINT32_C(0x67726e30)
#define DESCRIPTION_MAGIC UINT32_C(0x64736330)

/* These types came with CUDA 12.4; older headers lack them. */
#if CUDA_VERSION >= 12040
typedef CUdevResource dev_resource;
typedef CUdevResourceType dev_resource_type;
#else
typedef void dev_resource;
typedef int dev_resource_type;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
#endif

/* Never freed, like a struct sim_context. */
struct green {
	uint32_t magic;
	struct sim_context context;
};

struct description {
	uint32_t magic;
};

static struct green *green_of(CUgreenCtx handle)
{
	struct green *green = (struct green *)handle;

	return green && green->magic == GREEN_MAGIC ? green : NULL;
}

SIM_CALL(cuDeviceGetDevResource, (CUdevice device, dev_resource *resource, dev_resource_type type))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
#if CUDA_VERSION >= 12040
	if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	memset(resource, 0, sizeof(*resource));
	resource->type = CU_DEV_RESOURCE_TYPE_SM;
	resource->sm.smCount = 1;
	return CUDA_SUCCESS;
#else
	return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

SIM_CALL(cuDevResourceGenerateDesc,
	 (CUdevResourceDesc * handle, dev_resource *resources, unsigned int count))
{
	struct description *description;
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!handle || !resources || !count)
		return CUDA_ERROR_INVALID_VALUE;
	description = malloc(sizeof(*description));
	if (!description)
		return CUDA_ERROR_OUT_OF_MEMORY;
	description->magic = DESCRIPTION_MAGIC;
	*handle = (CUdevResourceDesc)description;
	return CUDA_SUCCESS;
}

SIM_CALL(cuGreenCtxCreate, (CUgreenCtx * handle, CUdevResourceDesc description_handle,
			    CUdevice device, unsigned int flags))
{
	const struct description *description = (const struct description *)description_handle;
	struct sim_context *whole;
	CUresult result = sim_ready();
	struct green *green;

	if (result)
		return result;
	/* the only flag there is must be given */
	if (!handle || !description || description->magic != DESCRIPTION_MAGIC || flags != 1)
		return CUDA_ERROR_INVALID_VALUE;
	green = calloc(1, sizeof(*green));
	if (!green)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = sim_primary_retain(&whole, device);
	if (!result) {
		result = sim_memory_needed(device);
		if (result)
			sim_primary_release(device);
	}
	if (result) {
		free(green);
		return result;
	}
	green->magic = GREEN_MAGIC;
	pthread_mutex_lock(&sim.lock);
	sim_context_begin_green(&green->context, whole);
	sim_leave();
	*handle = (CUgreenCtx)green;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxFromGreenCtx, (CUcontext * handle, CUgreenCtx green_handle))
{
	struct green *green = green_of(green_handle);
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!green || !green->context.alive)
		return CUDA_ERROR_INVALID_CONTEXT;
	*handle = (CUcontext)&green->context;
	return CUDA_SUCCESS;
}

SIM_CALL(cuGreenCtxDestroy, (CUgreenCtx handle))
{
	struct green *green = green_of(handle);
	CUresult result = sim_ready();
	bool was_alive;

	if (result)
		return result;
	if (!green)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	was_alive = green->context.alive;
	green->context.alive = false;
	sim_leave();
	if (!was_alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	/* after a reset there is nothing to give back */
	sim_primary_release(green->context.device);
	return CUDA_SUCCESS;
}

SIM_CALL(cuGreenCtxStreamCreate,
	 (CUstream * handle, CUgreenCtx green_handle, unsigned int flags, int priority))
{
	struct green *green = green_of(green_handle);
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!handle || flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (!green || !green->context.alive)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	result = sim_stream_create(handle, green->context.whole, &green->context, flags, priority);
	sim_leave();
	return result;
}

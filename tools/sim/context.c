/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: primary ones, and those that a program creates.
 *
 * What must hold:
 * - a struct sim_context is never freed, so that a handle used too late gives an
 *   error (709) and no crash; a device always has the same primary context;
 * - the end of a context waits for its work, then gives back all its memory and
 *   its imports; what other processes have open of it stays theirs.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static struct sim_context primary[SIM_DEVICES_MAX];
static unsigned int primary_flags[SIM_DEVICES_MAX];
static uint64_t next_context;
struct sim_context *sim_contexts;

/* ---- creating and ending contexts; under sim.lock ---- */

static void context_begin(struct sim_context *context, CUdevice device, unsigned int flags)
{
	context->magic = SIM_CONTEXT_MAGIC;
	context->device = device;
	context->flags = flags;
	context->alive = true;
	context->sticky = CUDA_SUCCESS;
	context->api_version = 3020;
	context->id = ++next_context;
	context->peers = 0;
	memset(context->limits, 0, sizeof(context->limits));
	sim_streams_init(context);
	if (context->listed)
		return;
	context->listed = true;
	context->earlier = sim_contexts;
	sim_contexts = context;
}

void sim_context_begin_green(struct sim_context *green, struct sim_context *whole)
{
	green->magic = SIM_CONTEXT_MAGIC;
	green->device = whole->device;
	green->whole = whole;
	green->alive = true;
	green->api_version = whole->api_version;
	green->id = ++next_context;
}

static void context_end(struct sim_context *context)
{
	sim_context_wait(context);
	if (!context->alive)
		return;
	context->alive = false;
	sim_streams_end(context);
	sim_events_end(context);
	sim_memory_free_context(context);
	sim_host_end(context);
	context->last_chunk = NULL;
}

/* ---- primary contexts ---- */

CUresult sim_primary_retain(struct sim_context **retained, CUdevice device)
{
	CUresult result = sim_check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	context = &primary[device];
	if (!context->alive) {
		result = sim_memory_needed(device);
		if (result)
			goto out;
		context->primary = true;
		context_begin(context, device, primary_flags[device]);
		context->references = 0;
	}
	context->references++;
	*retained = context;
out:
	sim_leave();
	return result;
}

CUresult sim_primary_release(CUdevice device)
{
	CUresult result = sim_check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	context = &primary[device];
	if (!context->alive || !context->references)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (--context->references == 0)
		context_end(context);
	sim_leave();
	return result;
}

SIM_CALL(cuDevicePrimaryCtxRetain, (CUcontext *handle, CUdevice device))
{
	CUresult result = sim_check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_primary_retain(&context, device);
	if (!result)
		*handle = (CUcontext)context;
	return result;
}

SIM_CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
	return sim_primary_release(device);
}

SIM_CALL(cuDevicePrimaryCtxRelease, (CUdevice device))
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_CALL(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
	CUresult result = sim_check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	context = &primary[device];
	if (context->alive) {
		/* The references stay: the context exists, and is empty. */
		context_end(context);
		if (context->references)
			context_begin(context, device, primary_flags[device]);
	}
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDevicePrimaryCtxReset, (CUdevice device))
{
	return cuDevicePrimaryCtxReset_v2(device);
}

SIM_CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	primary_flags[device] = flags;
	primary[device].flags = flags;
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags))
{
	CUresult result = sim_check_device(device);

	if (!result && primary[device].alive)
		return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
	return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

SIM_CALL(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim.lock);
	*flags = primary_flags[device];
	*active = primary[device].alive;
	sim_leave();
	return CUDA_SUCCESS;
}

/* ---- contexts that a program creates ---- */

SIM_CALL(cuCtxCreate_v2, (CUcontext *handle, unsigned int flags, CUdevice device))
{
	CUresult result = sim_check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	if (!handle || sim_current.depth == SIM_STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_memory_needed(device);
	if (result)
		return result;
	context = calloc(1, sizeof(*context));
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim.lock);
	context_begin(context, device, flags);
	context->references = 1;
	sim_current.stack[sim_current.depth++] = context;
	*handle = (CUcontext)context;
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxCreate, (CUcontext *handle, unsigned int flags, CUdevice device))
{
	return cuCtxCreate_v2(handle, flags, device);
}

/* These parameter types came with CUDA 11.4 and 12.5; older headers lack them. */
#if CUDA_VERSION >= 11040
typedef CUexecAffinityParam affinity_param;
#else
typedef void affinity_param;
#endif
#if CUDA_VERSION >= 12050
typedef CUctxCreateParams create_params;
#else
typedef void create_params;
#endif

SIM_CALL(cuCtxCreate_v3, (CUcontext *handle, affinity_param *affinity, int affinities,
			  unsigned int flags, CUdevice device))
{
	if (affinities)
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuCtxCreate_v2(handle, flags, device);
}

SIM_CALL(cuCtxCreate_v4, (CUcontext *handle, create_params *params, unsigned int flags,
			  CUdevice device))
{
#if CUDA_VERSION >= 12050
	if (params && (params->numExecAffinityParams || params->cigParams))
#else
	if (params)
#endif
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuCtxCreate_v2(handle, flags, device);
}

static CUresult context_destroy(CUcontext handle)
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (context->primary || context->whole)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	if (context->alive)
		context_end(context);
	else
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	sim_leave();
	if (sim_context_current() == context)
		sim_current.depth--;
	return result;
}

SIM_CALL(cuCtxDestroy_v2, (CUcontext handle))
{
	return context_destroy(handle);
}

SIM_CALL(cuCtxDestroy, (CUcontext handle))
{
	return context_destroy(handle);
}

SIM_CALL(cuCtxAttach, (CUcontext *handle, unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!handle || flags) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		context->references++;
		*handle = (CUcontext)context;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuCtxDetach, (CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);
	bool last;

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	last = context->references <= 1;
	if (!last)
		context->references--;
	sim_leave();
	return last ? context_destroy(handle) : CUDA_SUCCESS;
}

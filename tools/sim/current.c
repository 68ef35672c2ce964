/* SPDX-License-Identifier: Apache-2.0 */
/* The current context: which one it is, waits for its work, and its properties. */
#include "sim.h"

/* Returns 0 if @context may become current, else the error to return. */
static CUresult check_current(const struct sim_context *context)
{
	if (context->alive || context->primary)
		return CUDA_SUCCESS;
	/* the real driver goes on with a corrupt heap */
	if (context->whole)
		sim_crash();
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SIM_CALL(cuCtxPushCurrent_v2, (CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);

	if (result)
		return result;
	if (!context || sim_current.depth == SIM_STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_current(context);
	if (result)
		return result;
	sim_current.stack[sim_current.depth++] = context;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxPushCurrent, (CUcontext handle))
{
	return cuCtxPushCurrent_v2(handle);
}

SIM_CALL(cuCtxPopCurrent_v2, (CUcontext *handle))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!sim_current.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_current.depth--;
	if (handle)
		*handle = (CUcontext)sim_current.stack[sim_current.depth];
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxPopCurrent, (CUcontext *handle))
{
	return cuCtxPopCurrent_v2(handle);
}

SIM_CALL(cuCtxSetCurrent, (CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);

	if (result)
		return result;
	if (!handle) {
		if (sim_current.depth)
			sim_current.depth--;
		return CUDA_SUCCESS;
	}
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	result = check_current(context);
	if (result)
		return result;
	if (!sim_current.depth)
		sim_current.depth = 1;
	sim_current.stack[sim_current.depth - 1] = context;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetCurrent, (CUcontext *handle))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = (CUcontext)sim_context_current();
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetDevice, (CUdevice *device))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = sim_context_current()->device;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetDevice_v2, (CUdevice *device, CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxSynchronize, (void))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	result = sim_capture_forbids_all(context);
	if (!result) {
		sim_context_wait(context);
		sim_memory_waited();
		result = context->sticky;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuCtxSynchronize_v2, (CUcontext handle))
{
	struct sim_context *context;
	CUresult result;

	if (!handle)
		return cuCtxSynchronize();
	result = sim_ready();
	if (result)
		return result;
	context = sim_context_of(handle);
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	if (context->whole && context->alive)
		context = context->whole;
	if (!context->alive) {
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	} else {
		sim_context_wait(context);
		sim_memory_waited();
		result = context->sticky;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuCtxGetApiVersion, (CUcontext handle, unsigned int *version))
{
	struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = context->api_version;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetFlags, (unsigned int *flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (flags)
		*flags = context->flags;
	sim_leave();
	return flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_CALL(cuCtxSetFlags, (unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	context->flags = flags;
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetId, (CUcontext handle, unsigned long long *id))
{
	struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = context->id;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetLimit, (size_t *value, CUlimit limit))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!value)
		result = CUDA_ERROR_INVALID_VALUE;
	else if ((unsigned int)limit >= 16)
		result = CUDA_ERROR_UNSUPPORTED_LIMIT;
	else
		*value = context->limits[limit];
	sim_leave();
	return result;
}

SIM_CALL(cuCtxSetLimit, (CUlimit limit, size_t value))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if ((unsigned int)limit >= 16)
		result = CUDA_ERROR_UNSUPPORTED_LIMIT;
	else if (limit == CU_LIMIT_STACK_SIZE && value > context->limits[limit])
		result = sim_memory_needed(context->device);
	if (!result)
		context->limits[limit] = value;
	sim_leave();
	return result;
}

SIM_CALL(cuCtxGetStreamPriorityRange, (int *least, int *greatest))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	sim_leave();
	return CUDA_SUCCESS;
}

bool sim_has_room_for_peer(const struct sim_context *context, int device)
{
	uint64_t peers = context->peers;

	for (const struct sim_region *r = context->regions; r; r = r->next)
		if (r->kind == SIM_IMPORT && r->device != context->device && r->device >= 0)
			peers |= UINT64_C(1) << r->device;
	return device == context->device || device < 0 || peers >> device & 1 || __builtin_popcountll(peers) < SIM_PEERS;
}

SIM_CALL(cuCtxEnablePeerAccess, (CUcontext handle, unsigned int flags))
{
	struct sim_context *context, *peer = sim_context_of(handle);
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!peer || flags)
		result = peer ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
	else if (peer->device == context->device)
		result = CUDA_ERROR_INVALID_DEVICE;
	else if (context->peers >> peer->device & 1)
		result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	else if (!sim_has_room_for_peer(context, peer->device))
		result = CUDA_ERROR_TOO_MANY_PEERS;
	else
		context->peers |= UINT64_C(1) << peer->device;
	sim_leave();
	return result;
}

SIM_CALL(cuCtxDisablePeerAccess, (CUcontext handle))
{
	struct sim_context *context, *peer = sim_context_of(handle);
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!peer)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!(context->peers >> peer->device & 1))
		result = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	else
		context->peers &= ~(UINT64_C(1) << peer->device);
	sim_leave();
	return result;
}

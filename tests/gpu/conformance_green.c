/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker of the conformance program: commands on contexts and green contexts that need several
 * calls.
 */
#include "conformance_worker.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cuda.h>

/* v: handle and id of the primary context; then both again after its last release and a new retain. */
CUresult context_ids(uint64_t *v)
{
	CUresult(CUDAAPI * get_id)(CUcontext, unsigned long long *) = NULL;
	void *found = optional("cuCtxGetId");
	unsigned long long id = 0;

	if (!found)
		return CUDA_ERROR_NOT_SUPPORTED;
	memcpy(&get_id, &found, sizeof(get_id));
	for (int i = 0; i < 2; i++) {
		if (i) {
			TRY(driver.p_cuDevicePrimaryCtxRelease_v2(0));
			TRY(driver.p_cuDevicePrimaryCtxRetain(&mine.context, 0));
			TRY(driver.p_cuCtxSetCurrent(mine.context));
		}
		TRY(get_id(mine.context, &id));
		v[2 * i] = (uint64_t)(uintptr_t)mine.context;
		v[2 * i + 1] = id;
	}
	return CUDA_SUCCESS;
}

/* Creates @n contexts one after the other and ends each with its exported events; returns the number of events. */
CUresult event_rounds(uint64_t rounds, uint64_t each, bool in_primary, uint64_t *made)
{
	for (*made = 0; rounds; rounds--) {
		CUcontext context = NULL;
		uint64_t n = 0;
		CUresult result;

		if (!in_primary)
			TRY(driver.p_cuCtxCreate_v2(&context, 0, 0));
		result = event_many(each, &n);
		*made += n;
		if (result)
			return result;
		if (in_primary) {
			TRY(driver.p_cuDevicePrimaryCtxReset_v2(0));
			TRY(driver.p_cuDevicePrimaryCtxRetain(&mine.context, 0));
			TRY(driver.p_cuCtxSetCurrent(mine.context));
		} else {
			TRY(driver.p_cuCtxDestroy_v2(context));
			TRY(driver.p_cuCtxSetCurrent(mine.context));
		}
	}
	return CUDA_SUCCESS;
}

CUresult context_of(CUdeviceptr pointer, uint64_t *which)
{
	CUcontext of = NULL;

	TRY(driver.p_cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, pointer));
	*which = of == mine.context ? 1 : of == mine.green_context ? 2 : 0;
	return CUDA_SUCCESS;
}

/*
 * Creates a green context of all multiprocessors and makes it current.  v[0]: a block allocated in
 * it.  v[1]: the block's context as the driver reports it: 1 the primary one, 2 the green one, 0
 * another.  v[2]: an interprocess event.  v[3]: 1 when the two contexts have the same id.
 */
CUresult green_begin(uint64_t *v, unsigned char *event_handle)
{
#if CUDA_VERSION >= 12040
	CUresult(CUDAAPI * get_resource)(CUdevice, CUdevResource *, CUdevResourceType) = NULL;
	CUresult(CUDAAPI * describe)(CUdevResourceDesc *, CUdevResource *, unsigned int) = NULL;
	CUresult(CUDAAPI * create)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int) = NULL;
	CUresult(CUDAAPI * convert)(CUcontext *, CUgreenCtx) = NULL;
	CUresult(CUDAAPI * get_id)(CUcontext, unsigned long long *) = NULL;
	const struct {
		const char *name;
		void *into;
	} calls[] = { { "cuDeviceGetDevResource", &get_resource }, { "cuDevResourceGenerateDesc", &describe },
		      { "cuGreenCtxCreate", &create }, { "cuCtxFromGreenCtx", &convert },
		      { "cuCtxGetId", &get_id } };
	unsigned long long id = 0, green_id = 1;
	CUipcEventHandle handle;
	CUdevResourceDesc description;
	CUdevResource resource;
	CUdeviceptr block;
	CUgreenCtx green;
	CUevent event;

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *found = optional(calls[i].name);

		if (!found)
			return CUDA_ERROR_NOT_SUPPORTED;
		memcpy(calls[i].into, &found, sizeof(found));
	}
	TRY(get_resource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
	TRY(describe(&description, &resource, 1));
	TRY(create(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(convert(&mine.green_context, green));
	mine.green = green;
	TRY(get_id(mine.context, &id));
	TRY(get_id(mine.green_context, &green_id));
	v[3] = id == green_id;
	TRY(driver.p_cuCtxSetCurrent(mine.green_context));
	TRY(driver.p_cuMemAlloc_v2(&block, 4 * MIB));
	v[0] = block;
	TRY(context_of(block, &v[1]));
	TRY(driver.p_cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	v[2] = (uint64_t)(uintptr_t)event;
	TRY(driver.p_cuIpcGetEventHandle(&handle, event));
	memcpy(event_handle, &handle, 64);
	return CUDA_SUCCESS;
#else
	(void)v;
	(void)event_handle;
	return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

CUresult green_end(void)
{
	CUresult(CUDAAPI * destroy)(void *) = NULL;
	void *found = optional("cuGreenCtxDestroy");

	if (!found)
		return CUDA_ERROR_NOT_SUPPORTED;
	memcpy(&destroy, &found, sizeof(found));
	TRY(driver.p_cuCtxSetCurrent(NULL));
	return destroy(mine.green);
}

/* Destroys the green context while it is current: that result, an allocation's result, and which context is current. */
CUresult green_under(uint64_t *v)
{
	CUresult(CUDAAPI * destroy)(void *) = NULL;
	CUresult(CUDAAPI * current)(CUcontext *) = NULL;
	void *found = optional("cuGreenCtxDestroy"), *found_current = optional("cuCtxGetCurrent");
	CUcontext now = NULL;
	CUdeviceptr pointer;

	if (!found || !found_current)
		return CUDA_ERROR_NOT_SUPPORTED;
	memcpy(&destroy, &found, sizeof(found));
	memcpy(&current, &found_current, sizeof(found_current));
	TRY(driver.p_cuCtxSetCurrent(mine.green_context));
	v[0] = (uint64_t)destroy(mine.green);
	TRY(current(&now));
	v[2] = now ? now == mine.green_context ? 1 : 2 : 0;
	v[1] = (uint64_t)driver.p_cuMemAlloc_v2(&pointer, 1024);
	return CUDA_SUCCESS;
}

/* Results of the reset, of an allocation in the green context afterwards, and of the green context's end. */
CUresult green_reset(uint64_t *v)
{
	CUdeviceptr pointer;

	TRY(driver.p_cuCtxSetCurrent(mine.green_context));
	v[0] = (uint64_t)driver.p_cuDevicePrimaryCtxReset_v2(0);
	v[1] = (uint64_t)driver.p_cuMemAlloc_v2(&pointer, 1024);
	v[2] = (uint64_t)green_end();
	return CUDA_SUCCESS;
}

CUresult green_stream(uint64_t *v)
{
	CUstream stream;
	CUevent event;

	TRY(driver.p_cuCtxSetCurrent(mine.green_context));
	TRY(driver.p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(driver.p_cuCtxSetCurrent(mine.context));
	TRY(driver.p_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	v[0] = (uint64_t)driver.p_cuEventRecord(event, stream);
	v[1] = (uint64_t)driver.p_cuStreamSynchronize(stream);
	v[2] = (uint64_t)driver.p_cuEventQuery(event);
	return driver.p_cuEventDestroy_v2(event);
}

CUresult green_last(uint64_t *v)
{
	unsigned int flags;
	int active = 0;

	TRY(driver.p_cuDevicePrimaryCtxRelease_v2(0));
	TRY(driver.p_cuDevicePrimaryCtxGetState(0, &flags, &active));
	v[0] = (uint64_t)active;
	TRY(green_end());
	TRY(driver.p_cuDevicePrimaryCtxGetState(0, &flags, &active));
	v[1] = (uint64_t)active;
	return CUDA_SUCCESS;
}

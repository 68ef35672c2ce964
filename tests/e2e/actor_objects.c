/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: events, kernels, streams and contexts.
 */
#include "actor.h"

#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>

CUstream kernel_stream;
static CUfunction spin_function, fill_function;

/* ------------------------------------------------------------------- events */
void do_event_create(const struct wire_request *q)
{
	CUevent event = NULL;

	TIMED(cu.cuEventCreate(&event, (unsigned int)q->a[0]));
	reply.v[0] = (uintptr_t)event;
}

void do_event_export(const struct wire_request *q)
{
	CUipcEventHandle handle;

	memset(&handle, 0xee, sizeof(handle));
	TIMED(cu.cuIpcGetEventHandle(&handle, (CUevent)(uintptr_t)q->a[0]));
	memcpy(reply.handle, &handle, 64);
}

void do_event_open(const struct wire_request *q)
{
	CUipcEventHandle handle;
	CUevent event = NULL;

	to_handle(&handle, q->handle);
	TIMED(cu.cuIpcOpenEventHandle(&event, handle));
	reply.v[0] = (uintptr_t)event;
}

void do_event_destroy(const struct wire_request *q)
{
	TIMED(cu.cuEventDestroy_v2((CUevent)(uintptr_t)q->a[0]));
}

void do_event_record(const struct wire_request *q)
{
	TIMED(cu.cuEventRecord((CUevent)(uintptr_t)q->a[0], kernel_stream));
}

void do_event_sync(const struct wire_request *q)
{
	TIMED(cu.cuEventSynchronize((CUevent)(uintptr_t)q->a[0]));
}

void do_event_query(const struct wire_request *q)
{
	TIMED(cu.cuEventQuery((CUevent)(uintptr_t)q->a[0]));
}

/* ------------------------------------------------------------------ kernels */
static bool kernels_ready(void)
{
	CUmodule module;

	if (kernel_stream)
		return true;
	return SURE(cu.cuModuleLoadData(&module, kernels)) &&
	       SURE(cu.cuModuleGetFunction(&spin_function, module, "culimbo_spin")) &&
	       SURE(cu.cuModuleGetFunction(&fill_function, module, "culimbo_fill")) &&
	       SURE(cu.cuStreamCreate(&kernel_stream, CU_STREAM_NON_BLOCKING));
}

void do_spin(const struct wire_request *q)
{
	uint64_t ns = q->a[0];
	void *parameters[] = { &ns };

	if (kernels_ready())
		SURE(cu.cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, kernel_stream,
				       parameters, NULL));
}

void do_fill_kernel(const struct wire_request *q)
{
	uint64_t destination = q->a[0], words = q->a[1], ns = q->a[3];
	uint32_t value = (uint32_t)q->a[2];
	void *parameters[] = { &destination, &words, &value, &ns };

	if (kernels_ready())
		SURE(cu.cuLaunchKernel(fill_function, 1, 1, 1, 1, 1, 1, 0, kernel_stream,
				       parameters, NULL));
}

void do_kernel_query(const struct wire_request *q)
{
	(void)q;
	TIMED(cu.cuStreamQuery(kernel_stream));
}

void do_kernel_wait(const struct wire_request *q)
{
	(void)q;
	TIMED(cu.cuStreamSynchronize(kernel_stream));
}

/* ------------------------------------------------------------------ streams */
void do_stream_create(const struct wire_request *q)
{
	CUstream stream = NULL;

	TIMED(cu.cuStreamCreate(&stream, (unsigned int)q->a[0]));
	reply.v[0] = (uintptr_t)stream;
}

void do_stream_spin(const struct wire_request *q)
{
	uint64_t ns = q->a[1];
	void *parameters[] = { &ns };

	if (kernels_ready())
		SURE(cu.cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0,
				       (CUstream)(uintptr_t)q->a[0], parameters, NULL));
}

void do_stream_query(const struct wire_request *q)
{
	TIMED(cu.cuStreamQuery((CUstream)(uintptr_t)q->a[0]));
}

void do_stream_free(const struct wire_request *q)
{
	CUstream stream = (CUstream)(uintptr_t)q->a[1];

	TIMED((q->a[2] ? cu.cuMemFreeAsync_ptsz : cu.cuMemFreeAsync)(q->a[0], stream));
}

void do_devices(const struct wire_request *q)
{
	CUdevice device;

	(void)q;
	while (!cu.cuDeviceGet(&device, (int)reply.v[0]))
		reply.v[0]++;
}

void do_device(const struct wire_request *q)
{
	CUcontext context;

	/* Retains again for each call, because this process keeps the primary context. */
	if (SURE(cu.cuDevicePrimaryCtxRetain(&context, (CUdevice)q->a[0])))
		SURE(cu.cuCtxSetCurrent(context));
}

/* ----------------------------------------------------------------- contexts */
void do_ctx_reset(const struct wire_request *q)
{
	(void)q;
	kernel_stream = NULL;
	TIMED(cu.cuDevicePrimaryCtxReset_v2(0));
}

void do_ctx_again(const struct wire_request *q)
{
	(void)q;
	if (SURE(cu.cuDevicePrimaryCtxRetain(&primary, 0)))
		SURE(cu.cuCtxSetCurrent(primary));
}

void do_ctx_release(const struct wire_request *q)
{
	(void)q;
	kernel_stream = NULL;
	TIMED(cu.cuDevicePrimaryCtxRelease_v2(0));
}

void do_ctx_create(const struct wire_request *q)
{
	CUcontext context = NULL;

	(void)q;
	kernel_stream = NULL;
	TIMED(cu.cuCtxCreate_v2(&context, 0, 0));
	reply.v[0] = (uintptr_t)context;
}

void do_ctx_destroy(const struct wire_request *q)
{
	kernel_stream = NULL;
	TIMED(cu.cuCtxDestroy_v2((CUcontext)(uintptr_t)q->a[0]));
	SURE(cu.cuCtxSetCurrent(primary));
}

/* All multiprocessors; the test does not depend on which. */
void do_green_begin(const struct wire_request *q)
{
#if CUDA_VERSION >= 12040
	CUdevResourceDesc description;
	CUdevResource resource;
	CUcontext context;
	CUgreenCtx green;

	(void)q;
	kernel_stream = NULL;
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
	if (!cu.cuGreenCtxCreate || !cu.cuCtxFromGreenCtx || !cu.cuGreenCtxDestroy ||
	    !cu.cuDeviceGetDevResource || !cu.cuDevResourceGenerateDesc)
		return;
	reply.result = CUDA_SUCCESS;
	if (!SURE(cu.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM)) ||
	    !SURE(cu.cuDevResourceGenerateDesc(&description, &resource, 1)) ||
	    !SURE(cu.cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM)) ||
	    !SURE(cu.cuCtxFromGreenCtx(&context, green)) || !SURE(cu.cuCtxSetCurrent(context)))
		return;
	reply.v[0] = (uintptr_t)green;
#else
	(void)q;
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
#endif
}

void do_green_end(const struct wire_request *q)
{
#if CUDA_VERSION >= 12040
	unsigned int flags;
	int active = -1;

	kernel_stream = NULL;
	/* never current when it is destroyed: the next call would use a dead context */
	SURE(cu.cuCtxSetCurrent(q->a[1] ? NULL : primary));
	TIMED(cu.cuGreenCtxDestroy((CUgreenCtx)(uintptr_t)q->a[0]));
	SURE(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
	reply.v[0] = (uint64_t)active;
#else
	(void)q;
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
#endif
}

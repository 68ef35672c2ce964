/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: memory, and calls that need device memory.
 */
#include "actor.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- memory */
void do_begin(const struct wire_request *q)
{
	CUdevice device;

	(void)q;
	if (!SURE(cu.cuInit(0)) || !SURE(cu.cuDeviceGet(&device, 0)) ||
	    !SURE(cu.cuDevicePrimaryCtxRetain(&primary, device)))
		return;
	SURE(cu.cuCtxSetCurrent(primary));
}

void do_alloc(const struct wire_request *q)
{
	CUdeviceptr address = 0;

	TIMED(cu.cuMemAlloc_v2(&address, q->a[0]));
	reply.v[0] = address;
}

void do_alloc_kind(const struct wire_request *q)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr address = 0;
	void *pinned = NULL;
	size_t pitch;

	switch ((enum alloc_kind)q->a[0]) {
	case ALLOC_PLAIN:
		TIMED(cu.cuMemAlloc_v2(&address, q->a[1]));
		break;
	case ALLOC_PITCH:
		TIMED(cu.cuMemAllocPitch_v2(&address, &pitch, 1 << 20, q->a[1] >> 20, 4));
		break;
	case ALLOC_ASYNC:
		TIMED(cu.cuMemAllocAsync(&address, q->a[1], NULL));
		break;
	case ALLOC_CREATE:
		TIMED(cu.cuMemCreate(&handle, q->a[1], &property, 0));
		address = handle;
		break;
	case ALLOC_PINNED:
	case ALLOC_COMBINED:
		TIMED(cu.cuMemHostAlloc(&pinned, q->a[1], q->a[0] == ALLOC_COMBINED ? CU_MEMHOSTALLOC_WRITECOMBINED : 0));
		address = (CUdeviceptr)(uintptr_t)pinned;
		break;
	}
	reply.v[0] = address;
}

void do_free_kind(const struct wire_request *q)
{
	switch ((enum alloc_kind)q->a[0]) {
	case ALLOC_PLAIN:
	case ALLOC_PITCH:
		TIMED(cu.cuMemFree_v2(q->a[1]));
		break;
	case ALLOC_ASYNC:
		TIMED(cu.cuMemFreeAsync(q->a[1], NULL));
		SURE(cu.cuStreamSynchronize(NULL));
		break;
	case ALLOC_CREATE:
		TIMED(cu.cuMemRelease(q->a[1]));
		break;
	case ALLOC_PINNED:
	case ALLOC_COMBINED:
		TIMED(cu.cuMemFreeHost((void *)(uintptr_t)q->a[1]));
		break;
	}
}

void do_is_known(const struct wire_request *q)
{
	unsigned int kind;

	TIMED(cu.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q->a[0]));
}

void do_free(const struct wire_request *q)
{
	TIMED(cu.cuMemFree_v2(q->a[0]));
}

void do_free_async(const struct wire_request *q)
{
	/* where kernels run, the free goes into their stream */
	TIMED(cu.cuMemFreeAsync(q->a[0], kernel_stream));
	if (!reply.result && q->a[1])
		SURE(cu.cuStreamSynchronize(kernel_stream));
}

void do_fill(const struct wire_request *q)
{
	if (SURE(cu.cuMemsetD8_v2(q->a[0], (unsigned char)q->a[2], q->a[1])))
		SURE(cu.cuCtxSynchronize());
}

void do_check(const struct wire_request *q)
{
	unsigned char *buffer = malloc(STEP);

	if (!buffer) {
		complain("no memory");
		return;
	}
	reply.v[0] = compare(q->a[0], q->a[1], (unsigned char)q->a[2], buffer, &reply.v[1]);
	free(buffer);
}

/*
 * Allocates blocks and overwrites each, until it gets @address or has tried often
 * enough.  This shows whether the driver can give that address out, and damages
 * the contents if it can.  Frees the other blocks.
 */
void do_claim(const struct wire_request *q)
{
	uint64_t most = q->a[2], n = 0;
	CUdeviceptr *taken = calloc(most, sizeof(*taken));

	if (!taken) {
		complain("no memory");
		return;
	}
	while (n < most && !reply.v[0]) {
		CUresult result = cu.cuMemAlloc_v2(&taken[n], q->a[1]);

		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			break;
		if (!sure(result, "cuMemAlloc"))
			break;
		SURE(cu.cuMemsetD8_v2(taken[n], (unsigned char)q->a[3], q->a[1]));
		reply.v[0] = taken[n] == q->a[0];
		n++;
	}
	SURE(cu.cuCtxSynchronize());
	reply.v[1] = n;
	for (uint64_t i = 0; i < n; i++)
		if (taken[i] != q->a[0])
			SURE(cu.cuMemFree_v2(taken[i]));
	free(taken);
}

void do_export(const struct wire_request *q)
{
	CUipcMemHandle handle;

	memset(&handle, 0xee, sizeof(handle));
	TIMED(cu.cuIpcGetMemHandle(&handle, q->a[0]));
	memcpy(reply.handle, &handle, 64);
}

void do_open(const struct wire_request *q)
{
	CUdeviceptr address = 0;
	CUipcMemHandle handle;

	to_handle(&handle, q->handle);
	TIMED(cu.cuIpcOpenMemHandle_v2(q->a[1] ? NULL : &address, handle, (unsigned int)q->a[0]));
	reply.v[0] = address;
}

void do_open_v1(const struct wire_request *q)
{
	CUdeviceptr address = 0;
	CUipcMemHandle handle;

	to_handle(&handle, q->handle);
	TIMED(cu.cuIpcOpenMemHandle(&address, handle, (unsigned int)q->a[0]));
	reply.v[0] = address;
}

void do_close(const struct wire_request *q)
{
	TIMED(cu.cuIpcCloseMemHandle(q->a[0]));
}

void do_meminfo(const struct wire_request *q)
{
	size_t free_bytes = 0, all = 0;

	(void)q;
	SURE(cu.cuMemGetInfo_v2(&free_bytes, &all));
	reply.v[0] = free_bytes;
	reply.v[1] = all;
}

/* Takes device memory, permanently, until at most this much is free. */
void do_hog(const struct wire_request *q)
{
	size_t free_bytes = 0, all;
	CUdeviceptr address;

	for (;;) {
		size_t piece;

		if (!SURE(cu.cuMemGetInfo_v2(&free_bytes, &all)) || free_bytes <= q->a[0])
			break;
		piece = (free_bytes - q->a[0]) & ~(((size_t)2 << 20) - 1);
		while (piece && cu.cuMemAlloc_v2(&address, piece))
			piece = piece / 2 & ~(((size_t)2 << 20) - 1);
		if (!piece)
			break;
	}
	reply.v[0] = free_bytes;
}

void do_share_cycle(const struct wire_request *q)
{
	CUdeviceptr address;
	CUipcMemHandle handle;

	for (uint64_t i = 0; i < q->a[0]; i++)
		if (!SURE(cu.cuMemAlloc_v2(&address, q->a[1])) || !SURE(cu.cuIpcGetMemHandle(&handle, address)) ||
		    !SURE(cu.cuMemFree_v2(address)))
			break;
}

/* ------------------------------------------------- calls that need device memory */
static CUstream need_stream;
static CUgraph need_graph;
#if CUDA_VERSION >= 12040
CUgraphExec need_exec;
#endif

void do_need_begin(const struct wire_request *q)
{
	(void)q;
	if (!SURE(cu.cuStreamCreate(&need_stream, CU_STREAM_NON_BLOCKING)) ||
	    !SURE(cu.cuStreamBeginCapture_v2(need_stream, CU_STREAM_CAPTURE_MODE_RELAXED)) ||
	    !SURE(cu.cuStreamEndCapture(need_stream, &need_graph)))
		return;
#if CUDA_VERSION >= 12040
	SURE(cu.cuGraphInstantiateWithFlags(&need_exec, need_graph, 0));
#endif
}

/* Calls that CUDA 11.4, 12 and 12.4 added. */
static void later_need(enum need need)
{
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
#if CUDA_VERSION >= 12040
	CUdevResourceDesc description;
	CUdevResource resource;
	CUfunction function;
	CUgraphExec exec;
	CUlibrary library;
	CUmodule module;
	CUkernel kernel;
	CUgreenCtx green;

	reply.result = CUDA_SUCCESS;
	if (need == NEED_GREEN) {
		if (!SURE(cu.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM)) ||
		    !SURE(cu.cuDevResourceGenerateDesc(&description, &resource, 1)))
			return;
		TIMED(cu.cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
		if (!reply.result)
			SURE(cu.cuGreenCtxDestroy(green));
	} else if (need == NEED_INSTANTIATE) {
		TIMED(cu.cuGraphInstantiateWithFlags(&exec, need_graph, 0));
		if (!reply.result)
			SURE(cu.cuGraphExecDestroy(exec));
	} else if (need == NEED_UPLOAD) {
		TIMED(cu.cuGraphUpload(need_exec, need_stream));
	} else { /* a different library each time, because a loaded one needs no more memory */
		if (!SURE(cu.cuLibraryLoadData(&library, kernels, NULL, NULL, 0, NULL, NULL, 0)) ||
		    !SURE(cu.cuLibraryGetKernel(&kernel, library, "culimbo_spin")))
			return;
		if (need == NEED_LIBRARY)
			TIMED(cu.cuLibraryGetModule(&module, library));
		else
			TIMED(cu.cuKernelGetFunction(&function, kernel));
		SURE(cu.cuLibraryUnload(library));
	}
#else
	(void)need;
#endif
}

void do_need(const struct wire_request *q)
{
	static size_t stack = 16384;
	CUcontext context;
	CUstream stream;
	CUmodule module;

	switch ((enum need)q->a[0]) {
	case NEED_PRIMARY:
		if (!SURE(cu.cuInit(0)))
			break;
		TIMED(cu.cuDevicePrimaryCtxRetain(&context, 0));
		if (!reply.result)
			SURE(cu.cuDevicePrimaryCtxRelease_v2(0));
		break;
	case NEED_CONTEXT:
		TIMED(cu.cuCtxCreate_v2(&context, 0, 0));
		if (!reply.result)
			SURE(cu.cuCtxDestroy_v2(context));
		break;
	case NEED_STACK:
		TIMED(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack));
		if (!reply.result)
			stack += 1024;
		break;
	case NEED_STREAM:
	case NEED_PRIORITY:
		if ((enum need)q->a[0] == NEED_STREAM)
			TIMED(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		else
			TIMED(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1));
		if (!reply.result)
			SURE(cu.cuStreamDestroy_v2(stream));
		break;
	case NEED_MODULE:
	case NEED_MODULE_EX:
		if ((enum need)q->a[0] == NEED_MODULE)
			TIMED(cu.cuModuleLoadData(&module, kernels));
		else
			TIMED(cu.cuModuleLoadDataEx(&module, kernels, 0, NULL, NULL));
		if (!reply.result)
			SURE(cu.cuModuleUnload(module));
		break;
	default:
		later_need((enum need)q->a[0]);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is linked with libcuda.  It makes the calls that its arguments name and
 * prints what each returned.  With --none it starts without a driver.
 */
#include <stdio.h>
#include <string.h>
#include "tests/doors/driver.h"
#ifdef DOORS_WEAK
#define X(symbol, base, since, flags, type, params, args) \
	__attribute__((weak)) CUresult CUDAAPI symbol params;
CL_HOOKED_CALLS(X)
#undef X
#endif

int main(int argc, char **argv)
{
	CUipcMemHandle memory = {{0}};
	CUipcEventHandle event = {{0}};
	CUDA_ARRAY_DESCRIPTOR flat = {100, 10, CU_AD_FORMAT_FLOAT, 4};
	CUDA_ARRAY3D_DESCRIPTOR deep = {100, 10, 2, CU_AD_FORMAT_HALF, 1, 0};
	CUcontext ctx = (CUcontext)0x10;
	CUgreenCtx green = (CUgreenCtx)0x20;
	CUdeviceptr dptr = 0x1000;
	CUmemPoolPtrExportData pool;
	CUevent e = NULL;
	CUarray array;
	CUmipmappedArray levels;
	CUstream stream;
	CUmodule module;
	CUlibrary library = NULL;
	CUfunction function;
	CUgraphExec exec = NULL;
	CUjit_option option = CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES;
	void *value = (void *)4096;
	CUmemGenericAllocationHandle generic;
	CUmemAllocationProp property;
	CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
	unsigned long long types;
	void *data = &types;
	CUmemoryPool shared;
	int descriptor;
	size_t pitch;

	for (int i = 1; i < argc; i++) {
		CUresult result = (CUresult)-1;

#define CALL(symbol, ...)              \
	if (!strcmp(argv[i], #symbol)) \
		result = symbol(__VA_ARGS__);
		CALL(cuInit, 0)
		CALL(cuMemAlloc_v2, &dptr, 4096)
		CALL(cuMemAllocPitch_v2, &dptr, &pitch, 100, 30, 4)
		CALL(cuMemAllocManaged, &dptr, 4096, 1)
		CALL(cuMemAllocAsync, &dptr, 4096, NULL)
		CALL(cuMemAllocAsync_ptsz, &dptr, 4096, NULL)
		CALL(cuMemAllocFromPoolAsync, &dptr, 4096, NULL, NULL)
		CALL(cuMemAllocFromPoolAsync_ptsz, &dptr, 4096, NULL, NULL)
		CALL(cuMemCreate, &generic, 4096, NULL, 0)
		CALL(cuArrayCreate_v2, &array, &flat)
		CALL(cuArray3DCreate_v2, &array, &deep)
		CALL(cuMipmappedArrayCreate, &levels, &deep, 3)
		CALL(cuCtxCreate, &ctx, 0, 0)
		CALL(cuCtxCreate_v2, &ctx, 0, 0)
		CALL(cuCtxCreate_v3, &ctx, NULL, 0, 0, 0)
		CALL(cuCtxCreate_v4, &ctx, NULL, 0, 0)
		CALL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 16384)
		CALL(cuStreamCreate, &stream, 1)
		CALL(cuStreamCreateWithPriority, &stream, 1, -1)
		CALL(cuModuleLoad, &module, "file")
		CALL(cuModuleLoadData, &module, "image")
		CALL(cuModuleLoadDataEx, &module, "image", 1, &option, &value)
		CALL(cuModuleLoadFatBinary, &module, "image")
		CALL(cuLibraryLoadData, &library, "code", &option, &value, 1, NULL, NULL, 0)
		CALL(cuLibraryLoadFromFile, &library, "file", &option, &value, 1, NULL, NULL, 0)
		CALL(cuLibraryGetModule, &module, library)
		CALL(cuLibraryGetGlobal, &dptr, &pitch, library, "name")
		CALL(cuKernelGetFunction, &function, NULL)
		CALL(cuGraphInstantiate, &exec, NULL, NULL, NULL, 0)
		CALL(cuGraphInstantiate_v2, &exec, NULL, NULL, NULL, 0)
		CALL(cuGraphInstantiateWithFlags, &exec, NULL, 0)
		CALL(cuGraphInstantiateWithParams, &exec, NULL, NULL)
		CALL(cuGraphInstantiateWithParams_ptsz, &exec, NULL, NULL)
		CALL(cuGraphUpload, exec, NULL)
		CALL(cuGraphUpload_ptsz, exec, NULL)
		CALL(cuMemFree_v2, dptr)
		CALL(cuMemFreeAsync, dptr, NULL)
		CALL(cuMemFreeAsync_ptsz, dptr, NULL)
		CALL(cuMemFreeHost, NULL)
		CALL(cuMemMap, dptr, 4096, 0, 77, 0)
		CALL(cuMemExportToShareableHandle, &descriptor, 77, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
		CALL(cuMemImportFromShareableHandle, &generic, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		CALL(cuMemPoolExportToShareableHandle, &descriptor, NULL, (CUmemAllocationHandleType)8, 0)
		CALL(cuMemPoolImportFromShareableHandle, &shared, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
		CALL(cuMemAddressReserve, &dptr, 4096, 0, 0, 0)
		CALL(cuMemAddressFree, dptr, 4096)
		CALL(cuMemUnmap, dptr, 4096)
		CALL(cuMemRelease, 77)
		CALL(cuMemRetainAllocationHandle, &generic, (void *)0x1000)
		CALL(cuMemGetAllocationPropertiesFromHandle, &property, 77)
		CALL(cuPointerGetAttribute, &types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, dptr)
		CALL(cuPointerGetAttributes, 1, &attribute, &data, dptr)
		CALL(cuMemGetAddressRange_v2, &dptr, &pitch, dptr)
		CALL(cuCtxEnablePeerAccess, ctx, 0)
		CALL(cuDeviceGetDefaultMemPool, &shared, 0)
		CALL(cuDeviceGetMemPool, &shared, 0)
		CALL(cuDeviceSetMemPool, 0, NULL)
		CALL(cuMemGetDefaultMemPool, &shared, NULL, CU_MEM_ALLOCATION_TYPE_PINNED)
		CALL(cuMemGetMemPool, &shared, NULL, CU_MEM_ALLOCATION_TYPE_PINNED)
		CALL(cuMemPoolCreate, &shared, NULL)
		CALL(cuMemPoolGetAttribute, NULL, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &pitch)
		CALL(cuMemPoolSetAttribute, NULL, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &pitch)
		CALL(cuIpcGetMemHandle, &memory, dptr)
		CALL(cuIpcOpenMemHandle, &dptr, memory, 1)
		CALL(cuIpcOpenMemHandle_v2, &dptr, memory, 1)
		CALL(cuIpcCloseMemHandle, dptr)
		CALL(cuMemPoolExportPointer, &pool, dptr)
		CALL(cuMemPoolImportPointer, &dptr, NULL, &pool)
		CALL(cuMemPoolDestroy, NULL)
		CALL(cuEventCreate, &e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)
		if (!strcmp(argv[i], "cuEventCreate-plain"))
			result = cuEventCreate(&e, 0);
		CALL(cuEventDestroy, e)
		CALL(cuEventDestroy_v2, e)
		CALL(cuIpcGetEventHandle, &event, e)
		CALL(cuIpcOpenEventHandle, &e, event)
		CALL(cuCtxDestroy, ctx)
		CALL(cuCtxDestroy_v2, ctx)
		CALL(cuCtxDetach, ctx)
		CALL(cuDevicePrimaryCtxRetain, &ctx, 0)
		CALL(cuDevicePrimaryCtxRelease, 0)
		CALL(cuDevicePrimaryCtxRelease_v2, 0)
		CALL(cuDevicePrimaryCtxReset, 0)
		CALL(cuDevicePrimaryCtxReset_v2, 0)
		CALL(cuGreenCtxCreate, &green, NULL, 0, 1)
		CALL(cuCtxFromGreenCtx, &ctx, green)
		CALL(cuGreenCtxDestroy, green)
		dprintf(1, "%s %d\n", argv[i], (int)result);
	}
	return 0;
}

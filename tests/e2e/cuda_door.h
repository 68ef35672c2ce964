/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver API for the programs of tests/e2e.  They get it in one of the three
 * ways in which real programs do.
 *
 * TEST_DOOR in the environment selects the way:
 *   "linked"   linked against libcuda.so.1 (only in a program built with -DDOOR_LINKED)
 *   "dlsym"    dlopen, and dlsym of the versioned names (the default)
 *   "getproc"  as cudart does it: one dlsym for cuGetProcAddress_v2; that gives
 *              cuGetProcAddress for versions 11030 and 12000, with a NULL status;
 *              the one for 12000 gives all other calls
 *
 * Rule: A program makes no driver call in any other way.
 */
#ifndef CUDA_DOOR_H
#define CUDA_DOOR_H

#include <cuda.h>
#include <cudaTypedefs.h>

/* cuda.h renames calls to their newest form; here each name means exactly that symbol. */
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuEventDestroy
#undef cuIpcOpenMemHandle
#undef cuMemAlloc
#undef cuMemFree

/* Older forms that drivers still have and programs still call, but cuda.h of 13.0 lacks. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice device);
typedef CUresult(CUDAAPI *PFN_cuIpcOpenMemHandle_v4010)(CUdeviceptr *dptr, CUipcMemHandle handle,
						       unsigned int flags);
CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags);
/* The form for programs with per-thread default streams. */
CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream);

/* X(symbol, unversioned name, version that cuGetProcAddress is given) */
#define DOOR_CALLS(X)                                                                              \
	X(cuInit, cuInit, 2000)                                                                    \
	X(cuDriverGetVersion, cuDriverGetVersion, 2020)                                            \
	X(cuGetErrorName, cuGetErrorName, 6000)                                                    \
	X(cuDeviceGet, cuDeviceGet, 2000)                                                          \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                                \
	X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000)                          \
	X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000)                              \
	X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000)                            \
	X(cuCtxCreate_v2, cuCtxCreate, 3020)                                                       \
	X(cuCtxDestroy_v2, cuCtxDestroy, 4000)                                                     \
	X(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                  \
	X(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000)                                             \
	X(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000)                                               \
	X(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                                                  \
	X(cuCtxGetDevice, cuCtxGetDevice, 2000)                                                    \
	X(cuCtxSynchronize, cuCtxSynchronize, 2000)                                                \
	X(cuMemAlloc_v2, cuMemAlloc, 3020)                                                         \
	X(cuMemHostAlloc, cuMemHostAlloc, 2020)                                                    \
	X(cuMemFreeHost, cuMemFreeHost, 2000)                                                      \
	X(cuMemAllocPitch_v2, cuMemAllocPitch, 3020)                                               \
	X(cuMemAllocAsync, cuMemAllocAsync, 11020)                                                 \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020)                                 \
	X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020)                             \
	X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020)                                           \
	X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020)                                           \
	X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020)                                     \
	X(cuMemPoolCreate, cuMemPoolCreate, 11020)                                                 \
	X(cuMemPoolDestroy, cuMemPoolDestroy, 11020)                                               \
	X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020)                                                 \
	X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020)                                     \
	X(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 11020)               \
	X(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 11020)           \
	X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020)                                           \
	X(cuMemPoolGetAccess, cuMemPoolGetAccess, 11020)                                           \
	X(cuMemPoolExportPointer, cuMemPoolExportPointer, 11020)                                   \
	X(cuMemPoolImportPointer, cuMemPoolImportPointer, 11020)                                   \
	X(cuMemCreate, cuMemCreate, 10020)                                                         \
	X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020)                     \
	X(cuMemAddressReserve, cuMemAddressReserve, 10020)                                         \
	X(cuMemAddressFree, cuMemAddressFree, 10020)                                               \
	X(cuMemMap, cuMemMap, 10020)                                                               \
	X(cuMemUnmap, cuMemUnmap, 10020)                                                           \
	X(cuMemSetAccess, cuMemSetAccess, 10020)                                                   \
	X(cuMemGetAccess, cuMemGetAccess, 10020)                                                   \
	X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000)                                      \
	X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000)                         \
	X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020)                       \
	X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020)                   \
	X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020)   \
	X(cuMemRelease, cuMemRelease, 10020)                                                       \
	X(cuMemFree_v2, cuMemFree, 3020)                                                           \
	X(cuMemFreeAsync, cuMemFreeAsync, 11020)                                                   \
	X(cuMemGetInfo_v2, cuMemGetInfo, 3020)                                                     \
	X(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020)                                     \
	X(cuPointerGetAttribute, cuPointerGetAttribute, 4000)                                      \
	X(cuPointerGetAttributes, cuPointerGetAttributes, 7000)                                    \
	X(cuMemsetD8_v2, cuMemsetD8, 3020)                                                         \
	X(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020)                                                     \
	X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010)                                              \
	X(cuIpcOpenMemHandle, cuIpcOpenMemHandle, 4010)                                            \
	X(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000)                                        \
	X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010)                                          \
	X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010)                                          \
	X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010)                                        \
	X(cuEventCreate, cuEventCreate, 2000)                                                      \
	X(cuEventDestroy_v2, cuEventDestroy, 4000)                                                 \
	X(cuEventRecord, cuEventRecord, 2000)                                                      \
	X(cuEventSynchronize, cuEventSynchronize, 2000)                                            \
	X(cuEventQuery, cuEventQuery, 2000)                                                        \
	X(cuStreamCreate, cuStreamCreate, 2000)                                                    \
	X(cuStreamSynchronize, cuStreamSynchronize, 2000)                                          \
	X(cuStreamQuery, cuStreamQuery, 2000)                                                      \
	X(cuStreamDestroy_v2, cuStreamDestroy, 4000)                                               \
	X(cuStreamWaitEvent, cuStreamWaitEvent, 3020)                                              \
	X(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010)                                    \
	X(cuStreamEndCapture, cuStreamEndCapture, 10000)                                           \
	X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010)             \
	X(cuGraphDestroy, cuGraphDestroy, 10000)                                                   \
	X(cuLaunchHostFunc, cuLaunchHostFunc, 10000)                                               \
	X(cuModuleLoadData, cuModuleLoadData, 2000)                                                \
	X(cuCtxSetLimit, cuCtxSetLimit, 3010)                                                      \
	X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050)                            \
	X(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010)                                            \
	X(cuModuleUnload, cuModuleUnload, 2000)                                                    \
	X(cuGraphUpload, cuGraphUpload, 11010)                                                     \
	X(cuGraphExecDestroy, cuGraphExecDestroy, 10000)                                           \
	X(cuModuleGetFunction, cuModuleGetFunction, 2000)                                          \
	X(cuLaunchKernel, cuLaunchKernel, 4000)

/* Calls requested in their form for per-thread default streams. */
#define DOOR_PTSZ_CALLS(X) X(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020)

/* Calls that older drivers or the simulated one lack; NULL then. */
#if CUDA_VERSION >= 12040
#define DOOR_LATER_CALLS(X)                                                                        \
	X(cuDeviceGetDevResource, cuDeviceGetDevResource, 12040)                                   \
	X(cuDevResourceGenerateDesc, cuDevResourceGenerateDesc, 12040)                             \
	X(cuGreenCtxCreate, cuGreenCtxCreate, 12040)                                               \
	X(cuCtxFromGreenCtx, cuCtxFromGreenCtx, 12040)                                             \
	X(cuGreenCtxDestroy, cuGreenCtxDestroy, 12040)                                             \
	X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040)                         \
	X(cuGraphLaunch, cuGraphLaunch, 10000)                                                     \
	X(cuLibraryLoadData, cuLibraryLoadData, 12000)                                             \
	X(cuLibraryGetModule, cuLibraryGetModule, 12000)                                           \
	X(cuLibraryGetKernel, cuLibraryGetKernel, 12000)                                           \
	X(cuLibraryUnload, cuLibraryUnload, 12000)                                                 \
	X(cuKernelGetFunction, cuKernelGetFunction, 12000)
#else
#define DOOR_LATER_CALLS(X)
#endif

/* The driver's calls, as cuda_door_open() found them. */
struct cuda_door {
#define X(symbol, base, version) PFN_##base##_v##version symbol;
	DOOR_CALLS(X)
	DOOR_PTSZ_CALLS(X)
	DOOR_LATER_CALLS(X)
#undef X
};
extern struct cuda_door cu;

/*
 * Fills cu.  Returns NULL, or the reason why it failed (a text that stays valid).
 * Makes no CUDA call but cuGetProcAddress.
 */
const char *cuda_door_open(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call that this library exports.
 *
 * X(base, symbol, version, flags): the name for cuGetProcAddress, the name for
 * dlsym, the first CUDA version with this form, and 2 for a form with the
 * per-thread default stream.  A new call is one line here and one SIM_CALL().
 */
#ifndef CULIMBO_SIM_CALLS_H
#define CULIMBO_SIM_CALLS_H

#if CUDA_VERSION >= 11080
#define SIM_CALLS_11_8(X)                                                                          \
	X(cuLaunchKernelEx, cuLaunchKernelEx, 11060, 0)                                            \
	X(cuLaunchKernelEx, cuLaunchKernelEx_ptsz, 11060, 2)
#else
#define SIM_CALLS_11_8(X)
#endif

#if CUDA_VERSION >= 11070
#define SIM_CALLS_11_7(X) X(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070, 0)
#else
#define SIM_CALLS_11_7(X)
#endif

#define SIM_CALLS(X)                                                                               \
	X(cuArray3DCreate, cuArray3DCreate, 2000, 0)                                               \
	X(cuArray3DCreate, cuArray3DCreate_v2, 3020, 0)                                            \
	X(cuArrayCreate, cuArrayCreate, 2000, 0)                                                   \
	X(cuArrayCreate, cuArrayCreate_v2, 3020, 0)                                                \
	X(cuArrayDestroy, cuArrayDestroy, 2000, 0)                                                 \
	X(cuCtxAttach, cuCtxAttach, 2000, 0)                                                       \
	X(cuCtxCreate, cuCtxCreate, 2000, 0)                                                       \
	X(cuCtxCreate, cuCtxCreate_v2, 3020, 0)                                                    \
	X(cuCtxCreate, cuCtxCreate_v3, 11040, 0)                                                   \
	X(cuCtxCreate, cuCtxCreate_v4, 12050, 0)                                                   \
	X(cuCtxDestroy, cuCtxDestroy, 2000, 0)                                                     \
	X(cuCtxDestroy, cuCtxDestroy_v2, 4000, 0)                                                  \
	X(cuCtxDetach, cuCtxDetach, 2000, 0)                                                       \
	X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, 0)                                 \
	X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, 0)                                   \
	X(cuCtxFromGreenCtx, cuCtxFromGreenCtx, 12040, 0)                                          \
	X(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, 0)                                         \
	X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, 0)                                               \
	X(cuCtxGetDevice, cuCtxGetDevice, 2000, 0)                                                 \
	X(cuCtxGetDevice, cuCtxGetDevice_v2, 13000, 0)                                             \
	X(cuCtxGetFlags, cuCtxGetFlags, 7000, 0)                                                   \
	X(cuCtxGetId, cuCtxGetId, 12000, 0)                                                        \
	X(cuCtxGetLimit, cuCtxGetLimit, 3010, 0)                                                   \
	X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, 0)                       \
	X(cuCtxPopCurrent, cuCtxPopCurrent, 2000, 0)                                               \
	X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, 0)                                            \
	X(cuCtxPushCurrent, cuCtxPushCurrent, 2000, 0)                                             \
	X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, 0)                                          \
	X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, 0)                                               \
	X(cuCtxSetFlags, cuCtxSetFlags, 12010, 0)                                                  \
	X(cuCtxSetLimit, cuCtxSetLimit, 3010, 0)                                                   \
	X(cuCtxSynchronize, cuCtxSynchronize, 2000, 0)                                             \
	X(cuCtxSynchronize, cuCtxSynchronize_v2, 13000, 0)                                         \
	X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, 0)                                   \
	X(cuDeviceComputeCapability, cuDeviceComputeCapability, 2000, 0)                           \
	X(cuDeviceGet, cuDeviceGet, 2000, 0)                                                       \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, 0)                                     \
	X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, 0)                                   \
	X(cuDeviceGetCount, cuDeviceGetCount, 2000, 0)                                             \
	X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, 0)                          \
	X(cuDeviceGetDevResource, cuDeviceGetDevResource, 12040, 0)                                \
	X(cuDeviceGetLuid, cuDeviceGetLuid, 10000, 0)                                              \
	X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, 0)                                        \
	X(cuDeviceGetName, cuDeviceGetName, 2000, 0)                                               \
	X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, 0)                                       \
	X(cuDeviceGetUuid, cuDeviceGetUuid, 9020, 0)                                               \
	X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, 0)                                           \
	X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, 0)                         \
	X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, 0)                           \
	X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, 0)                       \
	X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 0)                               \
	X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, 0)                           \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0)                             \
	X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags, 7000, 0)                         \
	X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 11000, 0)                     \
	X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, 0)                                        \
	X(cuDeviceTotalMem, cuDeviceTotalMem, 2000, 0)                                             \
	X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, 0)                                          \
	X(cuDevResourceGenerateDesc, cuDevResourceGenerateDesc, 12040, 0)                          \
	X(cuDriverGetVersion, cuDriverGetVersion, 2020, 0)                                         \
	X(cuEventCreate, cuEventCreate, 2000, 0)                                                   \
	X(cuEventDestroy, cuEventDestroy, 2000, 0)                                                 \
	X(cuEventDestroy, cuEventDestroy_v2, 4000, 0)                                              \
	X(cuEventElapsedTime, cuEventElapsedTime, 2000, 0)                                         \
	X(cuEventElapsedTime, cuEventElapsedTime_v2, 12080, 0)                                     \
	X(cuEventQuery, cuEventQuery, 2000, 0)                                                     \
	X(cuEventRecord, cuEventRecord, 2000, 0)                                                   \
	X(cuEventRecord, cuEventRecord_ptsz, 7000, 2)                                              \
	X(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, 0)                                \
	X(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, 11010, 2)                           \
	X(cuEventSynchronize, cuEventSynchronize, 2000, 0)                                         \
	X(cuFuncGetAttribute, cuFuncGetAttribute, 2020, 0)                                         \
	X(cuGetErrorName, cuGetErrorName, 6000, 0)                                                 \
	X(cuGetErrorString, cuGetErrorString, 6000, 0)                                             \
	X(cuGetExportTable, cuGetExportTable, 3000, 0)                                             \
	X(cuGetProcAddress, cuGetProcAddress, 11030, 0)                                            \
	X(cuGetProcAddress, cuGetProcAddress_v2, 12000, 0)                                         \
	X(cuGraphDestroy, cuGraphDestroy, 10000, 0)                                                \
	X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, 0)                                        \
	X(cuGraphInstantiate, cuGraphInstantiate, 10000, 0)                                        \
	X(cuGraphInstantiate, cuGraphInstantiate_v2, 11000, 0)                                     \
	X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, 0)                      \
	X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, 0)                    \
	X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, 12000, 2)               \
	X(cuGraphUpload, cuGraphUpload, 11010, 0)                                                  \
	X(cuGraphUpload, cuGraphUpload_ptsz, 11010, 2)                                             \
	X(cuGreenCtxCreate, cuGreenCtxCreate, 12040, 0)                                            \
	X(cuGreenCtxDestroy, cuGreenCtxDestroy, 12040, 0)                                          \
	X(cuGreenCtxStreamCreate, cuGreenCtxStreamCreate, 12050, 0)                                \
	X(cuInit, cuInit, 2000, 0)                                                                 \
	X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, 0)                                       \
	X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, 0)                                       \
	X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, 0)                                           \
	X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, 0)                                     \
	X(cuIpcOpenMemHandle, cuIpcOpenMemHandle, 4010, 0)                                         \
	X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, 0)                                     \
	X(cuKernelGetFunction, cuKernelGetFunction, 12000, 0)                                      \
	X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, 0)                                            \
	X(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, 10000, 2)                                       \
	X(cuLaunchKernel, cuLaunchKernel, 4000, 0)                                                 \
	X(cuLaunchKernel, cuLaunchKernel_ptsz, 7000, 2)                                            \
	X(cuLibraryGetGlobal, cuLibraryGetGlobal, 12000, 0)                                        \
	X(cuLibraryGetKernel, cuLibraryGetKernel, 12000, 0)                                        \
	X(cuLibraryGetModule, cuLibraryGetModule, 12000, 0)                                        \
	X(cuLibraryLoadData, cuLibraryLoadData, 12000, 0)                                          \
	X(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000, 0)                                  \
	X(cuLibraryUnload, cuLibraryUnload, 12000, 0)                                              \
	X(cuMemAddressFree, cuMemAddressFree, 10020, 0)                                            \
	X(cuMemAddressReserve, cuMemAddressReserve, 10020, 0)                                      \
	X(cuMemAlloc, cuMemAlloc, 2000, 0)                                                         \
	X(cuMemAlloc, cuMemAlloc_v2, 3020, 0)                                                      \
	X(cuMemAllocAsync, cuMemAllocAsync, 11020, 0)                                              \
	X(cuMemAllocAsync, cuMemAllocAsync_ptsz, 11020, 2)                                         \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 0)                              \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, 11020, 2)                         \
	X(cuMemAllocHost, cuMemAllocHost, 2000, 0)                                                 \
	X(cuMemAllocHost, cuMemAllocHost_v2, 3020, 0)                                              \
	X(cuMemAllocManaged, cuMemAllocManaged, 6000, 0)                                           \
	X(cuMemAllocPitch, cuMemAllocPitch, 2000, 0)                                               \
	X(cuMemAllocPitch, cuMemAllocPitch_v2, 3020, 0)                                            \
	X(cuMemCreate, cuMemCreate, 10020, 0)                                                      \
	X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, 0)                    \
	X(cuMemFree, cuMemFree, 2000, 0)                                                           \
	X(cuMemFree, cuMemFree_v2, 3020, 0)                                                        \
	X(cuMemFreeAsync, cuMemFreeAsync, 11020, 0)                                                \
	X(cuMemFreeAsync, cuMemFreeAsync_ptsz, 11020, 2)                                           \
	X(cuMemFreeHost, cuMemFreeHost, 2000, 0)                                                   \
	X(cuMemGetAccess, cuMemGetAccess, 10020, 0)                                                \
	X(cuMemGetAddressRange, cuMemGetAddressRange, 2000, 0)                                     \
	X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, 0)                                  \
	X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, 0)                  \
	X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, 0) \
	X(cuMemGetInfo, cuMemGetInfo, 2000, 0)                                                     \
	X(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000, 0)                                \
	X(cuMemGetMemPool, cuMemGetMemPool, 13000, 0)                                              \
	X(cuMemSetMemPool, cuMemSetMemPool, 13000, 0)                                              \
	X(cuMemGetInfo, cuMemGetInfo_v2, 3020, 0)                                                  \
	X(cuMemHostAlloc, cuMemHostAlloc, 2020, 0)                                                 \
	X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer, 2020, 0)                           \
	X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, 0)                        \
	X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, 0)                                           \
	X(cuMemHostRegister, cuMemHostRegister, 4000, 0)                                           \
	X(cuMemHostRegister, cuMemHostRegister_v2, 6050, 0)                                        \
	X(cuMemHostUnregister, cuMemHostUnregister, 4000, 0)                                       \
	X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, 0)                \
	X(cuMemMap, cuMemMap, 10020, 0)                                                            \
	X(cuMemPoolCreate, cuMemPoolCreate, 11020, 0)                                              \
	X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, 0)                                            \
	X(cuMemPoolExportPointer, cuMemPoolExportPointer, 11020, 0)                                \
	X(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 11020, 0)            \
	X(cuMemPoolGetAccess, cuMemPoolGetAccess, 11020, 0)                                        \
	X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, 0)                                  \
	X(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 11020, 0)        \
	X(cuMemPoolImportPointer, cuMemPoolImportPointer, 11020, 0)                                \
	X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, 0)                                        \
	X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, 0)                                  \
	X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, 0)                                              \
	X(cuMemRelease, cuMemRelease, 10020, 0)                                                    \
	X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, 0)                      \
	X(cuMemSetAccess, cuMemSetAccess, 10020, 0)                                                \
	X(cuMemUnmap, cuMemUnmap, 10020, 0)                                                        \
	X(cuMemcpy, cuMemcpy, 4000, 0)                                                             \
	X(cuMemcpy, cuMemcpy_ptds, 7000, 2)                                                        \
	X(cuMemcpy2D, cuMemcpy2D_v2, 3020, 0)                                                      \
	X(cuMemcpy2D, cuMemcpy2D_v2_ptds, 7000, 2)                                                 \
	X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, 3020, 0)                                            \
	X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2_ptsz, 7000, 2)                                       \
	X(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2, 3020, 0)                                    \
	X(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2_ptds, 7000, 2)                               \
	X(cuMemcpyAsync, cuMemcpyAsync, 4000, 0)                                                   \
	X(cuMemcpyAsync, cuMemcpyAsync_ptsz, 7000, 2)                                              \
	X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, 0)                                                  \
	X(cuMemcpyDtoD, cuMemcpyDtoD_v2_ptds, 7000, 2)                                             \
	X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, 0)                                        \
	X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2_ptsz, 7000, 2)                                   \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, 0)                                                  \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2_ptds, 7000, 2)                                             \
	X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, 0)                                        \
	X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2_ptsz, 7000, 2)                                   \
	X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, 0)                                                  \
	X(cuMemcpyHtoD, cuMemcpyHtoD_v2_ptds, 7000, 2)                                             \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, 0)                                        \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2_ptsz, 7000, 2)                                   \
	X(cuMemcpyPeer, cuMemcpyPeer, 4000, 0)                                                     \
	X(cuMemcpyPeer, cuMemcpyPeer_ptds, 7000, 2)                                                \
	X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, 0)                                           \
	X(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, 7000, 2)                                      \
	X(cuMemsetD16, cuMemsetD16_v2, 3020, 0)                                                    \
	X(cuMemsetD16, cuMemsetD16_v2_ptds, 7000, 2)                                               \
	X(cuMemsetD16Async, cuMemsetD16Async, 3020, 0)                                             \
	X(cuMemsetD16Async, cuMemsetD16Async_ptsz, 7000, 2)                                        \
	X(cuMemsetD2D16, cuMemsetD2D16_v2, 3020, 0)                                                \
	X(cuMemsetD2D16, cuMemsetD2D16_v2_ptds, 7000, 2)                                           \
	X(cuMemsetD2D16Async, cuMemsetD2D16Async, 3020, 0)                                         \
	X(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, 7000, 2)                                    \
	X(cuMemsetD2D32, cuMemsetD2D32_v2, 3020, 0)                                                \
	X(cuMemsetD2D32, cuMemsetD2D32_v2_ptds, 7000, 2)                                           \
	X(cuMemsetD2D32Async, cuMemsetD2D32Async, 3020, 0)                                         \
	X(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz, 7000, 2)                                    \
	X(cuMemsetD2D8, cuMemsetD2D8_v2, 3020, 0)                                                  \
	X(cuMemsetD2D8, cuMemsetD2D8_v2_ptds, 7000, 2)                                             \
	X(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020, 0)                                           \
	X(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, 7000, 2)                                      \
	X(cuMemsetD32, cuMemsetD32_v2, 3020, 0)                                                    \
	X(cuMemsetD32, cuMemsetD32_v2_ptds, 7000, 2)                                               \
	X(cuMemsetD32Async, cuMemsetD32Async, 3020, 0)                                             \
	X(cuMemsetD32Async, cuMemsetD32Async_ptsz, 7000, 2)                                        \
	X(cuMemsetD8, cuMemsetD8_v2, 3020, 0)                                                      \
	X(cuMemsetD8, cuMemsetD8_v2_ptds, 7000, 2)                                                 \
	X(cuMemsetD8Async, cuMemsetD8Async, 3020, 0)                                               \
	X(cuMemsetD8Async, cuMemsetD8Async_ptsz, 7000, 2)                                          \
	X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, 0)                                 \
	X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, 0)                               \
	X(cuModuleGetFunction, cuModuleGetFunction, 2000, 0)                                       \
	X(cuModuleGetGlobal, cuModuleGetGlobal_v2, 3020, 0)                                        \
	X(cuModuleLoad, cuModuleLoad, 2000, 0)                                                     \
	X(cuModuleLoadData, cuModuleLoadData, 2000, 0)                                             \
	X(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, 0)                                         \
	X(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000, 0)                                   \
	X(cuModuleUnload, cuModuleUnload, 2000, 0)                                                 \
	X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, 0)                                   \
	X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, 0)                                 \
	X(cuPointerSetAttribute, cuPointerSetAttribute, 6000, 0)                                   \
	X(cuStreamAddCallback, cuStreamAddCallback, 5000, 0)                                       \
	X(cuStreamAddCallback, cuStreamAddCallback_ptsz, 7000, 2)                                  \
	X(cuStreamBeginCapture, cuStreamBeginCapture, 10000, 0)                                    \
	X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, 0)                                 \
	X(cuStreamBeginCapture, cuStreamBeginCapture_v2_ptsz, 10010, 2)                            \
	X(cuStreamCreate, cuStreamCreate, 2000, 0)                                                 \
	X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, 0)                         \
	X(cuStreamDestroy, cuStreamDestroy, 2000, 0)                                               \
	X(cuStreamDestroy, cuStreamDestroy_v2, 4000, 0)                                            \
	X(cuStreamEndCapture, cuStreamEndCapture, 10000, 0)                                        \
	X(cuStreamEndCapture, cuStreamEndCapture_ptsz, 10000, 2)                                   \
	X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030, 0)                             \
	X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2_ptsz, 11030, 2)                        \
	X(cuStreamGetCtx, cuStreamGetCtx, 9020, 0)                                                 \
	X(cuStreamGetCtx, cuStreamGetCtx_ptsz, 9020, 2)                                            \
	X(cuStreamGetFlags, cuStreamGetFlags, 5050, 0)                                             \
	X(cuStreamGetFlags, cuStreamGetFlags_ptsz, 7000, 2)                                        \
	X(cuStreamGetId, cuStreamGetId, 12000, 0)                                                  \
	X(cuStreamGetId, cuStreamGetId_ptsz, 12000, 2)                                             \
	X(cuStreamGetPriority, cuStreamGetPriority, 5050, 0)                                       \
	X(cuStreamGetPriority, cuStreamGetPriority_ptsz, 7000, 2)                                  \
	X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, 0)                                      \
	X(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, 10000, 2)                                 \
	X(cuStreamQuery, cuStreamQuery, 2000, 0)                                                   \
	X(cuStreamQuery, cuStreamQuery_ptsz, 7000, 2)                                              \
	X(cuStreamSynchronize, cuStreamSynchronize, 2000, 0)                                       \
	X(cuStreamSynchronize, cuStreamSynchronize_ptsz, 7000, 2)                                  \
	X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, 0)                                           \
	X(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, 7000, 2)                                      \
	X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, 0)          \
	SIM_CALLS_11_7(X)                                                                          \
	SIM_CALLS_11_8(X)

#endif

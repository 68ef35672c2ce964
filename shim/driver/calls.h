/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one list of driver calls.
 *
 * CL_HOOKED_CALLS has the calls of programs that we hook.  The seam
 * (shim/driver/driver.h), the hook table, the prototypes of the hooks, the stubs and
 * the exported symbols with their version (preload/) are all made from this list.  To hook one
 * more call, add its line here and write cl_hook_<symbol>() in preload/hook_*.c.
 * doc/architecture.md says how a hook is tested.
 *
 * CL_USED_CALLS has the calls that only we ourselves make.
 *
 * X(symbol, base, since, flags, typedef, (parameters), (arguments))
 *   symbol     the versioned name that dlsym takes
 *   base       the bare name that cuGetProcAddress takes
 *   since      the CUDA version to ask cuGetProcAddress with for this form
 *   flags      0, or 2 for a per-thread default stream form (_ptsz)
 *   typedef    the PFN_ type in cudaTypedefs.h; preload/signatures.c checks the parameters with it
 *
 * Assembly files (preload/stubs_*.S) include this file as well, and see only the lists.
 *
 * What must hold: forms that take 32-bit device pointers (cuMemAlloc, cuMemFree
 * of CUDA 2.0, ...) are not listed: a program that asks for them gets the
 * driver's own function.
 */
#ifndef CL_DRIVER_CALLS_H
#define CL_DRIVER_CALLS_H

#ifndef __ASSEMBLER__
#include <cuda.h>

/* cuda.h defines these names as macros for the newest form.  Here each name must mean itself. */
#undef cuGetProcAddress
#undef cuIpcOpenMemHandle
#undef cuEventDestroy
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDeviceGetUuid
#undef cuCtxCreate
#undef cuGraphInstantiate
#undef cuGraphInstantiate_v2

/* CUDA 12 introduced this type.  To the machine a pointer to int is the same. */
#if CUDA_VERSION >= 12000
typedef CUdriverProcAddressQueryResult cl_query_result;
#else
typedef int cl_query_result;
#endif

/* Types that are newer than CUDA 11.3.  We only pass pointers to them on. */
#if CUDA_VERSION < 11040
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
#endif
#if CUDA_VERSION < 12000
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef int CUlibraryOption;
typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS_st CUDA_GRAPH_INSTANTIATE_PARAMS;
#endif
#if CUDA_VERSION < 12040
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
#endif
#if CUDA_VERSION < 12050
typedef struct CUctxCreateParams_st CUctxCreateParams;
#endif
#endif /* __ASSEMBLER__ */

#define CL_HOOKED_CALLS(X)                                                                         \
	/* how programs find pointers to the other calls */                                        \
	X(cuGetProcAddress, "cuGetProcAddress", 11030, 0, PFN_cuGetProcAddress_v11030,             \
	  (const char *name, void **pfn, int version, cuuint64_t flags),                           \
	  (name, pfn, version, flags))                                                             \
	X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0, PFN_cuGetProcAddress_v12000,          \
	  (const char *name, void **pfn, int version, cuuint64_t flags, cl_query_result *status),  \
	  (name, pfn, version, flags, status))                                                     \
	/* from here on a forked process has a copy of the driver's descriptors */                \
	X(cuInit, "cuInit", 2000, 0, PFN_cuInit_v2000, (unsigned int flags), (flags))              \
	/* allocations: repeated after a failure, once memory came free */                         \
	X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0, PFN_cuMemAlloc_v3020,                              \
	  (CUdeviceptr * dptr, size_t bytes), (dptr, bytes))                                       \
	X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0, PFN_cuMemAllocPitch_v3020,               \
	  (CUdeviceptr * dptr, size_t * pitch, size_t width, size_t height, unsigned int element), \
	  (dptr, pitch, width, height, element))                                                   \
	X(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0, PFN_cuMemAllocManaged_v6000,            \
	  (CUdeviceptr * dptr, size_t bytes, unsigned int flags), (dptr, bytes, flags))            \
	X(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0, PFN_cuMemAllocAsync_v11020,                \
	  (CUdeviceptr * dptr, size_t bytes, CUstream stream), (dptr, bytes, stream))              \
	X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 2, PFN_cuMemAllocAsync_v11020_ptsz,      \
	  (CUdeviceptr * dptr, size_t bytes, CUstream stream), (dptr, bytes, stream))              \
	X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0,                            \
	  PFN_cuMemAllocFromPoolAsync_v11020,                                                      \
	  (CUdeviceptr * dptr, size_t bytes, CUmemoryPool pool, CUstream stream),                  \
	  (dptr, bytes, pool, stream))                                                             \
	X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 2,                       \
	  PFN_cuMemAllocFromPoolAsync_v11020_ptsz,                                                 \
	  (CUdeviceptr * dptr, size_t bytes, CUmemoryPool pool, CUstream stream),                  \
	  (dptr, bytes, pool, stream))                                                             \
	X(cuMemCreate, "cuMemCreate", 10020, 0, PFN_cuMemCreate_v10020,                            \
	  (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,    \
	   unsigned long long flags),                                                              \
	  (handle, size, prop, flags))                                                             \
	X(cuArrayCreate_v2, "cuArrayCreate", 3020, 0, PFN_cuArrayCreate_v3020,                     \
	  (CUarray * handle, const CUDA_ARRAY_DESCRIPTOR *wanted), (handle, wanted))               \
	X(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0, PFN_cuArray3DCreate_v3020,               \
	  (CUarray * handle, const CUDA_ARRAY3D_DESCRIPTOR *wanted), (handle, wanted))             \
	X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0,                               \
	  PFN_cuMipmappedArrayCreate_v5000,                                                        \
	  (CUmipmappedArray * handle, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels), \
	  (handle, wanted, levels))                                                                \
	/* other calls that take device memory: repeated in the same way */                        \
	X(cuCtxCreate, "cuCtxCreate", 2000, 0, PFN_cuCtxCreate_v2000,                              \
	  (CUcontext * ctx, unsigned int flags, CUdevice device), (ctx, flags, device))            \
	X(cuCtxCreate_v2, "cuCtxCreate", 3020, 0, PFN_cuCtxCreate_v3020,                           \
	  (CUcontext * ctx, unsigned int flags, CUdevice device), (ctx, flags, device))            \
	X(cuCtxCreate_v3, "cuCtxCreate", 11040, 0, PFN_cuCtxCreate_v11040,                         \
	  (CUcontext * ctx, CUexecAffinityParam * affinity, int n, unsigned int flags,             \
	   CUdevice device), (ctx, affinity, n, flags, device))                                    \
	X(cuCtxCreate_v4, "cuCtxCreate", 12050, 0, PFN_cuCtxCreate_v12050,                         \
	  (CUcontext * ctx, CUctxCreateParams * with, unsigned int flags, CUdevice device),        \
	  (ctx, with, flags, device))                                                              \
	X(cuCtxSetLimit, "cuCtxSetLimit", 3010, 0, PFN_cuCtxSetLimit_v3010,                        \
	  (CUlimit limit, size_t value), (limit, value))                                           \
	X(cuStreamCreate, "cuStreamCreate", 2000, 0, PFN_cuStreamCreate_v2000,                     \
	  (CUstream * stream, unsigned int flags), (stream, flags))                                \
	X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, 0,                       \
	  PFN_cuStreamCreateWithPriority_v5050,                                                    \
	  (CUstream * stream, unsigned int flags, int priority), (stream, flags, priority))        \
	X(cuModuleLoad, "cuModuleLoad", 2000, 0, PFN_cuModuleLoad_v2000,                           \
	  (CUmodule * module, const char *path), (module, path))                                   \
	X(cuModuleLoadData, "cuModuleLoadData", 2000, 0, PFN_cuModuleLoadData_v2000,               \
	  (CUmodule * module, const void *image), (module, image))                                 \
	X(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, 0, PFN_cuModuleLoadDataEx_v2010,         \
	  (CUmodule * module, const void *image, unsigned int n, CUjit_option *options,            \
	   void **values), (module, image, n, options, values))                                    \
	X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, 0,                                 \
	  PFN_cuModuleLoadFatBinary_v2000, (CUmodule * module, const void *image),                 \
	  (module, image))                                                                         \
	X(cuLibraryLoadData, "cuLibraryLoadData", 12000, 0, PFN_cuLibraryLoadData_v12000,          \
	  (CUlibrary * library, const void *code, CUjit_option *jit, void **jit_values,            \
	   unsigned int jit_n, CUlibraryOption *options, void **values, unsigned int n),           \
	  (library, code, jit, jit_values, jit_n, options, values, n))                             \
	X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, 0,                                \
	  PFN_cuLibraryLoadFromFile_v12000,                                                        \
	  (CUlibrary * library, const char *path, CUjit_option *jit, void **jit_values,            \
	   unsigned int jit_n, CUlibraryOption *options, void **values, unsigned int n),           \
	  (library, path, jit, jit_values, jit_n, options, values, n))                             \
	X(cuLibraryGetModule, "cuLibraryGetModule", 12000, 0, PFN_cuLibraryGetModule_v12000,       \
	  (CUmodule * module, CUlibrary library), (module, library))                               \
	X(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000, 0, PFN_cuLibraryGetGlobal_v12000,       \
	  (CUdeviceptr * dptr, size_t * bytes, CUlibrary library, const char *name),               \
	  (dptr, bytes, library, name))                                                            \
	X(cuKernelGetFunction, "cuKernelGetFunction", 12000, 0, PFN_cuKernelGetFunction_v12000,    \
	  (CUfunction * found, CUkernel kernel), (found, kernel))                                  \
	X(cuGraphInstantiate, "cuGraphInstantiate", 10000, 0, PFN_cuGraphInstantiate_v10000,       \
	  (CUgraphExec * exec, CUgraph graph, CUgraphNode * node, char *log, size_t bytes),        \
	  (exec, graph, node, log, bytes))                                                         \
	X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0, PFN_cuGraphInstantiate_v11000,    \
	  (CUgraphExec * exec, CUgraph graph, CUgraphNode * node, char *log, size_t bytes),        \
	  (exec, graph, node, log, bytes))                                                         \
	X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0,                    \
	  PFN_cuGraphInstantiateWithFlags_v11040,                                                  \
	  (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))     \
	X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, 0,                  \
	  PFN_cuGraphInstantiateWithParams_v12000,                                                 \
	  (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * with),               \
	  (exec, graph, with))                                                                     \
	X(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, 2,             \
	  PFN_cuGraphInstantiateWithParams_v12000_ptsz,                                            \
	  (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * with),               \
	  (exec, graph, with))                                                                     \
	X(cuGraphUpload, "cuGraphUpload", 11010, 0, PFN_cuGraphUpload_v11010,                      \
	  (CUgraphExec exec, CUstream stream), (exec, stream))                                     \
	X(cuGraphUpload_ptsz, "cuGraphUpload", 11010, 2, PFN_cuGraphUpload_v11010_ptsz,            \
	  (CUgraphExec exec, CUstream stream), (exec, stream))                                     \
	/* freeing */                                                                              \
	X(cuMemFree_v2, "cuMemFree", 3020, 0, PFN_cuMemFree_v3020, (CUdeviceptr dptr), (dptr))     \
	X(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0, PFN_cuMemFreeAsync_v11020,                   \
	  (CUdeviceptr dptr, CUstream stream), (dptr, stream))                                     \
	X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 2, PFN_cuMemFreeAsync_v11020_ptsz,         \
	  (CUdeviceptr dptr, CUstream stream), (dptr, stream))                                     \
	/* only goes on to the driver: a library that patches this hook does not see the calls     \
	   that we make (driver/wait.c) */                                                         \
	X(cuMemFreeHost, "cuMemFreeHost", 2000, 0, PFN_cuMemFreeHost_v2000, (void *pointer), (pointer)) \
	/* sharing memory by descriptors and fabric handles: counted */                            \
	X(cuMemMap, "cuMemMap", 10020, 0, PFN_cuMemMap_v10020,                                     \
	  (CUdeviceptr dptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,      \
	   unsigned long long flags),                                                              \
	  (dptr, size, offset, handle, flags))                                                     \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, 0,                  \
	  PFN_cuMemExportToShareableHandle_v10020,                                                 \
	  (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,   \
	   unsigned long long flags),                                                              \
	  (shareable, handle, type, flags))                                                        \
	X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, 0,              \
	  PFN_cuMemImportFromShareableHandle_v10020,                                               \
	  (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type), \
	  (handle, shareable, type))                                                               \
	X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020, 0,          \
	  PFN_cuMemPoolExportToShareableHandle_v11020,                                             \
	  (void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type,                     \
	   unsigned long long flags),                                                              \
	  (shareable, pool, type, flags))                                                          \
	X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, 0,      \
	  PFN_cuMemPoolImportFromShareableHandle_v11020,                                           \
	  (CUmemoryPool * pool, void *shareable, CUmemAllocationHandleType type,                   \
	   unsigned long long flags),                                                              \
	  (pool, shareable, type, flags))                                                          \
	/* virtual memory, which CULIMBO_SHARE=all shares: what lies where, and what programs ask of it and its imports */ \
	X(cuMemAddressReserve, "cuMemAddressReserve", 10020, 0, PFN_cuMemAddressReserve_v10020,    \
	  (CUdeviceptr * dptr, size_t size, size_t alignment, CUdeviceptr wanted,                  \
	   unsigned long long flags),                                                              \
	  (dptr, size, alignment, wanted, flags))                                                  \
	X(cuMemAddressFree, "cuMemAddressFree", 10020, 0, PFN_cuMemAddressFree_v10020,             \
	  (CUdeviceptr dptr, size_t size), (dptr, size))                                           \
	X(cuMemUnmap, "cuMemUnmap", 10020, 0, PFN_cuMemUnmap_v10020,                               \
	  (CUdeviceptr dptr, size_t size), (dptr, size))                                           \
	X(cuMemRelease, "cuMemRelease", 10020, 0, PFN_cuMemRelease_v10020,                         \
	  (CUmemGenericAllocationHandle handle), (handle))                                         \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0,                     \
	  PFN_cuMemRetainAllocationHandle_v11000,                                                  \
	  (CUmemGenericAllocationHandle * handle, void *address), (handle, address))               \
	X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020, \
	  0, PFN_cuMemGetAllocationPropertiesFromHandle_v10020,                                    \
	  (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), (prop, handle))       \
	X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, 0,                                 \
	  PFN_cuPointerGetAttribute_v4000,                                                         \
	  (void *data, CUpointer_attribute attribute, CUdeviceptr dptr), (data, attribute, dptr))  \
	X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, 0,                               \
	  PFN_cuPointerGetAttributes_v7000,                                                        \
	  (unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr dptr),        \
	  (n, attributes, data, dptr))                                                             \
	X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020, 0,                                \
	  PFN_cuMemGetAddressRange_v3020, (CUdeviceptr * base, size_t * size, CUdeviceptr dptr),   \
	  (base, size, dptr))                                                                      \
	X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, 0, PFN_cuCtxEnablePeerAccess_v4000, \
	  (CUcontext ctx, unsigned int flags), (ctx, flags))                                       \
	/* pools, which CULIMBO_SHARE=all makes exportable */                                      \
	X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, 0,                        \
	  PFN_cuDeviceGetDefaultMemPool_v11020, (CUmemoryPool * pool, CUdevice device),            \
	  (pool, device))                                                                          \
	X(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, 0, PFN_cuDeviceGetMemPool_v11020,       \
	  (CUmemoryPool * pool, CUdevice device), (pool, device))                                  \
	X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, 0, PFN_cuDeviceSetMemPool_v11020,       \
	  (CUdevice device, CUmemoryPool pool), (device, pool))                                    \
	X(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000, 0,                              \
	  PFN_cuMemGetDefaultMemPool_v13000,                                                       \
	  (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),                \
	  (pool, location, type))                                                                  \
	X(cuMemGetMemPool, "cuMemGetMemPool", 13000, 0, PFN_cuMemGetMemPool_v13000,                \
	  (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),                \
	  (pool, location, type))                                                                  \
	X(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0, PFN_cuMemPoolCreate_v11020,                \
	  (CUmemoryPool * pool, const CUmemPoolProps *props), (pool, props))                       \
	X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, 0,                                \
	  PFN_cuMemPoolGetAttribute_v11020,                                                        \
	  (CUmemoryPool pool, CUmemPool_attribute attribute, void *value),                         \
	  (pool, attribute, value))                                                                \
	X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, 0,                                \
	  PFN_cuMemPoolSetAttribute_v11020,                                                        \
	  (CUmemoryPool pool, CUmemPool_attribute attribute, void *value),                         \
	  (pool, attribute, value))                                                                \
	/* sharing memory */                                                                       \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0, PFN_cuIpcGetMemHandle_v4010,            \
	  (CUipcMemHandle * handle, CUdeviceptr dptr), (handle, dptr))                             \
	X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, 0, PFN_cuIpcOpenMemHandle_v4010,         \
	  (CUdeviceptr * dptr, CUipcMemHandle handle, unsigned int flags), (dptr, handle, flags))  \
	X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0, PFN_cuIpcOpenMemHandle_v11000,    \
	  (CUdeviceptr * dptr, CUipcMemHandle handle, unsigned int flags), (dptr, handle, flags))  \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0, PFN_cuIpcCloseMemHandle_v4010,      \
	  (CUdeviceptr dptr), (dptr))                                                              \
	X(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, 0,                              \
	  PFN_cuMemPoolExportPointer_v11020, (CUmemPoolPtrExportData * data, CUdeviceptr dptr),    \
	  (data, dptr))                                                                            \
	X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, 0,                              \
	  PFN_cuMemPoolImportPointer_v11020,                                                       \
	  (CUdeviceptr * dptr, CUmemoryPool pool, CUmemPoolPtrExportData * data),                  \
	  (dptr, pool, data))                                                                      \
	X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0, PFN_cuMemPoolDestroy_v11020,             \
	  (CUmemoryPool pool), (pool))                                                             \
	/* sharing events */                                                                       \
	X(cuEventCreate, "cuEventCreate", 2000, 0, PFN_cuEventCreate_v2000,                        \
	  (CUevent * event, unsigned int flags), (event, flags))                                   \
	X(cuEventDestroy, "cuEventDestroy", 2000, 0, PFN_cuEventDestroy_v2000, (CUevent event),    \
	  (event))                                                                                 \
	X(cuEventDestroy_v2, "cuEventDestroy", 4000, 0, PFN_cuEventDestroy_v4000, (CUevent event), \
	  (event))                                                                                 \
	X(cuIpcGetEventHandle, "cuIpcGetEventHandle", 4010, 0, PFN_cuIpcGetEventHandle_v4010,      \
	  (CUipcEventHandle * handle, CUevent event), (handle, event))                             \
	X(cuIpcOpenEventHandle, "cuIpcOpenEventHandle", 4010, 0, PFN_cuIpcOpenEventHandle_v4010,   \
	  (CUevent * event, CUipcEventHandle handle), (event, handle))                             \
	/* ends of contexts */                                                                     \
	X(cuCtxDestroy, "cuCtxDestroy", 2000, 0, PFN_cuCtxDestroy_v2000, (CUcontext ctx), (ctx))   \
	X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0, PFN_cuCtxDestroy_v4000, (CUcontext ctx),       \
	  (ctx))                                                                                   \
	X(cuCtxDetach, "cuCtxDetach", 2000, 0, PFN_cuCtxDetach_v2000, (CUcontext ctx), (ctx))      \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0,                           \
	  PFN_cuDevicePrimaryCtxRetain_v7000, (CUcontext * ctx, CUdevice device), (ctx, device))   \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0,                         \
	  PFN_cuDevicePrimaryCtxRelease_v7000, (CUdevice device), (device))                        \
	X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0,                     \
	  PFN_cuDevicePrimaryCtxRelease_v11000, (CUdevice device), (device))                       \
	X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0,                             \
	  PFN_cuDevicePrimaryCtxReset_v7000, (CUdevice device), (device))                          \
	X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0,                         \
	  PFN_cuDevicePrimaryCtxReset_v11000, (CUdevice device), (device))                         \
	/* green contexts, parts of the primary one, which a destroy may end as well */            \
	X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, 0, PFN_cuGreenCtxCreate_v12040,             \
	  (CUgreenCtx * green, CUdevResourceDesc with, CUdevice device, unsigned int flags),       \
	  (green, with, device, flags))                                                            \
	X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040, 0, PFN_cuCtxFromGreenCtx_v12040,          \
	  (CUcontext * ctx, CUgreenCtx green), (ctx, green))                                       \
	X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, 0, PFN_cuGreenCtxDestroy_v12040,          \
	  (CUgreenCtx green), (green))

#define CL_USED_CALLS(X)                                                                           \
	X(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0, PFN_cuDriverGetVersion_v2020,         \
	  (int *version), (version))                                                               \
	X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0, PFN_cuCtxGetCurrent_v4000,                  \
	  (CUcontext * ctx), (ctx))                                                                \
	X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000, 0, PFN_cuCtxPushCurrent_v4000,            \
	  (CUcontext ctx), (ctx))                                                                  \
	X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, 0, PFN_cuCtxPopCurrent_v4000,               \
	  (CUcontext * ctx), (ctx))                                                                \
	X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 0, PFN_cuDeviceGetUuid_v9020,                  \
	  (CUuuid * uuid, CUdevice device), (uuid, device))                                        \
	X(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, 0, PFN_cuDeviceGetUuid_v11040,             \
	  (CUuuid * uuid, CUdevice device), (uuid, device))                                        \
	X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0, PFN_cuMemGetInfo_v3020,                        \
	  (size_t * free, size_t * total), (free, total))                                          \
	X(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0, PFN_cuMemHostAlloc_v2020,                     \
	  (void **pointer, size_t size, unsigned int flags), (pointer, size, flags))               \
	X(cuCtxGetDevice, "cuCtxGetDevice", 2000, 0, PFN_cuCtxGetDevice_v2000,                     \
	  (CUdevice * device), (device))                                                           \
	X(cuCtxGetId, "cuCtxGetId", 12000, 0, PFN_cuCtxGetId_v12000,                               \
	  (CUcontext ctx, unsigned long long *id), (ctx, id))                                      \
	X(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0, PFN_cuCtxSynchronize_v2000, (void), ())   \
	X(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0, PFN_cuDeviceGetCount_v2000, (int *count), (count)) \
	X(cuMemPoolGetAccess, "cuMemPoolGetAccess", 11020, 0, PFN_cuMemPoolGetAccess_v11020,       \
	  (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation *location), (flags, pool, location)) \
	X(cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, 0, PFN_cuMemPoolSetAccess_v11020,       \
	  (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count), (pool, access, count))  \
	X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0, PFN_cuDeviceTotalMem_v3020,             \
	  (size_t * bytes, CUdevice device), (bytes, device))                                      \
	X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, 0,                       \
	  PFN_cuDevicePrimaryCtxGetState_v7000,                                                    \
	  (CUdevice device, unsigned int *flags, int *active), (device, flags, active))            \
	X(cuMemSetAccess, "cuMemSetAccess", 10020, 0, PFN_cuMemSetAccess_v10020,                   \
	  (CUdeviceptr dptr, size_t size, const CUmemAccessDesc *access, size_t count),            \
	  (dptr, size, access, count))                                                             \
	X(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0, PFN_cuStreamSynchronize_v2000,      \
	  (CUstream stream), (stream))                                                             \
	X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0, PFN_cuStreamDestroy_v4000,               \
	  (CUstream stream), (stream))                                                             \
	X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, 0, PFN_cuStreamWaitEvent_v3020,            \
	  (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))            \
	X(cuStreamWaitEvent_ptsz, "cuStreamWaitEvent", 7000, 2, PFN_cuStreamWaitEvent_v7000_ptsz,  \
	  (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))            \
	X(cuStreamGetCtx, "cuStreamGetCtx", 9020, 0, PFN_cuStreamGetCtx_v9020,                     \
	  (CUstream stream, CUcontext * ctx), (stream, ctx))                                       \
	X(cuStreamGetCtx_ptsz, "cuStreamGetCtx", 9020, 2, PFN_cuStreamGetCtx_v9020_ptsz,           \
	  (CUstream stream, CUcontext * ctx), (stream, ctx))                                       \
	X(cuStreamGetId, "cuStreamGetId", 12000, 0, PFN_cuStreamGetId_v12000,                      \
	  (CUstream stream, unsigned long long *id), (stream, id))                                 \
	X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, 0, PFN_cuStreamIsCapturing_v10000,    \
	  (CUstream stream, CUstreamCaptureStatus * status), (stream, status))                     \
	X(cuStreamIsCapturing_ptsz, "cuStreamIsCapturing", 10000, 2,                               \
	  PFN_cuStreamIsCapturing_v10000_ptsz, (CUstream stream, CUstreamCaptureStatus * status),  \
	  (stream, status))                                                                        \
	X(cuEventRecord, "cuEventRecord", 2000, 0, PFN_cuEventRecord_v2000,                        \
	  (CUevent event, CUstream stream), (event, stream))                                       \
	X(cuEventRecord_ptsz, "cuEventRecord", 7000, 2, PFN_cuEventRecord_v7000_ptsz,              \
	  (CUevent event, CUstream stream), (event, stream))                                       \
	X(cuEventQuery, "cuEventQuery", 2000, 0, PFN_cuEventQuery_v2000, (CUevent event), (event)) \
	X(cuEventSynchronize, "cuEventSynchronize", 2000, 0, PFN_cuEventSynchronize_v2000,         \
	  (CUevent event), (event))                                                                \
	X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, 0,        \
	  PFN_cuThreadExchangeStreamCaptureMode_v10010, (CUstreamCaptureMode * mode), (mode))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks at compile time that each call in the list has exactly the
 * type that CUDA's own cudaTypedefs.h gives to that version of it.
 *
 * The check is in a file of its own because cuda.h declares the types of superseded forms only if
 * __CUDA_API_VERSION_INTERNAL is defined, and that changes what other names mean.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>
#include "shim/driver/calls.h"

#if CUDA_VERSION < 11040
typedef CUresult(CUDAAPI *PFN_cuDeviceGetUuid_v11040)(CUuuid *, CUdevice);
/* this toolkit does not have the type yet, here and below: so it is copied from the list */
typedef CUresult(CUDAAPI *PFN_cuCtxCreate_v11040)(CUcontext *, CUexecAffinityParam *, int, unsigned int,
						  CUdevice);
typedef CUresult(CUDAAPI *PFN_cuGraphInstantiateWithFlags_v11040)(CUgraphExec *, CUgraph,
								  unsigned long long);
#endif
#if CUDA_VERSION < 12000
typedef CUresult(CUDAAPI *PFN_cuGetProcAddress_v12000)(const char *, void **, int, cuuint64_t,
						       cl_query_result *);
typedef CUresult(CUDAAPI *PFN_cuCtxGetId_v12000)(CUcontext, unsigned long long *);
typedef CUresult(CUDAAPI *PFN_cuStreamGetId_v12000)(CUstream, unsigned long long *);
typedef CUresult(CUDAAPI *PFN_cuLibraryLoadData_v12000)(CUlibrary *, const void *, CUjit_option *,
							void **, unsigned int, CUlibraryOption *,
							void **, unsigned int);
typedef CUresult(CUDAAPI *PFN_cuLibraryLoadFromFile_v12000)(CUlibrary *, const char *, CUjit_option *,
							    void **, unsigned int, CUlibraryOption *,
							    void **, unsigned int);
typedef CUresult(CUDAAPI *PFN_cuLibraryGetModule_v12000)(CUmodule *, CUlibrary);
typedef CUresult(CUDAAPI *PFN_cuLibraryGetGlobal_v12000)(CUdeviceptr *, size_t *, CUlibrary,
							 const char *);
typedef CUresult(CUDAAPI *PFN_cuKernelGetFunction_v12000)(CUfunction *, CUkernel);
typedef CUresult(CUDAAPI *PFN_cuGraphInstantiateWithParams_v12000)(CUgraphExec *, CUgraph,
								   CUDA_GRAPH_INSTANTIATE_PARAMS *);
typedef PFN_cuGraphInstantiateWithParams_v12000 PFN_cuGraphInstantiateWithParams_v12000_ptsz;
#endif
#if CUDA_VERSION < 12040
typedef CUresult(CUDAAPI *PFN_cuGreenCtxCreate_v12040)(CUgreenCtx *, CUdevResourceDesc, CUdevice,
						       unsigned int);
typedef CUresult(CUDAAPI *PFN_cuCtxFromGreenCtx_v12040)(CUcontext *, CUgreenCtx);
typedef CUresult(CUDAAPI *PFN_cuGreenCtxDestroy_v12040)(CUgreenCtx);
#endif
#if CUDA_VERSION < 12050
typedef CUresult(CUDAAPI *PFN_cuCtxCreate_v12050)(CUcontext *, CUctxCreateParams *, unsigned int,
						  CUdevice);
#endif
#if CUDA_VERSION < 13000
typedef CUresult(CUDAAPI *PFN_cuMemGetDefaultMemPool_v13000)(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
typedef CUresult(CUDAAPI *PFN_cuMemGetMemPool_v13000)(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
#endif

#define X(symbol, base, since, flags, type, params, args)                                 \
	_Static_assert(__builtin_types_compatible_p(CUresult(CUDAAPI *) params, type), \
		       #symbol " is not of the type " #type);
CL_HOOKED_CALLS(X)
CL_USED_CALLS(X)
#undef X

/* ISO C wants a declaration in a file. */
extern const char cl_signatures_checked;

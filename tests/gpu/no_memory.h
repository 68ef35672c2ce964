/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the no_memory program (no_memory.c) share: the driver's calls, what the
 * filler shares with a prober, and the prober's state and calls.
 */
#ifndef CL_TEST_NO_MEMORY_H
#define CL_TEST_NO_MEMORY_H

#include <stdbool.h>

#include <cuda.h>

#define MIB ((size_t)1 << 20)

#define NOT_THERE (-1)	/* this driver has no such call */
#define NO_ANSWER (-2)	/* the prober crashed or did not return */
#define OOM CUDA_ERROR_OUT_OF_MEMORY

/* Uses void pointers for types that CUDA 11.3 lacks. */
#define NEEDED_CALLS(X)                                                                        \
	X(cuInit, (unsigned int))                                                              \
	X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                         \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                   \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                            \
	X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                               \
	X(cuCtxDestroy_v2, (CUcontext))                                                        \
	X(cuCtxSetCurrent, (CUcontext))                                                        \
	X(cuCtxSynchronize, (void))                                                            \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                               \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                              \
	X(cuMemFree_v2, (CUdeviceptr))                                                         \
	X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                  \
	X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int))                \
	X(cuIpcCloseMemHandle, (CUdeviceptr))                                                  \
	X(cuIpcGetEventHandle, (CUipcEventHandle *, CUevent))                                  \
	X(cuIpcOpenEventHandle, (CUevent *, CUipcEventHandle))                                 \
	X(cuEventCreate, (CUevent *, unsigned int))                                            \
	X(cuEventDestroy_v2, (CUevent))                                                        \
	X(cuStreamCreate, (CUstream *, unsigned int))                                          \
	X(cuStreamDestroy_v2, (CUstream))                                                      \
	X(cuStreamSynchronize, (CUstream))

#define OTHER_CALLS(X)                                                                         \
	X(cuCtxSetLimit, (CUlimit, size_t))                                                    \
	X(cuCtxGetLimit, (size_t *, CUlimit))                                                  \
	X(cuModuleLoadData, (CUmodule *, const void *))                                        \
	X(cuModuleUnload, (CUmodule))                                                          \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                         \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))             \
	X(cuFuncLoad, (CUfunction))                                                            \
	X(cuLibraryLoadData, (void **, const void *, void *, void **, unsigned int, void *,    \
			      void **, unsigned int))                                          \
	X(cuLibraryUnload, (void *))                                                           \
	X(cuLibraryGetKernel, (void **, void *, const char *))                                 \
	X(cuLibraryGetModule, (CUmodule *, void *))                                            \
	X(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, void *, const char *))                 \
	X(cuKernelGetFunction, (CUfunction *, void *))                                         \
	X(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, \
			   unsigned int, unsigned int, unsigned int, CUstream, void **, void **)) \
	X(cuStreamCreateWithPriority, (CUstream *, unsigned int, int))                         \
	X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                            \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                           \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))           \
	X(cuGraphUpload, (CUgraphExec, CUstream))                                              \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                              \
	X(cuGraphExecDestroy, (CUgraphExec))                                                   \
	X(cuGraphDestroy, (CUgraph))                                                           \
	X(cuDeviceGraphMemTrim, (CUdevice))                                                    \
	X(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                           \
	X(cuMemPoolDestroy, (CUmemoryPool))                                                    \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                  \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                             \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))            \
	X(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                     \
	X(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *))     \
	X(cuMemPoolExportToShareableHandle,                                                    \
	  (void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long))               \
	X(cuMemPoolImportFromShareableHandle,                                                  \
	  (CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long))             \
	X(cuMemPoolSetAccess, (CUmemoryPool, const CUmemAccessDesc *, size_t))                 \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,   \
			unsigned long long))                                                   \
	X(cuMemRelease, (CUmemGenericAllocationHandle))                                        \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                             \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,                \
		     unsigned long long))                                                      \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                   \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))              \
	X(cuMemExportToShareableHandle,                                                        \
	  (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long)) \
	X(cuMemImportFromShareableHandle,                                                      \
	  (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                 \
	X(cuMemAllocHost_v2, (void **, size_t))                                                \
	X(cuMemFreeHost, (void *))                                                             \
	X(cuMemHostAlloc, (void **, size_t, unsigned int))                                     \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                \
	X(cuMemHostUnregister, (void *))                                                       \
	X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                 \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                \
	X(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                                 \
	X(cuTexObjectCreate, (CUtexObject *, const CUDA_RESOURCE_DESC *,                       \
			      const CUDA_TEXTURE_DESC *, const CUDA_RESOURCE_VIEW_DESC *))     \
	X(cuTexObjectDestroy, (CUtexObject))                                                   \
	X(cuDeviceGetDevResource, (CUdevice, void *, int))                                     \
	X(cuDevResourceGenerateDesc, (void **, void *, unsigned int))                          \
	X(cuGreenCtxCreate, (void **, void *, CUdevice, unsigned int))                         \
	X(cuGreenCtxDestroy, (void *))                                                         \
	X(cuGreenCtxStreamCreate, (CUstream *, void *, unsigned int, int))

struct driver {
#define X(name, params) CUresult(CUDAAPI *name) params;
	NEEDED_CALLS(X) OTHER_CALLS(X)
#undef X
};
extern struct driver cu;

#define TRY(call)                        \
	do {                             \
		int tried = (int)(call); \
		if (tried)               \
			return tried;    \
	} while (0)
/* The same for a call that older drivers lack. */
#define TRY_IF(name, ...)                             \
	do {                                          \
		if (!cu.name)                         \
			return NOT_THERE;             \
		TRY(cu.name(__VA_ARGS__));            \
	} while (0)

/* The allocations that fill a device. */
struct pieces {
	CUdeviceptr *at;
	size_t n, room, bytes;
};

struct shared {
	size_t bytes;
	CUipcMemHandle memory;
	CUipcEventHandle event;
	CUmemPoolPtrExportData pointer;
	bool has_pool, has_vmm;
};

/* The prober's state.  A call's setup leaves its objects here. */
#define MANY 4096
struct prober {
	struct shared shared;
	CUcontext ctx;
	CUstream stream;
	CUmodule module;
	CUfunction function;
	CUgraph graph;
	CUgraphExec exec;
	CUmemoryPool pool;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr reserved, small, pointer;
	void *lib, *kernel, *host, *green, *descriptor;
	void *many[MANY];
	unsigned int n;
	size_t limit;
	_Alignas(16) unsigned char resource[1024]; /* a CUdevResource */
};
extern struct prober my;

/*
 * One call: try (returns 0 or an error) and undo (reverts a successful try).  "all full" needs a
 * context of the prober, so a call without a context is tried only with the device full.
 */
struct call {
	const char *name; /* NULL: the end of a table */
	int (*setup)(void);
	int (*try)(void);
	void (*undo)(void);
};
extern const struct call context_calls[], code_calls[], memory_calls[];

/* no_memory_filler.c */
const char *load_driver(void);
int fill(struct pieces *p, size_t from);
int empty(struct pieces *p);
extern int pool_fd, vmm_fd;
CUmemPoolProps device_pool(void);
extern const CUmemAccessDesc device_access;
int share(struct shared *s);
void send_shared(int to, const struct shared *s);
bool receive_shared(int from, struct shared *s);

/* no_memory_contexts.c */
int no_context(void);
int with_context(void);
int with_stream(void);
int with_block(void);
void nothing(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's side of the conformance program: the driver's calls, the worker's state, and the
 * commands that need more than one call.
 */
#ifndef CL_TEST_CONFORMANCE_WORKER_H
#define CL_TEST_CONFORMANCE_WORKER_H

#include "conformance.h"

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>

#define DRIVER_CALLS(X)                                                                            \
	X(cuInit, (unsigned int))                                                                  \
	X(cuDriverGetVersion, (int *))                                                             \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice))                                                  \
	X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned int *, int *))                           \
	X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                             \
	X(cuPointerGetAttribute, (void *, CUpointer_attribute, CUdeviceptr))                       \
	X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                                   \
	X(cuCtxDestroy_v2, (CUcontext))                                                            \
	X(cuCtxSetCurrent, (CUcontext))                                                            \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                   \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                  \
	X(cuMemFree_v2, (CUdeviceptr))                                                             \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                      \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                 \
	X(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))                         \
	X(cuMemAllocHost_v2, (void **, size_t))                                                    \
	X(cuMemsetD32_v2, (CUdeviceptr, unsigned int, size_t))                                     \
	X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                          \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                    \
	X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                      \
	X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int))                    \
	X(cuIpcCloseMemHandle, (CUdeviceptr))                                                      \
	X(cuIpcGetEventHandle, (CUipcEventHandle *, CUevent))                                      \
	X(cuIpcOpenEventHandle, (CUevent *, CUipcEventHandle))                                     \
	X(cuEventCreate, (CUevent *, unsigned int))                                                \
	X(cuEventDestroy_v2, (CUevent))                                                            \
	X(cuEventRecord, (CUevent, CUstream))                                                      \
	X(cuEventQuery, (CUevent))                                                                 \
	X(cuStreamCreate, (CUstream *, unsigned int))                                              \
	X(cuStreamSynchronize, (CUstream))                                                         \
	X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                               \
	X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                              \
	X(cuModuleLoadData, (CUmodule *, const void *))                                            \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                             \
	X(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,     \
			   unsigned int, unsigned int, unsigned int, CUstream, void **, void **))  \
	X(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))                                   \
	X(cuDeviceSetMemPool, (CUdevice, CUmemoryPool))                                            \
	X(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                               \
	X(cuMemPoolDestroy, (CUmemoryPool))                                                        \
	X(cuMemPoolTrimTo, (CUmemoryPool, size_t))                                                 \
	X(cuMemPoolGetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))                      \
	X(cuMemPoolGetAccess, (CUmemAccess_flags *, CUmemoryPool, CUmemLocation *))                \
	X(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice))                                          \
	X(cuMemPoolSetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))                      \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                \
	X(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                         \
	X(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *))         \
	X(cuMemPoolImportFromShareableHandle,                                                      \
	  (CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long))                 \
	X(cuMemPoolExportToShareableHandle,                                                        \
	  (void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long))                   \
	X(cuMemGetAllocationGranularity,                                                           \
	  (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))               \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,       \
			unsigned long long))                                                       \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))   \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,                    \
		     unsigned long long))                                                          \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                  \
	X(cuMemPoolSetAccess, (CUmemoryPool, const CUmemAccessDesc *, size_t))                     \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                       \
	X(cuMemRelease, (CUmemGenericAllocationHandle))                                            \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                                 \
	X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *))                   \
	X(cuMemExportToShareableHandle,                                                            \
	  (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))   \
	X(cuMemImportFromShareableHandle,                                                          \
	  (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))

struct driver {
#define X(name, params) CUresult(CUDAAPI *p_##name) params;
	DRIVER_CALLS(X)
#undef X
};
extern struct driver driver;

struct own {
	CUcontext context;
	CUstream stream;
	CUfunction spin, fill;
	CUcontext green_context;
	void *green;
	CUmemGenericAllocationHandle vmm;
	CUdeviceptr vmm_base;
	size_t vmm_bytes;
	CUmemoryPool pool, imported_pool;
	CUmemGenericAllocationHandle part[4];
	CUdeviceptr part_base;
	size_t part_bytes;
	unsigned int parts;
};
extern struct own mine; /* the state of this worker */
extern int between_workers[2]; /* a socket pair that all workers inherit: write to 0, read from 1 */

#define TRY(call)                                                                                  \
	do {                                                                                       \
		CUresult tried = (call);                                                           \
		if (tried)                                                                         \
			return tried;                                                              \
	} while (0)

struct freeing {
	CUdeviceptr pointer;
	CUevent event; /* NULL: destroy the memory instead */
	CUresult result;
	uint64_t ns;
	bool bare; /* free in a thread without a context */
	bool relaxed;
};

/* conformance_worker.c */
const char *load_driver(void);
void *optional(const char *name);
CUresult launch_spin(uint64_t ns);
void serve(int from, int to);

/* conformance_captures.c */
CUresult free_in_capture(const struct question *q, uint64_t *v);

/* conformance_calls.c */
/* Makes memory that has a fabric handle, @name, 64 bytes; *@supported: what the device says of that. */
CUresult fabric_new(uint64_t *pointer, unsigned char *name, uint64_t *supported);
CUresult fabric_take(const unsigned char *name, uint64_t *pointer);
CUresult vmm_new(size_t bytes, uint64_t *pointer, uint64_t *descriptor);
CUresult handle_beside(bool of_event, uint64_t what, unsigned char *handle);
CUresult vmm_take(pid_t pid, int theirs, size_t bytes, enum way way, uint64_t *pointer);
int take_descriptor(pid_t pid, int theirs, enum way way);
CUresult kill_watch(pid_t pid, CUdeviceptr pointer, uint32_t theirs, uint64_t ns, uint64_t *last,
		    uint64_t *seen);
void *free_in_thread(void *argument);
CUresult two_threads(CUdeviceptr pointer, uint64_t ns, uint64_t *v);
CUresult capture(CUdeviceptr in_default_mode, CUdeviceptr in_relaxed_mode,
		 CUdeviceptr in_stream_order, uint64_t *v);
CUresult open_capturing(const unsigned char *bytes, uint64_t *v);
CUresult event_orphan(bool destroy);
CUresult event_many(uint64_t most, uint64_t *made);

/* conformance_pool_calls.c */
CUresult pool_call(const struct question *q, struct answer *r);

/* conformance_pool_facts.c */
CUresult pool_fact_call(const struct question *q, struct answer *r);

/* conformance_virtual_calls.c */
CUresult virtual_call(const struct question *q, struct answer *r);

/* conformance_green.c */
CUresult context_ids(uint64_t *v);
CUresult event_rounds(uint64_t rounds, uint64_t each, bool in_primary, uint64_t *made);
CUresult context_of(CUdeviceptr pointer, uint64_t *which);
CUresult green_begin(uint64_t *v, unsigned char *event_handle);
CUresult green_end(void);
CUresult green_under(uint64_t *v);
CUresult green_reset(uint64_t *v);
CUresult green_stream(uint64_t *v);
CUresult green_last(uint64_t *v);

#endif

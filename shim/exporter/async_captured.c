/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations in streams that are being captured: see cl_async_alloc_captured() in async.h. */
#include "shim/driver/visit.h"
#include "shim/exporter/async.h"

/* Returns the pool from which the device of @stream allocates, or NULL if the driver does not say. */
static CUmemoryPool pool_of_stream(CUstream stream, bool per_thread)
{
	CUresult (*context_of)(CUstream, CUcontext *) =
		per_thread && cl_driver.cuStreamGetCtx_ptsz ? cl_driver.cuStreamGetCtx_ptsz : cl_driver.cuStreamGetCtx;
	CUmemoryPool pool = NULL;
	CUcontext ctx = NULL;
	struct cl_stay stay;
	CUdevice device;

	if (context_of && context_of(stream, &ctx) != CUDA_SUCCESS)
		return NULL;
	if (cl_stay_begin(&stay, ctx, CL_STAY_AS_PROGRAM) != CUDA_SUCCESS ||
	    cl_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
	    cl_driver.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
		pool = NULL;
	cl_stay_end(&stay);
	return pool;
}

/*
 * Devices that reach @from reach @instead, too: the graph's memory has the properties of the pool that it is asked of
 * (documented).  Access is never taken away again, since another thread may be about to allocate.
 */
static void copy_access(CUmemoryPool instead, CUmemoryPool from, CUdevice own)
{
	CL_CALLS_OF_OURS;
	CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemAccess_flags has, wanted;
	int n = 0;

	if (!cl_driver.cuMemPoolGetAccess || !cl_driver.cuMemPoolSetAccess ||
	    cl_driver.cuDeviceGetCount(&n) != CUDA_SUCCESS || n < 2)
		return;
	for (CUdevice device = 0; device < n && device < CL_ASYNC_DEVICES; device++) {
		access.location.id = device;
		if (device != own && cl_driver.cuMemPoolGetAccess(&wanted, from, &access.location) == CUDA_SUCCESS &&
		    wanted != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		    cl_driver.cuMemPoolGetAccess(&has, instead, &access.location) == CUDA_SUCCESS && has < wanted) {
			access.flags = wanted;
			cl_driver.cuMemPoolSetAccess(instead, &access, 1);
		}
	}
}

CUresult cl_async_alloc_captured(CUdeviceptr *dptr, size_t bytes, CUmemoryPool from, CUstream stream, bool per_thread)
{
	CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *) =
		per_thread && cl_driver.cuStreamIsCapturing_ptsz ? cl_driver.cuStreamIsCapturing_ptsz :
								   cl_driver.cuStreamIsCapturing;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUmemoryPool instead;
	CUdevice device = 0;

	if (is_capturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!from)
		from = pool_of_stream(stream, per_thread);
	instead = from ? cl_async_instead_of(from, &device) : NULL;
	if (!instead)
		return CUDA_ERROR_NOT_SUPPORTED;
	copy_access(instead, from, device);
	return (per_thread ? cl_driver.cuMemAllocFromPoolAsync_ptsz : cl_driver.cuMemAllocFromPoolAsync)(dptr, bytes,
													instead, stream);
}

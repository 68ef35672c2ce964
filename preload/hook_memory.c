/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation and freeing.
 *
 * What must hold: a process that shares nothing pays one load and a branch at a
 * free, and the same at an allocation, with one more branch and one on the driver's result.
 */
#include <stdint.h>
#include "preload/hook_again.h"
#include "preload/hook_table.h"

/*
 * The result of @call, an allocation of about @bytes, made again as long as it
 * fails for lack of memory and some may have come free.
 * @address: a pointer to where it puts what the trace names it by, or NULL.
 */
#define TRACED(address, bytes, call)                                                  \
	({                                                                            \
		int watched = cl_watched();                                           \
		CUresult result;                                                      \
                                                                                      \
		if (watched & CL_SHARES)                                              \
			cl_memory_allocates();                                        \
		result = CL_WITH_MEMORY(bytes, call);                                 \
		if (watched & CL_TRACES)                                              \
			cl_trace_allocated((address), (bytes), result);               \
		result;                                                               \
	})
#define ALLOCATED(bytes, call) TRACED(NULL, bytes, call)

/* A size that does not fit is not asked for by any driver; the largest says so to the callbacks. */
static size_t times(size_t a, size_t b)
{
	size_t product;

	return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* An estimate: only the callbacks use it.  Formats that pack pixels count for four bytes each. */
static size_t array_bytes(size_t width, size_t height, size_t depth, CUarray_format format,
			  unsigned int channels)
{
	size_t each;

	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		each = 1;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		each = 2;
		break;
	default:
		each = 4;
	}
	return times(times(times(width, height ? height : 1), depth ? depth : 1), each * channels);
}

static size_t array2_bytes(const CUDA_ARRAY_DESCRIPTOR *wanted)
{
	return array_bytes(wanted->Width, wanted->Height, 1, wanted->Format, wanted->NumChannels);
}

static size_t array3_bytes(const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
	return array_bytes(wanted->Width, wanted->Height, wanted->Depth, wanted->Format,
			   wanted->NumChannels);
}

CUresult CUDAAPI cl_hook_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
	return TRACED(dptr, bytes, cl_driver.cuMemAlloc_v2(dptr, bytes));
}

CUresult CUDAAPI cl_hook_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width,
					    size_t height, unsigned int element)
{
	return TRACED(dptr, times(width, height),
		      cl_driver.cuMemAllocPitch_v2(dptr, pitch, width, height, element));
}

CUresult CUDAAPI cl_hook_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
	return TRACED(dptr, bytes, cl_driver.cuMemAllocManaged(dptr, bytes, flags));
}

CUresult CUDAAPI cl_hook_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return TRACED(dptr, bytes, cl_driver.cuMemAllocAsync(dptr, bytes, stream));
}

CUresult CUDAAPI cl_hook_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return TRACED(dptr, bytes, cl_driver.cuMemAllocAsync_ptsz(dptr, bytes, stream));
}

CUresult CUDAAPI cl_hook_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes,
						 CUmemoryPool pool, CUstream stream)
{
	return TRACED(dptr, bytes, cl_driver.cuMemAllocFromPoolAsync(dptr, bytes, pool, stream));
}

CUresult CUDAAPI cl_hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes,
						      CUmemoryPool pool, CUstream stream)
{
	return TRACED(dptr, bytes, cl_driver.cuMemAllocFromPoolAsync_ptsz(dptr, bytes, pool, stream));
}

CUresult CUDAAPI cl_hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
				     const CUmemAllocationProp *prop, unsigned long long flags)
{
	return ALLOCATED(size, cl_driver.cuMemCreate(handle, size, prop, flags));
}

/* The driver refuses a NULL description as invalid, so none is read here. */
CUresult CUDAAPI cl_hook_cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
	return ALLOCATED(array2_bytes(wanted), cl_driver.cuArrayCreate_v2(handle, wanted));
}

CUresult CUDAAPI cl_hook_cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
	return ALLOCATED(array3_bytes(wanted), cl_driver.cuArray3DCreate_v2(handle, wanted));
}

CUresult CUDAAPI cl_hook_cuMipmappedArrayCreate(CUmipmappedArray *handle,
						const CUDA_ARRAY3D_DESCRIPTOR *wanted,
						unsigned int levels)
{
	/* all levels below the first come to a third of it at most, as a rule */
	return ALLOCATED(times(array3_bytes(wanted) / 3, 4),
			 cl_driver.cuMipmappedArrayCreate(handle, wanted, levels));
}

/* The time before the driver has it back: later the address may be another block's. */
#define FREED(dptr, call)                                                             \
	({                                                                            \
		uint64_t began = cl_trace_now();                                      \
		CUresult freed = (call);                                              \
                                                                                      \
		if (freed == CUDA_SUCCESS && (dptr))                                  \
			cl_trace_freed((dptr), began);                                \
		freed;                                                                \
	})

static CUresult free_now(CUdeviceptr dptr)
{
	return cl_sharing() ? cl_memory_free(dptr) : cl_driver.cuMemFree_v2(dptr);
}

CUresult CUDAAPI cl_hook_cuMemFree_v2(CUdeviceptr dptr)
{
	int watched = cl_watched();

	if (!watched)
		return cl_driver.cuMemFree_v2(dptr);
	return watched & CL_TRACES ? FREED(dptr, free_now(dptr)) : cl_memory_free(dptr);
}

static CUresult free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	if (cl_sharing())
		return cl_memory_free_async(dptr, stream, per_thread);
	return (per_thread ? cl_driver.cuMemFreeAsync_ptsz : cl_driver.cuMemFreeAsync)(dptr, stream);
}

CUresult CUDAAPI cl_hook_cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	int watched = cl_watched();

	if (!watched)
		return cl_driver.cuMemFreeAsync(dptr, stream);
	return watched & CL_TRACES ? FREED(dptr, free_async(dptr, stream, false)) :
				     cl_memory_free_async(dptr, stream, false);
}

CUresult CUDAAPI cl_hook_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
	int watched = cl_watched();

	if (!watched)
		return cl_driver.cuMemFreeAsync_ptsz(dptr, stream);
	return watched & CL_TRACES ? FREED(dptr, free_async(dptr, stream, true)) :
				     cl_memory_free_async(dptr, stream, true);
}

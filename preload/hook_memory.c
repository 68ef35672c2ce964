/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for allocating and freeing memory.
 *
 * What must hold: in a process that shares nothing a free costs one load and one branch more than
 * without us.  An allocation costs one load and two branches, and a branch on the driver's result.  For
 * CULIMBO_SHARE cuMemAllocAsync() costs two loads and two branches more, or one of each where the stand-ins are there;
 * cuMemCreate() costs one of each, and it also looks whether the program may share what was created.
 */
#include <stdint.h>
#include "preload/hook_again.h"
#include "preload/hook_table.h"
#include "shim/base/hot.h"
#include "shim/base/options.h"

/*
 * Evaluates @call, an allocation of about @bytes, and repeats it while it fails for lack of memory
 * and some may have come free.  The value is the last result.  @short_of is a struct cl_need with
 * the amount.  @address points to where the driver stores the address, for the trace, or is NULL.
 */
#define TRACED(address, bytes, short_of, call)                                        \
	({                                                                            \
		int watched = cl_watched();                                           \
		CUresult result;                                                      \
                                                                                      \
		if (watched & CL_SHARES)                                              \
			cl_memory_allocates();                                        \
		result = CL_WITH_MEMORY(short_of, call);                              \
		/* the arguments of a call that was refused may be unreadable */      \
		if (watched & CL_TRACES)                                              \
			cl_trace_allocated((address), result == CUDA_SUCCESS ? (bytes) : 0, result); \
		result;                                                               \
	})

/* The call needs at least @bytes of the current device. */
#define EXACT(bytes) ((struct cl_need){ (bytes), (bytes), CL_OF_CURRENT, (bytes), CL_FROM_DEVICE, 0 })
/* The same of cuMemAlloc(). */
#define EXACT_OR_SMALL(bytes) ((struct cl_need){ (bytes), (bytes), CL_OF_CURRENT, (bytes), CL_FROM_SMALL, 0 })
/* The call needs up to @bytes of the current device. */
#define ABOUT(bytes) ((struct cl_need){ (bytes), 0, CL_OF_CURRENT, (bytes), CL_FROM_DEVICE, 0 })
/*
 * The same for an estimate: packed or compressed pixels take less, so a device is taken for too small only if it has
 * less than 1/64 of that.
 */
#define ROUGHLY(bytes) ((struct cl_need){ (bytes), 0, CL_OF_CURRENT, (bytes) / 64, CL_FROM_DEVICE, 0 })

/* Returns the product, or SIZE_MAX if it does not fit: no driver can allocate so much. */
static size_t times(size_t a, size_t b)
{
	size_t product;

	return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* Estimates the size of an array.  Formats that pack pixels count as four bytes a channel. */
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

/* No driver says which device a pool is on, or whether it is on the host, or how much it has left. */
#define OF_POOL(bytes, pool) ((struct cl_need){ (bytes), 0, CL_OF_ANY, (bytes), CL_FROM_POOL, (uintptr_t)(pool) })
/* The same, of a pool that is not known. */
#define OF_A_POOL(bytes) ((struct cl_need){ (bytes), 0, CL_OF_ANY, (bytes), CL_FROM_DEVICE, 0 })
/* The same, of the current pool of the current device. */
#define OF_CURRENT_POOL(bytes) ((struct cl_need){ (bytes), 0, CL_OF_CURRENT, (bytes), CL_FROM_POOL, 0 })

/* The call takes the memory from the pool of the device of @stream. */
static struct cl_need of_stream(size_t bytes, CUstream stream)
{
	CUcontext of = NULL, current = NULL;

	/* the default streams of both kinds belong to the current context */
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return OF_CURRENT_POOL(bytes);
	if (!cl_driver.cuStreamGetCtx || !cl_driver.cuCtxGetCurrent ||
	    cl_driver.cuStreamGetCtx(stream, &of) != CUDA_SUCCESS ||
	    cl_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || of != current)
		return OF_A_POOL(bytes);
	return OF_CURRENT_POOL(bytes);
}

static struct cl_need of_location(size_t bytes, const CUmemAllocationProp *prop)
{
	if (!prop)
		return ABOUT(bytes);
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return (struct cl_need){ bytes, 0, CL_OF_NONE, 0, CL_FROM_DEVICE, 0 };
	return (struct cl_need){ bytes, bytes, prop->location.id, bytes, CL_FROM_DEVICE, 0 };
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
	return TRACED(dptr, bytes, EXACT_OR_SMALL(bytes), cl_driver.cuMemAlloc_v2(dptr, bytes));
}

CUresult CUDAAPI cl_hook_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width,
					    size_t height, unsigned int element)
{
	return TRACED(dptr, times(width, height), EXACT(times(width, height)),
		      cl_driver.cuMemAllocPitch_v2(dptr, pitch, width, height, element));
}

CUresult CUDAAPI cl_hook_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
	return TRACED(dptr, bytes, ABOUT(bytes), cl_driver.cuMemAllocManaged(dptr, bytes, flags));
}

/*
 * Stream-ordered memory.  The driver takes some 1 us for it, so its hooks have a fast half.  Where a trace is written, or
 * the driver refuses, they go another way, in functions of their own: so the fast half needs no struct on the stack.
 */
static inline CUresult alloc_async(CUdeviceptr *dptr, size_t bytes, CUstream stream, bool per_thread)
{
	if (cl_shares_all())
		return cl_async_alloc(dptr, bytes, stream, per_thread);
	return (per_thread ? cl_driver.cuMemAllocAsync_ptsz : cl_driver.cuMemAllocAsync)(dptr, bytes, stream);
}

static __attribute__((noinline)) CUresult alloc_async_carefully(CUdeviceptr *dptr, size_t bytes, CUstream stream,
								bool per_thread)
{
	return TRACED(dptr, bytes, of_stream(bytes, stream), alloc_async(dptr, bytes, stream, per_thread));
}

static __attribute__((noinline)) CUresult alloc_async_refused(CUresult refusal, CUdeviceptr *dptr, size_t bytes,
							      CUstream stream, bool per_thread)
{
	if (refusal == CUDA_ERROR_NOT_SUPPORTED && cl_shares_all())
		refusal = cl_async_alloc_refused(dptr, bytes, NULL, stream, per_thread);
	return CL_OR_AGAIN(of_stream(bytes, stream), refusal, alloc_async(dptr, bytes, stream, per_thread));
}

/*
 * Returns true if the driver can be asked at once.  Does the collector's work before that, if this process shares and has
 * no thread for it.
 */
static inline bool is_simple(void)
{
	int watched = cl_watched();

	if (watched & CL_TRACES)
		return false;
	if (watched & CL_SHARES)
		cl_memory_allocates();
	return true;
}

/* The same, and under CULIMBO_SHARE=all the stand-ins are there.  Only a process without them also reads the options. */
static inline bool alloc_async_is_simple(void)
{
	return (__builtin_expect(atomic_load_explicit(&cl_async_made, memory_order_acquire), 1) || !cl_shares_all()) &&
	       is_simple();
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	CUresult result;

	if (!alloc_async_is_simple())
		return alloc_async_carefully(dptr, bytes, stream, false);
	result = cl_driver.cuMemAllocAsync(dptr, bytes, stream);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ? result :
							     alloc_async_refused(result, dptr, bytes, stream, false);
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	CUresult result;

	if (!alloc_async_is_simple())
		return alloc_async_carefully(dptr, bytes, stream, true);
	result = cl_driver.cuMemAllocAsync_ptsz(dptr, bytes, stream);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ? result :
							     alloc_async_refused(result, dptr, bytes, stream, true);
}

static inline CUresult alloc_from_pool(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream,
				       bool per_thread)
{
	if (cl_shares_all())
		return cl_async_alloc_from(dptr, bytes, pool, stream, per_thread);
	return (per_thread ? cl_driver.cuMemAllocFromPoolAsync_ptsz : cl_driver.cuMemAllocFromPoolAsync)(dptr, bytes,
													  pool, stream);
}

static __attribute__((noinline)) CUresult alloc_from_pool_carefully(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
								    CUstream stream, bool per_thread)
{
	return TRACED(dptr, bytes, OF_POOL(bytes, pool), alloc_from_pool(dptr, bytes, pool, stream, per_thread));
}

static __attribute__((noinline)) CUresult alloc_from_pool_refused(CUresult refusal, CUdeviceptr *dptr, size_t bytes,
								  CUmemoryPool pool, CUstream stream, bool per_thread)
{
	if (refusal == CUDA_ERROR_NOT_SUPPORTED && cl_shares_all())
		refusal = cl_async_alloc_refused(dptr, bytes, pool, stream, per_thread);
	return CL_OR_AGAIN(OF_POOL(bytes, pool), refusal, alloc_from_pool(dptr, bytes, pool, stream, per_thread));
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes,
						 CUmemoryPool pool, CUstream stream)
{
	CUresult result;

	if (!is_simple())
		return alloc_from_pool_carefully(dptr, bytes, pool, stream, false);
	result = cl_driver.cuMemAllocFromPoolAsync(dptr, bytes, pool, stream);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ?
		       result :
		       alloc_from_pool_refused(result, dptr, bytes, pool, stream, false);
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes,
						      CUmemoryPool pool, CUstream stream)
{
	CUresult result;

	if (!is_simple())
		return alloc_from_pool_carefully(dptr, bytes, pool, stream, true);
	result = cl_driver.cuMemAllocFromPoolAsync_ptsz(dptr, bytes, pool, stream);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ?
		       result :
		       alloc_from_pool_refused(result, dptr, bytes, pool, stream, true);
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	return cl_shares_all() ? cl_virtual_create(handle, size, prop, flags) :
				 cl_driver.cuMemCreate(handle, size, prop, flags);
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
				     const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult created = TRACED(NULL, size, of_location(size, prop),
				 create(handle, size, prop, flags));

	/* only then it can be shared, and only here the driver is told its size */
	if (created == CUDA_SUCCESS && prop && prop->requestedHandleTypes)
		cl_descriptor_created(*handle, size);
	return created;
}

/* @wanted may be NULL: the driver refuses that as invalid, so the retry never reads it. */
CUresult CUDAAPI cl_hook_cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
	return TRACED(NULL, array2_bytes(wanted), ROUGHLY(array2_bytes(wanted)),
		      cl_driver.cuArrayCreate_v2(handle, wanted));
}

CUresult CUDAAPI cl_hook_cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
	return TRACED(NULL, array3_bytes(wanted), ROUGHLY(array3_bytes(wanted)),
		      cl_driver.cuArray3DCreate_v2(handle, wanted));
}

CUresult CUDAAPI cl_hook_cuMipmappedArrayCreate(CUmipmappedArray *handle,
						const CUDA_ARRAY3D_DESCRIPTOR *wanted,
						unsigned int levels)
{
	/* all levels below the first take at most a third of the first, as a rule */
	return TRACED(NULL, times(array3_bytes(wanted) / 3, 4), ROUGHLY(times(array3_bytes(wanted) / 3, 4)),
		      cl_driver.cuMipmappedArrayCreate(handle, wanted, levels));
}

/* Traces @call, a free, with the time before it: after it the address may be another block's. */
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

/* Not inlined: so the hook needs no stack frame unless it traces. */
static __attribute__((noinline)) CUresult free_traced(CUdeviceptr dptr)
{
	return FREED(dptr, free_now(dptr));
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemFree_v2(CUdeviceptr dptr)
{
	int watched = cl_watched();

	if (!watched)
		return cl_driver.cuMemFree_v2(dptr);
	return watched & CL_TRACES ? free_traced(dptr) : cl_memory_free(dptr);
}

/*
 * This hook adds nothing to the call.  At each free that culimbo keeps back it frees pinned memory of its own
 * (driver/wait.h), by the driver's function.  UCX patches the function that a program gets: without this hook that would
 * be the driver's, and UCX would take our frees for the program's.
 */
CUresult CUDAAPI cl_hook_cuMemFreeHost(void *pointer)
{
	return cl_driver.cuMemFreeHost(pointer);
}

static CUresult free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	if (cl_sharing())
		return cl_memory_free_async(dptr, stream, per_thread);
	return (per_thread ? cl_driver.cuMemFreeAsync_ptsz : cl_driver.cuMemFreeAsync)(dptr, stream);
}

static __attribute__((noinline)) CUresult free_async_traced(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	return FREED(dptr, free_async(dptr, stream, per_thread));
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	int watched = cl_watched();

	if (!watched)
		return cl_driver.cuMemFreeAsync(dptr, stream);
	return watched & CL_TRACES ? free_async_traced(dptr, stream, false) :
				     cl_memory_free_async(dptr, stream, false);
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
	int watched = cl_watched();

	if (!watched)
		return cl_driver.cuMemFreeAsync_ptsz(dptr, stream);
	return watched & CL_TRACES ? free_async_traced(dptr, stream, true) :
				     cl_memory_free_async(dptr, stream, true);
}

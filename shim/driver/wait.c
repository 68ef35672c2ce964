/* SPDX-License-Identifier: Apache-2.0 */
/* Waits as the driver's free does: see wait.h. */
#include <stdatomic.h>

#include "shim/driver/wait.h"
#include "shim/self/self.h"

/*
 * By a context's index: the number of the object whose context keeps a byte, or of an ended one that had the index
 * before, whose byte the driver has ended with its context.
 */
static _Atomic uint64_t keeps[CL_CONTEXTS];

enum {
	PIECE = 2 << 20,     /* of which the driver makes small pinned memory */
	LAST_PAGE = 4 << 10, /* in which the kept byte lies */
};

static CUresult make_pinned(void **at, size_t size)
{
	return cl_driver.cuMemHostAlloc(at, size, CU_MEMHOSTALLOC_WRITECOMBINED);
}

/* Makes a byte at the end of a new piece. */
static CUresult make_kept(void **byte)
{
	void *rest;
	CUresult freed, result = make_pinned(&rest, PIECE - LAST_PAGE);

	if (result != CUDA_SUCCESS)
		return result;
	result = make_pinned(byte, 1);
	freed = cl_driver.cuMemFreeHost(rest);
	return result == CUDA_SUCCESS ? freed : result;
}

/* Has the context keep a byte. */
static CUresult keep(struct cl_wait_in in)
{
	uint64_t before = atomic_load_explicit(&keeps[in.index], memory_order_relaxed);
	CUresult result;
	void *byte;

	if (before == in.number)
		return CUDA_SUCCESS;
	result = make_kept(&byte);
	if (result == CUDA_SUCCESS &&
	    !atomic_compare_exchange_strong_explicit(&keeps[in.index], &before, in.number, memory_order_relaxed,
						     memory_order_relaxed))
		result = cl_driver.cuMemFreeHost(byte); /* another thread was first */
	return result;
}

static CUresult wait_by_pinned(void)
{
	void *byte;
	CUresult result = make_pinned(&byte, 1);

	return result == CUDA_SUCCESS ? cl_driver.cuMemFreeHost(byte) : result;
}

static CUresult wait_by_device(void)
{
	CUdeviceptr byte;
	CUresult result = cl_driver.cuMemAlloc_v2(&byte, 1);

	return result == CUDA_SUCCESS ? cl_driver.cuMemFree_v2(byte) : result;
}

/* Returns true if a capture has refused the call, and is spoilt now: another call might be let through. */
static bool is_of_a_capture(CUresult result)
{
	return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

CUresult cl_wait_as_a_free(struct cl_wait_in in)
{
	CUresult result = in.number ? keep(in) : CUDA_ERROR_NOT_FOUND;

	if (result == CUDA_SUCCESS)
		result = wait_by_pinned();
	if (result == CUDA_SUCCESS || is_of_a_capture(result))
		return result;
	/* no pinned memory, or an error that the device's byte gets, too */
	result = wait_by_device();
	if (result == CUDA_ERROR_OUT_OF_MEMORY && !in.number)
		result = wait_by_pinned();
	return result == CUDA_ERROR_OUT_OF_MEMORY ? cl_driver.cuCtxSynchronize() : result;
}

CUresult cl_wait_as_a_free_here(void)
{
	struct cl_context_name name = cl_context_name_current();
	struct cl_wait_in in;

	cl_lock(&cl_imports_lock);
	in = cl_wait_in(cl_context_find_locked(&name));
	cl_unlock(&cl_imports_lock);
	return cl_wait_as_a_free(in);
}

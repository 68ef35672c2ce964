/* SPDX-License-Identifier: Apache-2.0 */
/* Waits as the driver's free does: see wait.h. */
#include <stdatomic.h>

#include "shim/driver/visit.h"
#include "shim/driver/wait.h"
#include "shim/self/self.h"

/*
 * By a context's index: the number of its object times STATES, and what became of its byte.  If the number is another
 * one, the context that had the index has ended, and the driver has ended its byte with it (measured).
 */
static _Atomic uint64_t bytes[CL_CONTEXTS];
enum {
	MAKING = 1, /* a thread makes it */
	KEPT,
	NONE,	    /* the context keeps none: it could not be had, or not at a place of its own */
	STATES,
};

enum {
	PIECE = 2 << 20,     /* of which the driver makes small pinned memory */
	LAST_PAGE = 4 << 10, /* of a piece, in which the kept byte lies */
};

/* Returns true if a capture has refused the call, and is spoilt now: another call might be let through. */
static bool is_of_a_capture(CUresult result)
{
	return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

static CUresult make_pinned(void **at, size_t size)
{
	return cl_driver.cuMemHostAlloc(at, size, CU_MEMHOSTALLOC_WRITECOMBINED);
}

/* Ends what was made just now.  If a capture that began since refuses that, ends it all the same, and returns the refusal. */
static CUresult end_pinned(void *at)
{
	CUresult result = cl_driver.cuMemFreeHost(at);
	struct cl_stay stay;

	if (is_of_a_capture(result)) {
		cl_stay_begin(&stay, NULL, CL_STAY_RELAXED);
		cl_driver.cuMemFreeHost(at);
		cl_stay_end(&stay);
	}
	return result;
}
static CUresult end_of_device(CUdeviceptr at)
{
	CUresult result = cl_driver.cuMemFree_v2(at);
	struct cl_stay stay;

	if (is_of_a_capture(result)) {
		cl_stay_begin(&stay, NULL, CL_STAY_RELAXED);
		cl_driver.cuMemFree_v2(at);
		cl_stay_end(&stay);
	}
	return result;
}

static CUresult wait_by_pinned(void)
{
	void *byte;
	CUresult result = make_pinned(&byte, 1);

	return result == CUDA_SUCCESS ? end_pinned(byte) : result;
}

static CUresult wait_by_device(void)
{
	CUdeviceptr byte;
	CUresult result = cl_driver.cuMemAlloc_v2(&byte, 1);

	return result == CUDA_SUCCESS ? end_of_device(byte) : result;
}

/*
 * Makes the byte that a context keeps, and before it the rest of its piece, whose end waits as that of a byte does.
 * *@state is what became of the byte; 0: the next free tries again.
 */
static CUresult wait_by_making(uint64_t *state)
{
	void *rest, *byte;
	CUresult result = make_pinned(&rest, PIECE - LAST_PAGE), refusal;

	*state = is_of_a_capture(result) ? 0 : NONE;
	if (result != CUDA_SUCCESS)
		return result;
	refusal = make_pinned(&byte, 1);
	if (refusal != CUDA_SUCCESS) {
		*state = is_of_a_capture(refusal) ? 0 : NONE;
	} else if ((char *)byte == (char *)rest + PIECE - LAST_PAGE) {
		*state = KEPT;
	} else { /* in a place that the program has left free, or the driver's pieces are of another size */
		refusal = end_pinned(byte);
	}
	result = end_pinned(rest);
	return is_of_a_capture(refusal) ? refusal : result;
}

CUresult cl_wait_as_a_free(struct cl_wait_in in)
{
	uint64_t is = atomic_load_explicit(&bytes[in.index], memory_order_relaxed);
	uint64_t making = in.number * STATES + MAKING, state;
	CUresult result = CUDA_ERROR_NOT_FOUND;

	if (is == in.number * STATES + KEPT) {
		result = wait_by_pinned();
	} else if (in.number && is / STATES != in.number &&
		   atomic_compare_exchange_strong_explicit(&bytes[in.index], &is, making, memory_order_relaxed,
							   memory_order_relaxed)) {
		result = wait_by_making(&state);
		if (state)
			state += in.number * STATES;
		/* unless the context has ended meanwhile, and another one has its index */
		atomic_compare_exchange_strong_explicit(&bytes[in.index], &making, state, memory_order_relaxed,
							memory_order_relaxed);
	}
	if (result == CUDA_SUCCESS || is_of_a_capture(result))
		return result;
	/* none is kept, or an error that the device's byte gets, too */
	result = wait_by_device();
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
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

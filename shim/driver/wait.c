/* SPDX-License-Identifier: Apache-2.0 */
/* Waits as the driver's free does: see wait.h. */
#include <stdatomic.h>

#include "shim/base/hot.h"
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

/*
 * Returns true if the driver has refused a call because of a capture, which is spoilt now.  Then the program gets that
 * refusal: the wait does not go on with another kind of call, which the driver might not refuse.
 */
static bool is_of_a_capture(CUresult result)
{
	return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

static CUresult make_pinned(void **at, size_t size)
{
	return cl_driver.cuMemHostAlloc(at, size, CU_MEMHOSTALLOC_WRITECOMBINED);
}

/* Frees @at, whose free the driver has refused because of a capture that began after @at was allocated. */
static __attribute__((noinline, cold)) void end_relaxed(CUdeviceptr at, bool pinned)
{
	CL_CALLS_OF_OURS;

	if (pinned)
		cl_driver.cuMemFreeHost((void *)(uintptr_t)at);
	else
		cl_driver.cuMemFree_v2(at);
}

static inline CUresult end_pinned(void *at)
{
	CUresult result = cl_driver.cuMemFreeHost(at);

	if (__builtin_expect(is_of_a_capture(result), 0))
		end_relaxed((CUdeviceptr)(uintptr_t)at, true);
	return result;
}

static inline CUresult wait_by_pinned(void)
{
	void *byte;
	CUresult result = make_pinned(&byte, 1);

	return result == CUDA_SUCCESS ? end_pinned(byte) : result;
}

static CUresult wait_by_device(void)
{
	CUdeviceptr byte;
	CUresult result = cl_driver.cuMemAlloc_v2(&byte, 1);

	if (result != CUDA_SUCCESS)
		return result;
	result = cl_driver.cuMemFree_v2(byte);
	if (is_of_a_capture(result))
		end_relaxed(byte, false);
	return result;
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

/* The wait where no byte is kept. */
static __attribute__((noinline)) CUresult wait_otherwise(struct cl_wait_in in)
{
	uint64_t is = atomic_load_explicit(&bytes[in.index], memory_order_relaxed);
	uint64_t making = in.number * STATES + MAKING, state;
	bool can = cl_driver.cuMemHostAlloc && cl_driver.cuMemFreeHost; /* no driver of NVIDIA's lacks them */
	CUresult result;

	if (can && in.number && is / STATES != in.number &&
	    atomic_compare_exchange_strong_explicit(&bytes[in.index], &is, making, memory_order_relaxed,
						    memory_order_relaxed)) {
		result = wait_by_making(&state);
		if (state)
			state += in.number * STATES;
		/* unless the context has ended meanwhile, and another one has its index */
		atomic_compare_exchange_strong_explicit(&bytes[in.index], &making, state, memory_order_relaxed,
							memory_order_relaxed);
		if (result == CUDA_SUCCESS || is_of_a_capture(result))
			return result;
	}
	result = wait_by_device();
	if (result == CUDA_ERROR_OUT_OF_MEMORY && can)
		result = wait_by_pinned();
	return result == CUDA_ERROR_OUT_OF_MEMORY ? cl_driver.cuCtxSynchronize() : result;
}

CL_HOT_SHARING CUresult cl_wait_as_a_free(struct cl_wait_in in)
{
	if (__builtin_expect(atomic_load_explicit(&bytes[in.index], memory_order_relaxed) == in.number * STATES + KEPT, 1)) {
		CUresult result = wait_by_pinned();

		/* any other error is one that the device's byte gets, too, or pinned memory is short */
		if (__builtin_expect(result == CUDA_SUCCESS || is_of_a_capture(result), 1))
			return result;
	}
	return wait_otherwise(in);
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

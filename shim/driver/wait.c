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

/* Returns true if the driver has no such byte.  Any other error is one that a free would get, too. */
static bool lacks_memory(CUresult result)
{
	return result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_SUPPORTED ||
	       result == CUDA_ERROR_OPERATING_SYSTEM;
}

/* Has the context keep a byte. */
static CUresult keep(struct cl_wait_in in)
{
	uint64_t before = atomic_load_explicit(&keeps[in.index], memory_order_relaxed);
	CUresult result;
	void *byte;

	if (before == in.number)
		return CUDA_SUCCESS;
	result = cl_driver.cuMemHostAlloc(&byte, 1, 0);
	if (result == CUDA_SUCCESS &&
	    !atomic_compare_exchange_strong_explicit(&keeps[in.index], &before, in.number, memory_order_relaxed,
						     memory_order_relaxed))
		result = cl_driver.cuMemFreeHost(byte); /* another thread was first */
	return result;
}

static CUresult wait_by_pinned(void)
{
	void *byte;
	CUresult result = cl_driver.cuMemHostAlloc(&byte, 1, 0);

	return result == CUDA_SUCCESS ? cl_driver.cuMemFreeHost(byte) : result;
}

static CUresult wait_by_device(void)
{
	CUdeviceptr byte;
	CUresult result = cl_driver.cuMemAlloc_v2(&byte, 1);

	return result == CUDA_SUCCESS ? cl_driver.cuMemFree_v2(byte) : result;
}

CUresult cl_wait_as_a_free(struct cl_wait_in in)
{
	CUresult result = in.number ? keep(in) : CUDA_ERROR_OUT_OF_MEMORY;

	if (result == CUDA_SUCCESS)
		result = wait_by_pinned();
	if (lacks_memory(result))
		result = wait_by_device();
	if (lacks_memory(result) && !in.number)
		result = wait_by_pinned();
	if (lacks_memory(result)) /* neither the host nor the device has a byte */
		result = cl_driver.cuCtxSynchronize();
	return result;
}

CUresult cl_wait_as_a_free_here(void)
{
	struct cl_context_name name = cl_context_name_current();
	struct cl_wait_in in;

	cl_lock(&cl_imports_lock);
	in = cl_wait_in(cl_context_get_locked(&name, &cl_imports_lock));
	cl_unlock(&cl_imports_lock);
	return cl_wait_as_a_free(in);
}

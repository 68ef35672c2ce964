/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the libcuda that the program has loaded and fills the seam from it.
 *
 * What must hold: no thread calls the dynamic linker while other threads wait for it
 * here.  A library's constructor runs under the linker's lock and may call CUDA, so it
 * would wait for a thread of ours that waits for the linker.  So every thread that
 * comes early looks all symbols up into a copy on its stack, and only one thread
 * copies its result into cl_driver.
 *
 * pthread_once() won't do: it makes a system call even if no thread waits.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include "shim/base/hot.h"
#include "shim/driver/driver.h"

CL_HOT_DATA struct cl_driver cl_driver;

enum { EMPTY, BEING_FILLED, READY };
static atomic_int state = EMPTY;

static void fill(const struct cl_driver *seen)
{
	cl_driver = *seen;
	/* release: a reader that sees READY sees the whole seam */
	atomic_store_explicit(&state, READY, memory_order_release);
}

bool cl_driver_find(cl_dlsym_fn *real_dlsym)
{
	if (__builtin_expect(atomic_load_explicit(&state, memory_order_acquire) == READY, 1))
		return true;

	struct cl_driver seen = {
		/* we keep this reference, so that our addresses stay valid */
		.libcuda = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY),
	};
	int was = EMPTY;

	if (!seen.libcuda)
		return false;
/* copied as bytes, because ISO C has no cast from a data pointer to a function pointer */
#define X(symbol, base, since, flags, type, params, args) \
	memcpy(&seen.symbol, &(void *){real_dlsym(seen.libcuda, #symbol)}, sizeof(void *));
	CL_HOOKED_CALLS(X)
	CL_USED_CALLS(X)
#undef X
	if (atomic_compare_exchange_strong_explicit(&state, &was, BEING_FILLED,
						    memory_order_acquire, memory_order_acquire)) {
		fill(&seen);
		return true;
	}
	/*
	 * Another thread is copying a few hundred bytes.  If it does not finish, this process was
	 * forked just then and has no such thread: so do its work, with the same values.
	 */
	for (int i = 0; atomic_load_explicit(&state, memory_order_acquire) != READY; i++) {
		if (i == 10000) {
			fill(&seen);
			return true;
		}
		sched_yield();
	}
	dlclose(seen.libcuda); /* one reference is enough: the other thread keeps its own */
	return true;
}

bool cl_driver_works(void)
{
	unsigned int flags;
	CUresult result;
	int active;

	if (!cl_driver.cuDevicePrimaryCtxGetState)
		return true;
	result = cl_driver.cuDevicePrimaryCtxGetState(0, &flags, &active);
	return result != CUDA_ERROR_NOT_INITIALIZED && result != CUDA_ERROR_DEINITIALIZED;
}

int cl_driver_no_descriptor(CUresult result)
{
	if (result == CUDA_ERROR_DEINITIALIZED || !cl_driver_works())
		return -ESTALE;
	return result == CUDA_ERROR_OPERATING_SYSTEM ? -EMFILE : -EIO;
}

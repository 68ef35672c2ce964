/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the libcuda that the program has loaded and fills the seam from it.
 *
 * What must hold: no call into the dynamic linker is made while others wait
 * for us.  A library's constructor runs under the linker's lock and may call
 * CUDA, so it would wait for us while we wait for the linker.  All looking up
 * is therefore done into a copy on the stack, by every thread that comes
 * early, and only the copying into cl_driver is done by one.
 *
 * Not pthread_once(): it makes a system call even if nobody waits.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include "shim/driver/driver.h"

struct cl_driver cl_driver;

enum { EMPTY, BEING_FILLED, READY };
static atomic_int state = EMPTY;

static void fill(const struct cl_driver *seen)
{
	cl_driver = *seen;
	/* release: whoever sees READY sees the whole seam */
	atomic_store_explicit(&state, READY, memory_order_release);
}

bool cl_driver_find(cl_dlsym_fn *real_dlsym)
{
	if (__builtin_expect(atomic_load_explicit(&state, memory_order_acquire) == READY, 1))
		return true;

	struct cl_driver seen = {
		/* the reference is kept, so that no address we hold ever goes stale */
		.libcuda = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY),
	};
	int was = EMPTY;

	if (!seen.libcuda)
		return false;
/* copied as bytes: POSIX has dlsym answer with functions, ISO C has no cast for that */
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
	 * Another thread copies a few hundred bytes.  If it never comes to an end, we are a
	 * child forked just then, without it; what it left undone we do, with the same values.
	 */
	for (int i = 0; atomic_load_explicit(&state, memory_order_acquire) != READY; i++) {
		if (i == 10000) {
			fill(&seen);
			return true;
		}
		sched_yield();
	}
	dlclose(seen.libcuda); /* one reference is enough, and the other thread has it */
	return true;
}

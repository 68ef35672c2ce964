/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the libcuda that the program has loaded and fills the seam from it.
 *
 * What must hold: no call into the dynamic linker is made while something of
 * ours is locked.  A library's constructor runs under the linker's lock and
 * may call CUDA, so it would wait for us while we wait for the linker.  All
 * looking up is therefore done into a copy on the stack, by every thread that
 * comes early, and only the copying into cl_driver is done once.
 * pthread_once() is right for that also in a child forked halfway through:
 * glibc starts the routine again there.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include "shim/driver.h"

struct cl_driver cl_driver;

static atomic_bool ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* How fill(), which takes no argument, knows what its own thread has found; NULL: not used. */
static __thread struct cl_driver *found __attribute__((tls_model("initial-exec")));

static void fill(void)
{
	cl_driver = *found;
	found = NULL;
	/* release: whoever sees ready sees the whole seam */
	atomic_store_explicit(&ready, true, memory_order_release);
}

bool cl_driver_find(cl_dlsym_fn *real_dlsym)
{
	if (__builtin_expect(atomic_load_explicit(&ready, memory_order_acquire), 1))
		return true;

	struct cl_driver seen = {
		/* the reference is kept, so that no address we hold ever goes stale */
		.library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY),
	};

	if (!seen.library)
		return false;
/* copied as bytes: POSIX has dlsym answer with functions, ISO C has no cast for that */
#define X(symbol, base, since, flags, type, params, args) \
	memcpy(&seen.symbol, &(void *){real_dlsym(seen.library, #symbol)}, sizeof(void *));
	CL_HOOKED_CALLS(X)
	CL_USED_CALLS(X)
#undef X
	found = &seen;
	pthread_once(&once, fill);
	if (found) { /* another thread was first: it keeps the one reference we need */
		found = NULL;
		dlclose(seen.library);
	}
	return true;
}

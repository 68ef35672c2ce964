/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver seam: the real entry points of libcuda, and nothing else of it.
 *
 * Every call that we make into the driver goes through cl_driver.  It is
 * filled once, from a libcuda that the program itself has loaded (we never
 * load one, and link none), and never changes after that.  A call that this
 * driver does not have is NULL: CL_HOOKED_CALLS are only routed where they
 * exist; of CL_USED_CALLS, the user of each says what it does without.
 *
 * Threads: cl_driver_find() may be called from any; the seam is read without
 * a lock once it returned true.
 */
#ifndef CL_DRIVER_H
#define CL_DRIVER_H

#include <stdbool.h>
#include "shim/driver/calls.h"

struct cl_driver {
#define X(symbol, base, since, flags, type, params, args) CUresult(CUDAAPI *symbol) params;
	CL_HOOKED_CALLS(X)
	CL_USED_CALLS(X)
#undef X
	/* The library they came from, with a reference of our own, so that it stays. */
	void *libcuda;
	/* What cuDriverGetVersion says: 1000 * major + 10 * minor; 0 before it was asked. */
	int version;
};

extern struct cl_driver cl_driver;

typedef void *cl_dlsym_fn(void *handle, const char *name);

/*
 * Fills the seam from the libcuda.so.1 that is loaded, by @real_dlsym (libc's
 * own).  Returns true when the seam is ready, false when no libcuda is loaded
 * (ask again later).  Safe in any thread; makes no CUDA call.
 */
bool cl_driver_find(cl_dlsym_fn *real_dlsym);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver seam: the real entry points of libcuda, and nothing else of it.
 *
 * Every call that we make into the driver goes through cl_driver.  It is
 * filled once, from a libcuda that the program itself has loaded, and never
 * changes after that.  We never load a libcuda and link with none.  The member of a call
 * that this driver does not have is NULL.  Such a call of CL_HOOKED_CALLS gets no hook;
 * the user of a call of CL_USED_CALLS checks for NULL.
 *
 * Threads: any thread may call cl_driver_find().  Once it has returned true, any thread
 * may read the seam without a lock.  A forked child keeps the seam.
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
	/* The handle of the library.  It holds a reference of our own, so that the library stays. */
	void *libcuda;
	/* The answer of cuDriverGetVersion(), 1000 * major + 10 * minor; 0 until we have asked. */
	int version;
};

extern struct cl_driver cl_driver;

/*
 * No memory of CUDA's begins at this address, so the driver refuses it as it refuses a pointer that was
 * freed.  It first looks for other errors, such as a stream capture (measured, doc/measurements.md).
 */
#define CL_NO_MEMORY ((CUdeviceptr)0x10000)

/*
 * Returns true if @result says that the driver refuses to take back what it has given.  Returns false if it
 * says that the driver is shutting down, as a thread of ours may find while the process ends: then the driver
 * frees everything by itself.
 */
static inline bool cl_driver_refuses(CUresult result)
{
	return result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED;
}

typedef void *cl_dlsym_fn(void *handle, const char *name);

/*
 * Fills the seam from the loaded libcuda.so.1, with symbols that @real_dlsym, libc's own, finds.
 * Returns true if the seam is ready, false if no libcuda is loaded: call again later.
 * Makes no CUDA call.
 */
bool cl_driver_find(cl_dlsym_fn *real_dlsym);

/*
 * Asks the driver whether it works here.  It does not before cuInit(), and never in a forked child of
 * a process that has called that (measured): each call gives CUDA_ERROR_NOT_INITIALIZED.  Any thread.
 */
bool cl_driver_works(void);
/*
 * The driver has made no descriptor, by @result, which is not CUDA_SUCCESS.  Returns what the descriptor service answers:
 *	-ESTALE	the driver shuts down, because this process is in exit(): what is asked for ends with it.  An importer
 *		asks again until the process has ended, and then refuses the handle as stale
 *	-EMFILE	this process has no descriptors left
 *	-EIO	the driver refuses it for another reason
 * May call the driver.  Any thread, without a lock of ours.
 */
int cl_driver_no_descriptor(CUresult result);

#endif

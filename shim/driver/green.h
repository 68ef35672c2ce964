/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts (CUDA 12.4): parts of a device's primary context, with a handle
 * of their own.
 *
 * Memory, imports and events that are made in one are the primary context's, and
 * live on when it is destroyed; to make a destroyed one current corrupts the
 * process's heap (all measured, doc/measurements.md).  What must hold: wherever
 * we note a context, it is the primary one that is noted, and so we make no green
 * one current.  The driver can't be asked whether a handle is of a green context,
 * so each is noted as the program gets it, also before the process shares.
 */
#ifndef CL_GREEN_H
#define CL_GREEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/driver.h"

/* How many notes there are, and once there was no memory for one; 0 in most processes. */
extern _Atomic uint32_t cl_green_notes;
enum { CL_GREEN_UNNOTED = 1u << 31 };

/* Whether a green context may be there that we have no note of: any but a primary one may be it. */
static inline bool cl_green_unsure(void)
{
	return atomic_load_explicit(&cl_green_notes, memory_order_relaxed) & CL_GREEN_UNNOTED;
}

/* Whether any context may be a green one.  Relaxed: whoever uses one has it from the call that noted it. */
static inline bool cl_green_any(void)
{
	return atomic_load_explicit(&cl_green_notes, memory_order_relaxed);
}

bool cl_green_find(CUcontext *ctx);
/*
 * Whether *@ctx is of a green context; then it becomes the primary context that that is
 * a part of (NULL: it is not known which).  May be called under our locks.
 */
static inline bool cl_green_resolve(CUcontext *ctx)
{
	return cl_green_any() && cl_green_find(ctx);
}

/* For the hooks in preload/: made, and got as a CUcontext; also by a process that shares nothing yet. */
void cl_green_created(CUgreenCtx green, CUdevice device);
void cl_green_converted(CUcontext ctx, CUgreenCtx green);
/* Around the call that destroys one: of which device it is, -1: that is not known. */
struct cl_green_end {
	CUdevice device;
	uint64_t number; /* of its creation: another may have its handle by the time it is gone */
	CUgreenCtx green;
};
struct cl_green_end cl_green_end_begin(CUgreenCtx green);
void cl_green_end_done(const struct cl_green_end *end, bool gone);

void cl_green_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts (CUDA 12.4): parts of a device's primary context, each with a handle
 * of its own.
 *
 * Memory, imports and events that are made in a green context belong to the primary context and
 * outlive the green one.  Making a destroyed green context current corrupts the
 * process's heap (all measured, doc/measurements.md).  What must hold: our objects
 * are of primary contexts, never of green ones, so we never make a green
 * one current.  The driver doesn't say whether a handle is of a green context.
 * So the hooks remember each one that the program gets, also before the process shares.
 *
 * Any thread.  The functions take a lock of their own.
 */
#ifndef CL_GREEN_H
#define CL_GREEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/driver.h"

/* How many entries there are, plus CL_GREEN_INCOMPLETE once there was no memory for one. */
extern _Atomic uint32_t cl_green_known;
enum { CL_GREEN_INCOMPLETE = 1u << 31 };

/* Returns true if a green context may lack an entry: any context but a primary one may be it. */
static inline bool cl_green_unsure(void)
{
	return atomic_load_explicit(&cl_green_known, memory_order_relaxed) & CL_GREEN_INCOMPLETE;
}

/* Returns true if any context may be green.  Relaxed: a thread gets a green one after it is entered. */
static inline bool cl_green_any(void)
{
	return atomic_load_explicit(&cl_green_known, memory_order_relaxed);
}

bool cl_green_find(CUcontext *ctx);
/*
 * Returns true if *@ctx is a green context, and sets *@ctx to the primary context that it is part
 * of, or to NULL if that is not known.  Else returns false.  May be called under our other locks.
 */
static inline bool cl_green_resolve(CUcontext *ctx)
{
	return cl_green_any() && cl_green_find(ctx);
}

/* For the hooks, also before the process shares: the program has created @green, or got it as @ctx. */
void cl_green_created(CUgreenCtx green, CUdevice device);
void cl_green_converted(CUcontext ctx, CUgreenCtx green);
/* The hook calls begin() before and done() after the call that destroys @green. */
struct cl_green_end {
	CUdevice device; /* -1: not known */
	uint64_t number; /* of the entry: before done() a new green context may get the handle */
	CUgreenCtx green;
};
struct cl_green_end cl_green_end_begin(CUgreenCtx green);
void cl_green_end_done(const struct cl_green_end *end, bool gone);

void cl_green_forget(void); /* in a forked child */

#endif

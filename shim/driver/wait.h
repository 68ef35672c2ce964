/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits as the driver's cuMemFree() does: for all work of a context, and, in a capture, with the error and the
 * harm of a free.
 *
 * We keep a block that the program frees, and close virtual memory for it.  In both cases the program may rely on
 * that wait.  No call only waits so: cuCtxSynchronize() waits for the same, but spoils a capture, also in relaxed mode.
 * So we allocate a byte and free it (measured, doc/measurements.md):
 *  - a byte of pinned host memory.  It takes no memory of the device, so it is there on a full one.  The driver makes
 *    2 MiB of pinned memory for the first such byte of a context, in 0.6 to 0.9 ms, and ends it with the last one, in
 *    0.3 ms.  So each context keeps one byte until it ends: then a byte takes 3 us, and its end 3 us.
 *  - a byte of the device, where nothing can be kept or no pinned memory is to be had.  It takes 4 us, or 90 where the
 *    device's small memory is full.
 *
 * Threads: any, and several at once in a context.  The caller holds no lock of ours.  Fork: nothing to do; a child
 * cannot use its parent's contexts.
 */
#ifndef CL_WAIT_H
#define CL_WAIT_H

#include "shim/driver/context.h"

/* Names a context object, also after it has ended.  Both 0: none is known. */
struct cl_wait_in {
	uint64_t number;
	uint16_t index;
};
/* @context may be NULL.  Its lock is held, see context.h. */
static inline struct cl_wait_in cl_wait_in(const struct cl_context *context)
{
	return context ? (struct cl_wait_in){ context->number, context->index } : (struct cl_wait_in){ 0 };
}

/*
 * Waits in the current context, which is @in if that is known.  Returns the error that a cuMemFree() of memory of the
 * context would give now.
 */
CUresult cl_wait_as_a_free(struct cl_wait_in in);
/* The same, where the caller does not know the object of the current context. */
CUresult cl_wait_as_a_free_here(void);

#endif

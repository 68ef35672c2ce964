/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits as the driver's cuMemFree() does: until all work of a context has ended.  It fails as a free would, and spoils a
 * capture if a free would.
 *
 * We keep a block that the program frees, and we unmap virtual memory that it closes.  The driver would wait there, so
 * we wait.  No call only waits so: cuCtxSynchronize() waits for the same, but spoils a capture in relaxed mode, too.
 * So we allocate a byte and free it (all measured, doc/measurements.md):
 *  - A byte of pinned host memory.  It takes no memory of the device, so it can be had on a full one.  The driver pins
 *    2 MiB for the first such byte of a context, which takes it about 1 ms, and gives them back with the last one.  So
 *    each context keeps one byte until it ends.  Then another byte takes 2 us, and its end 2 us.
 *  - A byte of the device, where nothing can be kept, or no pinned memory is to be had.  It takes 3 us, or 70 to 90 where
 *    the driver makes a piece of 2 MiB for it.
 * The first free in a context allocates all of the piece but its last page, then the byte, which so comes to lie in that
 * page.  It waits by freeing the first part.
 *
 * The program must not see the byte that is kept: a query or a second free of memory that it has freed would find it
 * if it lay there.  So the byte is write-combined, for which the driver has pieces of their own, and it is kept only at
 * the end of a piece.  Where it does not come to lie there, because the program has write-combined memory with holes, the
 * context keeps none, and its frees wait by a byte of the device.
 *
 * Not avoided: a program whose own small write-combined memory fills that piece has one made and ended in each free.
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
/* @context may be NULL.  The caller holds cl_imports_lock or cl_exports_lock (context.h). */
static inline struct cl_wait_in cl_wait_in(const struct cl_context *context)
{
	return context ? (struct cl_wait_in){ context->number, context->index } : (struct cl_wait_in){ 0 };
}

/*
 * Waits in the current context, which is @in if that is known.  Returns the error that a cuMemFree() of memory of the
 * context would give now.  If neither the host nor the device has a byte, it waits by cuCtxSynchronize().
 */
CUresult cl_wait_as_a_free(struct cl_wait_in in);
/* The same for a caller who does not know the object of the current context.  There may be none; it makes none. */
CUresult cl_wait_as_a_free_here(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stack cache, for stack.c: it remembers what the unwinder's walk over the stack found.  To take a
 * stack again from the same place then costs a few dozen loads.
 *
 * Any thread, without a lock.  If another thread uses an entry (or a signal handler has interrupted
 * its use) nobody waits for it, and the unwinder walks.  Allocates nothing, but libc does once in
 * each thread other than the first, see stack_cache.c.  A forked child keeps its parent's
 * entries, which are right there too: its stack is the same.
 */
#ifndef CL_STACK_CACHE_H
#define CL_STACK_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <unwind.h>
#include "shim/diag/stack.h"

struct cl_cached_stack;

/*
 * Looks for a remembered walk.  @base is the frame (__builtin_frame_address(0)) of the function that takes a stack,
 * which must never be inlined, and @caller is its return address.  Returns true if the cache has the answer, of at
 * most @max frames, which is in *stack then.  Returns false if the caller must have the unwinder walk.  In that case,
 * if *entry is not NULL, it calls cl_stack_cache_frame() for each frame and cl_stack_cache_end() at the end.
 */
bool cl_stack_cache_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
		   struct cl_cached_stack **entry);

/*
 * The walk has come to the frame @context, whose address is 0 only at the end of a stack.  The frame of the function
 * at @base itself is not reported.  @wanted: the frame's address is part of the answer.
 */
void cl_stack_cache_frame(struct cl_cached_stack *entry, struct _Unwind_Context *context, bool wanted);

/* The walk is over.  It is remembered if it is @whole: it came to its end, with *stack as its answer. */
void cl_stack_cache_end(struct cl_cached_stack *entry, bool whole, struct cl_stack *stack);

#endif

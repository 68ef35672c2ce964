/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over the stack that are remembered, for stack.c: what it costs to take
 * a stack a second time from the same place is a few dozen loads.
 *
 * Any thread, no locks: a place that another is at (or that a signal handler
 * interrupted) is not waited for, there is a walk then.  Nothing is allocated,
 * but by libc once in each thread but the first, see stack_cache.c.  A forked child
 * has its parent's walks, which are as good there: its stack is the same.
 */
#ifndef CL_STACK_CACHE_H
#define CL_STACK_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <unwind.h>
#include "shim/diag/stack.h"

struct cl_walk;

/*
 * @base: of the frame of who asks, in a function that is never inlined
 * (__builtin_frame_address(0)); @caller: its return address.  True: @stack is
 * the answer, of at most @max frames.  Otherwise there must be a walk, and if
 * *walk is not NULL it must be noted, each frame and the end.
 */
bool cl_walks_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
		   struct cl_walk **walk);

/*
 * The walk came to @context, whose address is not 0 but at the end of a stack;
 * the frame of who asks is not noted.  @wanted: the address is one of the answer.
 */
void cl_walks_frame(struct cl_walk *walk, struct _Unwind_Context *context, bool wanted);

/* The walk is over; @whole: as it should be.  @stack: its answer. */
void cl_walks_end(struct cl_walk *walk, bool whole, struct cl_stack *stack);

#endif

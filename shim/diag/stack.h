/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Call stacks of this process: return addresses, as the compiler's own unwinder finds them, or as
 * it found them the last time (stack_cache.h).
 *
 * Any thread, without a lock of ours: the unwinder and the search for modules may wait for the
 * loader's lock.  Allocates nothing (stack_cache.h has an exception).  Not in a signal handler.
 */
#ifndef CL_STACK_H
#define CL_STACK_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/layout.h"

struct cl_stack {
	uint32_t n;			    /* frames; 0: none was wanted, or none found */
	uint32_t name;			    /* from cl_stack_name(); 0: not known */
	uint32_t place, serial, epoch;	    /* for cl_stack_name() */
	uint64_t frame[CL_STACK_FRAMES];    /* return addresses, innermost first; unset if named */
};

/*
 * Takes the stack of the calling thread, CULIMBO_STACK frames at most, without the frames of the
 * preloaded library.  It ends at the first frame whose code lies in no loaded file (code made at
 * run time): no unwind data say how to go on from there.
 */
void cl_stack_take(struct cl_stack *stack);

/*
 * Gives @stack, just taken, a name: when it is taken again from the same place it mostly has this
 * name.  A forked child forgets all names.
 */
void cl_stack_name(const struct cl_stack *stack, uint32_t name);
void cl_stack_forget_names(void);

/* Returns true if the outermost frame of @stack is the program's _start. */
bool cl_stack_is_from_start(const struct cl_stack *stack);

/*
 * Finds the loaded files that @stack leads through, each once.  Leaves out the first @skip and
 * writes at most @max to @to.  Returns how many it wrote.
 */
unsigned int cl_stack_modules(const struct cl_stack *stack, unsigned int skip,
			      struct cl_module *to, unsigned int max);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Call stacks of this process: raw return addresses, by the compiler's own unwinder,
 * or as it found them the last time (stack_cache.h).
 *
 * Any thread, under no lock of ours (the unwinder and the walk over the modules
 * may wait for the loader's).  Nothing is allocated, but see stack_cache.h.  Not in a
 * signal handler.
 */
#ifndef CL_STACK_H
#define CL_STACK_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/layout.h"

struct cl_stack {
	uint32_t n;			    /* frames; 0: none was wanted, or none found */
	uint32_t name;			    /* that cl_stack_name() gave to it; 0: none is known */
	uint32_t place, serial, epoch;	    /* for cl_stack_name() */
	uint64_t frame[CL_STACK_FRAMES];    /* return addresses, innermost first; not filled in where it has a name */
};

/*
 * The stack of the calling thread, CULIMBO_STACK frames at most, without those
 * of the preloaded library itself.  It ends at the first frame of code that no
 * loaded file has (made at run time): how to go on from there nobody says.
 */
void cl_stack_take(struct cl_stack *stack);

/*
 * From now on @stack, as it was taken, has that name when it is taken again from
 * the same place, until all names are forgotten (in a forked child).  No promise.
 */
void cl_stack_name(const struct cl_stack *stack, uint32_t name);
void cl_stack_forget_names(void);

/*
 * The files that @stack leads through, each once: up to @max of them that lie
 * behind the first @skip into @to.  Returns how many it filled in.
 */
unsigned int cl_stack_modules(const struct cl_stack *stack, unsigned int skip,
			      struct cl_module *to, unsigned int max);

#endif

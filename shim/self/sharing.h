/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this process shares anything, and whether it writes a trace: one word that each hook reads first. */
#ifndef CL_SHARING_H
#define CL_SHARING_H

#include <stdatomic.h>
#include <stdbool.h>

/*
 * CL_SHARES from the first export or import on; never cleared but in a forked child.
 * CL_TRACES where CULIMBO_TRACE says so.  One word, so that one load tells both.
 */
enum { CL_SHARES = 1, CL_TRACES = 2 };
extern atomic_int cl_sharing_flag;

static inline int cl_watched(void)
{
	/* relaxed: whoever freed a block after exporting it in another thread has synchronised */
	return __builtin_expect(atomic_load_explicit(&cl_sharing_flag, memory_order_relaxed), 0);
}
static inline bool cl_sharing(void)
{
	return cl_watched() & CL_SHARES;
}
static inline bool cl_tracing(void)
{
	return cl_watched() & CL_TRACES;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One word that each hook reads first: whether this process shares anything, and whether it writes
 * a trace.  Any thread.
 */
#ifndef CL_SHARING_H
#define CL_SHARING_H

#include <stdatomic.h>
#include <stdbool.h>

/*
 * CL_SHARES is set at the first export or import, and cleared only in a forked child.  CL_TRACES is
 * set if CULIMBO_TRACE says so.  Both are in one word, so that one load reads both.
 */
enum { CL_SHARES = 1, CL_TRACES = 2 };
extern atomic_int cl_sharing_flag;

static inline int cl_watched(void)
{
	/* relaxed: a thread that frees what another has exported has synchronised with it */
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

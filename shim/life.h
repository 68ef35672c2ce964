/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of this process as a sharer: its first export or import, fork, and its end.
 * The front door (shim.c) calls what begins it, preload/ what ends it.
 */
#ifndef CL_LIFE_H
#define CL_LIFE_H

#include "shim/self/self.h"

/* Who we are, and fork handlers; what everything else here needs.  Any thread, any number of times. */
void cl_self_prepare(void);

/*
 * The first export or import: makes cl_sharing() true.  Returns false when
 * this process is not to be looked after (CULIMBO_DISABLE).  Any thread.
 */
bool cl_self_start_to_share(void);
static inline bool cl_self_start(void)
{
	/* acquire: what the first one prepared is seen */
	if (__builtin_expect(!cl_self_is_copy() &&
			     (atomic_load_explicit(&cl_sharing_flag, memory_order_acquire) & CL_SHARES), 1))
		return true;
	return cl_self_start_to_share();
}

/*
 * The end of the process, by exit() (from our destructor) or by a call that
 * skips destructors.  Stops the collector, writes the report, takes our file
 * away; makes no CUDA call.  Only the first call does anything.  Never waits
 * without a bound; safe when the calling thread was interrupted inside one of
 * our functions (then it may do less).
 * Returns the exit status to use instead of @status.
 */
int cl_process_end(int status);

#endif

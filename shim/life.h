/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of this process as one that shares: its first export or import, fork, and its end.
 * The front door (shim.c) calls the functions that begin it, preload/ the one that ends it.
 * A forked child starts as a process that shares nothing: our fork handlers reset all state.
 */
#ifndef CL_LIFE_H
#define CL_LIFE_H

#include "shim/self/self.h"

/* Fills cl_self and registers the fork handlers.  Any thread, any number of times; takes the start lock. */
void cl_self_prepare(void);

/*
 * Called at each export and import; the first call makes cl_sharing() true.  Returns true if the
 * process shares, false if CULIMBO_DISABLE is set or the driver does not work here, as in a forked
 * child.  Any thread; no lock may be held.
 */
bool cl_self_start_to_share(void);
static inline bool cl_self_start(void)
{
	/* acquire: a thread that sees the flag sees what the first thread has prepared */
	if (__builtin_expect(!cl_self_is_copy() &&
			     (atomic_load_explicit(&cl_sharing_flag, memory_order_acquire) & CL_SHARES), 1))
		return true;
	return cl_self_start_to_share();
}

/*
 * Called when the process ends: by our destructor at exit(), or by our wrapper of a call that
 * skips destructors.  Stops the collector, writes the report and removes our file.
 * Makes no CUDA call.  Only the first call does anything.  Each wait has a bound of
 * CL_END_WAIT.  Also safe in a signal handler that interrupted one of our functions, but then
 * it may do less, such as write no report.
 * Returns CULIMBO_ERROR_EXITCODE if that is set and there are findings, else @status.
 */
int cl_process_end(int status);

#endif

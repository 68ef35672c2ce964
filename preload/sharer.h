/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers which process shares: a vfork() child ends in the same memory. */
#ifndef CL_SHARER_H
#define CL_SHARER_H

#include <sys/types.h>

/*
 * Stores this process's id, and warns of wrappers (wrapped.h).  A hook calls this before each call that
 * may make the process one that shares.  Does nothing if it shares already.  Any thread.
 */
void cl_sharer_remember(void);
/*
 * The same for what is only counted, memory shared by descriptors: no wrapper can do it harm, so it
 * warns of none.  A process that shares by handles later is warned then.
 */
void cl_sharer_remember_counted(void);

/* Returns its id, once cl_sharing() is true.  Any thread, also in a signal handler or a vfork() child. */
pid_t cl_sharer_pid(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The process that shares: noted by the hooks that make it one, for the end of the process (process.c). */
#ifndef CL_SHARER_H
#define CL_SHARER_H

#include <sys/types.h>

/*
 * To be called by a hook before each call that may make this process one that shares.  Any
 * thread; nothing is done in one that shares already.
 */
void cl_sharer_note(void);

/* Which that was, once cl_sharing() is true.  Any thread, a signal handler, a vfork() child. */
pid_t cl_sharer_pid(void);

#endif

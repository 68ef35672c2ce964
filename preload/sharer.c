/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers which process shares: see sharer.h. */
#include <stdatomic.h>
#include <unistd.h>
#include "preload/sharer.h"
#include "preload/wrapped.h"
#include "shim/shim.h"

/*
 * The process that shares.  A vfork() child, which calls _exit(), is another process in the same
 * memory.  A fork() child starts as a process that shares nothing (the shim's pthread_atfork()
 * handler), so it calls cl_sharer_note() again before it shares.
 */
static _Atomic(pid_t) sharing_process;

void cl_sharer_note(void)
{
	if (cl_sharing())
		return;
	cl_wrapped_say();
	/* before the sharing flag is set: a thread that sees the flag sees the process, too */
	atomic_store_explicit(&sharing_process, getpid(), memory_order_relaxed);
}

pid_t cl_sharer_pid(void)
{
	return atomic_load_explicit(&sharing_process, memory_order_relaxed);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers which process shares: see sharer.h. */
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>
#include "preload/sharer.h"
#include "preload/wrapped.h"
#include "shim/base/hot.h"
#include "shim/shim.h"

/*
 * The process that shares.  A vfork() child, which calls _exit(), is another process in the same
 * memory.  A fork() child starts as a process that shares nothing (the shim's pthread_atfork()
 * handler), so it calls cl_sharer_remember() again before it shares.
 */
static _Atomic(pid_t) sharing_process;
/* The warning of wrappers is given once in the life of a process, so a forked child keeps this. */
static CL_HOT_DATA atomic_bool asked_for_wrappers;

void cl_sharer_remember_counted(void)
{
	/* before the sharing flag is set: a thread that sees the flag sees the process, too */
	if (!cl_sharing())
		atomic_store_explicit(&sharing_process, getpid(), memory_order_relaxed);
}

CL_HOT_SHARING void cl_sharer_remember(void)
{
	if (cl_sharing() && atomic_load_explicit(&asked_for_wrappers, memory_order_relaxed))
		return;
	atomic_store_explicit(&asked_for_wrappers, true, memory_order_relaxed);
	cl_wrapped_say();
	cl_sharer_remember_counted();
}

pid_t cl_sharer_pid(void)
{
	return atomic_load_explicit(&sharing_process, memory_order_relaxed);
}

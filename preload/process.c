/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our constructor, our destructor, and the hooks for calls that end the process.
 *
 * What must hold: in a process that shares nothing we make no system call, file,
 * thread or message.  The exceptions: what an option asks for (CULIMBO_REPORT=always, CULIMBO_TRACE,
 * a relative file name, which is made absolute), a warning of a wrong option or of a second copy
 * once the driver is loaded, and the lock of a process that forks after cuInit() (self/outlive.h).
 * The exit hooks may run in a signal handler, in the child of a
 * vfork() (which runs in its parent's memory), and before our constructor has
 * run.  They call no CUDA.
 *
 * How each way to end reaches cl_process_end():
 *   exit(), return from main   our destructor
 *   _exit(), _Exit()           our exported functions of these names; libc itself does not
 *                              call them
 *   quick_exit()               runs the at_quick_exit() handlers, then libc's _exit().
 *                              The handler that we register at load is the first, so it
 *                              runs last.  A handler does not get the status: our
 *                              quick_exit() stores it.
 * If a signal or a raw system call ends the process, nothing here runs: other processes
 * clean up.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#include "preload/dlsym.h"
#include "preload/environment.h"
#include "preload/real_dlsym.h"
#include "preload/sharer.h"
#include "shim/base/options.h"
#include "shim/shim.h"

/* ------------------------------------------------------------------ the end */
/*
 * With CULIMBO_REPORT=always, which `culimbo check` sets, the process that reports its end
 * even if it shares nothing; else 0.  A vfork() child is not that process.
 */
static _Atomic(pid_t) reporting_process;

static void report_the_end(void)
{
	atomic_store_explicit(&reporting_process, getpid(), memory_order_relaxed);
}

static int ended(int status)
{
	pid_t whose = cl_sharing() ? cl_sharer_pid() :
				     atomic_load_explicit(&reporting_process, memory_order_relaxed);

	return whose && whose == getpid() ? cl_process_end(status) : status;
}

typedef void leave_fn(int status);
/* The functions of these names behind ours.  The constructor finds them, because a signal handler must not search. */
static leave_fn *next__exit, *next__Exit, *next_quick_exit;

static leave_fn *next_leave(const char *name)
{
	return (leave_fn *)cl_real_dlsym()(RTLD_NEXT, name);
}

__attribute__((noreturn)) static void leave(leave_fn *next, int status)
{
	if (next)
		next(status);
	/* our constructor has not run: there is nothing to clean up yet */
	for (;;)
		syscall(SYS_exit_group, status);
}

__attribute__((visibility("default"), noreturn)) void _exit(int status)
{
	leave(next__exit, ended(status));
}

__attribute__((visibility("default"), noreturn)) void _Exit(int status)
{
	leave(next__Exit, ended(status));
}

static atomic_int quick_status;
static atomic_bool quick_status_known;

__attribute__((visibility("default"), noreturn)) void quick_exit(int status)
{
	atomic_store_explicit(&quick_status, status, memory_order_relaxed);
	atomic_store_explicit(&quick_status_known, true, memory_order_release);
	leave(next_quick_exit, status);
}

static void quick_end(void)
{
	int status = atomic_load_explicit(&quick_status, memory_order_relaxed);
	int wanted = ended(status);

	if (wanted != status &&
	    atomic_load_explicit(&quick_status_known, memory_order_acquire))
		leave(next__exit, wanted);
}

__attribute__((constructor)) static void begin(void)
{
	next__exit = next_leave("_exit");
	next__Exit = next_leave("_Exit");
	next_quick_exit = next_leave("quick_exit");
	at_quick_exit(quick_end);
	if (!cl_environment_disables() && cl_options.report.number == CL_REPORT_ALWAYS) {
		report_the_end();
		pthread_atfork(NULL, NULL, report_the_end);
	}
	cl_dlsym_begin();
}

__attribute__((destructor)) static void end(void)
{
	/* also if nothing is shared, for CULIMBO_REPORT=always; a vfork() child runs no destructors */
	int wanted = cl_process_end(0);

	/*
	 * CULIMBO_ERROR_EXITCODE asks for another status than exit() was given.  A second exit()
	 * runs the remaining handlers of the first one and flushes the program's streams, which
	 * _exit() would not.  Only the destructors of libraries after us do not run.
	 */
	if (wanted)
		exit(wanted);
}

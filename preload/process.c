/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning and the end of the process.
 *
 * What must hold: a process that shares nothing gets no system call, file,
 * thread or message from us, here or anywhere (unless CULIMBO_REPORT=always asks
 * for one).  The exit hooks may be called in a signal handler, in the child of a
 * vfork() (which runs in its parent's memory), and before our constructor has
 * run.  They call no CUDA.
 *
 * How each way to end reaches cl_process_end():
 *   exit(), return from main   our destructor
 *   _exit(), _Exit()           our own, exported, symbols; libc calls its own directly
 *   quick_exit()               runs the at_quick_exit() handlers, then libc's _exit().
 *                              The handler we register at load is the first, so it
 *                              runs last.  Handlers learn no status: our quick_exit()
 *                              notes it on the way.
 * A signal, a raw system call: nothing here; the other processes see to it.
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
 * With CULIMBO_REPORT=always (and so under `culimbo check`), the process whose end
 * is told of though it shares nothing; 0: there is none.  A vfork() child is none.
 */
static _Atomic(pid_t) told_process;

static void tell_of_end(void)
{
	atomic_store_explicit(&told_process, getpid(), memory_order_relaxed);
}

static int ended(int status)
{
	pid_t whose = cl_sharing() ? cl_sharer_pid() :
				     atomic_load_explicit(&told_process, memory_order_relaxed);

	return whose && whose == getpid() ? cl_process_end(status) : status;
}

typedef void leave_fn(int status);
/* The next ones after ours, found while nobody can be in a signal handler of ours yet. */
static leave_fn *next__exit, *next__Exit, *next_quick_exit;

static leave_fn *next_leave(const char *name)
{
	return (leave_fn *)cl_real_dlsym()(RTLD_NEXT, name);
}

__attribute__((noreturn)) static void leave(leave_fn *next, int status)
{
	if (next)
		next(status);
	/* before our constructor: nothing can be there to be cleaned up yet */
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
		tell_of_end();
		pthread_atfork(NULL, NULL, tell_of_end);
	}
	cl_dlsym_begin();
}

__attribute__((destructor)) static void end(void)
{
	/* Whether it shares or not: CULIMBO_REPORT=always.  No vfork() child comes here. */
	int wanted = cl_process_end(0);

	/*
	 * CULIMBO_ERROR_EXITCODE: the user asks for another status than exit() was given.  exit()
	 * again goes on with what is left of the first, and writes out the program's streams, as
	 * _exit() would not; only destructors of libraries after us are not run.
	 */
	if (wanted)
		exit(wanted);
}

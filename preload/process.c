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
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#include "preload/copies.h"
#include "preload/dlsym.h"
#include "preload/process.h"
#include "preload/wrapped.h"
#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/shim.h"

/* ------------------------------------------------------------------ options */
/*
 * Our own copy of the CULIMBO_ part of the environment: programs that set their
 * title write over where the kernel has put it.
 */
enum { kept_bytes = 8192, kept_names = 64 };
static char kept_text[kept_bytes];
static char *kept[kept_names + 1];
static atomic_bool options_known;

static void options_read(void)
{
	size_t used = 0, names = 0;

	/*
	 * More rights than who started it (/etc/ld.so.preload reaches setuid programs): what
	 * is in that user's environment must not name files for it to write.  Step aside.
	 */
	if (getauxval(AT_SECURE)) {
		kept[0] = (char *)"CULIMBO_DISABLE=1";
		cl_options_read(&cl_options, kept, NULL);
		return;
	}
	for (char **name = environ; name && *name && names < kept_names; name++) {
		size_t bytes = strlen(*name) + 1;

		if (strncmp(*name, "CULIMBO_", strlen("CULIMBO_")))
			continue;
		if (bytes > kept_bytes - used) { /* then it stays where it is */
			kept[names++] = *name;
			continue;
		}
		kept[names++] = memcpy(kept_text + used, *name, bytes);
		used += bytes;
	}
	cl_options_read(&cl_options, kept, NULL);
	if (cl_copies_is_second()) {
		cl_options.disable.number = 1;
		return;
	}
	cl_trace_begin();
}

static void warn(const char *line)
{
	cl_log(CL_LOG_WARN, "%s", line);
}

bool cl_process_disabled(void)
{
	/*
	 * Once, in our constructor, or when another constructor that ran before it came here.
	 * Should two threads be started that early, both read the same.
	 */
	if (!atomic_load_explicit(&options_known, memory_order_acquire)) {
		options_read();
		atomic_store_explicit(&options_known, true, memory_order_release);
	}
	return cl_options.disable.number;
}

void cl_process_uses_driver(void)
{
	struct cl_options again;

	if (cl_process_disabled())
		return;
	cl_options_read(&again, kept, warn);
	cl_copies_say();
}

/* ------------------------------------------------------------------ the end */
/*
 * The process that shares; a vfork() child that calls _exit() is another one,
 * in the same memory.  A fork() child starts with no sharing (the shim's
 * pthread_atfork() handler), so it passes here again before it shares.
 */
static _Atomic(pid_t) sharing_process;

void cl_process_may_share(void)
{
	if (cl_sharing())
		return;
	cl_wrapped_say();
	/* before the flag is raised, so that whoever sees the flag sees the process too */
	atomic_store_explicit(&sharing_process, getpid(), memory_order_relaxed);
}

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
	pid_t whose = atomic_load_explicit(cl_sharing() ? &sharing_process : &told_process,
					   memory_order_relaxed);

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
	if (!cl_process_disabled() && cl_options.report.number == CL_REPORT_ALWAYS) {
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of this process as one that shares: its first export or import, fork, and
 * its end: see life.h.  This file knows all modules with state.  It resets what a forked child must
 * not have of its parent's, and closes them at the end.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "shim/reclaim/callbacks.h"
#include "shim/limbo/collector.h"
#include "shim/context_end.h"
#include "shim/descriptors/flight.h"
#include "shim/driver/context.h"
#include "shim/driver/driver.h"
#include "shim/driver/gate.h"
#include "shim/driver/visit.h"
#include "shim/shm/gc.h"
#include "shim/exporter/async.h"
#include "shim/exporter/pool_handle.h"
#include "shim/exporter/service.h"
#include "shim/exporter/virtual.h"
#include "shim/importer/imported_pools.h"
#include "shim/importer/mappings.h"
#include "shim/importer/virtual.h"
#include "shim/life.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/pool_opens.h"
#include "shim/limbo/reap.h"
#include "shim/base/log.h"
#include "shim/diag/report_data.h"
#include "shim/diag/recent_closes.h"
#include "shim/refused.h"
#include "shim/report/exit.h"
#include "shim/self/outlive.h"
#include "shim/self/self.h"
#include "shim/base/stderr.h"
#include "shim/diag/trace.h"
#include "shim/shm/view.h"

enum { END_STACK = 256 << 10 };

static struct cl_lock start_lock = CL_LOCK_INIT(CL_RANK_START);
static atomic_flag end_begun = ATOMIC_FLAG_INIT;

/*
 * Takes @lock.  Returns false if it is not free within @wait ns: this may be a signal handler in the thread
 * that holds it.
 */
static bool lock_within(struct cl_lock *lock, uint64_t wait)
{
	struct timespec until = cl_after(wait);

	return cl_lock_until(lock, &until);
}

/* ----------------------------------------------------------------------- fork */
/*
 * The locks to take around a fork.  A signal handler may fork in a thread that holds one of
 * them, so the wait is bounded.  Without the lock the child may get a half-changed
 * state, which does no harm: the child resets all state and all locks.
 */
static struct cl_lock *const fork_locks[] = { &start_lock, &cl_imports_lock, &cl_exports_lock };
enum { FORK_LOCKS = sizeof fork_locks / sizeof fork_locks[0] };
static __thread bool fork_locked[FORK_LOCKS] __attribute__((tls_model("initial-exec")));
static __thread bool flights_wait __attribute__((tls_model("initial-exec")));

/* How many forks this thread is in: a signal handler may fork while a fork waits.  The outermost has the locks. */
static __thread unsigned int fork_depth __attribute__((tls_model("initial-exec")));

static void before_fork(void)
{
	if (fork_depth++)
		return;
	for (int i = 0; i < FORK_LOCKS; i++)
		fork_locked[i] = lock_within(fork_locks[i], CL_END_WAIT);
	flights_wait = cl_flight_fork(CL_END_WAIT);
}
static void after_fork_in_parent(void)
{
	if (--fork_depth)
		return;
	if (flights_wait)
		cl_flight_fork_over();
	for (int i = FORK_LOCKS - 1; i >= 0; i--)
		if (fork_locked[i])
			cl_unlock(fork_locks[i]);
}
static void after_fork_in_child(void)
{
	/*
	 * The child has none of its parent's contexts, so none of its blocks and
	 * imports: it starts as a process that shares nothing.
	 */
	atomic_fetch_and(&cl_sharing_flag, ~CL_SHARES);
	memset(&cl_self, 0, sizeof cl_self);
	memset(&cl_counts, 0, sizeof cl_counts);
	cl_flights_forget();
	cl_imports_forget();
	cl_virtual_imports_forget();
	cl_service_forget();
	cl_virtual_forget();
	cl_async_forget();
	cl_pool_handles_forget();
	cl_imported_pools_forget();
	cl_pool_opens_forget();
	cl_exporter_forget();
	cl_own_forget();
	cl_report_data_forget();
	cl_refused_forget();
	cl_recent_closes_forget();
	cl_contexts_forget();
	cl_gate_forget();
	cl_visit_forget();
	cl_callbacks_forget();
	cl_trace_forget();
	atomic_flag_clear(&end_begun);
	fork_depth = 0;
	for (int i = 0; i < FORK_LOCKS; i++)
		cl_lock_reset(fork_locks[i]);
}

/* Resets a child without fork handlers.  Only once, or it would lose what it has written since. */
static void begin_anew(void)
{
	if (cl_self.pid)
		after_fork_in_child();
}

/* ---------------------------------------------------------------------- start */
/* Marks a page that the kernel clears in a child.  Before 4.14 it can't: only fork() is noticed. */
static void mark_memory(void)
{
	uint32_t *word = atomic_load_explicit(&cl_self_word, memory_order_relaxed);

	if (!word) {
		word = mmap(NULL, CL_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (word == MAP_FAILED)
			return;
		if (madvise(word, CL_PAGE, MADV_WIPEONFORK)) {
			munmap(word, CL_PAGE);
			return;
		}
	}
	*word = 1;
	/* release: a thread that sees the address sees the 1 as well */
	atomic_store_explicit(&cl_self_word, word, memory_order_release);
}

/* The status that exit() was given, for the report: no destructor gets it.  -1: not known. */
static int exit_status = -1;

static void keep_status(int status, void *data)
{
	exit_status = status & 0xff;
}

void cl_self_prepare(void)
{
	static bool registered; /* stays true in a forked child, which inherits the handlers */

	cl_lock(&start_lock);
	if (!registered) {
		registered = true;
		pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
		on_exit(keep_status, NULL);
	}
	if (!cl_self.pid) {
		cl_self_begin_anew = begin_anew;
		cl_self_identify(&cl_self.identity);
		cl_self.user = geteuid();
		cl_self.places = cl_self_find_places();
		mark_memory();
		cl_stderr_remember();
		cl_self.pid = getpid();
	}
	cl_unlock(&start_lock);
}

/*
 * Returns true if this process has the file open: gc must leave it alone, because opening and closing
 * it once more would drop our locks on it.  Wants cl_imports_lock.
 */
static bool is_open_here(uint32_t file_id)
{
	bool own;

	return cl_peer_has_open(file_id, &own) != NULL;
}

bool cl_self_start_to_share(void)
{
	int dirfd;

	cl_guard_enter();
	/* acquire: a thread that sees the flag sees what the first thread has prepared */
	if (atomic_load_explicit(&cl_sharing_flag, memory_order_acquire) & CL_SHARES)
		return true;
	if (cl_options.disable.number)
		return false;
	/*
	 * In a forked child nothing can be shared.  What follows allocates memory: a child without fork
	 * handlers may have a malloc() whose lock another thread of its parent had, and would wait for ever.
	 */
	if (!cl_driver_works())
		return false;
	cl_self_prepare();
	cl_lock(&cl_imports_lock);
	if (!(atomic_load_explicit(&cl_sharing_flag, memory_order_relaxed) & CL_SHARES)) {
		cl_self_spare_restore();
		dirfd = cl_self_open_dir(false);
		/* if several processes start at once, one of them cleans the directory: the others don't wait */
		if (dirfd >= 0 && !syscall(SYS_flock, dirfd, LOCK_EX | LOCK_NB)) {
			cl_gc_directory(dirfd, is_open_here);
			/* close() won't do: a child without fork handlers may have it, too */
			syscall(SYS_flock, dirfd, LOCK_UN);
		}
		if (dirfd >= 0)
			close(dirfd);
		cl_outlive_keep();
		cl_context_on_lost = cl_context_end_lost;
		cl_gate_watch();
		atomic_fetch_or_explicit(&cl_sharing_flag, CL_SHARES, memory_order_release);
	}
	cl_unlock(&cl_imports_lock);
	return true;
}

/* ------------------------------------------------------------------------ end */
/* Removes the default directory if no other process uses it. */
static void remove_directory(int dirfd)
{
	char path[64];

	if (cl_options.dir.text[0] || cl_outlive_uses(dirfd))
		return;
	cl_self_dir_path(path, sizeof path);
	rmdir(path);
}

/* A process that shares nothing may have made the directory before a fork. */
static void end_without_sharing(void)
{
	int dirfd;

	if (!cl_outlive_took())
		return;
	dirfd = cl_self_open_dir(false);
	if (dirfd < 0)
		return;
	remove_directory(dirfd);
	close(dirfd);
}

/* @locked: the caller holds cl_imports_lock, which is_open_here() needs.  @wait: for cl_exports_lock. */
static void remove_own_file(bool locked, uint64_t wait)
{
	int dirfd = cl_self_open_dir(false);

	if (dirfd < 0)
		return;
	if (cl_own.file_id) {
		/* a thread that gives blocks back sees the file with its name, or that we have removed it */
		bool alone = lock_within(&cl_exports_lock, wait);

		cl_self.file_ended = cl_region_end(&cl_own, dirfd) == 0;
		if (alone)
			cl_unlock(&cl_exports_lock);
	}
	/* killed processes have left their files, and we may be the last process that can remove them */
	if (locked)
		cl_gc_directory(dirfd, is_open_here);
	remove_directory(dirfd);
	close(dirfd);
}

static uint64_t findings;

/* The report data go with our file, and the trace file stays: copies the call stacks into it. */
static void copy_stacks_locked(void)
{
	uint32_t modules, words;
	uint64_t size;
	char *room = cl_trace_room_for_stacks(&size);

	if (!room)
		return;
	cl_report_data_copy_stacks_locked(room, size, &modules, &words);
	cl_trace_has_stacks(modules, words);
}

static void end_all(void)
{
	cl_self.ended = true;
	cl_trace_end();
	cl_service_end(CL_END_WAIT);
	cl_collector_stop(&cl_exporter, CL_END_WAIT);
	if (lock_within(&cl_imports_lock, CL_END_WAIT)) {
		/* a signal handler may be ending the process in the very thread that holds it: waits for it once */
		bool had = lock_within(&cl_exports_lock, CL_END_WAIT);

		if (had) {
			/* so that the report distinguishes dead holders from living ones */
			cl_limbo_reap_at_end_locked(&cl_exporter);
			copy_stacks_locked();
			findings = cl_report_write(exit_status);
			cl_unlock(&cl_exports_lock);
		}
		cl_peers_end();
		remove_own_file(true, had ? CL_END_WAIT : 0);
		cl_unlock(&cl_imports_lock);
	} else {
		remove_own_file(false, 0);
	}
}

/*
 * Runs @what on a stack of our own if the thread is on an alternate signal stack.  A signal handler
 * that calls _exit() may have a stack of 8 KiB, most of it used, with data of the program right
 * below it.  All signals are blocked meanwhile: the kernel would take the small stack
 * for unused, and a handler would overwrite the frames that wait there.
 */
static void end_with_room(void (*what)(void))
{
	static ucontext_t there, back; /* static: a process ends only once */
	stack_t stack;
	void *room = MAP_FAILED;

	if (!sigaltstack(NULL, &stack) && (stack.ss_flags & SS_ONSTACK))
		room = mmap(NULL, END_STACK, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED || getcontext(&there)) {
		what();
		return;
	}
	there.uc_stack.ss_sp = room;
	there.uc_stack.ss_size = END_STACK;
	there.uc_link = &back;
	sigfillset(&there.uc_sigmask);
	makecontext(&there, what, 0);
	swapcontext(&back, &there);
	munmap(room, END_STACK);
}

int cl_process_end(int status)
{
	/* not CL_GUARD: the end of a child that has its parent's memory changes nothing there */
	CL_UNCANCELLED;

	/* acquire: another thread may just have begun to share */
	if (!(atomic_load_explicit(&cl_sharing_flag, memory_order_acquire) & CL_SHARES)) {
		end_without_sharing();
		cl_trace_end();
		if (cl_options.report.number == CL_REPORT_ALWAYS && !cl_options.disable.number &&
		    !atomic_flag_test_and_set(&end_begun))
			end_with_room(cl_report_nothing);
		return status;
	}
	/* a vfork() child shares its parent's memory: its end is not the parent's */
	if (getpid() != cl_self.pid || atomic_flag_test_and_set(&end_begun))
		return status;
	findings = 0; /* in a forked child it has the parent's count */
	/* the destructor says 0 of any end by exit() */
	if (status)
		exit_status = status & 0xff;
	end_with_room(end_all);
	return findings && cl_options.error_exitcode.number ? (int)cl_options.error_exitcode.number :
							      status;
}

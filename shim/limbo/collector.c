/* SPDX-License-Identifier: Apache-2.0 */
/* The collector thread: see collector.h. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/backoff.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/collect.h"
#include "shim/limbo/reap.h"
#include "shim/base/log.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"

#define MILLISECOND 1000000ull
#define REAP_SETTLING_EVERY (10 * MILLISECOND)
enum { EMPTIED = 4096 }; /* with more blocks than this in the limbo, exit() gives none back */

static struct {
	struct cl_lock lock; /* starting and stopping */
	pthread_t thread;
	_Atomic bool running;
	struct cl_backoff backoff;   /* under .lock */
	_Atomic uint64_t next_start; /* when .backoff ends */
	_Atomic bool stop; /* for good: the driver frees the rest with the process */
	_Atomic bool empty; /* before it stops, the thread gives back all blocks that can go */
	_Atomic uint64_t sleeps_until; /* 0: awake */
	_Atomic uint64_t last_reap;    /* of inline_pass() */
	/* the header's .asked_all and .device[].asked when they were last served */
	_Atomic uint32_t served_all, served[CL_DEVICE_LIMBOS];
} collector = { .lock = CL_LOCK_INIT(CL_RANK_COLLECTOR) };
_Atomic bool cl_collector_failed;

static void sleep_until(uint64_t when, uint32_t seen)
{
	struct timespec until = cl_clock_kernel(when);

	/* FUTEX_WAIT_BITSET takes an absolute time.  The futex is shared: other processes wake us. */
	syscall(SYS_futex, &cl_own.header->wake, FUTEX_WAIT_BITSET, seen,
		when == UINT64_MAX ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static bool pressed(void)
{
	struct cl_header *h = cl_own.header;

	return atomic_load_explicit(&h->pressure_asked, memory_order_acquire) !=
	       atomic_load_explicit(&h->pressure_done, memory_order_relaxed);
}

/* Says that all requests for memory up to @asked are served.  Several threads may do that at once. */
static void answer(struct cl_header *h, uint32_t asked)
{
	uint32_t done = atomic_load_explicit(&h->pressure_done, memory_order_relaxed);

	/* release: what we gave back is back before anybody sees the answer */
	while ((int32_t)(asked - done) > 0 &&
	       !atomic_compare_exchange_weak_explicit(&h->pressure_done, &done, asked,
						      memory_order_release, memory_order_relaxed))
		;
	/* This may erase the time of a request that comes just now: the next request sets it again. */
	if (atomic_load_explicit(&h->pressure_asked, memory_order_relaxed) == asked)
		atomic_store_explicit(&h->unanswered, 0, memory_order_relaxed);
	syscall(SYS_futex, &h->pressure_done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void serve_pressure(uint64_t wait)
{
	struct cl_header *h = cl_own.header;
	uint32_t asked = atomic_load_explicit(&h->pressure_asked, memory_order_acquire);
	uint32_t all = atomic_load_explicit(&h->asked_all, memory_order_relaxed);
	bool end_grace = atomic_exchange(&collector.served_all, all) != all;

	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++) {
		uint32_t of = atomic_load_explicit(&h->device[i].asked, memory_order_relaxed);

		if (atomic_exchange(&collector.served[i], of) != of)
			cl_limbo_press(i, atomic_load_explicit(&h->device[i].needed_until,
							       memory_order_relaxed));
	}
	cl_limbo_reap();
	cl_limbo_collect_from_dying(end_grace, cl_now() + wait, &collector.stop);
	cl_limbo_collect(false);
	cl_trace(CL_TRACE_SERVED);
	answer(h, asked);
}

/*
 * Gives back the blocks that wait for their grace, before the process ends by exit() and while
 * the driver can be called: no handle outlives its exporter.  At the end of the process the
 * driver would free them later than our file goes, by which other processes see that memory will
 * come free.  More than EMPTIED blocks would take too long.
 */
static void empty(void)
{
	if (atomic_load_explicit(&cl_own.header->limbo_blocks, memory_order_relaxed) > EMPTIED)
		return;
	cl_limbo_press(CL_ANY_DEVICE, cl_now());
	cl_limbo_collect(false);
}

static void *collector_main(void *unused)
{
	struct cl_header *h = cl_own.header;
	uint64_t reap_at = 0;

	pthread_setname_np(pthread_self(), "culimbo");
	while (!atomic_load_explicit(&collector.stop, memory_order_acquire)) {
		uint32_t seen = atomic_load_explicit(&h->wake, memory_order_acquire);
		struct cl_collected now;
		uint64_t until;

		if (pressed())
			serve_pressure(cl_options.pressure_wait.number);
		now = cl_limbo_collect(false);
		until = now.next;
		if (now.held) {
			if (cl_now() >= reap_at) {
				bool settling = cl_limbo_reap() != 0;

				reap_at = cl_now() + (settling ? REAP_SETTLING_EVERY : CL_REAP_EVERY);
			}
			if (reap_at < until)
				until = reap_at;
		}
		/*
		 * We say that we sleep, and then look for work once more.  So we see work
		 * that was made before that, and a thread that makes work later sees us sleep.
		 */
		atomic_store_explicit(&collector.sleeps_until, until, memory_order_relaxed);
		atomic_store_explicit(&h->sleeping, 1, memory_order_relaxed);
		atomic_thread_fence(memory_order_seq_cst);
		if (!cl_record_any_ready(&cl_own) && !pressed() &&
		    !atomic_load_explicit(&collector.stop, memory_order_acquire) && until > cl_now())
			sleep_until(until, seen);
		atomic_store_explicit(&h->sleeping, 0, memory_order_relaxed);
		atomic_store_explicit(&collector.sleeps_until, 0, memory_order_relaxed);
	}
	if (atomic_load_explicit(&collector.empty, memory_order_relaxed))
		empty();
	return unused;
}

/* ------------------------------------------------------------ start and stop */
static void stop_at_exit(void);

/* The caller holds .lock.  @said: an earlier failure to start was logged. */
static void start_locked(bool said)
{
	static bool registered; /* stays true in a forked child, as the handler does */
	sigset_t all, before;
	int err;

	/* This handler runs before those of the driver, which registered earlier and tear it down. */
	if (!registered)
		registered = atexit(stop_at_exit) == 0;
	/* the program's signals are for its own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&collector.thread, NULL, collector_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		cl_backoff_failed(&collector.backoff, cl_now());
		/* relaxed: a thread that sees an older value only tries once more */
		atomic_store_explicit(&collector.next_start, collector.backoff.until, memory_order_relaxed);
	}
	collector.running = !err;
	cl_collector_failed = err != 0;
	/* relaxed: tells other processes, as a hint, whether to ask us for memory */
	atomic_store_explicit(&cl_own.header->serving, !err, memory_order_relaxed);
	if (err && !said)
		cl_log(CL_LOG_WARN,
		       "cannot start the collector thread (error %d): culimbo tries again, and until then freed "
		       "blocks go back when the program calls CUDA, as with CULIMBO_COLLECTOR=inline",
		       err);
	if (!err && said)
		cl_log(CL_LOG_WARN, "the collector thread has started at last: freed blocks go back by themselves");
}

static void start(void)
{
	cl_lock(&collector.lock);
	if (!collector.running && !collector.stop)
		start_locked(cl_collector_failed);
	cl_unlock(&collector.lock);
}

/* Tries again to start a thread that could not be started, as often as .backoff allows. */
static void start_again(void)
{
	if (!collector.running && cl_collector_failed &&
	    cl_now() >= atomic_load_explicit(&collector.next_start, memory_order_relaxed))
		start();
}

static void inline_pass(void)
{
	uint64_t now = cl_now(), last = atomic_load_explicit(&collector.last_reap, memory_order_relaxed);

	/* 0: a call of the program does not wait until somebody has died */
	if (pressed())
		serve_pressure(0);
	if (cl_limbo_collect(false).held && now - last >= CL_REAP_EVERY &&
	    atomic_compare_exchange_strong(&collector.last_reap, &last, now) && cl_limbo_reap() == 0)
		cl_limbo_collect(false);
}

void cl_collector_wake_by(uint64_t when)
{
	uint64_t sleeps;

	if (atomic_load_explicit(&collector.stop, memory_order_relaxed))
		return;
	start_again();
	if (cl_collector_is_inline()) {
		inline_pass();
		return;
	}
	/* a stale false only costs a lock */
	if (!collector.running)
		start();
	/*
	 * The collector reads `wake`, works, says until when it sleeps, and sleeps only if
	 * `wake` is unchanged.  So we change `wake` first and then read until when it sleeps,
	 * or it could fall asleep in between.
	 */
	atomic_fetch_add_explicit(&cl_own.header->wake, 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	sleeps = atomic_load_explicit(&collector.sleeps_until, memory_order_relaxed);
	if (sleeps && when < sleeps)
		syscall(SYS_futex, &cl_own.header->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void cl_collector_called(void)
{
	if (!cl_collector_is_inline())
		return;
	/* While another thread is making the file, its header may go again. */
	if (!atomic_load_explicit(&cl_own_id, memory_order_acquire))
		return;
	/* relaxed: the next call sees what this one misses */
	if (atomic_load_explicit(&collector.stop, memory_order_relaxed) ||
	    (!atomic_load_explicit(&cl_own.header->limbo_blocks, memory_order_relaxed) && !pressed()))
		return;
	start_again();
	/* a thread that has just started does its own work */
	if (cl_collector_is_inline())
		inline_pass();
}

void cl_collector_wake(void)
{
	if (atomic_load_explicit(&cl_own_id, memory_order_acquire))
		cl_collector_wake_by(0);
}

void cl_collector_watch_holders(bool orphaned)
{
	if (orphaned)
		cl_collector_wake_by(cl_now() + CL_REAP_EVERY);
}

bool cl_collector_stop(uint64_t wait)
{
	struct timespec until = cl_after(wait);
	bool stopped;

	atomic_store_explicit(&collector.stop, true, memory_order_release);
	if (!collector.running)
		return true;
	atomic_store_explicit(&cl_own.header->serving, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&cl_own.header->wake, 1, memory_order_release);
	syscall(SYS_futex, &cl_own.header->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	stopped = pthread_equal(collector.thread, pthread_self()) ||
		  pthread_clockjoin_np(collector.thread, NULL, CLOCK_MONOTONIC, &until) == 0;
	if (stopped)
		collector.running = false;
	return stopped;
}

static void stop_at_exit(void)
{
	/* A child made without fork handlers, by _Fork() or clone(), has no thread and no mapping of our file. */
	if (getpid() != cl_self.pid)
		return;
	atomic_store_explicit(&collector.empty, true, memory_order_relaxed);
	cl_collector_stop(CL_END_WAIT);
}

void cl_collector_forget(void)
{
	cl_lock_reset(&collector.lock);
	collector.running = false;
	cl_collector_failed = false;
	collector.backoff = (struct cl_backoff){ 0 };
	atomic_store(&collector.next_start, 0);
	atomic_store(&collector.stop, false);
	atomic_store(&collector.empty, false);
	atomic_store(&collector.sleeps_until, 0);
	atomic_store(&collector.served_all, 0);
	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
		atomic_store(&collector.served[i], 0);
}

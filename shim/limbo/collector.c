/* SPDX-License-Identifier: Apache-2.0 */
/* What a collection does, and the thread that collects: see collector.h. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/base/clock.h"
#include "shim/base/backoff.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/forced.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/pool_imports.h"
#include "shim/limbo/press.h"
#include "shim/limbo/reap.h"
#include "shim/limbo/release.h"
#include "shim/base/log.h"
#include "shim/base/thread.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"

#define MILLISECOND 1000000ull
#define REAP_SETTLING_EVERY (10 * MILLISECOND)
enum { EMPTIED = 4096 }; /* with more blocks than this in the limbo, exit() gives none back */

/* --------------------------------------------------------------- a collection */
struct turn {
	struct cl_exporter *ex;
	uint64_t now;
	bool end_grace;
};

static void settle_due(struct cl_node *node, void *data)
{
	const struct turn *turn = data;

	cl_limbo_settle(turn->ex, CL_LIST_ENTRY(node, struct cl_block, node), turn->now, turn->end_grace);
}

/* Settles each block whose grace is over at @now, or all blocks that wait for it if @end_grace. */
static void turn_wheels_locked(struct cl_exporter *ex, uint64_t now, bool end_grace)
{
	struct turn turn = { ex, now, end_grace };

	for (unsigned int i = 0; i < ex->grace.wheels_n; i++)
		if (ex->grace.wheel[i].n)
			cl_wheel_turn(&ex->grace.wheel[i], now / cl_grace_tick(&ex->grace), end_grace, settle_due,
				      &turn);
}

/* Returns when the graces of the next bucket end, or UINT64_MAX if no block waits for its grace. */
static uint64_t next_grace_locked(struct cl_exporter *ex)
{
	uint64_t next = UINT64_MAX;

	for (unsigned int i = 0; i < ex->grace.wheels_n; i++) {
		uint64_t when = cl_wheel_next(&ex->grace.wheel[i], ex->grace.wheel[i].at + 1);

		if (when && when * cl_grace_tick(&ex->grace) < next)
			next = when * cl_grace_tick(&ex->grace);
	}
	return next;
}

/* Returns when time alone makes something due; 0: something is due now; UINT64_MAX: nothing will be. */
static uint64_t next_due_locked(struct cl_exporter *ex)
{
	uint64_t fences, next;

	if (ex->limbo.ready.n)
		return 0;
	fences = cl_fences_wait_locked(ex) ? cl_fences_ask_at_locked(ex, cl_now()) : UINT64_MAX;
	next = next_grace_locked(ex);
	if (fences < next)
		next = fences;
	/* the log owes a line */
	return ex->limbo.forced.rest && ex->limbo.forced.until < next ? ex->limbo.forced.until : next;
}

static __attribute__((noinline)) struct cl_collected collect(struct cl_exporter *ex, bool end_grace)
{
	struct cl_collected sum = { .next = UINT64_MAX };
	bool passed;

	cl_lock(&cl_exports_lock);
	if (!ex->blocks.region->file_id) { /* so nothing is in the limbo, but imports may wait for fences */
		if (cl_fences_any_detached_locked(ex))
			cl_release_detached_locked(ex);
		if (cl_fences_may_ask_locked(ex))
			cl_release_ask_streams_locked(ex);
		goto out;
	}
	/* before the ready map is emptied: a thread that then finds it empty must wait for us */
	cl_limbo_not_quiet(ex);
	if (cl_record_any_ready(ex->blocks.region))
		cl_release_take_ready_locked(ex, cl_now());
	if (ex->grace.waiting)
		turn_wheels_locked(ex, cl_now(), end_grace);
	if (cl_fences_any_detached_locked(ex))
		cl_release_detached_locked(ex);
	if (ex->limbo.events.n > cl_options.max_events.number)
		cl_forced_events_out_locked(ex, cl_options.max_events.number, false);
	if (cl_fences_may_ask_locked(ex))
		cl_release_ask_streams_locked(ex);
	cl_release_ready_locked(ex, &sum);
	if (cl_options.held_bytes.number)
		cl_forced_held_out_locked(ex, &sum);
	if (ex->blocks.own_pools.ready.n)
		cl_release_pools_locked(ex);
	sum.next = next_due_locked(ex);
	sum.held = ex->limbo.held.n || ex->limbo.orphaned;
	/* release: a thread that reads `quiet` then reads our file */
	if (!ex->limbo.ready.n && !cl_fences_wait_locked(ex) && !ex->grace.waiting && !ex->limbo.forced.rest &&
	    !cl_fences_any_detached_locked(ex) && ex->limbo.events.n <= cl_options.max_events.number)
		atomic_store_explicit(&ex->limbo.quiet, sum.held ? CL_QUIET_HELD : CL_QUIET_EMPTY,
				      memory_order_release);
out:
	passed = ex->fences.passed.n != 0;
	cl_unlock(&cl_exports_lock);
	/* what an import of a block of our own has kept may go now */
	if (passed && cl_pool_imports_passed(ex))
		sum.next = 0;
	return sum;
}

struct cl_collected cl_limbo_collect(struct cl_exporter *ex, bool end_grace)
{
	/*
	 * acquire: our file is there.  `quiet` is read once more after the ready map, since another
	 * thread may just have emptied that.
	 */
	if (atomic_load_explicit(&ex->limbo.quiet, memory_order_acquire) != CL_QUIET_NOT &&
	    !cl_record_any_ready(ex->blocks.region)) {
		uint8_t quiet = atomic_load_explicit(&ex->limbo.quiet, memory_order_acquire);

		if (quiet != CL_QUIET_NOT)
			return (struct cl_collected){ .next = UINT64_MAX, .held = quiet == CL_QUIET_HELD };
	}
	return collect(ex, end_grace);
}

void cl_limbo_collect_from_dying(struct cl_exporter *ex, bool end_grace, uint64_t until,
				 const _Atomic bool *stop)
{
	struct timespec moment = { 0, 2 * MILLISECOND };

	while (cl_limbo_collect(ex, end_grace).held && cl_limbo_reap(ex) && cl_now() < until &&
	       !(stop && atomic_load_explicit(stop, memory_order_relaxed)))
		nanosleep(&moment, NULL);
}

bool cl_limbo_wait_for_others(struct cl_exporter *ex, uint64_t until,
			      uint64_t (*back)(const struct cl_exporter *ex), uint64_t had)
{
	bool ends, blocked = false, in_time = true;

	cl_lock(&cl_exports_lock);
	for (;;) {
		ends = (ex->limbo.blocked.n || cl_fences_blocked_locked(ex)) &&
		       back(ex) == had;
		if (!in_time || (!cl_visits_any_locked() && !ends))
			break;
		blocked |= ends;
		in_time = cl_gate_wait_until_locked(until);
	}
	cl_unlock(&cl_exports_lock);
	return blocked && in_time && back(ex) == had;
}

/* ------------------------------------------------------------ the thread's work */
static void sleep_until(struct cl_exporter *ex, uint64_t when, uint32_t seen)
{
	struct timespec until = cl_clock_kernel(when);

	/* FUTEX_WAIT_BITSET takes an absolute time.  The futex is shared: other processes wake us. */
	syscall(SYS_futex, &ex->blocks.region->header->wake, FUTEX_WAIT_BITSET, seen,
		when == UINT64_MAX ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static bool pressed(struct cl_exporter *ex)
{
	struct cl_header *h = ex->blocks.region->header;

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

static void serve_pressure(struct cl_exporter *ex, uint64_t wait)
{
	struct cl_header *h = ex->blocks.region->header;
	uint32_t asked = atomic_load_explicit(&h->pressure_asked, memory_order_acquire);
	uint32_t all = atomic_load_explicit(&h->asked_all, memory_order_relaxed);
	bool end_grace = atomic_exchange(&ex->collector.served_all, all) != all;

	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++) {
		uint32_t of = atomic_load_explicit(&h->device[i].asked, memory_order_relaxed);

		if (atomic_exchange(&ex->collector.served[i], of) != of)
			cl_limbo_press(ex, i, atomic_load_explicit(&h->device[i].needed_until,
							       memory_order_relaxed));
	}
	cl_limbo_reap(ex);
	cl_limbo_collect_from_dying(ex, end_grace, cl_now() + wait, &ex->collector.stop);
	cl_limbo_collect(ex, false);
	cl_trace(CL_TRACE_SERVED);
	answer(h, asked);
}

/*
 * Gives back the blocks that wait for their grace, before the process ends by exit() and while
 * the driver can be called: no handle outlives its exporter.  At the end of the process the
 * driver would free them later than our file goes, by which other processes see that memory will
 * come free.  More than EMPTIED blocks would take too long.
 */
static void empty(struct cl_exporter *ex)
{
	if (atomic_load_explicit(&ex->blocks.region->header->limbo_blocks, memory_order_relaxed) > EMPTIED)
		return;
	cl_limbo_press(ex, CL_ANY_DEVICE, cl_now());
	cl_limbo_collect(ex, false);
}

static void *collector_main(void *exporter)
{
	struct cl_exporter *ex = exporter;
	struct cl_header *h = ex->blocks.region->header;
	uint64_t reap_at = 0;

	cl_thread_begin();
	while (!atomic_load_explicit(&ex->collector.stop, memory_order_acquire)) {
		uint32_t seen = atomic_load_explicit(&h->wake, memory_order_acquire);
		struct cl_collected now;
		uint64_t until;

		if (pressed(ex))
			serve_pressure(ex, cl_options.pressure_wait.number);
		now = cl_limbo_collect(ex, false);
		until = now.next;
		if (now.held) {
			if (cl_now() >= reap_at) {
				bool settling = cl_limbo_reap(ex) != 0;

				reap_at = cl_now() + (settling ? REAP_SETTLING_EVERY : CL_REAP_EVERY);
			}
			if (reap_at < until)
				until = reap_at;
		}
		/*
		 * We say that we sleep, and then look for work once more.  So we see work
		 * that was made before that, and a thread that makes work later sees us sleep.
		 */
		atomic_store_explicit(&ex->collector.sleeps_until, until, memory_order_relaxed);
		atomic_store_explicit(&h->sleeping, 1, memory_order_relaxed);
		atomic_thread_fence(memory_order_seq_cst);
		if (!cl_record_any_ready(ex->blocks.region) && !pressed(ex) &&
		    !atomic_load_explicit(&ex->collector.stop, memory_order_acquire) && until > cl_now())
			sleep_until(ex, until, seen);
		atomic_store_explicit(&h->sleeping, 0, memory_order_relaxed);
		atomic_store_explicit(&ex->collector.sleeps_until, 0, memory_order_relaxed);
	}
	if (atomic_load_explicit(&ex->collector.empty, memory_order_relaxed))
		empty(ex);
	return NULL;
}

/* ------------------------------------------------------------ start and stop */
static void stop_at_exit(void);

/* The caller holds .lock.  @said: an earlier failure to start was logged. */
static void start_locked(struct cl_exporter *ex, bool said)
{
	/* of the process, not of @ex; stays true in a forked child, as the handler does */
	static atomic_bool registered;
	int err;

	/* This handler runs before those of the driver, which registered earlier and tear it down. */
	if (!atomic_exchange(&registered, true) && atexit(stop_at_exit) != 0)
		atomic_store(&registered, false);
	err = cl_thread_start(&ex->collector.thread, collector_main, ex);
	if (err) {
		cl_backoff_failed(&ex->collector.backoff, cl_now());
		/* relaxed: a thread that sees an older value only tries once more */
		atomic_store_explicit(&ex->collector.next_start, ex->collector.backoff.until,
				      memory_order_relaxed);
	}
	ex->collector.running = !err;
	if (err)
		atomic_fetch_or(&ex->collector.no_thread, CL_NO_THREAD_FAILED);
	else
		atomic_fetch_and(&ex->collector.no_thread, (uint8_t)~CL_NO_THREAD_FAILED);
	/* relaxed: tells other processes, as a hint, whether to ask us for memory */
	atomic_store_explicit(&ex->blocks.region->header->serving, !err, memory_order_relaxed);
	if (err && !said)
		cl_log(CL_LOG_WARN,
		       "cannot start the collector thread (error %d): culimbo tries again, and until then freed "
		       "blocks go back when the program calls CUDA, as with CULIMBO_COLLECTOR=inline",
		       err);
	if (!err && said)
		cl_log(CL_LOG_WARN, "the collector thread has started at last: freed blocks go back by themselves");
}

static void start(struct cl_exporter *ex)
{
	cl_lock(&ex->collector.lock);
	if (!ex->collector.running && !ex->collector.stop)
		start_locked(ex, ex->collector.no_thread & CL_NO_THREAD_FAILED);
	cl_unlock(&ex->collector.lock);
}

/* Tries again to start a thread that could not be started, as often as .backoff allows. */
CL_HOT_SHARING static void start_again(struct cl_exporter *ex)
{
	if (!ex->collector.running && (ex->collector.no_thread & CL_NO_THREAD_FAILED) &&
	    cl_now() >= atomic_load_explicit(&ex->collector.next_start, memory_order_relaxed))
		start(ex);
}

static void inline_pass(struct cl_exporter *ex)
{
	uint64_t now = cl_now(), last = atomic_load_explicit(&ex->collector.last_reap, memory_order_relaxed);

	/* 0: a call of the program does not wait until somebody has died */
	if (pressed(ex))
		serve_pressure(ex, 0);
	if (cl_limbo_collect(ex, false).held && now - last >= CL_REAP_EVERY &&
	    atomic_compare_exchange_strong(&ex->collector.last_reap, &last, now) && cl_limbo_reap(ex) == 0)
		cl_limbo_collect(ex, false);
}

CL_HOT_SHARING void cl_collector_wake_by(struct cl_exporter *ex, uint64_t when)
{
	struct cl_header *h;
	uint64_t sleeps;

	if (atomic_load_explicit(&ex->collector.stop, memory_order_relaxed))
		return;
	if (!atomic_load_explicit(ex->file_id, memory_order_acquire)) {
		atomic_fetch_or(&ex->collector.no_thread, CL_NO_THREAD_NO_FILE);
		return;
	}
	start_again(ex);
	if (cl_collector_is_inline(&ex->collector)) {
		inline_pass(ex);
		return;
	}
	/* a stale false only costs a lock */
	if (!ex->collector.running)
		start(ex);
	/*
	 * The collector reads `wake`, works, says until when it sleeps, and sleeps only if
	 * `wake` is unchanged.  So we change `wake` first and then read until when it sleeps,
	 * or it could fall asleep in between.
	 */
	h = ex->blocks.region->header;
	atomic_fetch_add_explicit(&h->wake, 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	sleeps = atomic_load_explicit(&ex->collector.sleeps_until, memory_order_relaxed);
	if (sleeps && when < sleeps)
		syscall(SYS_futex, &h->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void called_without_file(struct cl_exporter *ex)
{
	if (cl_pool_imports_any_left(ex)) {
		cl_limbo_collect(ex, false);
		return;
	}
	atomic_fetch_and(&ex->collector.no_thread, (uint8_t)~CL_NO_THREAD_NO_FILE);
	/* a free in another thread may have set the flag just before this thread has cleared it */
	if (cl_pool_imports_any_left(ex))
		atomic_fetch_or(&ex->collector.no_thread, CL_NO_THREAD_NO_FILE);
}

void cl_collector_called(struct cl_exporter *ex)
{
	if (!cl_collector_is_inline(&ex->collector))
		return;
	/* While another thread is making the file, its header may go again. */
	if (!atomic_load_explicit(ex->file_id, memory_order_acquire)) {
		called_without_file(ex);
		return;
	}
	/* relaxed: the next call sees what this one misses */
	if (atomic_load_explicit(&ex->collector.stop, memory_order_relaxed))
		return;
	if (atomic_load_explicit(&ex->collector.no_thread, memory_order_relaxed) & CL_NO_THREAD_NO_FILE) {
		/* the file could be made meanwhile */
		atomic_fetch_and(&ex->collector.no_thread, (uint8_t)~CL_NO_THREAD_NO_FILE);
		cl_collector_wake(ex);
		return;
	}
	if (!atomic_load_explicit(&ex->blocks.region->header->limbo_blocks, memory_order_relaxed) &&
	    !cl_pool_imports_any_left(ex) && !pressed(ex))
		return;
	start_again(ex);
	/* a thread that has just started does its own work */
	if (cl_collector_is_inline(&ex->collector))
		inline_pass(ex);
}

void cl_collector_wake(struct cl_exporter *ex)
{
	if (atomic_load_explicit(ex->file_id, memory_order_acquire))
		cl_collector_wake_by(ex, 0);
}

CL_HOT_SHARING void cl_collector_watch_holders(struct cl_exporter *ex, bool orphaned)
{
	if (orphaned)
		cl_collector_wake_by(ex, cl_now() + CL_REAP_EVERY);
}

bool cl_collector_stop(struct cl_exporter *ex, uint64_t wait)
{
	struct timespec until = cl_after(wait);
	/* a thread that starts the collector's has the lock: it has looked at .stop before it starts that */
	bool locked = cl_lock_until(&ex->collector.lock, &until), running, stopped;

	atomic_store_explicit(&ex->collector.stop, true, memory_order_release);
	running = ex->collector.running;
	if (locked)
		cl_unlock(&ex->collector.lock);
	if (!running)
		return true;
	atomic_store_explicit(&ex->blocks.region->header->serving, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&ex->blocks.region->header->wake, 1, memory_order_release);
	syscall(SYS_futex, &ex->blocks.region->header->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	stopped = pthread_equal(ex->collector.thread, pthread_self()) ||
		  cl_join_until(ex->collector.thread, NULL, &until) == 0;
	if (stopped)
		ex->collector.running = false;
	return stopped;
}

static void stop_at_exit(void)
{
	/* A child made without fork handlers, by _Fork() or clone(), has no thread and no mapping of our file. */
	if (getpid() != cl_self.pid)
		return;
	atomic_store_explicit(&cl_exporter.collector.empty, true, memory_order_relaxed);
	cl_collector_stop(&cl_exporter, CL_END_WAIT);
}

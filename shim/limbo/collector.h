/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collector is a thread, one in each process.  It gives blocks back as they come free, so that memory
 * returns even while the program sleeps.  Its work is the collection: to find the blocks of the limbo
 * that may go, and to give them back.  Any thread may collect, and several may at once.
 * Nothing here fails: a block that cannot go yet stays in the limbo.
 *
 * The first block that enters the limbo starts it.  It sleeps on a futex in the exporter file,
 * blocks all signals, and ends when exit() begins.  A forked child has none until a block enters its
 * limbo.  With CULIMBO_COLLECTOR=inline, while no thread can be started, or while there is no exporter
 * file, the program's own calls do its work.  In the second case they also try again to start one
 * (backoff.h), in the third they start one once there is a file.
 *
 * Any thread may call these functions, without a lock of ours: they take locks and make CUDA
 * calls where they do the collector's work.
 */
#ifndef CL_COLLECTOR_H
#define CL_COLLECTOR_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/base/backoff.h"
#include "shim/base/options.h"
#include "shim/self/locks.h"
#include "shim/limbo/release.h"
#include "shim/shm/layout.h"

enum {
	CL_NO_THREAD_FAILED = 1, /* the last attempt to start it failed */
	/* imports that were freed wait for streams, and there is no file of ours for a thread to sleep on */
	CL_NO_THREAD_NO_FILE = 2,
};
struct cl_collector {
	struct cl_lock lock; /* starting and stopping */
	pthread_t thread;
	_Atomic bool running;
	_Atomic uint8_t no_thread; /* CL_NO_THREAD_*: why the program's calls do its work; 0: they don't */
	struct cl_backoff backoff;   /* under .lock */
	_Atomic uint64_t next_start; /* when .backoff ends */
	_Atomic bool stop; /* for good: the driver frees the rest with the process */
	_Atomic bool empty; /* before it stops, the thread gives back all blocks that can go */
	_Atomic uint64_t sleeps_until; /* 0: awake */
	_Atomic uint64_t last_reap;    /* of inline_pass() */
	/* the header's .asked_all and .device[].asked when they were last served */
	_Atomic uint32_t served_all, served[CL_DEVICE_LIMBOS];
};

/* Something may be due now: wakes or starts the thread, or does its work in this one. */
void cl_collector_wake(struct cl_exporter *ex);
/* The program has called one of our hooks: if no thread does the collector's work, does what is due of it. */
void cl_collector_called(struct cl_exporter *ex);
/* Returns true if the program's calls do the work, not a thread.  Two loads. */
static inline bool cl_collector_is_inline(const struct cl_collector *collector)
{
	return cl_options.collector.number == CL_COLLECTOR_INLINE || collector->no_thread;
}
/*
 * As cl_collector_wake(), for work due at @when (ns): wakes the thread only if it sleeps past that.
 * Without an exporter file the call of the program that we are in does the work when it returns.
 */
void cl_collector_wake_by(struct cl_exporter *ex, uint64_t when);
/* If @orphaned, a block became ORPHANED: has the collector look for its dead holders. */
void cl_collector_watch_holders(struct cl_exporter *ex, bool orphaned);
/* Ends the thread for good, and waits @wait ns at most.  Returns false if it runs on, in the driver. */
bool cl_collector_stop(struct cl_exporter *ex, uint64_t wait);

/* ------------------------------------------------------------- a collection */
/* Gives back all blocks that may go.  @end_grace ends the grace of all blocks first. */
struct cl_collected cl_limbo_collect(struct cl_exporter *ex, bool end_grace);
/*
 * Collects again and again while a holder of a block that is left is dying, which takes
 * milliseconds.  Stops at @until (CLOCK_MONOTONIC, ns), or when *@stop is set; @stop may be NULL.
 */
void cl_limbo_collect_from_dying(struct cl_exporter *ex, bool end_grace, uint64_t until,
				 const _Atomic bool *stop);

/*
 * Waits until no thread is in the driver for the limbo, so that the blocks they took are back,
 * or until @until (CLOCK_MONOTONIC, ns).  As long as @back() returns @had it also waits while
 * blocks or fences are of a context that is ending.  Returns true if such an end was over in
 * time and @back() still returns @had: the caller collects again.  Otherwise returns false.
 */
bool cl_limbo_wait_for_others(struct cl_exporter *ex, uint64_t until,
			      uint64_t (*back)(const struct cl_exporter *ex), uint64_t had);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All our locks, in the one order in which a thread may take them.
 *
 * What must hold: a thread that has a lock takes only locks of a higher rank, and has none when it
 * calls the driver or waits for another process.  A build with CL_DEBUG (./configure
 * --enable-debug) checks that, and aborts with the names of the two locks.  Any other build has
 * plain mutexes.
 *
 * A forked child resets each lock with the state that it guards: after_fork_in_child() in life.c.
 */
#ifndef CL_LOCKS_H
#define CL_LOCKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "shim/base/old_libc.h"

enum cl_rank {
	CL_RANK_START,	   /* life.c: which process this is, and that it begins to share */
	CL_RANK_IMPORTS,   /* cl_imports_lock: peers, holds, mappings */
	CL_RANK_REAP,	   /* reap.c: the search for dead holders */
	CL_RANK_EXPORTS,   /* cl_exports_lock: our file, blocks, limbo, the gate */
	CL_RANK_CALLBACKS, /* callbacks.c: the program's callbacks */
	CL_RANK_COLLECTOR, /* collector.c: starting and stopping the thread */
	CL_RANK_GREEN,	   /* green.c: green contexts; no lock is taken while it is held */
	CL_RANK_SERVER,	   /* server.c: starting and ending the service of descriptors */
	CL_RANK_FLIGHT,	   /* flight.c: descriptors that are there for a moment; no lock is taken while it is held */
	CL_RANKS,
};

struct cl_lock {
	pthread_mutex_t mutex;
#ifdef CL_DEBUG
	enum cl_rank rank;
#endif
};

#ifdef CL_DEBUG
#define CL_LOCK_INIT(rank) { PTHREAD_MUTEX_INITIALIZER, rank }
/* Called before a thread waits for @lock, when it has it, and when it no longer has it. */
void cl_rank_wanted(const struct cl_lock *lock);
void cl_rank_taken(const struct cl_lock *lock);
void cl_rank_left(const struct cl_lock *lock);
/* Checks that this thread has no lock of ours. */
void cl_rank_none(void);
#else
#define CL_LOCK_INIT(rank) { PTHREAD_MUTEX_INITIALIZER }
static inline void cl_rank_wanted(const struct cl_lock *lock)
{
	(void)lock;
}
static inline void cl_rank_taken(const struct cl_lock *lock)
{
	(void)lock;
}
static inline void cl_rank_left(const struct cl_lock *lock)
{
	(void)lock;
}
static inline void cl_rank_none(void)
{
}
#endif

static inline void cl_lock(struct cl_lock *lock)
{
	cl_rank_wanted(lock);
	pthread_mutex_lock(&lock->mutex);
	cl_rank_taken(lock);
}

static inline void cl_unlock(struct cl_lock *lock)
{
	cl_rank_left(lock);
	pthread_mutex_unlock(&lock->mutex);
}

/* Returns false if another thread has @lock.  It never waits, so locks may come in any order. */
static inline bool cl_try_lock(struct cl_lock *lock)
{
	if (pthread_mutex_trylock(&lock->mutex))
		return false;
	cl_rank_taken(lock);
	return true;
}

/* Takes @lock, or returns false if it cannot by @until (CLOCK_MONOTONIC). */
static inline bool cl_lock_until(struct cl_lock *lock, const struct timespec *until)
{
	if (cl_mutex_lock_until(&lock->mutex, until))
		return false;
	cl_rank_taken(lock);
	return true;
}

/* Releases @lock, waits for @condition, and takes @lock again. */
static inline void cl_lock_wait(pthread_cond_t *condition, struct cl_lock *lock)
{
	pthread_cond_wait(condition, &lock->mutex);
}

/* As cl_lock_wait(), but returns false if @until (CLOCK_MONOTONIC) has come. */
static inline bool cl_lock_wait_until(pthread_cond_t *condition, struct cl_lock *lock,
				      const struct timespec *until)
{
	return !cl_cond_wait_until(condition, &lock->mutex, until);
}

/* In a forked child: makes @lock new, since a thread of the parent may have had it. */
static inline void cl_lock_reset(struct cl_lock *lock)
{
	cl_rank_left(lock);
	lock->mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

#endif

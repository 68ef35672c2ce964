/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that older C libraries lack.  If culimbo is built for those (glibc 2.17 on, as for the wheel),
 * it uses the function of the C library that it finds when it runs, or if that has none the one that stands
 * here.  If it is built for a newer C library, it calls that alone.
 *
 * The functions here that stand for those of pthread(7) wait until a time of CLOCK_MONOTONIC, as those do.
 */
#ifndef CL_OLD_LIBC_H
#define CL_OLD_LIBC_H

#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

enum { CL_OLD_LIBC_POLL = 1000000, /* ns between two tries */
       CL_OLD_LIBC_SLICE = 50000000 /* ns that a wait by the other clock takes at most */ };

/* How long until @until, ns; 0: it has come. */
static inline uint64_t cl_old_libc_left(const struct timespec *until)
{
	struct timespec now;
	int64_t left;

	clock_gettime(CLOCK_MONOTONIC, &now);
	left = (until->tv_sec - now.tv_sec) * 1000000000 + (until->tv_nsec - now.tv_nsec);
	return left > 0 ? (uint64_t)left : 0;
}

static inline void cl_old_libc_pause(uint64_t left)
{
	struct timespec pause = { .tv_nsec = (long)(left < CL_OLD_LIBC_POLL ? left : CL_OLD_LIBC_POLL) };

	nanosleep(&pause, NULL);
}

/*
 * A condition waits by the clock that it was initialised with, which is CLOCK_REALTIME.  So the wait
 * is cut into slices: a clock that is set forward ends one slice early, not the wait.
 */
static inline int cl_old_libc_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
	uint64_t left;

	while ((left = cl_old_libc_left(until)) != 0) {
		struct timespec end;
		int error;

		clock_gettime(CLOCK_REALTIME, &end);
		end.tv_nsec += (long)(left < CL_OLD_LIBC_SLICE ? left : CL_OLD_LIBC_SLICE);
		if (end.tv_nsec >= 1000000000) {
			end.tv_nsec -= 1000000000;
			end.tv_sec++;
		}
		error = pthread_cond_timedwait(condition, mutex, &end);
		if (error != ETIMEDOUT)
			return error;
	}
	return ETIMEDOUT;
}

static inline int cl_old_libc_lock(pthread_mutex_t *mutex, const struct timespec *until)
{
	uint64_t left;
	int error;

	while ((error = pthread_mutex_trylock(mutex)) == EBUSY) {
		left = cl_old_libc_left(until);
		if (!left)
			return ETIMEDOUT;
		cl_old_libc_pause(left);
	}
	return error;
}

static inline int cl_old_libc_join(pthread_t thread, void **result, const struct timespec *until)
{
	uint64_t left;
	int error;

	while ((error = pthread_tryjoin_np(thread, result)) == EBUSY) {
		left = cl_old_libc_left(until);
		if (!left)
			return ETIMEDOUT;
		cl_old_libc_pause(left);
	}
	return error;
}

#ifdef HAVE_PTHREAD_COND_CLOCKWAIT /* since glibc 2.30, as the next one */
#define cl_cond_wait_until(condition, mutex, until) pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until)
#else
int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
			   const struct timespec *until) __attribute__((weak));
static inline int cl_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
	return pthread_cond_clockwait ? pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until) :
					cl_old_libc_cond_wait(condition, mutex, until);
}
#endif

#ifdef HAVE_PTHREAD_MUTEX_CLOCKLOCK
#define cl_mutex_lock_until(mutex, until) pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, until)
#else
int pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) __attribute__((weak));
static inline int cl_mutex_lock_until(pthread_mutex_t *mutex, const struct timespec *until)
{
	return pthread_mutex_clocklock ? pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, until) :
					 cl_old_libc_lock(mutex, until);
}
#endif

#ifdef HAVE_PTHREAD_CLOCKJOIN_NP /* since glibc 2.31 */
#define cl_join_until(thread, result, until) pthread_clockjoin_np(thread, result, CLOCK_MONOTONIC, until)
#else
int pthread_clockjoin_np(pthread_t thread, void **result, clockid_t clock, const struct timespec *until)
	__attribute__((weak));
static inline int cl_join_until(pthread_t thread, void **result, const struct timespec *until)
{
	return pthread_clockjoin_np ? pthread_clockjoin_np(thread, result, CLOCK_MONOTONIC, until) :
				      cl_old_libc_join(thread, result, until);
}
#endif

#endif

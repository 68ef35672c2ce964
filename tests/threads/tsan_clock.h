/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the build with ThreadSanitizer, which compiles everything with this
 * included first: GCC 12's does not see pthread_mutex_clocklock() and
 * pthread_clockjoin_np(), so that what they order would be reported as a race.
 * Here they are made of calls that it sees.  (No suppression is needed then.)
 */
#if defined(__SANITIZE_THREAD__) && !defined(__ASSEMBLER__)
#include <pthread.h>
#include <time.h>

static inline struct timespec tsan_real_time(clockid_t clock, const struct timespec *at)
{
	struct timespec now, real;

	clock_gettime(clock, &now);
	clock_gettime(CLOCK_REALTIME, &real);
	real.tv_sec += at->tv_sec - now.tv_sec;
	real.tv_nsec += at->tv_nsec - now.tv_nsec;
	if (real.tv_nsec < 0 || real.tv_nsec >= 1000000000) {
		long carry = real.tv_nsec < 0 ? -1 : 1;

		real.tv_nsec -= carry * 1000000000;
		real.tv_sec += carry;
	}
	return real;
}

static inline int tsan_clocklock(pthread_mutex_t *lock, clockid_t clock, const struct timespec *at)
{
	struct timespec real = tsan_real_time(clock, at);

	return pthread_mutex_timedlock(lock, &real);
}
#define pthread_mutex_clocklock tsan_clocklock

static inline int tsan_clockjoin(pthread_t thread, void **result, clockid_t clock,
				 const struct timespec *at)
{
	struct timespec real = tsan_real_time(clock, at);

	return pthread_timedjoin_np(thread, result, &real);
}
#define pthread_clockjoin_np tsan_clockjoin
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of the shim: see clock.h. */
#include "shim/base/clock.h"
#include "shim/base/hot.h"

CL_HOT_DATA _Atomic uint64_t cl_clock_ahead;

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	/* relaxed: a test that turns the clock also wakes the threads that wait for it */
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec +
	       atomic_load_explicit(&cl_clock_ahead, memory_order_relaxed);
}

CL_HOT_SHARING uint64_t cl_now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

CL_HOT_SHARING uint64_t cl_now_roughly(void)
{
	return read_clock(CLOCK_MONOTONIC_COARSE);
}

struct timespec cl_clock_kernel(uint64_t when)
{
	uint64_t ahead = atomic_load_explicit(&cl_clock_ahead, memory_order_relaxed);
	uint64_t then = when > ahead ? when - ahead : 0;

	return (struct timespec){ (time_t)(then / 1000000000u), (long)(then % 1000000000u) };
}

struct timespec cl_after(uint64_t wait)
{
	return cl_clock_kernel(cl_now() + wait);
}

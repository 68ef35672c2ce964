/* SPDX-License-Identifier: Apache-2.0 */
/* What time it is: see clock.h. */
#include "shim/base/clock.h"

uint64_t cl_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t cl_now_roughly(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct timespec cl_after(uint64_t wait)
{
	uint64_t then = cl_now() + wait;

	return (struct timespec){ (time_t)(then / 1000000000u), (long)(then % 1000000000u) };
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers and the clock, for the supervisors of tests/torture and their processes. */
#ifndef CHANCE_H
#define CHANCE_H

#include <stdint.h>
#include <time.h>

static inline uint64_t torture_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* xorshift64*, the same on every machine. */
static inline uint32_t torture_dice(uint64_t *seed, uint32_t sides)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return (uint32_t)((*seed * UINT64_C(0x2545F4914F6CDD1D)) >> 33) % sides;
}

static inline uint64_t torture_seed(uint64_t seed, uint64_t of)
{
	seed = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (of + 1) * UINT64_C(0xbf58476d1ce4e5b9);
	return seed ^ seed >> 31 ? seed ^ seed >> 31 : 1;
}

#endif

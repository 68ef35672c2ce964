/* SPDX-License-Identifier: Apache-2.0 */
/* Counts many times of one kind: see times.h. */
#include "tests/bench/times.h"

void times_add(struct times *times, uint64_t ns)
{
	unsigned int step = (unsigned int)ns, power;

	if (ns >= TIMES_STEPS) {
		power = 63u - (unsigned int)__builtin_clzll(ns);
		step = (power - TIMES_STEPS_LOG + 1) * TIMES_STEPS +
		       (unsigned int)((ns >> (power - TIMES_STEPS_LOG)) & (TIMES_STEPS - 1));
	}
	times->steps[step]++;
	times->n++;
	times->total += ns;
	if (ns > times->max)
		times->max = ns;
}

double times_quantile(const struct times *times, double part)
{
	uint64_t wanted = (uint64_t)(part * (double)times->n), seen = 0;

	for (unsigned int step = 0; step < 64u * TIMES_STEPS; step++) {
		seen += times->steps[step];
		if (seen > wanted) {
			unsigned int power = step / TIMES_STEPS;
			double width = power ? (double)(1ull << (power - 1)) : 1;

			if (!power)
				return step;
			return ((double)(TIMES_STEPS + step % TIMES_STEPS) + 0.5) * width;
		}
	}
	return 0;
}

void times_say(const char *name, const struct times *times)
{
	printf("\"%s\": {\"n\": %ju, \"mean\": %.0f, \"median\": %.0f, \"p99\": %.0f, \"max\": %ju}",
	       name, (uintmax_t)times->n,
	       times->n ? (double)times->total / (double)times->n : 0,
	       times_quantile(times, 0.5), times_quantile(times, 0.99), (uintmax_t)times->max);
}

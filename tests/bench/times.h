/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many times of one kind, counted: what they cost in memory does not grow, so that a
 * long measurement is not disturbed by itself.  A quantile is right to 2 %; the mean and
 * the longest are exact.  For one thread; a struct of zeros is an empty one.
 */
#ifndef CL_BENCH_TIMES_H
#define CL_BENCH_TIMES_H

#include <stdint.h>
#include <stdio.h>

/* Each power of two is counted in so many steps. */
#define TIMES_STEPS_LOG 5
#define TIMES_STEPS (1u << TIMES_STEPS_LOG)

struct times {
	uint64_t n, total, max; /* ns */
	uint32_t steps[64u * TIMES_STEPS];
};

void times_add(struct times *times, uint64_t ns);

/* Of @part (0 to below 1) of the times, none is longer; ns.  0 when there are none. */
double times_quantile(const struct times *times, double part);

/* As one member of a JSON object, in ns: "NAME": {"n":, "mean":, "median":, "p99":, "max":} */
void times_say(const char *name, const struct times *times);

#endif

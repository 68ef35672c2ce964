/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts many times of one kind.  Its memory does not grow, so a long measurement does not
 * disturb itself.  A quantile is right to 2 %; the mean and the longest are exact.  It is
 * for one thread.  A struct of zeros is empty.
 */
#ifndef CL_BENCH_TIMES_H
#define CL_BENCH_TIMES_H

#include <stdint.h>
#include <stdio.h>

/* Each power of two is divided into so many steps. */
#define TIMES_STEPS_LOG 5
#define TIMES_STEPS (1u << TIMES_STEPS_LOG)

struct times {
	uint64_t n, total, max; /* ns */
	uint32_t steps[64u * TIMES_STEPS];
};

void times_add(struct times *times, uint64_t ns);

/* Returns the quantile @part (0 to below 1) in ns, or 0 if no time was counted. */
double times_quantile(const struct times *times, double part);

/* Prints one member of a JSON object, in ns: "NAME": {"n":, "mean":, "median":, "p99":, "max":} */
void times_say(const char *name, const struct times *times);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to try again what failed for a reason that may pass: no descriptor, no room, no thread.
 *
 * The first time is at once.  From then on the wait doubles, up to a second, so that an outage
 * is noticed to be over after at most as long as it has lasted, and one that stays costs nothing.
 * The caller sees to it that only one thread at a time is here.
 */
#ifndef CL_BACKOFF_H
#define CL_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

#define CL_BACKOFF_LEAST 4000ull      /* ns: less than a try takes */
#define CL_BACKOFF_MOST 1000000000ull /* ns */

/* All zeros at first. */
struct cl_backoff {
	uint64_t wait;	/* after the next failure, ns */
	uint64_t until; /* CLOCK_MONOTONIC, ns */
};

static inline bool cl_backoff_is_over(const struct cl_backoff *backoff, uint64_t now)
{
	return now >= backoff->until;
}

static inline void cl_backoff_failed(struct cl_backoff *backoff, uint64_t now)
{
	backoff->until = now + backoff->wait;
	backoff->wait = backoff->wait ? backoff->wait * 2 : CL_BACKOFF_LEAST;
	if (backoff->wait > CL_BACKOFF_MOST)
		backoff->wait = CL_BACKOFF_MOST;
}

#endif

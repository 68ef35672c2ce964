/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides when to try again after a failure that may pass: no descriptor, no room, no thread.
 *
 * The first retry comes at once.  After each further failure the wait doubles, up to a second.
 * So the caller notices the end of an outage after at most as long as the outage has lasted, and
 * a lasting outage costs next to nothing.  These functions take no lock: the caller lets only one
 * thread at a time use a struct cl_backoff.
 */
#ifndef CL_BACKOFF_H
#define CL_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

#define CL_BACKOFF_LEAST 4000ull      /* ns; a try takes longer than this */
#define CL_BACKOFF_MOST 1000000000ull /* ns */

/* Starts as all zeros. */
struct cl_backoff {
	uint64_t wait;	/* how long to wait after the next failure, ns */
	uint64_t until; /* no try before this time; cl_now(), ns */
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

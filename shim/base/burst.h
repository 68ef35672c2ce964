/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bursts: what can happen to thousands of things at once must not make thousands of log lines.  Of each burst the
 * log names the first CL_BURST_NAMED things, and one line tells how many more there were.  A burst lasts
 * CL_BURST_TIME from its first thing on.
 *
 * Times are cl_now(), ns.  These functions take no lock: the caller lets only one thread at a time use a
 * struct cl_burst.  They cannot fail.
 */
#ifndef CL_BURST_H
#define CL_BURST_H

#include <stdbool.h>
#include <stdint.h>

enum { CL_BURST_NAMED = 20 };
#define CL_BURST_TIME 10000000000ull /* ns */

/* Starts as all zeros. */
struct cl_burst {
	uint64_t until; /* the burst is over */
	uint64_t rest;	/* things that no line has named or counted */
	unsigned int named;
	bool told; /* the line that counts the rest of this burst is written */
};

/* One more thing happens at @now.  Returns true if the log names it, false if it is one of the rest. */
static inline bool cl_burst_add(struct cl_burst *burst, uint64_t now)
{
	if (now >= burst->until) {
		burst->until = now + CL_BURST_TIME;
		burst->named = 0;
		burst->told = false;
	}
	if (burst->named < CL_BURST_NAMED) {
		burst->named++;
		return true;
	}
	burst->rest++;
	return false;
}

/*
 * The caller has nothing more to add for now.  Returns how many things one line tells now; 0: none.  What is added
 * to a burst after its line is told when the burst is over.
 */
static inline uint64_t cl_burst_take_rest(struct cl_burst *burst, uint64_t now)
{
	uint64_t rest = burst->rest;

	if (!rest || (burst->told && now < burst->until))
		return 0;
	burst->told = true;
	burst->rest = 0;
	return rest;
}

#endif

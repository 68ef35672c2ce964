/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patience: how long a process waits for what another one is to give it.
 *
 * What must hold: the wait ends when nothing has come for .more ns, and no later than .latest.  Only time counts in which
 * this process waits and the other one could have answered:
 *  - What comes puts the deadline off; so may what the other process gives to others.
 *  - Time in which this process did not run does not count.  All processes of a job can stand still together (SIGSTOP
 *    for its group, a frozen cgroup, a machine that is overloaded), and this one may run again before the other one does.
 *  - Nor does the time that this process needs for its own work.
 * Whoever waits says for how long at most, each time.  What is longer by CL_PATIENCE_STOOD was no waiting.
 *
 * Times are cl_now(), ns.  One thread at a time for each struct.  These functions cannot fail and take no lock.
 */
#ifndef CL_PATIENCE_H
#define CL_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/base/clock.h"

#define CL_PATIENCE_STOOD 200000000ull /* ns */

struct cl_patience {
	uint64_t until;	 /* the deadline */
	uint64_t more;	 /* ns from what puts the deadline off to the deadline, at least; 0: it stays as it is */
	uint64_t latest; /* the deadline is never put off past this */
	uint64_t due;	 /* when the last wait was to end, or the last look at the clock; 0: none yet */
};

static inline uint64_t cl_patience_later(uint64_t time, uint64_t ns)
{
	return time > UINT64_MAX - ns ? UINT64_MAX : time + ns;
}

/* Looks at the clock.  @all: all time since the last look was this process's own work. */
static inline uint64_t cl_patience_look(struct cl_patience *patience, bool all)
{
	uint64_t now = cl_now(), since = now - patience->due;

	if (patience->due && now > patience->due && (all || since > CL_PATIENCE_STOOD)) {
		patience->until = cl_patience_later(patience->until, since);
		patience->latest = cl_patience_later(patience->latest, since);
	}
	patience->due = now;
	return now;
}

/* Returns true if the deadline has come. */
static inline bool cl_patience_is_over(struct cl_patience *patience)
{
	return cl_patience_look(patience, false) >= patience->until;
}

/* The caller waits next.  Returns for how many ns it may: @most, or what is left; 0 if the deadline has come. */
static inline uint64_t cl_patience_wait(struct cl_patience *patience, uint64_t most)
{
	uint64_t now = cl_patience_look(patience, false), left = patience->until > now ? patience->until - now : 0;

	if (left > most)
		left = most;
	patience->due = now + left;
	return left;
}

/* The other process works, or something has come: puts the deadline off. */
static inline void cl_patience_put_off(struct cl_patience *patience)
{
	uint64_t until = cl_patience_later(cl_now(), patience->more);

	if (until > patience->latest)
		until = patience->latest;
	if (until > patience->until)
		patience->until = until;
}

#endif

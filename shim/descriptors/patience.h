/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patience: how long a process waits for what another one is to give it.
 *
 * What must hold: the wait ends when nothing has come for .more ns, and no later than .latest.
 *  - What comes puts the deadline off; so may what the other process gives to others.  It counts from the next wait on.
 *  - Time in which this process stood still amid a wait does not count.  All processes of a job can stand still together
 *    (SIGSTOP for its group, a frozen cgroup), and this one may run again before the other one does.  So each wait says for
 *    how long it is, and what goes far beyond that was no waiting.
 *  - All other time counts, that of the caller's own work too: else an exporter whose memory changes all the time could
 *    have an importer begin anew without end.
 *
 * Around each call that waits: cl_patience_wait() before, cl_patience_woke() after.  Times are cl_now(), ns.  One thread at
 * a time for each struct.  These functions cannot fail and take no lock.
 */
#ifndef CL_PATIENCE_H
#define CL_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/base/clock.h"

/* A wait that takes longer by so many ns has stood still. */
#define CL_PATIENCE_STOOD 200000000ull

struct cl_patience {
	uint64_t until;	 /* the deadline */
	uint64_t more;	 /* ns from what puts the deadline off to the deadline, at least; 0: it stays as it is */
	uint64_t latest; /* the deadline is never put off past this */
	uint64_t due;	 /* when the wait is to end that has begun last */
	bool put_off;	 /* something has come since that wait */
};

static inline uint64_t cl_patience_later(uint64_t time, uint64_t ns)
{
	return time > UINT64_MAX - ns ? UINT64_MAX : time + ns;
}

/* @ns were no waiting. */
static inline void cl_patience_excuse(struct cl_patience *patience, uint64_t ns)
{
	patience->until = cl_patience_later(patience->until, ns);
	patience->latest = cl_patience_later(patience->latest, ns);
}

/* The other process works, or something has come. */
static inline void cl_patience_put_off(struct cl_patience *patience)
{
	patience->put_off = patience->more != 0;
}

/* Returns true if the deadline has come. */
static inline bool cl_patience_is_over(const struct cl_patience *patience)
{
	uint64_t now = cl_now();

	return now >= patience->until && (!patience->put_off || now >= patience->latest);
}

/* The caller waits next.  Returns for how many ns it may: @most, or what is left; 0 if the deadline has come. */
static inline uint64_t cl_patience_wait(struct cl_patience *patience, uint64_t most)
{
	uint64_t now = cl_now(), until = cl_patience_later(now, patience->more), left;

	if (patience->put_off) {
		if (until > patience->latest)
			until = patience->latest;
		if (until > patience->until)
			patience->until = until;
		patience->put_off = false;
	}
	left = patience->until > now ? patience->until - now : 0;
	if (left > most)
		left = most;
	patience->due = now + left;
	return left;
}

/* The wait has ended. */
static inline void cl_patience_woke(struct cl_patience *patience)
{
	uint64_t now = cl_now();

	if (now > patience->due && now - patience->due > CL_PATIENCE_STOOD)
		cl_patience_excuse(patience, now - patience->due);
}

#endif

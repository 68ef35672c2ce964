/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the order of our locks, in debug builds: see locks.h. */
#include "shim/self/locks.h"

#ifdef CL_DEBUG
#include <stdio.h>
#include <stdlib.h>

static const char *const names[CL_RANKS] = {
	[CL_RANK_START] = "start",	     [CL_RANK_IMPORTS] = "imports",
	[CL_RANK_REAP] = "reap",	     [CL_RANK_EXPORTS] = "exports",
	[CL_RANK_CALLBACKS] = "callbacks", [CL_RANK_COLLECTOR] = "collector",
	[CL_RANK_GREEN] = "green",	     [CL_RANK_SERVER] = "server",
	[CL_RANK_FLIGHT] = "flight",
};
/* One bit for each rank that this thread has. */
static __thread unsigned int held __attribute__((tls_model("initial-exec")));

static _Noreturn void out_of_order(const char *what, enum cl_rank has)
{
	fprintf(stderr, "culimbo: a lock out of order: %s is wanted by a thread that has %s\n", what, names[has]);
	abort();
}

void cl_rank_wanted(const struct cl_lock *lock)
{
	if (held >> lock->rank)
		out_of_order(names[lock->rank], (enum cl_rank)(31 - __builtin_clz(held)));
}

void cl_rank_taken(const struct cl_lock *lock)
{
	held |= 1u << lock->rank;
}

void cl_rank_left(const struct cl_lock *lock)
{
	held &= ~(1u << lock->rank);
}

void cl_rank_none(void)
{
	if (held)
		out_of_order("the driver", (enum cl_rank)(31 - __builtin_clz(held)));
}
#endif

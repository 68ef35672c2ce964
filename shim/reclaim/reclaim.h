/* SPDX-License-Identifier: Apache-2.0 */
/* Reclaim: what is done when a call fails for lack of memory, or of an event. */
#ifndef CL_RECLAIM_H
#define CL_RECLAIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A call failed for lack of memory (CUDA_ERROR_OUT_OF_MEMORY), or of an interprocess event, of
 * which a process has 4,096; the next fails likewise (both measured).  It is made again as long
 * as cl_retry_again() says so:
 *
 *	struct cl_retry retry;
 *
 *	cl_retry_begin(&retry, CL_RETRY_MEMORY, (struct cl_short){ .bytes = bytes });
 *	while (result == CUDA_ERROR_OUT_OF_MEMORY && cl_retry_again(&retry))
 *		result = ...;
 *	cl_retry_end(&retry);
 *
 * All three by one thread.  For memory, each time gives back what our own limbo can give, asks
 * the program's callbacks and the host's other exporters, and as the last resort gives back
 * blocks that could not be tracked.  It is true as long as something came free, here or there,
 * since the call was made the last time, and waits while something may come.  False at once
 * where nobody has anything; else after CULIMBO_PRESSURE_WAIT at most, for all times together
 * (and what it takes to give back what there is).  Only what is of the device goes, and nothing
 * at all for more than the driver and the limbos have together.
 *
 * For an event only this process's own can come free: destroyed ones that wait in the limbo
 * go, held or not, the oldest first.
 */
enum cl_retry_want { CL_RETRY_MEMORY, CL_RETRY_EVENT };
/* What was asked for. */
struct cl_short {
	size_t bytes;	 /* about as many, 0: that is not known; only the program's callbacks hear of it */
	size_t at_least; /* it takes no less of the device; 0: that is not known */
	int device;	 /* an ordinal, or: */
	size_t whole;	 /* no device that has less in all could ever give it; 0: that is not known */
};
enum { CL_OF_CURRENT = -1 /* context's device */, CL_OF_ANY = -2 /* not known */, CL_OF_NONE = -3 };
struct cl_retry {
	enum cl_retry_want want;
	struct cl_short what;
	unsigned int attempt; /* how often cl_retry_again() was asked */
	uint64_t deadline;    /* CLOCK_MONOTONIC, ns: beyond it nothing is waited for */
	uint64_t seen;	      /* a count of what came free here, when it last said to try again */
	bool callbacks_gave;  /* memory, the last time that they were asked */
	unsigned int pressed; /* 1 + the device that our limbo was pressed for, cl_limbo_press(); 0: none */
	struct cl_pressure *others;
};
static inline void cl_retry_begin(struct cl_retry *retry, enum cl_retry_want want, struct cl_short what)
{
	*retry = (struct cl_retry){ .want = want, .what = what };
}
/* The doors to the two that follow: they begin what has not begun. */
bool cl_retry_again(struct cl_retry *retry);
void cl_retry_end(struct cl_retry *retry);
bool cl_reclaim_again(struct cl_retry *retry);
void cl_reclaim_end(struct cl_retry *retry);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reclaim: what happens when a call fails for lack of memory, or of an event. */
#ifndef CL_RECLAIM_H
#define CL_RECLAIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A call has failed for lack of memory (CUDA_ERROR_OUT_OF_MEMORY), or of an interprocess event: a
 * process has 4,096, and the next one fails with the same error (measured).  The caller
 * makes the call again as long as cl_retry_again() returns true:
 *
 *	struct cl_retry retry;
 *
 *	cl_retry_begin(&retry, CL_RETRY_MEMORY, (struct cl_need){ .bytes = bytes });
 *	while (result == CUDA_ERROR_OUT_OF_MEMORY && cl_retry_again(&retry))
 *		result = ...;
 *	cl_retry_end(&retry);
 *
 * One thread calls all three, without a lock, also in a process that shares nothing: other processes may have memory
 * to give.  For memory, each cl_retry_again() gives back what our own limbo can give, and asks the program's
 * callbacks and the host's other exporters.  It returns true if something came free anywhere since the last call.
 * It waits while something may still come.  It returns false at once if nobody has anything, else after
 * CULIMBO_PRESSURE_WAIT in all, and the time that it takes to give back what there is.  Only memory of the
 * device goes, and nothing at all if the call needs more than the driver and the limbos have together.
 *
 * For an event only this process's own events help: destroyed ones that wait in the limbo go, held
 * or not, the oldest first.
 */
enum cl_retry_want { CL_RETRY_MEMORY, CL_RETRY_EVENT };
/*
 * What the failed call asked for.  CL_FROM_SMALL: a cuMemAlloc(), for which the driver divides pieces of 2 MiB if it is
 * smaller.  CL_FROM_DEVICE: a call for which the driver uses no freed block again, as far as we know.
 */
struct cl_need {
	size_t bytes;	 /* about as many; 0: not known.  For the program's callbacks and the log */
	size_t at_least; /* it takes no less of the device; 0: not known */
	int device;	 /* an ordinal, or one of those below */
	size_t whole;	 /* a device with less memory in all can never give it; 0: not known */
	/* which freed blocks the driver may use again for it */
	enum { CL_FROM_DEVICE, CL_FROM_SMALL, CL_FROM_POOL } from;
	uint64_t pool;	 /* CL_FROM_POOL: the CUmemoryPool; 0: the current one of the device */
};
/* The device of the current context; a device that is not known; no device. */
enum { CL_OF_CURRENT = -1, CL_OF_ANY = -2, CL_OF_NONE = -3 };
struct cl_retry {
	enum cl_retry_want want;
	struct cl_need what;
	unsigned int attempt; /* how often cl_retry_again() was called */
	uint64_t deadline;    /* CLOCK_MONOTONIC, ns: nothing is waited for after it */
	uint64_t seen;	      /* what had come free here at the last attempt; only grows */
	bool callbacks_gave;  /* the callbacks gave memory when they were last asked */
	unsigned int pressed; /* 1 + the device of the last cl_limbo_press(); 0: none */
	struct cl_pressure *others;
	bool hopeless; /* the call fails without culimbo, too, as far as was known when that was last asked */
};
static inline void cl_retry_begin(struct cl_retry *retry, enum cl_retry_want want,
				  struct cl_need what)
{
	*retry = (struct cl_retry){ .want = want, .what = what };
}
/*
 * shim.c has the cl_retry_ functions, with the guards of the front door; they call the
 * cl_reclaim_ functions.
 */
bool cl_retry_again(struct cl_retry *retry);
void cl_retry_end(struct cl_retry *retry);
bool cl_reclaim_again(struct cl_retry *retry);
void cl_reclaim_end(struct cl_retry *retry);

#endif

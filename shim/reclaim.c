/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclaim: what is done when a call fails for lack of memory, or of an event.  The contract
 * is in shim.h (cl_retry_again).
 *
 * One loop over steps, in order.  A step says whether something has come free since the call
 * was made the last time, by whomever; and whether something may still come, so that it is
 * worth waiting.  What came free is told by counts that only grow: never by how much is in a
 * limbo, which others fill again meanwhile.
 *
 * What must hold: without culimbo no block that was freed, and that nobody holds, would be
 * missing.  So the call is made again until none was missing when it was made, or the time is
 * over.  And nobody waits who would not get anything: where no limbo has anything that could
 * go, and nothing has moved since the call, the answer is the driver's.
 */
#include <time.h>

#include "shim/callbacks.h"
#include "shim/collector.h"
#include "shim/limbo.h"
#include "shim/log.h"
#include "shim/pressure.h"
#include "shim/self.h"
#include "shim/trace.h"

/* Also beyond its time a call is made again so often, if something came free each time. */
enum { ATTEMPTS = 5 };
#define MICROSECOND 1000ull
#define MILLISECOND 1000000ull

struct found {
	bool gave;	   /* something has come free */
	bool may_come;	   /* something may come free yet */
	unsigned int round; /* of the loop, in this attempt */
};

static void nap(uint64_t ns)
{
	struct timespec t = { 0, (long)ns };

	nanosleep(&t, NULL);
}

/* ---------------------------------------------------------------------- the own limbo */
/* (records that give no memory, as of an event, are no reason to ask for it again) */
static uint64_t bytes_back(void)
{
	return cl_count_get(limbo_bytes_released);
}

/* Waits until @until at most for threads that have what could go, or may be ending its context. */
static void collect_own(uint64_t until, bool ends, uint64_t (*back)(void))
{
	/* a handle of an event that is under way is lost only for an event */
	bool all = back != bytes_back;
	uint64_t before = back();

	if (!all)
		cl_limbo_press(CL_ANY_DEVICE);
	while (cl_limbo_collect(all).held && cl_limbo_reap() && cl_now() < until)
		nap(2 * MILLISECOND); /* a holder is dying: that is a matter of milliseconds */
	do
		cl_limbo_collect(all);
	while (cl_limbo_wait_for_others(until, back, ends ? before : UINT64_MAX));
}

static void own_limbo(struct cl_retry *retry, struct found *found)
{
	struct cl_limbo_moved moved;

	if (!cl_sharing())
		return;
	retry->pressed = true;
	collect_own(retry->until, retry->attempt == 0 || cl_now() < retry->until, bytes_back);
	/* others may wait for our answer while we wait for theirs */
	cl_collector_called();
	moved = cl_limbo_moved(CL_ANY_DEVICE);
	found->gave |= moved.moved != retry->own;
	found->may_come |= moved.could_go != 0;
	retry->own = moved.moved;
}

/* ------------------------------------------------------------------ the other steps */
static void callbacks(struct cl_retry *retry, struct found *found)
{
	/* (those that say that they give, and don't, are not asked for ever) */
	if (found->round || retry->attempt >= ATTEMPTS || (retry->attempt && !retry->callbacks_gave))
		return;
	retry->callbacks_gave = cl_callbacks_ask(retry->bytes);
	found->gave |= retry->callbacks_gave;
}

static void others(struct cl_retry *retry, struct found *found)
{
	struct cl_pressure_seen seen;

	/* what we have may be enough: then nobody else's grace ends for it */
	if (retry->attempt == 0 && found->gave)
		return;
	if (!retry->others)
		retry->others = cl_pressure_begin();
	if (!retry->others)
		return;
	seen = cl_pressure_look(retry->others);
	if (seen.may_come) {
		bool news = seen.news;

		cl_pressure_ask(retry->others, retry->until);
		seen = cl_pressure_look(retry->others);
		seen.news |= news;
	}
	found->gave |= seen.news;
	found->may_come |= seen.may_come;
}

static void untracked(struct cl_retry *retry, struct found *found)
{
	if (!found->gave && !found->may_come && cl_sharing())
		found->gave = cl_limbo_release_kept().blocks != 0;
}

static void (*const for_memory[])(struct cl_retry *, struct found *) = { own_limbo, callbacks, others,
									 untracked };

static bool memory_again(struct cl_retry *retry)
{
	struct found found = { .gave = false };
	uint64_t began = cl_now(), wait = 100 * MICROSECOND;
	const char *said;

	/* where others take all that comes free, not without a pause */
	if (retry->attempt >= ATTEMPTS)
		nap(retry->attempt < 10 * ATTEMPTS ? wait : MILLISECOND);
	for (;; found.round++) {
		found.gave = found.may_come = false;
		for (unsigned int i = 0; i < sizeof for_memory / sizeof *for_memory; i++)
			for_memory[i](retry, &found);
		if (found.gave || !found.may_come || cl_now() >= retry->until)
			break;
		nap(wait);
		if (wait < 3 * MILLISECOND)
			wait *= 2;
	}
	said = found.gave ? "memory came free, trying again" : "nothing to give back";
	if (retry->bytes)
		cl_log(CL_LOG_DEBUG, "an allocation of %zu bytes failed (attempt %u): %s", retry->bytes,
		       retry->attempt, said);
	else
		cl_log(CL_LOG_DEBUG, "a call that needs device memory failed (attempt %u): %s",
		       retry->attempt, said);
	cl_trace(CL_TRACE_WAITED, .size = retry->bytes, .value = cl_now() - began,
		 .flags = found.gave ? CL_TRACE_DONE : 0);
	return found.gave;
}

/* --------------------------------------------------------------------------- events */
/* Then it is not memory that is short. */
static bool is_at_limit(void)
{
	CUevent event;

	if (cl_events_alive() < CL_EVENT_PLACES - 64 || /* (some threads may be at one) */
	    cl_driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return false;
	cl_driver.cuEventDestroy_v2(event);
	return true;
}

/* Gives back what can go; @back: what is wanted, NULL: nothing that we have.  Whether any has gone. */
static bool give_for_event(const struct cl_retry *retry, uint64_t (*back)(void))
{
	uint64_t before = back ? back() : 0;
	bool given;

	if (back && (retry->attempt == 0 || back == bytes_back))
		collect_own(retry->until, true, back);
	if (retry->attempt == 0)
		cl_callbacks_ask(0);
	/* events are this process's own: no other process could give any back */
	if (back == cl_limbo_events_back && back() == before)
		cl_limbo_force_events_out(retry->until);
	given = back && back() != before;
	/* their records wait on; it may have looked while we had them, and sleep for good */
	if (given)
		cl_collector_wake();
	return given;
}

static bool event_again(struct cl_retry *retry)
{
	/* others may have given one back since the driver said no; then nothing is forced */
	bool again = retry->attempt && cl_limbo_events_back() != retry->own;

	if (!again) {
		if (cl_limbo_has_events())
			again = give_for_event(retry, cl_limbo_events_back);
		else
			again = give_for_event(retry, is_at_limit() ? NULL : bytes_back);
		/* (asked after the look at what the limbo has: what is not there any more has gone by now) */
		again |= retry->attempt == 0 || cl_limbo_events_back() != retry->own;
	}
	retry->own = cl_limbo_events_back();
	return again;
}

/* ------------------------------------------------------------------------- the loop */
void cl_retry_begin(struct cl_retry *retry, enum cl_retry_want want, size_t bytes)
{
	*retry = (struct cl_retry){ .want = want, .bytes = bytes };
}

bool cl_retry_again(struct cl_retry *retry)
{
	CL_UNCANCELLED;
	uint64_t now = cl_now();
	bool again;

	if (cl_callbacks_inside() || cl_options.disable.number || cl_self.ended)
		return false;
	if (retry->attempt == 0)
		retry->until = now + cl_options.pressure_wait.number;
	else if (retry->attempt >= ATTEMPTS && now >= retry->until)
		return false; /* others take all that comes free */
	if (retry->want == CL_RETRY_EVENT && !cl_sharing())
		return false;
	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		if (retry->want == CL_RETRY_EVENT)
			return false;
	}
	cl_self_prepare();
	cl_count(callbacks_run);
	again = retry->want == CL_RETRY_EVENT ? event_again(retry) : memory_again(retry);
	retry->attempt++;
	return again;
}

void cl_retry_end(struct cl_retry *retry)
{
	CL_UNCANCELLED;

	/* (another thread that is at this, too, says it anew each time) */
	if (retry->pressed)
		cl_limbo_press_over(CL_ANY_DEVICE);
	retry->pressed = false;
	cl_pressure_end(retry->others);
	retry->others = NULL;
}

void cl_memory_allocates(void)
{
	/* (a callback that allocates is in the middle of more than this) */
	if (cl_collector_is_inline() && !cl_self_is_copy() && !cl_callbacks_inside()) {
		CL_UNCANCELLED;

		if (!cl_self.ended)
			cl_collector_called();
	}
}

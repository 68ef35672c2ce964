/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclaim: what is done when a call fails for lack of memory, or of an event.  The contract
 * is in reclaim.h.
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

#include "shim/reclaim/callbacks.h"
#include "shim/limbo/collector.h"
#include "shim/driver/devices.h"
#include "shim/limbo/collect.h"
#include "shim/limbo/forced.h"
#include "shim/limbo/reap.h"
#include "shim/limbo/release.h"
#include "shim/base/log.h"
#include "shim/reclaim/pressure.h"
#include "shim/reclaim/reclaim.h"
#include "shim/blocks/event_owner.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"

/*
 * Also beyond its time a call is made again so often, if something came free each time: for an
 * event; and for memory, of which others take more, where a machine is so busy that its time is
 * over after a few.
 */
enum { ATTEMPTS = 5, MEMORY_ATTEMPTS = 40 };
#define MICROSECOND 1000ull
#define MILLISECOND 1000000ull

/* Bytes that may be missing for other reasons: a free that waits as the driver's takes a page. */
#define SLACK (64u << 20)

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
/* Records that give no memory, as of an event, are no reason to ask for it again. */
static uint64_t bytes_back(void)
{
	return cl_count_get(limbo_bytes_released);
}

/*
 * Waits for the rest of the time at most for threads that have what could go, or may be ending
 * its context.
 */
static void collect_own(const struct cl_retry *retry, bool ends, uint64_t (*back)(void),
			unsigned int device)
{
	/* a handle of an event that is under way is lost only for an event */
	bool all = back != bytes_back;
	uint64_t before = back();

	if (!all)
		cl_limbo_press(device, cl_limbo_press_until(retry->began, cl_now()));
	while (cl_limbo_collect(all).held && cl_limbo_reap() && cl_now() < retry->until)
		nap(2 * MILLISECOND); /* a holder is dying: that is a matter of milliseconds */
	do
		cl_limbo_collect(all);
	while (cl_limbo_wait_for_others(retry->until, back, ends ? before : UINT64_MAX));
}

static void own_limbo(struct cl_retry *retry, struct found *found)
{
	struct cl_limbo_moved moved;

	if (!cl_sharing())
		return;
	/* others may wait for our answer while we wait for theirs */
	cl_collector_called();
	retry->pressed = true;
	retry->device = cl_limbo_moved(retry->what.device).device;
	collect_own(retry, retry->attempt == 0 || cl_now() < retry->until, bytes_back, retry->device);
	moved = cl_limbo_moved(retry->what.device);
	found->gave |= moved.entered + moved.returned != retry->own;
	found->may_come |= moved.could_go != 0;
	retry->own = moved.entered + moved.returned;
}

/* ------------------------------------------------------------------ the other steps */
static void callbacks(struct cl_retry *retry, struct found *found)
{
	/* Those that say that they give, and don't, are not asked for ever. */
	if (found->round || retry->attempt >= ATTEMPTS || (retry->attempt && !retry->callbacks_gave))
		return;
	retry->callbacks_gave = cl_callbacks_ask(retry->what.bytes);
	found->gave |= retry->callbacks_gave;
}

/* A look at all limbos but ours: that something is new stays in retry->news until it is used. */
static struct cl_pressure_seen look_at_others(struct cl_retry *retry)
{
	struct cl_pressure_seen seen = { .news = false };
	uint8_t uuid[CL_UUID];

	if (!retry->others)
		retry->others = cl_pressure_begin(cl_device_uuid(retry->what.device, uuid) ? uuid : NULL);
	if (retry->others)
		seen = cl_pressure_look(retry->others);
	retry->returned = seen.returned + cl_limbo_moved(retry->what.device).returned;
	retry->news |= seen.news;
	return seen;
}

static void others(struct cl_retry *retry, struct found *found)
{
	struct cl_pressure_seen seen;

	/* what we have may be enough: then nobody else's grace ends for it */
	if (retry->attempt == 0 && found->gave)
		return;
	seen = look_at_others(retry);
	if (seen.may_come) {
		cl_pressure_ask(retry->others, retry->began, retry->until);
		seen = look_at_others(retry);
	}
	found->gave |= retry->news;
	found->may_come |= seen.may_come;
	retry->news = false;
}

static void untracked(struct cl_retry *retry, struct found *found)
{
	if (!found->gave && !found->may_come && cl_sharing())
		found->gave = cl_limbo_release_untracked().blocks != 0;
}

static const struct step {
	void (*take)(struct cl_retry *, struct found *);
	bool of_limbos;
} for_memory[] = {
	{ own_limbo, true },
	{ callbacks, false },
	{ others, true },
	{ untracked, true },
};

/* Whether no device, or not the one that is asked, is as large: then no limbo's memory can help. */
static bool fits_no_device(const struct cl_short *what)
{
	CUdevice device = what->device < 0 ? 0 : what->device;
	bool asked = false;
	size_t total;

	if (!what->whole || !cl_driver.cuDeviceTotalMem_v2)
		return false;
	for (; cl_driver.cuDeviceTotalMem_v2(&total, device) == CUDA_SUCCESS; device++) {
		asked = true;
		if (total >= what->whole)
			return false;
		if (device == what->device)
			break;
	}
	return asked;
}

/*
 * Whether all that lies in limbos would not be enough, so that bare it would fail as well: then
 * nobody's grace ends for it.  What had been given back before the driver was asked how much is
 * free is in that; what was in a limbo then had been put into it before the look after that.
 */
static bool is_hopeless(struct cl_retry *retry)
{
	uint64_t entered, before;
	size_t is_free, total;

	if (retry->what.device == CL_OF_NONE || fits_no_device(&retry->what))
		return true;
	/* Now and then, for it may have been otherwise. */
	if (!retry->what.at_least || !cl_driver.cuMemGetInfo_v2 || retry->attempt % 8 ||
	    (cl_sharing() && cl_limbo_has_untracked()))
		return false;
	look_at_others(retry);
	before = retry->returned;
	if (cl_driver.cuMemGetInfo_v2(&is_free, &total) != CUDA_SUCCESS)
		return false;
	entered = look_at_others(retry).entered + cl_limbo_moved(retry->what.device).entered;
	return entered >= before && is_free + (entered - before) + SLACK < retry->what.at_least;
}

static bool memory_again(struct cl_retry *retry)
{
	struct found found = { .gave = false };
	uint64_t began = cl_now(), wait = 100 * MICROSECOND;
	bool hopeless = is_hopeless(retry);
	const char *said;

	/* where others take all that comes free, not without a pause */
	if (retry->attempt >= ATTEMPTS)
		nap(retry->attempt < 10 * ATTEMPTS ? wait : MILLISECOND);
	for (;; found.round++) {
		found.gave = found.may_come = false;
		for (unsigned int i = 0; i < sizeof for_memory / sizeof *for_memory; i++)
			if (!hopeless || !for_memory[i].of_limbos)
				for_memory[i].take(retry, &found);
		if (found.gave || !found.may_come || cl_now() >= retry->until)
			break;
		nap(wait);
		if (wait < 3 * MILLISECOND)
			wait *= 2;
	}
	said = found.gave ? "memory came free, trying again" :
	       hopeless	  ? "nobody has as much" :
			    "nothing to give back";
	if (retry->what.bytes)
		cl_log(CL_LOG_DEBUG, "an allocation of %zu bytes failed (attempt %u): %s",
		       retry->what.bytes, retry->attempt, said);
	else
		cl_log(CL_LOG_DEBUG, "a call that needs device memory failed (attempt %u): %s",
		       retry->attempt, said);
	cl_trace(CL_TRACE_WAITED, .size = retry->what.bytes, .value = cl_now() - began,
		 .flags = found.gave ? CL_TRACE_DONE : 0);
	return found.gave;
}

/* Where the caller has said "of the current one"; and its UUID, for all that ask from here on. */
static void find_device(struct cl_short *what)
{
	uint8_t uuid[CL_UUID];
	CUdevice current;

	if (!cl_driver.cuCtxGetDevice || cl_driver.cuCtxGetDevice(&current) != CUDA_SUCCESS)
		current = CL_OF_ANY;
	if (what->device == CL_OF_CURRENT)
		what->device = current;
	/* how much is free can be asked of the current one */
	if (what->device < 0 || what->device != current)
		what->at_least = 0;
	cl_device_uuid(what->device, uuid);
}

/* --------------------------------------------------------------------------- events */
/* Then it is not memory that is short. */
static bool is_at_limit(void)
{
	CUevent event;

	if (cl_events_alive() < CL_EVENT_PLACES - 64 || /* Some threads may be at one. */
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
		collect_own(retry, true, back, CL_ANY_DEVICE);
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
		/* Asked after the look at what the limbo has: what is not there any more has gone by now. */
		again |= retry->attempt == 0 || cl_limbo_events_back() != retry->own;
	}
	retry->own = cl_limbo_events_back();
	return again;
}

/* ------------------------------------------------------------------------- the loop */
void cl_retry_begin(struct cl_retry *retry, enum cl_retry_want want, struct cl_short what)
{
	*retry = (struct cl_retry){ .want = want, .what = what };
}

bool cl_reclaim_again(struct cl_retry *retry)
{
	uint64_t now = cl_now();
	bool again;

	if (retry->attempt == 0) {
		retry->began = now;
		retry->until = now + cl_options.pressure_wait.number;
	} else if (now >= retry->until &&
		   retry->attempt >= (retry->want == CL_RETRY_EVENT ? ATTEMPTS : MEMORY_ATTEMPTS)) {
		return false; /* others take all that comes free */
	}
	cl_count(callbacks_run);
	if (retry->want == CL_RETRY_MEMORY && retry->attempt == 0)
		find_device(&retry->what);
	again = retry->want == CL_RETRY_EVENT ? event_again(retry) : memory_again(retry);
	retry->attempt++;
	return again;
}

void cl_retry_end(struct cl_retry *retry)
{
	CL_UNCANCELLED;

	/* Another thread that is at this, too, says it anew each time. */
	if (retry->pressed)
		cl_limbo_press_over(retry->device);
	retry->pressed = false;
	cl_pressure_end(retry->others);
	retry->others = NULL;
}

void cl_memory_allocates(void)
{
	/* A callback that allocates is in the middle of more than this. */
	if (cl_collector_is_inline() && !cl_self_is_copy() && !cl_callbacks_inside()) {
		CL_UNCANCELLED;

		if (!cl_self.ended)
			cl_collector_called();
	}
}

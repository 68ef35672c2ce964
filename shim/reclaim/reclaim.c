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

/* A counter of what came free here, which only grows. */
typedef uint64_t counter_fn(void);

/* What the steps of one attempt have found. */
struct found {
	bool gave;	     /* something has come free */
	bool may_come;	     /* something may come free yet */
	bool news;	     /* others' limbos have changed since the call was made */
	unsigned int round;  /* of the loop */
	counter_fn *counts;  /* what helps who needs an event; NULL: nothing that we have */
	uint64_t before;     /* what it was */
};

static void nap(uint64_t ns)
{
	struct timespec t = { 0, (long)ns };

	nanosleep(&t, NULL);
}

static uint64_t began(const struct cl_retry *retry)
{
	return retry->deadline - cl_options.pressure_wait.number;
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
static void collect_own(const struct cl_retry *retry, bool ends, counter_fn *counts, unsigned int device)
{
	/* a handle of an event that is under way is lost only for an event */
	bool all = counts != bytes_back;
	uint64_t before = counts();

	if (!all)
		cl_limbo_press(device, cl_limbo_press_until(began(retry), cl_now()));
	cl_limbo_collect_from_dying(all, retry->deadline, NULL);
	do
		cl_limbo_collect(all);
	while (cl_limbo_wait_for_others(retry->deadline, counts, ends ? before : UINT64_MAX));
}

static void own_memory(struct cl_retry *retry, struct found *found)
{
	struct cl_limbo_moved moved;
	unsigned int device;

	if (!cl_sharing())
		return;
	/* others may wait for our answer while we wait for theirs */
	cl_collector_called();
	device = cl_limbo_moved(retry->what.device).device;
	retry->pressed = device + 1;
	collect_own(retry, retry->attempt == 0 || cl_now() < retry->deadline, bytes_back, device);
	moved = cl_limbo_moved(retry->what.device);
	found->gave |= moved.entered + moved.returned != retry->seen;
	found->may_come |= moved.could_go != 0;
	retry->seen = moved.entered + moved.returned;
}

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

static void own_events(struct cl_retry *retry, struct found *found)
{
	/* others may have given one back since the driver said no; then nothing is forced */
	if (retry->attempt && cl_limbo_events_back() != retry->seen)
		return;
	found->counts = cl_limbo_has_events() ? cl_limbo_events_back : is_at_limit() ? NULL : bytes_back;
	if (!found->counts)
		return;
	found->before = found->counts();
	if (retry->attempt == 0 || found->counts == bytes_back)
		collect_own(retry, true, found->counts, CL_ANY_DEVICE);
}

/* After own_events(), and after the callbacks: what is held goes only if nothing else does. */
static void held_events(struct cl_retry *retry, struct found *found)
{
	uint64_t back;

	if (found->counts == cl_limbo_events_back && cl_limbo_events_back() == found->before)
		cl_limbo_force_events_out(retry->deadline);
	if (found->counts && found->counts() != found->before) {
		found->gave = true;
		/* their records wait on; it may have looked while we had them, and sleep for good */
		cl_collector_wake();
	}
	/* Asked after the look at what the limbo has: what is not there any more has gone by now. */
	back = cl_limbo_events_back();
	found->gave |= retry->attempt == 0 || back != retry->seen;
	retry->seen = back;
}

/* ------------------------------------------------------------------ the other steps */
static void callbacks(struct cl_retry *retry, struct found *found)
{
	bool gave;

	/* Those that say that they give, and don't, are not asked for ever. */
	if (found->round || retry->attempt >= ATTEMPTS || (retry->attempt && !retry->callbacks_gave))
		return;
	gave = cl_callbacks_ask(retry->what.bytes);
	/* It is memory that they say they gave, which need not be an event. */
	retry->callbacks_gave = gave && retry->want == CL_RETRY_MEMORY;
	found->gave |= retry->callbacks_gave;
}

/* A look at all limbos but ours. */
static struct cl_pressure_seen look_at_others(const struct cl_retry *retry, struct found *found)
{
	struct cl_pressure_seen seen = cl_pressure_look(retry->others);

	found->news |= seen.news;
	return seen;
}

static void others(struct cl_retry *retry, struct found *found)
{
	struct cl_pressure_seen seen;

	/* what we have may be enough: then nobody else's grace ends for it */
	if (retry->attempt == 0 && found->gave)
		return;
	seen = look_at_others(retry, found);
	if (seen.may_come) {
		cl_pressure_ask(retry->others, began(retry), retry->deadline);
		seen = look_at_others(retry, found);
	}
	found->gave |= found->news;
	found->may_come |= seen.may_come;
}

static void untracked(struct cl_retry *retry, struct found *found)
{
	if (!found->gave && !found->may_come && cl_sharing())
		found->gave = cl_limbo_release_untracked().blocks != 0;
}

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
static bool is_hopeless(const struct cl_retry *retry, struct found *found)
{
	uint64_t entered, before;
	size_t is_free, total;

	if (retry->want == CL_RETRY_EVENT)
		return false;
	if (retry->what.device == CL_OF_NONE || fits_no_device(&retry->what))
		return true;
	/* Now and then, for it may have been otherwise. */
	if (!retry->what.at_least || !cl_driver.cuMemGetInfo_v2 || retry->attempt % 8 ||
	    (cl_sharing() && cl_limbo_has_untracked()))
		return false;
	before = look_at_others(retry, found).returned;
	before += cl_limbo_moved(retry->what.device).returned;
	if (cl_driver.cuMemGetInfo_v2(&is_free, &total) != CUDA_SUCCESS)
		return false;
	entered = look_at_others(retry, found).entered;
	entered += cl_limbo_moved(retry->what.device).entered;
	return entered >= before && is_free + (entered - before) + SLACK < retry->what.at_least;
}

/* Where the caller has said "of the current one"; and its UUID, for all that ask from here on. */
static void find_device(struct cl_retry *retry)
{
	struct cl_short *what = &retry->what;
	uint8_t uuid[CL_UUID];
	CUdevice current;

	if (!cl_driver.cuCtxGetDevice || cl_driver.cuCtxGetDevice(&current) != CUDA_SUCCESS)
		current = CL_OF_ANY;
	if (what->device == CL_OF_CURRENT)
		what->device = current;
	/* how much is free can be asked of the current one */
	if (what->device < 0 || what->device != current)
		what->at_least = 0;
	retry->others = cl_pressure_begin(cl_device_uuid(what->device, uuid) ? uuid : NULL);
}

/* ------------------------------------------------------------------------- the loop */
enum { MEMORY = 1 << CL_RETRY_MEMORY, EVENT = 1 << CL_RETRY_EVENT };

static const struct step {
	void (*take)(struct cl_retry *, struct found *);
	unsigned int wants;
	bool of_limbos; /* not where nothing in any limbo could help */
} steps[] = {
	{ own_memory, MEMORY, true },
	{ own_events, EVENT, true },
	{ callbacks, MEMORY | EVENT, false },
	{ others, MEMORY, true }, /* events are this process's own */
	{ untracked, MEMORY, true },
	{ held_events, EVENT, true },
};

static void say(const struct cl_retry *retry, const char *said)
{
	if (retry->what.bytes)
		cl_log(CL_LOG_DEBUG, "an allocation of %zu bytes failed (attempt %u): %s",
		       retry->what.bytes, retry->attempt, said);
	else
		cl_log(CL_LOG_DEBUG, "a call that needs device memory failed (attempt %u): %s",
		       retry->attempt, said);
}

bool cl_reclaim_again(struct cl_retry *retry)
{
	const unsigned int most = retry->want == CL_RETRY_EVENT ? ATTEMPTS : MEMORY_ATTEMPTS;
	uint64_t now = cl_now(), wait = 100 * MICROSECOND;
	struct found found = { .gave = false };
	bool hopeless;

	if (retry->attempt == 0)
		retry->deadline = now + cl_options.pressure_wait.number;
	else if (now >= retry->deadline && retry->attempt >= most)
		return false; /* others take all that comes free */
	cl_count(callbacks_run);
	if (retry->attempt == 0 && retry->want == CL_RETRY_MEMORY)
		find_device(retry);
	hopeless = is_hopeless(retry, &found);
	/* where others take all that comes free, not without a pause */
	if (retry->attempt >= ATTEMPTS)
		nap(retry->attempt < 10 * ATTEMPTS ? wait : MILLISECOND);
	for (;; found.round++) {
		found.may_come = false;
		for (unsigned int i = 0; i < sizeof steps / sizeof *steps; i++)
			if ((steps[i].wants & 1u << retry->want) && !(hopeless && steps[i].of_limbos))
				steps[i].take(retry, &found);
		if (found.gave || !found.may_come || cl_now() >= retry->deadline)
			break;
		nap(wait);
		if (wait < 3 * MILLISECOND)
			wait *= 2;
	}
	if (retry->want == CL_RETRY_MEMORY) {
		say(retry, found.gave ? "memory came free, trying again" :
			   hopeless   ? "nobody has as much" :
					"nothing to give back");
		cl_trace(CL_TRACE_WAITED, .size = retry->what.bytes, .value = cl_now() - now,
			 .flags = found.gave ? CL_TRACE_DONE : 0);
	}
	retry->attempt++;
	return found.gave;
}

void cl_reclaim_end(struct cl_retry *retry)
{
	/* Another thread that is at this, too, says it anew each time. */
	if (retry->pressed)
		cl_limbo_press_over(retry->pressed - 1);
	retry->pressed = 0;
	cl_pressure_end(retry->others);
	retry->others = NULL;
}

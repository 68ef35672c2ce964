/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclaim: what happens when a call fails for lack of memory, or of an event.  The contract is in
 * reclaim.h.
 *
 * One loop takes steps in order.  A step says whether something has come free since the call was
 * last made, in whatever process, and whether something may still come free, so that it is worth
 * waiting.  Counts that only grow tell what came free.  How much is in a limbo does not tell it, because
 * other threads put more into it meanwhile.
 *
 * What must hold: no call fails for want of a freed block that nobody holds, unless its time is
 * over.  So it is made again as long as such a block was missing when it was last made.
 * And a call that cannot succeed does not wait: if no limbo has anything that could go, and nothing
 * has come free since the call, the driver's answer stands.
 */
#include <time.h>

#include "shim/limbo/exporter.h"
#include "shim/reclaim/callbacks.h"
#include "shim/limbo/collector.h"
#include "shim/driver/devices.h"
#include "shim/limbo/forced.h"
#include "shim/limbo/press.h"
#include "shim/limbo/reap.h"
#include "shim/limbo/release.h"
#include "shim/base/log.h"
#include "shim/reclaim/keepers.h"
#include "shim/reclaim/pressure.h"
#include "shim/reclaim/reclaim.h"
#include "shim/blocks/event_owner.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"

/*
 * How often a call is made again after its time is over, as long as something came free each time: ATTEMPTS
 * for an event, MEMORY_ATTEMPTS for memory.  Other processes take what comes free, too, and on a busy
 * machine the time is over after a few attempts.
 */
enum { ATTEMPTS = 5, MEMORY_ATTEMPTS = 40 };
enum { HOPE_EVERY = 8 }; /* attempts */
#define MICROSECOND 1000ull
#define MILLISECOND 1000000ull

/* How many bytes may be missing for other reasons: the driver's own memory for a context or a module, for one. */
#define SLACK (64u << 20)

/* Returns a counter of what came free in this process; it only grows. */
typedef uint64_t counter_fn(const struct cl_exporter *ex);

/* What the steps of one attempt have found out. */
struct outcome {
	bool gave;	     /* something has come free */
	bool may_come;	     /* something may come free yet */
	bool news;	     /* others' limbos have changed since the call was made */
	unsigned int round;  /* of the loop */
	counter_fn *counts;  /* for an event: counts what would help; NULL: nothing that we have would */
	uint64_t before;     /* counts(), before this attempt */
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
/* Counts bytes, so that a released event's record, which gives no memory, does not look like success. */
static uint64_t bytes_back(const struct cl_exporter *ex)
{
	(void)ex;
	return cl_count_get(limbo_bytes_released);
}

/*
 * Collects our own limbo.  Then waits, until the deadline at most, for other threads that are in
 * the driver with blocks that could go and, with @ends, for context teardowns in progress.
 */
static void collect_own(const struct cl_retry *retry, bool ends, counter_fn *counts, unsigned int device)
{
	/* ends every grace: an event whose handle is under way is lost only if an event is short */
	bool all = counts != bytes_back;
	uint64_t before = counts(&cl_exporter);

	if (!all)
		cl_limbo_press(&cl_exporter, device, cl_limbo_press_until(began(retry), cl_now()));
	cl_limbo_collect_from_dying(&cl_exporter, all, retry->deadline, NULL);
	do
		cl_limbo_collect(&cl_exporter, all);
	while (cl_limbo_wait_for_others(&cl_exporter, retry->deadline, counts, ends ? before : UINT64_MAX));
}

static void own_memory(struct cl_retry *retry, struct outcome *outcome)
{
	struct cl_limbo_moved moved;
	unsigned int device;

	if (!cl_sharing())
		return;
	/* the processes that we ask may be waiting for our answer */
	cl_collector_called(&cl_exporter);
	device = cl_limbo_moved(&cl_exporter, retry->what.device).device;
	retry->pressed = device + 1;
	collect_own(retry, retry->attempt == 0 || cl_now() < retry->deadline, bytes_back, device);
	moved = cl_limbo_moved(&cl_exporter, retry->what.device);
	outcome->gave |= moved.entered + moved.returned != retry->seen;
	outcome->may_come |= moved.could_go != 0;
	retry->seen = moved.entered + moved.returned;
}

/* Returns true if this process can make no more events: then the call did not fail for memory. */
static bool is_at_limit(void)
{
	CUevent event;

	if (cl_events_alive(&cl_exporter.blocks) < CL_EVENT_PLACES - 64 || /* other threads may be making some */
	    cl_driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return false;
	cl_driver.cuEventDestroy_v2(event);
	return true;
}

static void own_events(struct cl_retry *retry, struct outcome *outcome)
{
	/* an event came free since the driver failed: then nothing is forced out */
	if (retry->attempt && cl_limbo_events_back(&cl_exporter) != retry->seen)
		return;
	outcome->counts = cl_limbo_has_events(&cl_exporter) ? cl_limbo_events_back : is_at_limit() ? NULL : bytes_back;
	if (!outcome->counts)
		return;
	outcome->before = outcome->counts(&cl_exporter);
	if (retry->attempt == 0 || outcome->counts == bytes_back)
		collect_own(retry, true, outcome->counts, CL_ANY_DEVICE);
}

/* The last step: an event that is held goes only if own_events() and the callbacks freed none. */
static void held_events(struct cl_retry *retry, struct outcome *outcome)
{
	uint64_t back;

	if (outcome->counts == cl_limbo_events_back && cl_limbo_events_back(&cl_exporter) == outcome->before)
		cl_limbo_force_events_out(&cl_exporter, retry->deadline);
	if (outcome->counts && outcome->counts(&cl_exporter) != outcome->before) {
		outcome->gave = true;
		/*
		 * their records still wait; the collector may have looked while we had them, and
		 * sleep for good
		 */
		cl_collector_wake(&cl_exporter);
	}
	/* read last, so that events which were forced out are counted */
	back = cl_limbo_events_back(&cl_exporter);
	outcome->gave |= retry->attempt == 0 || back != retry->seen;
	retry->seen = back;
}

/* ------------------------------------------------------------------ the other steps */
static void callbacks(struct cl_retry *retry, struct outcome *outcome)
{
	bool gave;

	/* a limit, because a callback may say each time that it gave memory, and have given none */
	if (outcome->round || retry->attempt >= ATTEMPTS || (retry->attempt && !retry->callbacks_gave))
		return;
	gave = cl_callbacks_ask(retry->what.bytes);
	/* callbacks give memory, which need not help to make an event */
	retry->callbacks_gave = gave && retry->want == CL_RETRY_MEMORY;
	outcome->gave |= retry->callbacks_gave;
}

/* Looks at the limbos of all other exporters. */
static struct cl_pressure_seen look_at_others(const struct cl_retry *retry, struct outcome *outcome)
{
	struct cl_pressure_seen seen = cl_pressure_look(retry->others);

	outcome->news |= seen.news;
	return seen;
}

static void others(struct cl_retry *retry, struct outcome *outcome)
{
	struct cl_pressure_seen seen;

	/* what we gave back may be enough: then no other process's grace ends for it */
	if (retry->attempt == 0 && outcome->gave)
		return;
	seen = look_at_others(retry, outcome);
	if (seen.may_come) {
		cl_pressure_ask(retry->others, began(retry), retry->deadline);
		seen = look_at_others(retry, outcome);
	}
	outcome->gave |= outcome->news;
	outcome->may_come |= seen.may_come;
}

/* Returns true if no device (or not the named one) has as much memory in all: no limbo can help then. */
static bool fits_no_device(const struct cl_need *what)
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
 * Returns true if all limbos together would not be enough, so that the call fails without culimbo,
 * too: then no grace ends for it.  The sum counts each byte at least once: what a limbo gave back before the
 * first look is in the driver's free memory, and what lay in a limbo when the driver was asked had entered it
 * before the second look.
 */
static bool is_hopeless(const struct cl_retry *retry, struct outcome *outcome)
{
	uint64_t entered, before;
	size_t is_free, total;

	if (retry->want == CL_RETRY_EVENT)
		return false;
	if (retry->what.device == CL_OF_NONE || fits_no_device(&retry->what))
		return true;
	/* asked again now and then, since the answer may change */
	if (!retry->what.at_least || !cl_driver.cuMemGetInfo_v2 || retry->attempt % HOPE_EVERY)
		return false;
	before = look_at_others(retry, outcome).returned;
	before += cl_limbo_moved(&cl_exporter, retry->what.device).returned;
	if (cl_driver.cuMemGetInfo_v2(&is_free, &total) != CUDA_SUCCESS)
		return false;
	entered = look_at_others(retry, outcome).entered;
	entered += cl_limbo_moved(&cl_exporter, retry->what.device).entered;
	return entered >= before && is_free + (entered - before) + SLACK < retry->what.at_least;
}

/* Finds out which device CL_OF_CURRENT is, and its UUID, for all attempts of this call. */
static void find_device(struct cl_retry *retry)
{
	struct cl_need *what = &retry->what;
	uint8_t uuid[CL_UUID];
	CUdevice current;

	if (!cl_driver.cuCtxGetDevice || cl_driver.cuCtxGetDevice(&current) != CUDA_SUCCESS)
		current = CL_OF_ANY;
	if (what->device == CL_OF_CURRENT)
		what->device = current;
	/* the driver tells free memory of the current device only */
	if (what->device < 0 || what->device != current)
		what->at_least = 0;
	retry->others = cl_pressure_begin(cl_device_uuid(what->device, uuid) ? uuid : NULL);
}

/* ------------------------------------------------------------------------- the loop */
enum { MEMORY = 1 << CL_RETRY_MEMORY, EVENT = 1 << CL_RETRY_EVENT };

static const struct step {
	void (*take)(struct cl_retry *, struct outcome *);
	unsigned int wants;
	bool of_limbos; /* skipped if nothing in any limbo could help */
} steps[] = {
	{ own_memory, MEMORY, true },
	{ own_events, EVENT, true },
	{ callbacks, MEMORY | EVENT, false },
	{ others, MEMORY, true }, /* other processes' events do not count against our 4,096 */
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

static void count_wait(const struct cl_retry *retry, uint64_t ns)
{
	if (retry->attempt == 0)
		cl_live_add(&cl_own, CL_LIVE_SHORT, 1);
	cl_live_add(&cl_own, CL_LIVE_WAITED, ns);
}

/*
 * Returns the pool of a call whose freed blocks the driver would use again for it, as its CUmemoryPool; 0: none is known.
 * A pool with release threshold 0 gives its memory away when the program next waits for the device.
 */
static uint64_t reused_pool(const struct cl_need *what)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)what->pool;
	cuuint64_t threshold;

	if (what->from != CL_FROM_POOL || !cl_own_has_file() || !cl_driver.cuDeviceGetMemPool || !cl_driver.cuMemPoolGetAttribute)
		return 0;
	if (!pool && (what->device < 0 || cl_driver.cuDeviceGetMemPool(&pool, what->device) != CUDA_SUCCESS))
		return 0;
	if (cl_driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) != CUDA_SUCCESS || !threshold)
		return 0;
	return (uintptr_t)pool;
}

/* Says who keeps what the call lacked.  Without our limbos it may have succeeded. */
static void tell_keepers(const struct cl_retry *retry)
{
	const struct cl_need *what = &retry->what;
	struct cl_lacked lacked = { .bytes = what->bytes, .small = what->from == CL_FROM_SMALL, .pool = reused_pool(what) };
	uint8_t uuid[CL_UUID];

	if (cl_device_uuid(what->device, uuid))
		lacked.uuid = uuid;
	cl_keepers_tell(retry->others, &lacked);
}

static bool again(struct cl_retry *retry)
{
	const unsigned int most = retry->want == CL_RETRY_EVENT ? ATTEMPTS : MEMORY_ATTEMPTS;
	uint64_t now = cl_now(), wait = 100 * MICROSECOND;
	struct outcome outcome = { .gave = false };
	bool hopeless;

	if (retry->attempt == 0)
		retry->deadline = now + cl_options.pressure_wait.number;
	else if (now >= retry->deadline && retry->attempt >= most)
		return false; /* other processes take all that comes free */
	if (retry->attempt == 0 && retry->want == CL_RETRY_MEMORY) {
		cl_count(calls_short);
		find_device(retry);
	}
	hopeless = is_hopeless(retry, &outcome);
	if (hopeless || retry->attempt % HOPE_EVERY == 0)
		retry->hopeless = hopeless;
	/* a pause, since other processes take all that comes free */
	if (retry->attempt >= ATTEMPTS)
		nap(retry->attempt < 10 * ATTEMPTS ? wait : MILLISECOND);
	for (;; outcome.round++) {
		outcome.may_come = false;
		for (unsigned int i = 0; i < sizeof steps / sizeof *steps; i++)
			if ((steps[i].wants & 1u << retry->want) && !(hopeless && steps[i].of_limbos))
				steps[i].take(retry, &outcome);
		if (outcome.gave || !outcome.may_come || cl_now() >= retry->deadline)
			break;
		nap(wait);
		if (wait < 3 * MILLISECOND)
			wait *= 2;
	}
	if (retry->want == CL_RETRY_MEMORY) {
		say(retry, outcome.gave ? "memory came free, trying again" :
			   hopeless   ? "nobody has as much" :
					"nothing to give back");
		if (cl_own_has_file())
			count_wait(retry, cl_now() - now);
		cl_trace(CL_TRACE_WAITED, .size = retry->what.bytes, .value = cl_now() - now,
			 .flags = outcome.gave ? CL_TRACE_DONE : 0);
	}
	retry->attempt++;
	return outcome.gave;
}

bool cl_reclaim_again(struct cl_retry *retry)
{
	bool tries = again(retry);

	if (!tries && !retry->hopeless && retry->want == CL_RETRY_MEMORY)
		tell_keepers(retry);
	return tries;
}

void cl_reclaim_end(struct cl_retry *retry)
{
	/* another thread that retries for this device presses the limbo again at each attempt */
	if (retry->pressed)
		cl_limbo_press_over(&cl_exporter, retry->pressed - 1);
	retry->pressed = 0;
	cl_pressure_end(retry->others);
	retry->others = NULL;
}

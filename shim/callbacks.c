/* SPDX-License-Identifier: Apache-2.0 */
/* Free-memory callbacks: see callbacks.h. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "shim/callbacks.h"
#include "shim/collector.h"
#include "shim/limbo.h"
#include "shim/log.h"
#include "shim/pressure.h"
#include "shim/self.h"
#include "shim/trace.h"

/* An allocation that keeps failing though memory comes free (for others) is tried this often. */
enum { ATTEMPTS = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	cl_free_memory_fn *callback;
	void *data;
} registered[CL_CALLBACKS];
static unsigned int registered_n;

/* A callback that allocates must not run the callbacks. */
static __thread bool inside __attribute__((tls_model("initial-exec")));

int cl_callbacks_register(cl_free_memory_fn *callback, void *data)
{
	int err = callback ? 0 : -EINVAL;

	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; !err && i < registered_n; i++)
		if (registered[i].callback == callback && registered[i].data == data)
			err = -EEXIST;
	if (!err && registered_n == CL_CALLBACKS)
		err = -ENOSPC;
	if (!err) {
		registered[registered_n].callback = callback;
		registered[registered_n++].data = data;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

int cl_callbacks_unregister(cl_free_memory_fn *callback, void *data)
{
	int err = -ENOENT;

	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < registered_n; i++)
		if (registered[i].callback == callback && registered[i].data == data) {
			memmove(&registered[i], &registered[i + 1],
				(--registered_n - i) * sizeof registered[0]);
			err = 0;
			break;
		}
	pthread_mutex_unlock(&lock);
	return err;
}

void cl_callbacks_forget(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	inside = false;
}

/* (records that give no memory, as of an event, are no reason to ask for it again) */
static uint64_t bytes_back(void)
{
	return cl_count_get(limbo_bytes_released);
}

/*
 * This process's own limbo, waiting until @until at most; @ends: also for threads that may be
 * ending contexts, as long as @back() grows by nothing else.  Returns whether it grew.
 */
static bool collect_own(uint64_t until, bool ends, uint64_t (*back)(void))
{
	uint64_t before = back();

	while (cl_limbo_collect(true).held && cl_limbo_reap() && cl_now() < until) {
		/* a holder is dying: that is a matter of milliseconds */
		struct timespec moment = { 0, 2000000 };

		nanosleep(&moment, NULL);
	}
	do
		cl_limbo_collect(true);
	while (cl_limbo_wait_for_others(until, back, ends ? before : UINT64_MAX));
	return back() != before;
}

static bool run_registered(size_t bytes)
{
	cl_free_memory_fn *callback[CL_CALLBACKS];
	void *data[CL_CALLBACKS];
	unsigned int n;
	size_t freed = 0;

	pthread_mutex_lock(&lock);
	n = registered_n;
	for (unsigned int i = 0; i < n; i++) {
		callback[i] = registered[i].callback;
		data[i] = registered[i].data;
	}
	pthread_mutex_unlock(&lock);
	for (unsigned int i = 0; i < n; i++)
		freed += callback[i](bytes, data[i]);
	return freed != 0;
}

bool cl_callbacks_run(size_t bytes, unsigned int attempt)
{
	CL_UNCANCELLED;
	/* from one attempt of this thread to the next */
	static __thread struct {
		uint64_t until, back;
	} wait __attribute__((tls_model("initial-exec")));
	bool freed = false, ends;
	uint64_t began = cl_now();

	if (inside || attempt >= ATTEMPTS || cl_options.disable.number || cl_self.ended)
		return false;
	if (cl_self_is_copy())
		cl_self_begin_anew();
	inside = true;
	cl_self_prepare();
	cl_count(callbacks_run);
	/* (what came free at the first attempt may not be enough) */
	if (attempt == 0)
		wait.until = began + cl_options.pressure_wait.number;
	ends = attempt == 0 || began < wait.until;
	if (cl_sharing())
		freed = collect_own(ends ? wait.until : began + cl_options.pressure_wait.number, ends,
				    bytes_back);
	freed |= run_registered(bytes);
	if (!freed)
		freed = cl_pressure_ask(cl_options.pressure_wait.number) != 0;
	if (!freed && cl_sharing())
		freed = cl_limbo_release_kept().blocks != 0;
	/* the collector may have given something back since the driver said no */
	freed |= cl_sharing() && (attempt == 0 || bytes_back() != wait.back);
	wait.back = bytes_back();
	cl_log(CL_LOG_DEBUG, "an allocation of %zu bytes failed (attempt %u): %s", bytes, attempt,
	       freed ? "memory came free, trying again" : "nothing to give back");
	cl_trace(CL_TRACE_WAITED, .size = bytes, .value = cl_now() - began,
		 .flags = freed ? CL_TRACE_DONE : 0);
	inside = false;
	return freed;
}

static void collect_inline(void)
{
	CL_UNCANCELLED;

	/* (a callback that allocates is in the middle of more than this) */
	if (!inside && !cl_self.ended)
		cl_collector_called();
}

void cl_memory_allocates(void)
{
	if (cl_collector_is_inline() && !cl_self_is_copy())
		collect_inline();
}

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
static bool give_for_event(unsigned int attempt, uint64_t until, uint64_t (*back)(void))
{
	uint64_t before = back ? back() : 0;
	bool given;

	inside = true;
	cl_count(callbacks_run);
	if (back && (attempt == 0 || back == bytes_back))
		collect_own(until, true, back);
	if (attempt == 0)
		run_registered(0);
	/* events are this process's own: no other process could give any back */
	if (back == cl_limbo_events_back && back() == before)
		cl_limbo_force_events_out(until);
	inside = false;
	given = back && back() != before;
	/* their records wait on; it may have looked while we had them, and sleep for good */
	if (given)
		cl_collector_wake();
	return given;
}

bool cl_callbacks_run_for_event(unsigned int attempt, struct cl_event_wait *wait)
{
	CL_UNCANCELLED;
	bool again;

	if (inside || cl_options.disable.number || cl_self.ended || !cl_sharing())
		return false;
	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return false;
	}
	if (attempt == 0)
		wait->until = cl_now() + cl_options.pressure_wait.number;
	else if (attempt >= ATTEMPTS && cl_now() >= wait->until)
		return false; /* others take all that comes free */
	/* others may have given one back since the driver said no; then nothing is forced */
	again = attempt && cl_limbo_events_back() != wait->back;
	if (!again) {
		if (cl_limbo_has_events())
			again = give_for_event(attempt, wait->until, cl_limbo_events_back);
		else
			again = give_for_event(attempt, wait->until, is_at_limit() ? NULL : bytes_back);
		/* (asked after the look at what the limbo has: what is not there any more has gone by now) */
		again |= attempt == 0 || cl_limbo_events_back() != wait->back;
	}
	wait->back = cl_limbo_events_back();
	return again;
}

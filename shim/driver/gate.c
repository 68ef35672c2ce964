/* SPDX-License-Identifier: Apache-2.0 */
/* The gate to contexts: see gate.h. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/driver/gate.h"
#include "shim/self/self.h"

enum { DEVICES = CL_ASKED_DEVICES };

static struct {
	struct cl_list inside;	    /* our threads that are in the driver with a context */
	struct cl_list ending;	    /* the program's threads that end contexts */
	uint32_t borrowed[DEVICES]; /* our threads that have a primary context retained for a moment */
} gate;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
_Atomic uint32_t cl_contexts_epoch;

void cl_contexts_changed(void)
{
	/* release, and last: who sees it finds none of what was known before */
	atomic_fetch_add_explicit(&cl_contexts_epoch, 1, memory_order_release);
}

bool cl_gate_ends_locked(CUcontext ctx, CUdevice device, bool primary)
{
	const struct cl_gate_use *use;

	CL_LIST_EACH (use, &gate.ending, const struct cl_gate_use, node)
		if (cl_gate_is_of(use, ctx, device, primary))
			return true;
	return false;
}

/* ------------------------------------------------------------------ inside */
void cl_gate_enter_locked(struct cl_gate_use *use, CUcontext ctx, CUdevice device)
{
	*use = (struct cl_gate_use){ .ctx = ctx, .device = device, .thread = pthread_self() };
	cl_list_add_front(&gate.inside, &use->node);
}

void cl_gate_leave_locked(struct cl_gate_use *use)
{
	cl_list_remove(&gate.inside, &use->node);
	pthread_cond_broadcast(&changed);
}

bool cl_gate_is_used_locked(void)
{
	return gate.inside.n != 0;
}

/* ------------------------------------------------------------ closed and open */
/* Whether another thread is inside with @ctx (NULL: the primary context of @device). */
static bool others_are_inside_locked(CUcontext ctx, CUdevice device)
{
	const struct cl_gate_use *in;

	CL_LIST_EACH (in, &gate.inside, const struct cl_gate_use, node)
		/* a context of the device we are not sure of counts as the primary one */
		if (!pthread_equal(in->thread, pthread_self()) &&
		    (ctx ? in->ctx == ctx : in->device == device))
			return true;
	return !ctx && device >= 0 && device < DEVICES && gate.borrowed[device];
}

void cl_gate_close(CUcontext ctx, CUdevice device)
{
	struct cl_gate_use *use = calloc(1, sizeof *use);

	cl_lock(&cl_exports_lock);
	if (use) {
		*use = (struct cl_gate_use){ .ctx = ctx, .device = device, .thread = pthread_self() };
		cl_list_add_front(&gate.ending, &use->node);
	}
	while (others_are_inside_locked(ctx, device))
		cl_lock_wait(&changed, &cl_exports_lock);
	cl_unlock(&cl_exports_lock);
}

struct cl_gate_use *cl_gate_open_locked(CUcontext ctx, CUdevice device)
{
	struct cl_gate_use *use;

	CL_LIST_EACH (use, &gate.ending, struct cl_gate_use, node)
		if (use->ctx == ctx && use->device == device && pthread_equal(use->thread, pthread_self())) {
			cl_list_remove(&gate.ending, &use->node);
			return use;
		}
	return NULL;
}

/* ---------------------------------------------------------- borrowed contexts */
void cl_gate_borrow_begin(CUdevice device)
{
	struct timespec until = cl_after(5 * CL_END_WAIT);

	cl_lock(&cl_exports_lock);
	while (cl_gate_ends_locked(NULL, device, true) &&
	       cl_lock_wait_until(&changed, &cl_exports_lock, &until))
		;
	gate.borrowed[device]++;
	cl_unlock(&cl_exports_lock);
}

void cl_gate_borrow_end(CUdevice device)
{
	cl_lock(&cl_exports_lock);
	gate.borrowed[device]--;
	pthread_cond_broadcast(&changed);
	cl_unlock(&cl_exports_lock);
}

/* ------------------------------------------------------------------- waiting */
void cl_gate_wait_locked(void)
{
	cl_lock_wait(&changed, &cl_exports_lock);
}

bool cl_gate_wait_until_locked(uint64_t until)
{
	struct timespec t = cl_clock_kernel(until);

	return cl_lock_wait_until(&changed, &cl_exports_lock, &t);
}

void cl_gate_changed_locked(void)
{
	pthread_cond_broadcast(&changed);
}

/* ------------------------------------- calls of a process that does not share yet */
/*
 * Sequentially consistent: either the call sees that it is watched, or who ends a context
 * in a process that shares sees the call.
 */
static _Atomic bool watched;
/* How many are in the driver: of each device, and of those that name none. */
static _Atomic uint32_t unwatched[DEVICES + 1];

static _Atomic uint32_t *unwatched_of(CUdevice device)
{
	return &unwatched[device >= 0 && device < DEVICES ? device : DEVICES];
}

struct cl_context_call cl_context_call_begin(CUdevice device)
{
	struct cl_context_call call = { .device = device };

	if (atomic_load_explicit(&watched, memory_order_relaxed))
		return call;
	/* (a thread that is cancelled in the driver would be waited for) */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call.cancel_state);
	atomic_fetch_add(unwatched_of(device), 1);
	call.unwatched = !atomic_load(&watched);
	if (!call.unwatched)
		cl_context_call_end(&call);
	return call;
}

void cl_context_call_end(const struct cl_context_call *call)
{
	_Atomic uint32_t *calls = unwatched_of(call->device);
	uint32_t n = atomic_load(calls);

	/* (a child that was forked in a signal handler amid the call has forgotten it) */
	while (n && !atomic_compare_exchange_weak(calls, &n, n - 1))
		;
	if (atomic_load(&watched))
		syscall(SYS_futex, calls, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	pthread_setcancelstate(call->cancel_state, NULL);
}

/* In a forked child, which may have calls of its parent's threads: nothing of CUDA works there. */
static bool driver_works(void)
{
	unsigned int flags;
	int active;

	return !cl_driver.cuDevicePrimaryCtxGetState ||
	       cl_driver.cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS;
}

void cl_gate_await_unwatched(CUdevice device, uint64_t end)
{
	_Atomic uint32_t *calls = unwatched_of(device);
	struct timespec until = cl_clock_kernel(end);
	uint32_t n;

	while ((n = atomic_load(calls)) != 0 && cl_now() < end && driver_works())
		syscall(SYS_futex, calls, FUTEX_WAIT_BITSET_PRIVATE, n, &until, NULL,
			FUTEX_BITSET_MATCH_ANY);
}

void cl_gate_watch(void)
{
	atomic_store(&watched, true);
}

/* ------------------------------------------------ primary contexts that are made */
struct cl_context_making cl_context_make_begin(CUdevice device)
{
	struct cl_context_making making = { .call = cl_context_call_begin(device), .device = device };

	if (making.call.unwatched || cl_self_is_copy() || device < 0 || device >= DEVICES)
		return making;
	/* (until make_end(), or who ends it would wait for a thread that is no more) */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &making.cancel_state);
	cl_gate_borrow_begin(device);
	making.begun = true;
	return making;
}

void cl_context_make_end(const struct cl_context_making *making)
{
	if (making->call.unwatched)
		cl_context_call_end(&making->call);
	if (!making->begun)
		return;
	cl_gate_borrow_end(making->device);
	pthread_setcancelstate(making->cancel_state, NULL);
}

void cl_gate_forget(void)
{
	memset(&gate, 0, sizeof gate);
	changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	for (int i = 0; i <= DEVICES; i++)
		atomic_store(&unwatched[i], 0);
	atomic_store(&watched, false);
}

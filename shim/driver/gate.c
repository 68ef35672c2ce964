/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that make and end contexts: see gate.h. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/driver/gate.h"
#include "shim/self/self.h"

enum { DEVICES = CL_BORROW_DEVICES };

static struct {
	uint32_t ending;   /* how many calls of the program may be ending the context */
	uint32_t borrowed; /* how many borrows and creations of it are under way */
} primary[DEVICES]; /* the primary context of each device */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* ---------------------------------------------------------- borrowed contexts */
void cl_gate_borrow_begin(CUdevice device)
{
	struct timespec until = cl_after(5 * CL_END_WAIT);

	cl_lock(&cl_exports_lock);
	while (primary[device].ending &&
	       cl_lock_wait_until(&changed, &cl_exports_lock, &until))
		;
	primary[device].borrowed++;
	cl_unlock(&cl_exports_lock);
}

void cl_gate_borrow_end(CUdevice device)
{
	cl_lock(&cl_exports_lock);
	primary[device].borrowed--;
	pthread_cond_broadcast(&changed);
	cl_unlock(&cl_exports_lock);
}

bool cl_gate_is_borrowed_locked(CUdevice device)
{
	return device >= 0 && device < DEVICES && primary[device].borrowed;
}

void cl_gate_primary_ends_locked(CUdevice device, int by)
{
	if (device >= 0 && device < DEVICES)
		primary[device].ending += (uint32_t)by;
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
 * True once the process begins to share.  This flag and the counters below are sequentially
 * consistent: either a call sees that the flag is set, or a thread that ends a context sees the call.
 */
static _Atomic bool watched;
/* Unwatched calls in the driver, for each device; the last counts calls that name none. */
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
	/* a thread that is cancelled in the driver would never end its call */
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

	/* 0: a signal handler has forked amid the call, and the child has reset its counters */
	while (n && !atomic_compare_exchange_weak(calls, &n, n - 1))
		;
	if (atomic_load(&watched))
		syscall(SYS_futex, calls, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	pthread_setcancelstate(call->cancel_state, NULL);
}

void cl_gate_await_unwatched(CUdevice device, uint64_t end)
{
	_Atomic uint32_t *calls = unwatched_of(device);
	struct timespec until = cl_clock_kernel(end);
	uint32_t n;

	/* a forked child's counters may have calls of its parent's threads, which never end */
	while ((n = atomic_load(calls)) != 0 && cl_now() < end && cl_driver_works())
		syscall(SYS_futex, calls, FUTEX_WAIT_BITSET_PRIVATE, n, &until, NULL,
			FUTEX_BITSET_MATCH_ANY);
}

void cl_gate_watch(void)
{
	atomic_store(&watched, true);
}

/* ------------------------------------------------- creations of primary contexts */
struct cl_context_creation cl_context_creation_begin(CUdevice device)
{
	struct cl_context_creation creation = { .call = cl_context_call_begin(device), .device = device };

	if (creation.call.unwatched || cl_self_is_copy() || device < 0 || device >= DEVICES)
		return creation;
	/* a cancelled thread would never end its borrow, and others would wait */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &creation.cancel_state);
	cl_gate_borrow_begin(device);
	creation.begun = true;
	return creation;
}

void cl_context_creation_end(const struct cl_context_creation *creation)
{
	if (creation->call.unwatched)
		cl_context_call_end(&creation->call);
	if (!creation->begun)
		return;
	cl_gate_borrow_end(creation->device);
	pthread_setcancelstate(creation->cancel_state, NULL);
}

void cl_gate_forget(void)
{
	memset(primary, 0, sizeof primary);
	changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	for (int i = 0; i <= DEVICES; i++)
		atomic_store(&unwatched[i], 0);
	atomic_store(&watched, false);
}

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

/* ------------------------------------------------------- calls that nobody watches */
/*
 * True once the process begins to share.  This flag and the words below are sequentially
 * consistent: either a call sees that the flag is set, or a thread that ends a context sees the call.
 */
static _Atomic bool watched;

/*
 * A word for each device; the last is for calls that name none.  The low half counts unwatched calls that
 * are in the driver, the high half the program's references to the primary context.  Both are in one word,
 * so that the last reference goes either before a call begins that relies on it, or while that call is
 * counted.
 */
static _Atomic uint64_t words[DEVICES + 1];
static const uint64_t a_call = 1, a_reference = UINT64_C(1) << 32;
static _Atomic uint32_t waiting[DEVICES + 1]; /* threads that wait until the low half of a word is 0 */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of a word is at its address");

static size_t index_of(CUdevice device)
{
	return device >= 0 && device < DEVICES ? (size_t)device : DEVICES;
}
static uint32_t calls_in(uint64_t word)
{
	return (uint32_t)word;
}
static uint32_t references_in(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

struct cl_context_call cl_context_call_begin(CUdevice device)
{
	struct cl_context_call call = { .device = device };

	if (atomic_load_explicit(&watched, memory_order_relaxed))
		return call;
	/* a thread that is cancelled in the driver would never end its call */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call.cancel_state);
	atomic_fetch_add(&words[index_of(device)], a_call);
	call.unwatched = !atomic_load(&watched);
	if (!call.unwatched)
		cl_context_call_end(&call);
	return call;
}

/* Ends an unwatched call, which has got the program @references (0 or 1) to its context. */
static void end_call(const struct cl_context_call *call, uint64_t references)
{
	size_t i = index_of(call->device);
	uint64_t word = atomic_load(&words[i]);

	/* 0: a signal handler has forked amid the call, and the child has reset its words */
	while (calls_in(word) &&
	       !atomic_compare_exchange_weak(&words[i], &word, word - a_call + references * a_reference))
		;
	if (atomic_load(&waiting[i]))
		syscall(SYS_futex, &words[i], FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	if (call->beside_others)
		cl_cancel_type_restore(&call->cancel_state);
	else
		pthread_setcancelstate(call->cancel_state, NULL);
}

void cl_context_call_end(const struct cl_context_call *call)
{
	end_call(call, 0);
}

void cl_gate_await_unwatched(CUdevice device, uint64_t end)
{
	size_t i = index_of(device);
	struct timespec until;
	uint32_t n;

	if (!calls_in(atomic_load(&words[i])))
		return;
	until = cl_clock_kernel(end);
	atomic_fetch_add(&waiting[i], 1);
	/* a forked child's words may count calls of its parent's threads, which never end */
	while ((n = calls_in(atomic_load(&words[i]))) != 0 && cl_now() < end && cl_driver_works())
		syscall(SYS_futex, &words[i], FUTEX_WAIT_BITSET_PRIVATE, n, &until, NULL,
			FUTEX_BITSET_MATCH_ANY);
	atomic_fetch_sub(&waiting[i], 1);
}

void cl_gate_watch(void)
{
	atomic_store(&watched, true);
}

/* ------------------------------------------------ references to primary contexts */
/*
 * Begins an unwatched call if the program has more than @least references to the primary context of
 * @device, and takes @references of them.  Else returns false.
 */
static bool begin_beside_others(struct cl_context_call *call, CUdevice device, uint32_t least, uint64_t references)
{
	size_t i = index_of(device);
	uint64_t word = atomic_load_explicit(&words[i], memory_order_relaxed);

	if (i == DEVICES || references_in(word) <= least)
		return false;
	*call = (struct cl_context_call){ .device = device, .unwatched = true, .beside_others = true };
	/* the driver only counts, and passes no cancellation point */
	call->cancel_state = cl_cancel_type_defer();
	while (!atomic_compare_exchange_weak(&words[i], &word, word + a_call - references * a_reference))
		if (references_in(word) <= least) {
			cl_cancel_type_restore(&call->cancel_state);
			return false;
		}
	return true;
}

struct cl_context_call cl_primary_release_begin(CUdevice device)
{
	struct cl_context_call call;
	uint64_t word;

	if (begin_beside_others(&call, device, 1, 1))
		return call;
	if (index_of(device) < DEVICES) {
		word = atomic_load(&words[device]);
		while (references_in(word) &&
		       !atomic_compare_exchange_weak(&words[device], &word, word - a_reference))
			;
	}
	return cl_context_call_begin(device);
}

void cl_gate_no_references(CUdevice device)
{
	if (index_of(device) < DEVICES)
		atomic_fetch_and(&words[device], a_reference - 1);
}

struct cl_context_creation cl_context_creation_begin(CUdevice device)
{
	struct cl_context_creation creation = { .device = device };

	if (begin_beside_others(&creation.call, device, 0, 0))
		return creation;
	creation.call = cl_context_call_begin(device);
	if (creation.call.unwatched || cl_self_is_copy() || device < 0 || device >= DEVICES)
		return creation;
	/* a cancelled thread would never end its borrow, and others would wait */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &creation.cancel_state);
	cl_gate_borrow_begin(device);
	creation.begun = true;
	return creation;
}

void cl_context_creation_end(const struct cl_context_creation *creation, bool retained)
{
	size_t i = index_of(creation->device);

	if (creation->call.unwatched) {
		end_call(&creation->call, retained && i < DEVICES);
		return;
	}
	if (!creation->begun)
		return;
	if (retained)
		atomic_fetch_add(&words[i], a_reference);
	cl_gate_borrow_end(creation->device);
	pthread_setcancelstate(creation->cancel_state, NULL);
}

void cl_gate_forget(void)
{
	memset(primary, 0, sizeof primary);
	changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	for (int i = 0; i <= DEVICES; i++) {
		atomic_store(&words[i], 0);
		atomic_store(&waiting[i], 0);
	}
	atomic_store(&watched, false);
}

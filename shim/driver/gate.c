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
 * A word for each device; the last is for calls that name none.  Bits 0 to 15 count calls in the driver that
 * began before the process shared, bits 16 to 31 calls beside others, and the high half counts the
 * program's references to the primary context.  All are in one word, so that the last reference goes
 * either before a call begins that relies on it, or while that call is counted.
 */
static _Atomic uint64_t words[DEVICES + 1];
static const uint64_t a_call = 1, a_call_beside = UINT64_C(1) << 16, a_reference = UINT64_C(1) << 32;
static _Atomic uint32_t waiting[DEVICES + 1]; /* threads that wait for a change of the low half of a word */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of a word is at its address");

static size_t index_of(CUdevice device)
{
	return device >= 0 && device < DEVICES ? (size_t)device : DEVICES;
}
static unsigned int calls_in(uint64_t word)
{
	return word & 0xffff;
}
static unsigned int calls_beside(uint64_t word)
{
	return word >> 16 & 0xffff;
}
static uint32_t references_in(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

static void wake(size_t i)
{
	if (atomic_load(&waiting[i]))
		syscall(SYS_futex, &words[i], FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
/* Waits until the low half of the word is no longer that of @word, until @end (cl_now(), ns), or less. */
static void await_change(size_t i, uint64_t word, uint64_t end)
{
	struct timespec until = cl_clock_kernel(end);
	uint32_t n;

	atomic_fetch_add(&waiting[i], 1);
	if (atomic_load(&words[i]) == word)
		syscall(SYS_futex, &words[i], FUTEX_WAIT_BITSET_PRIVATE, (uint32_t)word, &until, NULL,
			FUTEX_BITSET_MATCH_ANY);
	n = atomic_load(&waiting[i]);
	/* 0: a signal handler has forked amid the wait, and the child has reset its counters */
	while (n && !atomic_compare_exchange_weak(&waiting[i], &n, n - 1))
		;
}

struct cl_context_call cl_context_call_begin(CUdevice device)
{
	struct cl_context_call call = { .device = device };

	if (atomic_load_explicit(&watched, memory_order_relaxed))
		return call;
	/* a thread that is cancelled in the driver would never end its call */
	call.cancel_state = cl_cancel_disable();
	atomic_fetch_add(&words[index_of(device)], a_call);
	call.unwatched = !atomic_load(&watched);
	if (!call.unwatched)
		cl_context_call_end(&call);
	return call;
}

/* Ends an unwatched call, which has got the program @references (0 or 1) to its context. */
static void end_call(const struct cl_context_call *call, uint64_t references)
{
	const uint64_t one = call->beside_others ? a_call_beside : a_call;
	size_t i = index_of(call->device);
	uint64_t word = atomic_load(&words[i]);

	/* 0: as in await_change() */
	while (word & one * 0xffff &&
	       !atomic_compare_exchange_weak(&words[i], &word, word - one + references * a_reference))
		;
	wake(i);
	cl_cancel_restore(call->cancel_state);
}

void cl_context_call_end(const struct cl_context_call *call)
{
	end_call(call, 0);
}

void cl_gate_await_unwatched(CUdevice device, uint64_t end)
{
	size_t i = index_of(device);
	uint64_t word;

	/* a forked child's words may count calls of its parent's threads, which never end */
	while (calls_in(word = atomic_load(&words[i])) && cl_now() < end && cl_driver_works())
		await_change(i, word, end);
}

void cl_gate_watch(void)
{
	atomic_store(&watched, true);
}

/* ------------------------------------------------ references to primary contexts */
/*
 * Waits for calls that rely on a reference which is about to go.  As soon as the program has got another
 * one, they rely on that.  Such a call waits for nobody but the driver, so there is no limit of time.
 */
static void await_calls_beside(size_t i)
{
	uint64_t word;

	while (calls_beside(word = atomic_load(&words[i])) && !references_in(word) && cl_driver_works())
		await_change(i, word, cl_now() + 5 * CL_END_WAIT);
}

/*
 * Begins a call beside others if the program has more than @least references to the primary context of
 * @device, and takes @references of them.  Else returns false.
 */
static bool begin_beside_others(struct cl_context_call *call, CUdevice device, uint32_t least, uint64_t references)
{
	size_t i = index_of(device);
	uint64_t word = atomic_load_explicit(&words[i], memory_order_relaxed);

	if (i == DEVICES || references_in(word) <= least)
		return false;
	*call = (struct cl_context_call){ .device = device, .unwatched = true, .beside_others = true };
	call->cancel_state = cl_cancel_disable();
	while (!atomic_compare_exchange_weak(&words[i], &word, word + a_call_beside - references * a_reference))
		if (references_in(word) <= least) {
			cl_cancel_restore(call->cancel_state);
			return false;
		}
	return true;
}

struct cl_context_call cl_primary_release_begin(CUdevice device)
{
	struct cl_context_call call;
	size_t i = index_of(device);
	uint64_t word;

	if (begin_beside_others(&call, device, 1, 1))
		return call;
	word = atomic_load(&words[i]);
	while (references_in(word) && !atomic_compare_exchange_weak(&words[i], &word, word - a_reference))
		;
	if (references_in(word) == 1 && atomic_load(&watched))
		await_calls_beside(i);
	return cl_context_call_begin(device);
}

void cl_gate_drop_references(CUdevice device)
{
	for (size_t i = 0; i < DEVICES; i++)
		if (i == index_of(device) || device < 0)
			atomic_fetch_and(&words[i], a_reference - 1);
}

void cl_gate_drop_references_and_wait(CUdevice device)
{
	cl_gate_drop_references(device);
	for (size_t i = 0; i < DEVICES && atomic_load(&watched); i++)
		if (i == index_of(device) || device < 0)
			await_calls_beside(i);
}

struct cl_context_creation cl_context_creation_begin(CUdevice device)
{
	struct cl_context_creation creation = { .call = cl_context_call_begin(device), .device = device };

	if (creation.call.unwatched || !cl_guard_enter() || device < 0 || device >= DEVICES)
		return creation;
	/* a cancelled thread would never end its borrow, and others would wait */
	creation.cancel_state = cl_cancel_disable();
	cl_gate_borrow_begin(device);
	creation.begun = true;
	return creation;
}

struct cl_context_creation cl_primary_retain_begin(CUdevice device)
{
	struct cl_context_creation creation = { .device = device };

	return begin_beside_others(&creation.call, device, 0, 0) ? creation : cl_context_creation_begin(device);
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
	if (retained) {
		atomic_fetch_add(&words[i], a_reference);
		wake(i);
	}
	cl_gate_borrow_end(creation->device);
	cl_cancel_restore(creation->cancel_state);
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

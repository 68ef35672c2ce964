/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that make and end contexts: see gate.h. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/hot.h"
#include "shim/driver/gate.h"
#include "shim/self/self.h"

enum { DEVICES = CL_BORROW_DEVICES };

/*
 * The primary context of each device; the last entry is for calls that name none.  Each has a line of the
 * processor's cache: threads that use one device do not slow down those that use another.
 */
static struct {
	_Alignas(64) _Atomic uint64_t word; /* see below */
	_Atomic uint32_t waiting; /* threads that wait for a change of the low half of the word */
	uint32_t ending;	  /* how many calls of the program that may end the context are under way */
	uint32_t borrowed;	  /* how many borrows and creations of it are under way */
} primary[DEVICES + 1];
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* ---------------------------------------------------------- borrowed contexts */
void cl_gate_borrow_begin(CUdevice device)
{
	struct timespec until = cl_after(CL_DRIVER_WAIT);

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

CL_HOT_SHARING void cl_gate_changed_locked(void)
{
	pthread_cond_broadcast(&changed);
}

/* ------------------------------------------------------- calls that nobody watches */
/*
 * True once the process begins to share.  This flag and the words are sequentially
 * consistent: either a call sees that the flag is set, or a thread that ends a context sees the call.
 */
static _Atomic bool watched;

/*
 * Bits 0 to 15 of a word count calls in the driver that began before the process shared, bits 16 to 31 calls beside
 * others, and the high half counts the program's references to the primary context.  All are in one word,
 * so that the last reference goes either before a call begins that relies on it, or while that call is counted.
 */
static const uint64_t a_call = 1, a_call_beside = UINT64_C(1) << 16, a_reference = UINT64_C(1) << 32;

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

static __attribute__((noinline, cold)) void wake_all(size_t i)
{
	syscall(SYS_futex, &primary[i].word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
static inline void wake(size_t i)
{
	if (__builtin_expect(atomic_load(&primary[i].waiting), 0))
		wake_all(i);
}
/* Waits until the low half of the word is no longer that of @word, until @end (cl_now(), ns), or less. */
static void await_change(size_t i, uint64_t word, uint64_t end)
{
	struct timespec until = cl_clock_kernel(end);
	uint32_t n;

	atomic_fetch_add(&primary[i].waiting, 1);
	if (atomic_load(&primary[i].word) == word)
		syscall(SYS_futex, &primary[i].word, FUTEX_WAIT_BITSET_PRIVATE, (uint32_t)word, &until, NULL,
			FUTEX_BITSET_MATCH_ANY);
	n = atomic_load(&primary[i].waiting);
	/* 0: a signal handler has forked amid the wait, and the child has reset its counters */
	while (n && !atomic_compare_exchange_weak(&primary[i].waiting, &n, n - 1))
		;
}

struct cl_context_call cl_context_call_begin(CUdevice device)
{
	struct cl_context_call call = { .device = device };

	if (atomic_load_explicit(&watched, memory_order_relaxed))
		return call;
	/* a thread that is cancelled in the driver would never end its call */
	call.cancel_state = cl_cancel_disable();
	atomic_fetch_add(&primary[index_of(device)].word, a_call);
	call.unwatched = !atomic_load(&watched);
	if (!call.unwatched)
		cl_context_call_end(&call);
	return call;
}

/*
 * Takes one call of the kind @call, a_call or a_call_beside, off the word.  Adds @references, 0 or 1: how many
 * that call has got for the program.
 */
static inline void uncount(size_t i, uint64_t call, uint64_t references)
{
	uint64_t word = atomic_load_explicit(&primary[i].word, memory_order_relaxed);

	/* 0: as in await_change() */
	while (word & call * 0xffff &&
	       !atomic_compare_exchange_weak(&primary[i].word, &word, word - call + references * a_reference))
		;
	wake(i);
}

static void end_call(const struct cl_context_call *call, uint64_t references)
{
	uncount(index_of(call->device), a_call, references);
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
	while (calls_in(word = atomic_load(&primary[i].word)) && cl_now() < end && cl_driver_works())
		await_change(i, word, end);
}

void cl_gate_watch(void)
{
	atomic_store(&watched, true);
}

/* ------------------------------------------------ references to primary contexts */
/*
 * Waits for calls that rely on a reference which is about to go.  As soon as the program has got another
 * one, they rely on that.  Such a call waits for nobody but the driver, so there is no limit of time: this thread
 * looks again each CL_DRIVER_WAIT.
 */
static void await_calls_beside(size_t i)
{
	uint64_t word;

	while (calls_beside(word = atomic_load(&primary[i].word)) && !references_in(word) && cl_driver_works())
		await_change(i, word, cl_now() + CL_DRIVER_WAIT);
}

/*
 * The calls beside others that this thread is in: how many, and of which device.  A second one may begin
 * within the first, in a signal handler or in what a tool does there; one of another device goes the long way.
 */
static __thread struct {
	bool known; /* forget_calls_of_thread() will be called */
	uint8_t device;
	uint16_t depth;
} inside __attribute__((tls_model("initial-exec")));
static _Atomic uint64_t thread_end; /* 1 + the key whose destructor that is; 0: none yet */

/*
 * Called at the end of a thread that was in a call beside others.  If it was cancelled in one, the last
 * release would wait for that for ever.  A thread does not disable cancellation around such a call,
 * because that costs as much as all the rest.
 */
static void forget_calls_of_thread(void *unused)
{
	(void)unused;
	for (; inside.depth; inside.depth--)
		uncount(inside.device, a_call_beside, 0);
}

/* Has forget_calls_of_thread() called when this thread ends.  Returns false if the C library has no room for that. */
static bool make_known(void)
{
	CL_CANCELLED_LATER;
	uint64_t none = 0, key = atomic_load(&thread_end);

	if (!key) {
		pthread_key_t new;

		if (pthread_key_create(&new, forget_calls_of_thread))
			return false;
		key = (uint64_t)new + 1;
		if (!atomic_compare_exchange_strong(&thread_end, &none, key)) {
			pthread_key_delete(new);
			key = none;
		}
	}
	inside.known = !pthread_setspecific((pthread_key_t)(key - 1), &thread_end);
	return inside.known;
}

/* For a thread that is in such a call already, or has never been in one.  Returns false for the long way. */
static __attribute__((noinline, cold)) bool may_enter(size_t i)
{
	return (inside.known || make_known()) && (!inside.depth || inside.device == i);
}

/* Begins a call beside others that takes @taken (0 or 1) references, if the program has more than that. */
static inline __attribute__((always_inline)) int begin_beside(CUdevice device, uint32_t taken)
{
	const size_t i = (size_t)(unsigned int)device;
	int cancel_type;
	uint64_t word;

	if (__builtin_expect(i >= DEVICES, 0) ||
	    (__builtin_expect(!inside.known || inside.depth, 0) && !may_enter(i)))
		return CL_NOT_BESIDE;
	cancel_type = cl_cancel_type_defer(); /* so it is cancelled in the driver, if anywhere */
	inside.device = (uint8_t)i;
	inside.depth++;
	word = atomic_load_explicit(&primary[i].word, memory_order_relaxed);
	do {
		if (__builtin_expect(references_in(word) <= taken, 0)) {
			inside.depth--;
			cl_cancel_type_restore(&cancel_type);
			return CL_NOT_BESIDE;
		}
	} while (!atomic_compare_exchange_weak(&primary[i].word, &word, word + a_call_beside - taken * a_reference));
	return cancel_type;
}

CL_HOT_SHARING int cl_retain_beside_begin(CUdevice device)
{
	return begin_beside(device, 0);
}

CL_HOT_SHARING int cl_release_beside_begin(CUdevice device)
{
	return begin_beside(device, 1);
}

CL_HOT_SHARING void cl_beside_end(CUdevice device, int cancel_type, bool retained)
{
	uncount((size_t)(unsigned int)device, a_call_beside, retained);
	inside.depth--;
	cl_cancel_type_restore(&cancel_type);
}

struct cl_context_call cl_primary_release_begin(CUdevice device)
{
	size_t i = index_of(device);
	uint64_t word = atomic_load(&primary[i].word);

	while (references_in(word) && !atomic_compare_exchange_weak(&primary[i].word, &word, word - a_reference))
		;
	if (references_in(word) == 1 && atomic_load(&watched))
		await_calls_beside(i);
	return cl_context_call_begin(device);
}

void cl_gate_drop_references(CUdevice device)
{
	for (size_t i = 0; i < DEVICES; i++)
		if (i == index_of(device) || device < 0)
			atomic_fetch_and(&primary[i].word, a_reference - 1);
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
		atomic_fetch_add(&primary[i].word, a_reference);
		wake(i);
	}
	cl_gate_borrow_end(creation->device);
	cl_cancel_restore(creation->cancel_state);
}

void cl_gate_forget(void)
{
	memset(primary, 0, sizeof primary);
	changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	atomic_store(&watched, false);
}

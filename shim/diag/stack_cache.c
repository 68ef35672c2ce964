/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stack cache: see stack_cache.h.
 *
 * A walk costs the unwinder 2,000 instructions a frame, and programs export, open and close in
 * loops.  So the cache remembers where on the stack a walk found each return address, and
 * each frame pointer that a frame had saved there.  If all of these words still stand there, from
 * the innermost on, the answer is the same.
 *
 * What must hold: nothing is read that may not be mapped.  Only words between the frame at @base
 * and the top of its stack are read, and only if that stack is known to be one of these:
 *   - the stack that the kernel began the process with.  It lies below the 16 bytes of AT_RANDOM, which
 *     the kernel puts above the first frame of all; at most MAIN_STACK below them are read, where
 *     the kernel maps nothing else;
 *   - the stack that pthread_getattr_np() names for this thread.  It is asked once in a thread, since
 *     it allocates and makes system calls, and not in the first thread, for which it would read
 *     /proc/self/maps.
 * A coroutine's stack and an alternate signal stack are neither.  Nor is, in a forked child, the
 * stack of the thread that forked, unless it had asked before.  Such stacks are always walked, and
 * so is a stack that leads to another one, e.g. through a signal's frame.
 *
 * The words that stand there determine where the next return address is if a frame has a fixed
 * size or begins at a saved frame pointer, as in nearly all compiled code.  There are two
 * exceptions.  In functions compiled by gcc that have variables aligned by more than 16 bytes and others of
 * varying size, a word of the frame says where it ends; the cache does not look for it, since most
 * such words of other frames were never written.  And another file's code may be loaded at the
 * same address.  Then a remembered answer could differ from that of a walk.  Only what
 * reports say depends on a stack.
 *
 * On x86-64 only.  There the return address always lies just below the caller's frame (its CFA).
 * Elsewhere (aarch64) a function may put it anywhere, and the unwinder does not say where.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/base/hot.h"
#include "shim/diag/stack_cache.h"

/* Names of stacks (report_data.c) from an earlier epoch are those of the process that forked this one. */
static CL_HOT_DATA _Atomic uint32_t epoch;

void cl_stack_forget_names(void)
{
	atomic_fetch_add_explicit(&epoch, 1, memory_order_relaxed);
}

#if defined(__x86_64__) && defined(__LP64__)

/*
 * PLACES: of the cache.  WORDS: enough for 20 frames and ours; longer walks are not remembered.
 * NEAR: how far below a return address a register's saved value is looked for.
 */
enum { PLACES = 256, WORDS = 48, NEAR = 16, FRAME_POINTER = 6 /* rbp, as DWARF numbers it */ };
#define MAIN_STACK (1u << 20)

struct cl_cached_stack {
	atomic_bool busy; /* some thread uses it */
	bool broken;	  /* cannot be remembered */
	uint32_t n, max;  /* words; 0: nothing is remembered */
	uint32_t frames;  /* of the answer */
	uint32_t serial;  /* of the walk that is remembered here */
	uint32_t name, name_epoch;
	uint64_t base, top;
	uint64_t last; /* where the last return address is */
	/*
	 * the frame pointer's value in the frame that the walk came to last, and where it was
	 * saved; 0: not known
	 */
	uint64_t frame_pointer, frame_pointer_at;
	struct {
		uint64_t value;
		uint32_t up;	 /* bytes from base; return addresses ascend */
		uint32_t wanted; /* the value is a frame of the answer */
	} word[WORDS];
};
static struct cl_cached_stack cached[PLACES];

/* ------------------------------------------------------------- the stack's top */
static CL_HOT_DATA _Atomic uint64_t main_top;

/* The stack of this thread.  low 0: not asked yet; top 0: not known. */
static __thread struct {
	uint64_t low, top;
} own __attribute__((tls_model("initial-exec")));

static void ask_for_own(void)
{
	pthread_attr_t attributes;
	void *low;
	size_t size;

	own.low = 1;
	if (syscall(SYS_gettid) == getpid() || pthread_getattr_np(pthread_self(), &attributes))
		return;
	if (!pthread_attr_getstack(&attributes, &low, &size) && low) {
		own.low = (uint64_t)(uintptr_t)low;
		own.top = own.low + size;
	}
	pthread_attr_destroy(&attributes);
}

/* Returns the top of the stack that @at lies on, or 0 if it is not known. */
static uint64_t top_of(uint64_t at)
{
	uint64_t top = atomic_load_explicit(&main_top, memory_order_relaxed);

	if (!top) {
		/* without AT_RANDOM: 1, below which nothing lies */
		top = getauxval(AT_RANDOM) & ~7ul;
		atomic_store_explicit(&main_top, top ? top : 1, memory_order_relaxed);
	}
	if (at < top && top - at <= MAIN_STACK)
		return top;
	if (!own.low)
		ask_for_own();
	return at >= own.low && at < own.top ? own.top : 0;
}

/* ------------------------------------------------------------- a word on the stack */
/*
 * Sanitizers check the stack as variables, not as words.  Not inlined, since the code would be
 * checked in the function that it is inlined into.
 */
#define AS_IT_IS __attribute__((noinline, no_sanitize("address"), no_sanitize("thread")))

CL_HOT_SHARING AS_IT_IS static bool stands_there(const struct cl_cached_stack *entry)
{
	for (uint32_t i = 0; i < entry->n; i++)
		if (*(const volatile uint64_t *)(entry->base + entry->word[i].up) != entry->word[i].value)
			return false;
	return true;
}

AS_IT_IS static uint64_t word_at(uint64_t at)
{
	return *(const volatile uint64_t *)at;
}

/* ------------------------------------------------------------------- the answer */
static struct cl_cached_stack *place_of(uint64_t base, uint64_t caller)
{
	struct cl_cached_stack *entry = &cached[((base >> 3 ^ caller) * 0x9e3779b97f4a7c15u) >> 56];

	_Static_assert(PLACES == 1 << (64 - 56), "as many as the hash has");
	/* acquire: for what the last user of this place has written */
	return atomic_exchange_explicit(&entry->busy, true, memory_order_acquire) ? NULL : entry;
}

static void leave(struct cl_cached_stack *entry)
{
	/* release: for the next user of this place */
	atomic_store_explicit(&entry->busy, false, memory_order_release);
}

CL_HOT_SHARING static void answer(const struct cl_cached_stack *entry, struct cl_stack *stack)
{
	uint64_t *to = stack->frame;

	stack->n = entry->frames;
	stack->place = (uint32_t)(entry - cached);
	stack->serial = entry->serial;
	stack->epoch = atomic_load_explicit(&epoch, memory_order_relaxed);
	stack->name = entry->name_epoch == stack->epoch ? entry->name : 0;
	for (uint32_t i = 0; i < entry->n && !stack->name; i++)
		if (entry->word[i].wanted)
			*to++ = entry->word[i].value;
}

CL_HOT_SHARING bool cl_stack_cache_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
					struct cl_cached_stack **to_fill)
{
	uint64_t top = top_of(base);
	struct cl_cached_stack *entry = top && !(base & 7) ? place_of(base, caller) : NULL;

	stack->serial = 0;
	stack->name = 0;
	*to_fill = NULL;
	if (!entry)
		return false;
	if (entry->n && entry->base == base && entry->max == max &&
	    base + entry->word[entry->n - 1].up < top && stands_there(entry)) {
		answer(entry, stack);
		leave(entry);
		return true;
	}
	entry->broken = false;
	entry->n = entry->frames = 0;
	entry->max = max;
	entry->base = base;
	entry->top = top;
	entry->last = base - 8;
	entry->name = 0;
	*to_fill = entry;
	return false;
}

/* ------------------------------------------------------------------------ a walk */
static void keep_word(struct cl_cached_stack *entry, uint64_t at, uint64_t value, bool wanted)
{
	uint64_t up = at - entry->base;

	if (entry->n == WORDS || up > UINT32_MAX) {
		entry->broken = true;
		return;
	}
	entry->word[entry->n].value = value;
	entry->word[entry->n].up = (uint32_t)up;
	entry->word[entry->n++].wanted = wanted;
	entry->frames += wanted;
}

/*
 * Finds where, between the last return address and that @at, a function has saved its caller's
 * frame pointer.
 */
static void find_frame_pointer(struct cl_cached_stack *entry, uint64_t at, uint64_t pointer)
{
	if (entry->n && pointer == entry->frame_pointer)
		return;
	entry->frame_pointer = pointer;
	entry->frame_pointer_at = 0;
	/* downwards: other words with this value are variables, which lie below the saved register */
	for (int i = 0; i < NEAR && at > entry->last + 8; i++) {
		at -= 8;
		if (word_at(at) == pointer) {
			entry->frame_pointer_at = at;
			return;
		}
	}
}

/* If the frame that ends @at begins at its frame pointer, that must be the same next time, too. */
static void keep_frame_pointer(struct cl_cached_stack *entry, uint64_t at)
{
	if (entry->frame_pointer <= entry->last || entry->frame_pointer >= at)
		return; /* the register is used for something else */
	if (!entry->frame_pointer_at)
		entry->broken = true;
	else
		keep_word(entry, entry->frame_pointer_at, entry->frame_pointer, false);
}

void cl_stack_cache_frame(struct cl_cached_stack *entry, struct _Unwind_Context *context, bool wanted)
{
	int interrupted; /* by a signal: then no call put the address on the stack */
	uint64_t at = _Unwind_GetCFA(context) - 8, address = _Unwind_GetIPInfo(context, &interrupted);
	bool there = !interrupted && at > entry->last && at < entry->top && !(at & 7);

	if (entry->broken)
		return;
	if (!there || word_at(at) != address) {
		/* the outermost frame has no return address, or 0 */
		entry->broken = address != 0;
		return;
	}
	if (entry->n)
		keep_frame_pointer(entry, at);
	/*
	 * _Unwind_GetGR() can be asked for this register, whose value lies on the stack as the
	 * address does
	 */
	if (address)
		find_frame_pointer(entry, at, _Unwind_GetGR(context, FRAME_POINTER));
	if (!entry->broken)
		keep_word(entry, at, address, wanted);
	entry->last = at;
}

void cl_stack_cache_end(struct cl_cached_stack *entry, bool whole, struct cl_stack *stack)
{
	static _Atomic uint32_t serials;

	if (!whole || entry->broken)
		entry->n = 0;
	if (entry->n) {
		/* 0 stands for none; after 4 billion walks one could be taken for another */
		entry->serial = atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed) + 1;
		answer(entry, stack);
	}
	leave(entry);
}

void cl_stack_name(const struct cl_stack *stack, uint32_t name)
{
	struct cl_cached_stack *entry;

	if (!stack->serial)
		return; /* the stack is not in the cache, and @place is not set */
	entry = &cached[stack->place];
	if (atomic_exchange_explicit(&entry->busy, true, memory_order_acquire))
		return;
	if (entry->n && entry->serial == stack->serial) {
		entry->name = name;
		entry->name_epoch = stack->epoch;
	}
	leave(entry);
}

#else

bool cl_stack_cache_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
		   struct cl_cached_stack **entry)
{
	(void)base, (void)caller, (void)max;
	stack->name = 0;
	*entry = NULL;
	return false;
}

void cl_stack_cache_frame(struct cl_cached_stack *entry, struct _Unwind_Context *context, bool wanted)
{
	(void)entry, (void)context, (void)wanted;
}

void cl_stack_cache_end(struct cl_cached_stack *entry, bool whole, struct cl_stack *stack)
{
	(void)entry, (void)whole, (void)stack;
}

void cl_stack_name(const struct cl_stack *stack, uint32_t name)
{
	(void)stack, (void)name;
}

#endif

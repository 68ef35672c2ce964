/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remembered walks: see stack_cache.h.
 *
 * A walk takes the unwinder 2,000 instructions a frame, and programs export, open
 * and close in loops.  So it is remembered where on the stack a walk found each
 * return address, and each frame pointer that a frame had put there; when all of
 * them stand there still, from the innermost on, the answer is the same.
 *
 * Must hold: nothing is read that may not be mapped.  Only what lies between the
 * frame that asks and the top of the stack that it is on is read, and only if
 * that is known to be one of these:
 *   - the stack that the kernel began the process with: below the 16 bytes of
 *     AT_RANDOM, which the kernel puts above the first frame of all, and at most
 *     MAIN_STACK below, where it maps nothing else;
 *   - what pthread_getattr_np() says is this thread's.  That is asked once in a
 *     thread (it allocates, and makes system calls), and not in the first one,
 *     for which it would read /proc/self/maps.
 * A coroutine's stack and an alternate signal stack are neither; nor is the stack
 * of a thread that forked, in its child, unless it had asked.  There each stack is
 * walked, and so is one that leads to elsewhere, through a signal's frame, say.
 *
 * What stands there says where the next return address is if the frames are of
 * fixed size, or begin at a frame pointer that was put on the stack: that is as
 * good as all of compiled code.  Code that finds its frame in another way (gcc's,
 * where variables are aligned by more than 16 bytes and others vary in size: where
 * the frame ends is in a word of it, which is not looked for, as most such words of
 * other frames were never written), or another file's code loaded at the same
 * address, could make a remembered answer differ from that of a walk.  Nothing but
 * what reports say depends on a stack.
 *
 * On x86-64 only: there the return address is below the frame that was called
 * from (its CFA), always.  Elsewhere (aarch64) a function may put it anywhere,
 * and the unwinder does not say where.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/diag/stack_cache.h"

/* Names of stacks (notes.c) that are older are of another process, the one that forked. */
static _Atomic uint32_t epoch;

void cl_stack_forget_names(void)
{
	atomic_fetch_add_explicit(&epoch, 1, memory_order_relaxed);
}

#if defined(__x86_64__) && defined(__LP64__)

/* WORDS: enough for 20 frames and ours; longer walks are not remembered.  NEAR: registers are put there. */
enum { PLACES = 256, WORDS = 48, NEAR = 16, FRAME_POINTER = 6 /* rbp, as DWARF numbers it */ };
#define MAIN_STACK (1u << 20)

struct cl_walk {
	atomic_bool busy; /* somebody is at it */
	bool broken;	  /* not to be remembered */
	uint32_t n, max;  /* words; 0: nothing is remembered */
	uint32_t frames;  /* of the answer */
	uint32_t serial;  /* of what is remembered here */
	uint32_t name, name_epoch;
	uint64_t base, top;
	uint64_t last; /* where the last return address is */
	/* What is in that register in the frame that the walk came to last, and where that was put; 0: not known. */
	uint64_t frame_pointer, frame_pointer_at;
	struct {
		uint64_t value;
		uint32_t up;	 /* bytes from base; a return address is above all before it */
		uint32_t wanted; /* the value is a frame of the answer */
	} word[WORDS];
};
static struct cl_walk walks[PLACES];

/* ------------------------------------------------------------- the stack's top */
static _Atomic uint64_t main_top;

/* This thread's own; low 0: not asked yet, top 0: not known. */
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

/* The end of the stack that @at is on; 0: not known. */
static uint64_t top_of(uint64_t at)
{
	uint64_t top = atomic_load_explicit(&main_top, memory_order_relaxed);

	if (!top) {
		/* (without it, 1: nothing is below) */
		top = getauxval(AT_RANDOM) & ~7ul;
		atomic_store_explicit(&main_top, top ? top : 1, memory_order_relaxed);
	}
	if (at < top && top - at <= MAIN_STACK)
		return top;
	if (!own.low)
		ask_for_own();
	return at >= own.low && at < own.top ? own.top : 0;
}

/* ------------------------------------------------------------------ a word of it */
/*
 * (The sanitizers know the stack as variables, not as words; not inlined, as what
 * is inlined is sanitized.)
 */
#define AS_IT_IS __attribute__((noinline, no_sanitize("address"), no_sanitize("thread")))

AS_IT_IS static bool stands_there(const struct cl_walk *walk)
{
	for (uint32_t i = 0; i < walk->n; i++)
		if (*(const volatile uint64_t *)(walk->base + walk->word[i].up) != walk->word[i].value)
			return false;
	return true;
}

AS_IT_IS static uint64_t word_at(uint64_t at)
{
	return *(const volatile uint64_t *)at;
}

/* ------------------------------------------------------------------- the answer */
static struct cl_walk *place_of(uint64_t base, uint64_t caller)
{
	struct cl_walk *walk = &walks[((base >> 3 ^ caller) * 0x9e3779b97f4a7c15u) >> 56];

	_Static_assert(PLACES == 1 << (64 - 56), "as many as the hash has");
	/* acquire: what whoever left it has written */
	return atomic_exchange_explicit(&walk->busy, true, memory_order_acquire) ? NULL : walk;
}

static void leave(struct cl_walk *walk)
{
	/* release: for the next one here */
	atomic_store_explicit(&walk->busy, false, memory_order_release);
}

static void answer(const struct cl_walk *walk, struct cl_stack *stack)
{
	uint64_t *to = stack->frame;

	stack->n = walk->frames;
	stack->place = (uint32_t)(walk - walks);
	stack->serial = walk->serial;
	stack->epoch = atomic_load_explicit(&epoch, memory_order_relaxed);
	stack->name = walk->name_epoch == stack->epoch ? walk->name : 0;
	for (uint32_t i = 0; i < walk->n && !stack->name; i++)
		if (walk->word[i].wanted)
			*to++ = walk->word[i].value;
}

bool cl_walks_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
		   struct cl_walk **to_note)
{
	uint64_t top = top_of(base);
	struct cl_walk *walk = top && !(base & 7) ? place_of(base, caller) : NULL;

	stack->serial = 0;
	stack->name = 0;
	*to_note = NULL;
	if (!walk)
		return false;
	if (walk->n && walk->base == base && walk->max == max &&
	    base + walk->word[walk->n - 1].up < top && stands_there(walk)) {
		answer(walk, stack);
		leave(walk);
		return true;
	}
	walk->broken = false;
	walk->n = walk->frames = 0;
	walk->max = max;
	walk->base = base;
	walk->top = top;
	walk->last = base - 8;
	walk->name = 0;
	*to_note = walk;
	return false;
}

/* ------------------------------------------------------------------------ a walk */
static void note_word(struct cl_walk *walk, uint64_t at, uint64_t value, bool wanted)
{
	uint64_t up = at - walk->base;

	if (walk->n == WORDS || up > UINT32_MAX) {
		walk->broken = true;
		return;
	}
	walk->word[walk->n].value = value;
	walk->word[walk->n].up = (uint32_t)up;
	walk->word[walk->n++].wanted = wanted;
	walk->frames += wanted;
}

/* Where between the last return address and the one @at the frame pointer was put that the caller had. */
static void find_frame_pointer(struct cl_walk *walk, uint64_t at, uint64_t pointer)
{
	if (walk->n && pointer == walk->frame_pointer)
		return;
	walk->frame_pointer = pointer;
	walk->frame_pointer_at = 0;
	/* (from above: what else has that value is a variable, below it) */
	for (int i = 0; i < NEAR && at > walk->last + 8; i++) {
		at -= 8;
		if (word_at(at) == pointer) {
			walk->frame_pointer_at = at;
			return;
		}
	}
}

/* The frame that ends @at: does it begin at its frame pointer?  Then that must be as it was, too. */
static void note_frame_pointer(struct cl_walk *walk, uint64_t at)
{
	if (walk->frame_pointer <= walk->last || walk->frame_pointer >= at)
		return; /* the register is used for something else */
	if (!walk->frame_pointer_at)
		walk->broken = true;
	else
		note_word(walk, walk->frame_pointer_at, walk->frame_pointer, false);
}

void cl_walks_frame(struct cl_walk *walk, struct _Unwind_Context *context, bool wanted)
{
	int interrupted; /* by a signal, so that no call put the address there */
	uint64_t at = _Unwind_GetCFA(context) - 8, address = _Unwind_GetIPInfo(context, &interrupted);
	bool there = !interrupted && at > walk->last && at < walk->top && !(at & 7);

	if (walk->broken)
		return;
	if (!there || word_at(at) != address) {
		/* (the outermost frame has no return address, or 0) */
		walk->broken = address != 0;
		return;
	}
	if (walk->n)
		note_frame_pointer(walk, at);
	/* (what of the registers lies beside that address can be read as it can) */
	if (address)
		find_frame_pointer(walk, at, _Unwind_GetGR(context, FRAME_POINTER));
	if (!walk->broken)
		note_word(walk, at, address, wanted);
	walk->last = at;
}

void cl_walks_end(struct cl_walk *walk, bool whole, struct cl_stack *stack)
{
	static _Atomic uint32_t serials;

	if (!whole || walk->broken)
		walk->n = 0;
	if (walk->n) {
		/* (0 is none; after 4 billion walks one could take another's for its own) */
		walk->serial = atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed) + 1;
		answer(walk, stack);
	}
	leave(walk);
}

void cl_stack_name(const struct cl_stack *stack, uint32_t name)
{
	struct cl_walk *walk;

	if (!stack->serial)
		return; /* (then @place says nothing) */
	walk = &walks[stack->place];
	if (atomic_exchange_explicit(&walk->busy, true, memory_order_acquire))
		return;
	if (walk->n && walk->serial == stack->serial) {
		walk->name = name;
		walk->name_epoch = stack->epoch;
	}
	leave(walk);
}

#else

bool cl_walks_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
		   struct cl_walk **walk)
{
	(void)base, (void)caller, (void)max;
	stack->name = 0;
	*walk = NULL;
	return false;
}

void cl_walks_frame(struct cl_walk *walk, struct _Unwind_Context *context, bool wanted)
{
	(void)walk, (void)context, (void)wanted;
}

void cl_walks_end(struct cl_walk *walk, bool whole, struct cl_stack *stack)
{
	(void)walk, (void)whole, (void)stack;
}

void cl_stack_name(const struct cl_stack *stack, uint32_t name)
{
	(void)stack, (void)name;
}

#endif

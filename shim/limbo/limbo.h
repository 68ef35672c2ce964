/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: blocks that the program has freed and the driver has not.
 *
 * A block leaves it when its grace is over, nobody holds it, and (after a
 * stream-ordered free) its stream has got there.  In and out are O(1): the
 * grace is a wheel of buckets, holders that leave say so in the ready map, and
 * what just waits is never looked at.
 *
 * Giving back must not disturb the program: cuMemFree() in one thread waits for
 * all kernels, and meanwhile other threads' cuMemAlloc() and copies wait for it
 * (measured).  A block of the limbo has been waited for already, so it is freed
 * by cuMemFreeAsync() on a stream of our own, which waits for nothing.
 *
 * Functions that end in _locked want cl_exports_lock held; the others take it.
 * None of this file makes a CUDA call: giving back is in release.h, and what goes is
 * found by a collection, collect.h.
 */
#ifndef CL_LIMBO_H
#define CL_LIMBO_H

#include "shim/blocks/blocks.h"

#define CL_BLOCK_BIT(state) (1u << (state))
/* In these a block is on no list, and nothing is counted of it. */
#define CL_BLOCK_NO_LIST                                                                       \
	(CL_BLOCK_BIT(CL_BLOCK_LIVE) | CL_BLOCK_BIT(CL_BLOCK_FREEING) |                        \
	 CL_BLOCK_BIT(CL_BLOCK_RELEASING) | CL_BLOCK_BIT(CL_BLOCK_DELETED))
extern const uint16_t cl_block_steps[CL_BLOCK_STATES]; /* by the state before: a bit for each after */
void cl_block_take_step(struct cl_block *block, enum cl_block_state to); /* a part of the next */

/*
 * Takes a step of the table in limbo.c: @block leaves the list (or wheel, or fence) that its
 * state has, and gets to that of @to; into the wheel it is put by cl_limbo_settle() alone.  A
 * step that the table does not have is not taken, and logged once; builds with --enable-debug
 * and unit tests end there, by cl_block_impossible_step() (NULL: there is none).  The caller
 * holds cl_exports_lock.
 */
static inline void cl_block_set_state(struct cl_block *block, enum cl_block_state to)
{
	/* inline, for each free of what nobody holds goes there */
	if (CL_BLOCK_NO_LIST >> to & CL_BLOCK_NO_LIST >> block->state & cl_block_steps[block->state] >> to & 1)
		block->state = (uint8_t)to;
	else
		cl_block_take_step(block, to);
}
extern void (*cl_block_impossible_step)(const char *from, const char *to);
/* CL_BLOCK_DELETED, and gives its memory back: its record is released, or it has none. */
void cl_limbo_delete_locked(struct cl_block *block);

/*
 * The program freed @block (CL_BLOCK_FREEING).  @now: CLOCK_MONOTONIC, ns.
 * Returns when somebody must look at it: give it to cl_collector_wake_by() once
 * the lock is let go of.  *over, which is false before: the budget of the grace
 * was exceeded, and the caller is to collect what went early before its program's
 * free returns.
 */
uint64_t cl_limbo_enter_locked(struct cl_block *block, uint64_t now, bool *over);

/*
 * Whether what @block will be is not known yet: a thread is in the driver with
 * it, or its context is just ending.  Then cl_gate_wait_locked() and look again.
 */
bool cl_limbo_is_busy_locked(const struct cl_block *block);
/* The block at @key, once no other thread is in the driver with it. */
struct cl_block *cl_limbo_find_settled_locked(enum cl_kind kind, uint64_t key);

/* An own open of @block was closed, or something else about it changed: look at it again. */
void cl_limbo_look_again_locked(struct cl_block *block);

/*
 * Somebody needs memory of device @device, an entry of the header's `device` (CL_ANY_DEVICE:
 * of any).  The grace of all memory of it is over, and until @until (CLOCK_MONOTONIC, ns) that of
 * what is freed, too: what comes free is for who needs it, and must not become limbo again
 * before he has it.  (20 ms at least; and a second at most, whatever others say.)  Nothing is
 * given back yet.
 */
void cl_limbo_press(unsigned int device, uint64_t until);
#define CL_PRESSED_LEAST 20000000ull /* ns */
#define CL_PRESSED_MOST 1000000000ull
/* Until when, for who has needed it since @began: the longer in vain, the longer. */
static inline uint64_t cl_limbo_press_until(uint64_t began, uint64_t now)
{
	return now + CL_PRESSED_LEAST + 2 * (now - began);
}
void cl_limbo_press_over(unsigned int device); /* who needed it has it, or gave up */
#define CL_PRESSED_FOR 20000000ull /* ns */

/*
 * Of the memory of @device, an ordinal (below 0, or one that nobody can name: of all), with
 * what may be of it: the bytes that were ever put into the limbo and given back, as counted for
 * others, and those in it that could go just now.  Zeros without a file.
 */
struct cl_limbo_moved {
	uint64_t entered, returned, could_go;
	unsigned int device; /* its entry, for cl_limbo_press() */
};
struct cl_limbo_moved cl_limbo_moved(int device);
/* How many bytes went back to the driver so far: whether any did meanwhile.  With cl_exports_lock. */
uint64_t cl_limbo_returned_locked(void);

/* How often somebody looks for dead holders while something waits for holders, ns. */
#define CL_REAP_EVERY 100000000ull

/* A hint: any thread, without the lock; a load.  (What is CL_BLOCK_UNTRACKED is not counted.) */
bool cl_limbo_is_empty(void);

void cl_limbo_forget(void); /* in a forked child */

#endif

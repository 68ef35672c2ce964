/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: blocks that the program has freed and the driver has not.
 *
 * A block leaves the limbo when its grace is over, nobody holds it and, after a stream-ordered
 * free, its stream has reached that free.  Entering and leaving are O(1): the grace is a wheel
 * of buckets, a holder that leaves sets a bit in the ready map, and no collection looks at a
 * block that only waits.
 *
 * Giving memory back must not disturb the program.  cuMemFree() in one thread waits for all
 * kernels, and meanwhile cuMemAlloc() and copies of other threads wait for it (measured).  The
 * program's free has already waited for a block of the limbo, so cuMemFreeAsync() on a stream
 * of our own frees the block without waiting.
 *
 * Any thread may call these functions.  Those that end in _locked want cl_exports_lock held;
 * the others take it, unless their comment says otherwise.  None makes a CUDA call: a
 * collection (collector.h) finds the blocks that may go, and release.h gives them back.
 */
#ifndef CL_LIMBO_H
#define CL_LIMBO_H

#include "shim/blocks/blocks.h"

struct cl_exporter;

#define CL_BLOCK_BIT(state) (1u << (state))
/* In these states a block is on no list, and the limbo counts nothing of it. */
#define CL_BLOCK_NO_LIST                                                                       \
	(CL_BLOCK_BIT(CL_BLOCK_LIVE) | CL_BLOCK_BIT(CL_BLOCK_FREEING) |                        \
	 CL_BLOCK_BIT(CL_BLOCK_RELEASING) | CL_BLOCK_BIT(CL_BLOCK_DELETED))
extern const uint16_t cl_block_steps[CL_BLOCK_STATES]; /* by the old state: a bit for each new one */
/* the slow half of cl_block_set_state() */
void cl_block_take_step(struct cl_exporter *ex, struct cl_block *block, enum cl_block_state to);

/*
 * Moves @block to the state @to: takes it off the list, wheel or fence of its old state, and
 * puts it on that of @to.  Only cl_limbo_settle() puts a block into the wheel.  A step that the
 * table in limbo.c lacks is not taken: cl_block_impossible_step() is called unless it is NULL,
 * and an error is logged once.  In builds with --enable-debug that function ends the program.
 * The caller holds cl_exports_lock.
 */
static inline void cl_block_set_state(struct cl_exporter *ex, struct cl_block *block,
				      enum cl_block_state to)
{
	/* This is inline because each free of a block that nobody holds passes here. */
	if (CL_BLOCK_NO_LIST >> to & CL_BLOCK_NO_LIST >> block->state & cl_block_steps[block->state] >> to & 1)
		block->state = (uint8_t)to;
	else
		cl_block_take_step(ex, block, to);
}
extern void (*cl_block_impossible_step)(const char *from, const char *to);
/* Moves @block to CL_BLOCK_DELETED and frees its memory.  It has no record, or that is released. */
void cl_limbo_delete_locked(struct cl_exporter *ex, struct cl_block *block);

/*
 * Puts @block, which the program has freed (CL_BLOCK_FREEING), into the limbo.  @now is
 * CLOCK_MONOTONIC, ns.  Returns when a collection must look at @block, or UINT64_MAX if none
 * needs to: the caller passes that on to cl_collector_wake_by() when it has let go of the lock.
 * *over, false before, becomes true if the budget of the grace or CULIMBO_HELD_BYTES is
 * exceeded: then the caller collects before the program's free returns.
 */
uint64_t cl_limbo_enter_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now,
			       bool *over);

/*
 * True while a thread is in the driver with @block or while its context is ending, so that its
 * next state is not known: the caller waits by cl_gate_wait_locked() and looks again.
 */
bool cl_limbo_is_busy_locked(const struct cl_block *block);
/*
 * Returns the block at @key once it is not busy, or NULL if there is none.  Lets go of the lock
 * while it waits.  For the end of a context it waits a second at most, then returns the block.  Forgets a
 * block whose context is DEAD.
 */
struct cl_block *cl_limbo_find_settled_locked(struct cl_exporter *ex, enum cl_kind kind,
					      uint64_t key);

/*
 * Forgets @block, which leaves the table.  The caller knows one of these of it:
 *  - Its context has ended.
 *  - It went behind our back: the driver has made another block at its address.
 *  - The driver has freed it at once, although others may hold it (CULIMBO_MODE=observe).
 *  - The program unmaps it (virtual memory).
 *  - It has just been made, and got no record, which virtual memory needs.
 * Returns false if @block is deleted.  Returns true if importers still hold its record, so that @block is
 * ORPHANED: the caller must have the collector run within CL_REAP_EVERY (cl_collector_watch_holders()).
 */
bool cl_limbo_forget_block_locked(struct cl_exporter *ex, struct cl_block *block);

/*
 * For the thread that is freeing @block (FREEING) and is back from the driver, whose free has not freed it.
 * If the context of @block has ended meanwhile, forgets @block, sets *orphaned to what
 * cl_limbo_forget_block_locked() returns, and returns true.  Else returns false.
 */
static inline bool cl_limbo_context_died_locked(struct cl_exporter *ex, struct cl_block *block, bool *orphaned)
{
	if (!block->context_died)
		return false;
	*orphaned = cl_limbo_forget_block_locked(ex, block);
	return true;
}

/*
 * A call that may have ended a context is over: moves each BLOCKED block to the state that it belongs in.
 * Returns true if a collection may have passed over something during the call: the caller wakes the collector.
 */
bool cl_limbo_unblock_locked(struct cl_exporter *ex);

/* Returns how many exported events the driver has back, by any way; and counts one more. */
uint64_t cl_limbo_events_back(const struct cl_exporter *ex);
void cl_limbo_event_went(struct cl_exporter *ex);

/* The last own open of @block was closed: if @block is HELD, the next batch looks at it again. */
void cl_limbo_look_again_locked(struct cl_exporter *ex, struct cl_block *block);

/* How often somebody looks for dead holders while a block waits for its holders, ns. */
#define CL_REAP_EVERY 100000000ull

/* Returns true if no block waits; UNTRACKED ones don't count.  A hint: one load, without the lock. */
bool cl_limbo_is_empty(struct cl_exporter *ex);

#endif

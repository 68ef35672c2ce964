/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grace: freed blocks that wait only because a handle of them may be on its
 * way (CL_BLOCK_GRACE).  A block's grace ends CULIMBO_GRACE after its last
 * export.
 *
 * What must hold: all blocks of one device that wait for their grace take at
 * most the budget of that device, CULIMBO_GRACE_BYTES.  A correct program that
 * shares large blocks in a loop would otherwise fill the device with blocks
 * that nobody wants, and processes without culimbo would be out of memory
 * (measured).  So cl_grace_over_locked() names the blocks that are to go early.
 *
 * Each device has a wheel of buckets, by the tick at which the grace of their
 * blocks is over: in and out are O(1), and what just waits is not looked at.
 *
 * Everything here is under cl_exports_lock, which the caller of functions that
 * end in _locked holds.  Times are CLOCK_MONOTONIC, ns.
 */
#ifndef CL_GRACE_H
#define CL_GRACE_H

#include "shim/blocks/blocks.h"

/*
 * Asks the driver for the size of @device, which the default budget is a part
 * of.  To be called before the first export of a block of it: a load where the
 * budget is known.  Any thread, no lock of ours may be held.
 */
void cl_grace_know_device(CUdevice device);

/* When the grace of @block ends.  The exporter's own, under the lock. */
uint64_t cl_grace_end(const struct cl_block *block);

/* Whether the grace of @block is not over at @now, and its device's budget has room for such a block. */
bool cl_grace_is_due_locked(const struct cl_block *block, uint64_t now);

/*
 * Whether @block, which its program frees now, is to have no grace: its grace
 * is over, it is larger than the budget, or the budget is used up and @block was
 * opened as often as it was exported, so that it would be the first to go.
 * *early: the grace itself was not over.
 */
bool cl_grace_is_refused_locked(const struct cl_block *block, uint64_t now, bool *early);

/* Puts @block into its bucket (it is on no list), and takes it out again. */
void cl_grace_add_locked(struct cl_block *block, uint64_t now);
void cl_grace_remove_locked(struct cl_block *block);

/*
 * The block of @device that is to go next because the budget is exceeded; NULL:
 * it is not.  Of the oldest few, that which was opened at least as often as it
 * was exported; else the oldest.
 */
struct cl_block *cl_grace_over_locked(CUdevice device);

/*
 * Gives @settle each block whose grace is over at @now (@end: each block): it
 * takes the block out, or puts it into another bucket.
 */
void cl_grace_turn_locked(uint64_t now, bool end, void (*settle)(struct cl_block *block, uint64_t now, bool end));

/* All blocks that wait, in no order; @each may take out the one that it is given. */
void cl_grace_each_locked(void (*each)(struct cl_block *block, void *data), void *data);

/* How many blocks wait. */
uint64_t cl_grace_n_locked(void);
/* When the next bucket is over; UINT64_MAX: none has any. */
uint64_t cl_grace_next_locked(void);
/* By how much a block may be late, ns. */
uint64_t cl_grace_tick(void);

void cl_grace_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this folder alone call.  The caller holds cl_exports_lock; no function here
 * lets go of that or makes a CUDA call.
 */
#ifndef CL_LIMBO_INSIDE_H
#define CL_LIMBO_INSIDE_H

#include "shim/driver/gate.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"

/* Sets `quiet` back: the next collection looks at all lists. */
static inline void cl_limbo_not_quiet(struct cl_exporter *ex)
{
	/* relaxed: a thread that must see this synchronises by the lock or by the collector's `wake` */
	atomic_store_explicit(&ex->limbo.quiet, CL_QUIET_NOT, memory_order_relaxed);
}
/* Moves @block into the state that it belongs in at @now.  @end_grace: not into GRACE. */
void cl_limbo_settle(struct cl_exporter *ex, struct cl_block *block, uint64_t now, bool end_grace);
/* Counts that @block has entered (@sign 1) or left (-1) the limbo, here and in our file. */
void cl_limbo_account(struct cl_exporter *ex, const struct cl_block *block, int sign);
/* Takes the event @block off `events`, if it is on it. */
void cl_limbo_event_forget(struct cl_exporter *ex, struct cl_block *block);

/* Returns when the grace of @block ends. */
static inline uint64_t cl_grace_end(const struct cl_exporter *ex, const struct cl_block *block)
{
	uint64_t last = block->record == CL_NO_RECORD ?
				0 :
				atomic_load_explicit(&ex->blocks.region->record[block->record].exported,
						     memory_order_relaxed);

	return last + cl_options.grace.number;
}

/* ------------------------------------------------- the grace: what each free asks, see grace.h */
/* The wheels.  What most processes use comes first, since each look goes up to the last used one. */
enum { CL_WHEEL_DEVICE_0, CL_WHEEL_HOST, CL_WHEEL_NOTHING, CL_WHEEL_DEVICE_1 };

static inline unsigned int cl_grace_wheel_of_device(CUdevice device)
{
	if (device == 0)
		return CL_WHEEL_DEVICE_0;
	if (device == CL_NO_DEVICE)
		return CL_WHEEL_HOST;
	return device > 0 && device < CL_WHEELS - CL_WHEEL_DEVICE_1 ?
		       (unsigned int)device - 1 + CL_WHEEL_DEVICE_1 :
		       CL_WHEELS - 1;
}

/* An event takes no memory of a device, and how much a block of unknown size takes, nobody can say. */
static inline unsigned int cl_grace_wheel_of(const struct cl_block *block)
{
	return block->size ? cl_grace_wheel_of_device(block->device) : CL_WHEEL_NOTHING;
}

/* Returns how many bytes the pages have that @block touches. */
static inline uint64_t cl_grace_touched(const struct cl_block *block)
{
	uint64_t from = block->link.key >> CL_GRACE_PAGE_BITS;

	return block->size ? (((block->link.key + block->size - 1) >> CL_GRACE_PAGE_BITS) - from + 1) << CL_GRACE_PAGE_BITS : 0;
}

enum { CL_BUDGET_PART = 64 }; /* the default budget is at most the device's size divided by this */
/* Returns the budget of the blocks in wheel @at, bytes. */
static inline uint64_t cl_grace_budget(const struct cl_exporter *ex, unsigned int at)
{
	uint64_t budget = cl_options.grace_bytes.number;
	uint64_t size = atomic_load_explicit(&ex->grace.device_size[at], memory_order_relaxed);

	/* the user's own number is not cut */
	if (!cl_options.grace_bytes.from_environment && size && size / CL_BUDGET_PART < budget)
		budget = size / CL_BUDGET_PART;
	return budget;
}

/* Returns true if the grace of @block goes on after @now and the whole budget has room for its pages. */
static inline bool cl_grace_applies(const struct cl_exporter *ex, const struct cl_block *block, uint64_t now)
{
	return cl_grace_end(ex, block) > now && cl_grace_touched(block) <= cl_grace_budget(ex, cl_grace_wheel_of(block));
}

/* Returns true if the blocks that wait on the device of @block exceed its budget. */
static inline bool cl_grace_is_over(const struct cl_exporter *ex, const struct cl_block *block)
{
	unsigned int at = cl_grace_wheel_of(block);

	return ex->grace.bytes[at] > cl_grace_budget(ex, at);
}

/* Returns true if any process holds @block, this one included. */
static inline bool cl_limbo_is_held(struct cl_exporter *ex, const struct cl_block *block)
{
	return block->own_opens || cl_record_held(ex->blocks.region, block->record);
}
/* Returns true if the HELD blocks of @block's device take more than CULIMBO_HELD_BYTES. */
bool cl_limbo_is_too_much_held(struct cl_exporter *ex, const struct cl_block *block);

/*
 * Returns true if @block is or may be memory of @device, an entry of the header's `device`.  A pool
 * that has no room left may be on the host, so the host's blocks are of CL_ANY_DEVICE, too.
 */
bool cl_limbo_may_be_of(struct cl_exporter *ex, const struct cl_block *block, unsigned int device);
/* Returns true if cl_limbo_press() is in force for the device of @block, or for one that it may be on. */
bool cl_limbo_is_pressed_now(struct cl_exporter *ex, const struct cl_block *block, uint64_t now);
static inline bool cl_limbo_is_pressed(struct cl_exporter *ex, const struct cl_block *block,
				       uint64_t now)
{
	return __builtin_expect(ex->limbo.pressed_last > now, 0) && cl_limbo_is_pressed_now(ex, block, now);
}

static inline bool cl_limbo_context_ends(const struct cl_block *block)
{
	return cl_context_ends(cl_block_context(block));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grace: a freed block waits in CL_BLOCK_GRACE because a handle of it may still be on its
 * way to an importer.  The grace of a block ends CULIMBO_GRACE after its last export.
 *
 * What must hold: the blocks of one device that wait for their grace take at most the budget of
 * that device, CULIMBO_GRACE_BYTES.  A correct program that shares large blocks in a loop would
 * otherwise fill the device with blocks that nobody wants, and processes without culimbo would
 * run out of memory (measured).  So cl_grace_over_locked() names the blocks that go early.
 *
 * Each device, and the host, has a wheel of buckets, one for each tick at which graces end.  Adding and
 * removing are O(1), and a turn of the wheel does not look at blocks that go on waiting.
 *
 * Everything here is under cl_exports_lock, which the caller of functions that end in _locked
 * holds.  Times are CLOCK_MONOTONIC, ns.
 */
#ifndef CL_GRACE_H
#define CL_GRACE_H

#include "shim/blocks/blocks.h"

struct cl_exporter;

enum {
	CL_GRACE_BUCKETS = 128, /* more than a grace has ticks */
	CL_WHEELS = 64,		/* the devices from the last wheel on share it */
};
struct cl_wheel {
	/* by the tick at which its graces end, modulo CL_GRACE_BUCKETS */
	struct cl_list bucket[CL_GRACE_BUCKETS];
	uint64_t filled[CL_GRACE_BUCKETS / 64]; /* a bit for each bucket that has blocks */
	uint64_t at;	/* the wheel has been emptied up to this tick */
	uint64_t n;	/* blocks */
	uint64_t bytes; /* of these blocks */
};
struct cl_grace {
	struct cl_wheel *wheel; /* CL_WHEELS of them */
	unsigned int wheels_n;  /* the wheels from this one on were never used */
	uint64_t waiting;	/* blocks in all wheels */
	uint64_t tick;		/* ns; 0: not known yet */
	/* Bytes; 0: not known yet.  Several threads may write it, all the same: a device does not grow. */
	_Atomic uint64_t device_size[CL_WHEELS];
};

/*
 * Asks the driver for the size of @device, of which the default budget is a part, unless it is
 * known.  The host (CL_NO_DEVICE) has none.  The exporter calls this before it publishes a block of
 * @device.  Any thread; no lock of ours may be held.
 */
void cl_grace_know_device(struct cl_exporter *ex, CUdevice device);

/* Returns true if the grace of @block goes on after @now and the whole budget has room for it. */
bool cl_grace_applies_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t now);

/*
 * Returns true if @block, which the program frees at @now, gets no grace: its grace is over, or
 * it is larger than the budget, or there is no budget left for it and it was opened at least as
 * often as it was exported, so that it would be the first to go.  *early: the grace goes on.
 */
bool cl_grace_is_refused_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t now,
				bool *early);

/* Puts @block, which is on no list, into its bucket; and takes it out again. */
void cl_grace_add_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now);
void cl_grace_remove_locked(struct cl_exporter *ex, struct cl_block *block);

/*
 * Returns the block of @device that goes next, or NULL if the budget is not exceeded.  Among the
 * few whose grace ends first it prefers one that was opened at least as often as it was exported.
 */
struct cl_block *cl_grace_over_locked(struct cl_exporter *ex, CUdevice device);

/*
 * Calls @settle for each block whose grace is over at @now, or for all blocks if @end.  @settle
 * takes the block out of the wheel, or puts it into another bucket.
 */
void cl_grace_turn_locked(struct cl_exporter *ex, uint64_t now, bool end,
			  void (*settle)(struct cl_exporter *ex, struct cl_block *block, uint64_t now, bool end));

/* Calls @each for all blocks that wait, in no order; it may remove the block that it is given. */
void cl_grace_each_locked(struct cl_exporter *ex,
			  void (*each)(struct cl_exporter *ex, struct cl_block *block, void *data),
			  void *data);

/* How many blocks wait. */
uint64_t cl_grace_n_locked(struct cl_exporter *ex);
/* Returns when the graces of the next bucket end, or UINT64_MAX if no block waits. */
uint64_t cl_grace_next_locked(struct cl_exporter *ex);
/* Returns how late the grace of a block may end, ns. */
uint64_t cl_grace_set_tick(struct cl_grace *grace); /* at the first time */
static inline uint64_t cl_grace_tick(struct cl_grace *grace)
{
	return __builtin_expect(grace->tick != 0, 1) ? grace->tick : cl_grace_set_tick(grace);
}

/* Empties the wheels of @grace, whose blocks are forgotten. */
void cl_grace_forget(struct cl_grace *grace);

#endif

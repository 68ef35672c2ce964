/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grace: a freed block waits in CL_BLOCK_GRACE because a handle of it may still be on its
 * way to an importer.  The grace of a block ends CULIMBO_GRACE after its last export.
 *
 * What must hold: the blocks of one device that wait for their grace take at most the budget of
 * that device, CULIMBO_GRACE_BYTES.  A correct program that shares large blocks in a loop would
 * otherwise fill the device with blocks that nobody wants, and processes without culimbo would
 * run out of memory (measured).  So the free of a block that exceeds the budget ends the grace of others.
 *
 * The budget counts what the device lacks: the driver has memory back only in whole pages of CL_GRACE_PAGE, so a
 * waiting block of 1 KiB can keep a page.  Each page that any waiting block touches counts once, however many of
 * them share it.
 *
 * limbo.c moves blocks into and out of the wheel of their device (base/wheel.h), and the collector turns the
 * wheels.
 *
 * Everything here is under cl_exports_lock, which the caller of functions that end in _locked
 * holds.  Times are CLOCK_MONOTONIC, ns.  Nothing fails.  A forked child begins with an empty struct cl_grace.
 */
#ifndef CL_GRACE_H
#define CL_GRACE_H

#include "shim/base/table.h"
#include "shim/base/wheel.h"
#include "shim/blocks/blocks.h"

struct cl_exporter;

enum { CL_GRACE_PAGE_BITS = 21 };
#define CL_GRACE_PAGE (1ull << CL_GRACE_PAGE_BITS) /* bytes; the driver has memory of a device back in these (measured) */

/* Where the search for blocks that were opened goes on in a wheel. */
struct cl_grace_look {
	struct cl_node *after; /* behind this node of the bucket; NULL: at the bucket's first */
	uint8_t bucket;
	uint8_t vain; /* so many frees in a row found none: each halves the looks of the next */
};

enum { CL_WHEELS = 64 }; /* the last wheel is that of all devices without one of their own */
struct cl_grace {
	struct cl_wheel *wheel;	   /* one for each device, one for the host, and one for what takes no memory */
	uint64_t bytes[CL_WHEELS]; /* of the pages that the blocks in each wheel touch */
	struct cl_table pages;	   /* struct cl_grace_page: those that waiting blocks cover only in part */
	struct cl_grace_look look[CL_WHEELS];
	unsigned int wheels_n;	   /* the wheels from this one on were never used */
	uint64_t waiting;	   /* blocks in all wheels */
	uint64_t tick;		   /* of the wheels, ns; 0: not known yet */
	/* Bytes; 0: not known yet.  Several threads may write it, always the same number: a device does not grow. */
	_Atomic uint64_t device_size[CL_WHEELS];
};

/*
 * Asks the driver for the size of @device, of which the default budget is a part, unless it is
 * known.  The host (CL_NO_DEVICE) has none.  The exporter calls this before it publishes a block of
 * @device.  Any thread; no lock of ours may be held.
 */
void cl_grace_know_device(struct cl_exporter *ex, CUdevice device);

/*
 * Returns true if @block, which the program frees at @now, gets no grace: its grace is over, or
 * its pages are more than the budget, or there is no budget left for them and it was opened at least as
 * often as it was exported, so that it would be the first to go.  *early becomes true if its grace is not over.
 */
bool cl_grace_is_refused_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t now,
				bool *early);

/*
 * add(): puts @block, which is on no list, into the wheel of its device, and counts its pages.  remove(): takes it
 * out of there.
 */
void cl_grace_add_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now);
void cl_grace_remove_locked(struct cl_exporter *ex, struct cl_block *block);

/* What one free has done for the budget so far; all zeros at first. */
struct cl_grace_round {
	unsigned int looks;	  /* how many blocks it has looked at */
	unsigned int ended, lost; /* graces; of these, those that ended first though no opened block was found */
	bool searched;		  /* it looks for no opened block any more */
};
/*
 * Returns a block whose grace the caller ends, or NULL if the budget of the device of @entered is not exceeded any
 * more.  @entered has just been freed, and waits unless its grace has ended.  Blocks that were opened at least as
 * often as exported come first, then those whose grace ends first, and at last @entered: a free looks only at a
 * few thousand blocks and ends a limited number of graces, and without @entered the budget suffices as before.
 */
struct cl_block *cl_grace_next_over_locked(struct cl_exporter *ex, struct cl_block *entered,
					   struct cl_grace_round *round);

/* Returns the tick of the wheels, ns: so late the grace of a block may end. */
uint64_t cl_grace_set_tick(struct cl_grace *grace); /* at the first time */
static inline uint64_t cl_grace_tick(struct cl_grace *grace)
{
	return __builtin_expect(grace->tick != 0, 1) ? grace->tick : cl_grace_set_tick(grace);
}

#endif

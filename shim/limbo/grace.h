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
 * limbo.c decides which blocks get a grace and how long, and puts them into the wheel of their device
 * (base/wheel.h).  The collector turns the wheels.
 *
 * Everything here is under cl_exports_lock, which the caller of functions that end in _locked
 * holds.  Times are CLOCK_MONOTONIC, ns.
 */
#ifndef CL_GRACE_H
#define CL_GRACE_H

#include "shim/base/wheel.h"
#include "shim/blocks/blocks.h"

struct cl_exporter;

enum { CL_WHEELS = 64 }; /* the devices from the last wheel on share it */
struct cl_grace {
	struct cl_wheel *wheel;	   /* one for each device, and one for the host */
	uint64_t bytes[CL_WHEELS]; /* of the blocks that wait in each wheel */
	unsigned int wheels_n;	   /* the wheels from this one on were never used */
	uint64_t waiting;	   /* blocks in all wheels */
	uint64_t tick;		   /* of the wheels, ns; 0: not known yet */
	/* Bytes; 0: not known yet.  Several threads may write it, all the same: a device does not grow. */
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
 * it is larger than the budget, or there is no budget left for it and it was opened at least as
 * often as it was exported, so that it would be the first to go.  *early: the grace goes on.
 */
bool cl_grace_is_refused_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t now,
				bool *early);

/* Returns the tick of the wheels, ns: so late the grace of a block may end. */
uint64_t cl_grace_set_tick(struct cl_grace *grace); /* at the first time */
static inline uint64_t cl_grace_tick(struct cl_grace *grace)
{
	return __builtin_expect(grace->tick != 0, 1) ? grace->tick : cl_grace_set_tick(grace);
}

#endif

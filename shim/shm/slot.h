/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holder slots: an importer's place in an exporter's file.
 *
 * A process owns a slot once it has claimed it, by one compare-and-swap, while it held the
 * slot's byte lock.  It takes the lock before the claim and keeps it for life, so the owner of a
 * claimed slot whose lock is free is dead (liveness.c knows the exceptions).  The owner of a slot that
 * is marked as left has called exec, and is dead for sure.  A reaper takes that
 * lock, clears the slot's bits, and frees the slot last.  If the reaper is killed before that, the
 * next one does all of it again.
 *
 * No globals.  Any thread, one at a time for each slot of its own.
 */
#ifndef CL_SLOT_H
#define CL_SLOT_H

#include "shim/shm/liveness.h"
#include "shim/shm/record.h"

/*
 * Once so many slots are used, each claim first looks at a few of them, in turn, so that
 * the dead make room before it runs out.
 */
enum { CL_CROWD = CL_SLOTS / 2, CL_CROWD_LOOKS = 8 };

/* What a reaper remembers of each slot between two looks, in its own memory. */
struct cl_slot_watch {
	uint64_t claim;	     /* the claim that free_since belongs to */
	uint64_t free_since;
};

/*
 * Claims a slot for the process @self, which has none in this file.  Reaps dead slots if no other
 * is free (see also CL_CROWD).  Returns the slot, or -EUSERS if all are taken by processes that
 * live or of which that is not known yet.  Since when their locks have been free is left in the
 * file for later claimants.
 */
int cl_holder_claim(struct cl_region *region, const struct cl_identity *self, uint64_t now, uint64_t settle);
/*
 * Reaps the slots of the programs that the process @self was before it called exec: they have its pid and start time, but
 * their locks and CUDA contexts went with exec, and what they held with them.  One whose contexts a forked child keeps
 * alive, or may, is marked as left.  This process calls it as soon as it maps @region, since from then on it seems to be
 * the owner (liveness.h).  cl_holder_claim() does the same.
 */
void cl_holder_reap_former(struct cl_region *region, const struct cl_identity *self);
/* Gives @slot back, which holds nothing any more. */
void cl_holder_release(struct cl_region *region, unsigned int slot);

struct cl_reaped {
	unsigned int slots;    /* dead, and reaped */
	unsigned int holds;    /* that they had */
	unsigned int settling; /* perhaps dead: look again soon */
	unsigned int outlived; /* dead, but their contexts live on in processes that they forked: not reaped */
	uint32_t outlived_pid; /* one of these */
	unsigned int alive;
};
/*
 * Looks at every claimed slot and reaps the dead.  Calls @each, if not NULL, with the slot and the
 * record of each hold before it is cleared.
 */
struct cl_reaped cl_holder_reap(struct cl_region *region, struct cl_slot_watch *watch,
				uint64_t now, uint64_t settle,
				void (*each)(void *data, unsigned int slot, uint32_t record),
				void *data);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holder slots: an importer's place in an exporter's file.
 *
 * A slot belongs to whoever claimed it by one compare-and-swap while it held
 * the slot's byte lock.  The lock is taken before the claim and kept for life,
 * so a claimed slot whose lock is free is a dead process's (or one that
 * liveness.c knows better).  A reaper takes that lock, clears the slot's bits
 * and frees the slot last; killed on the way, it is simply run again.
 */
#ifndef CL_SLOT_H
#define CL_SLOT_H

#include "shim/shm/liveness.h"
#include "shim/shm/record.h"

/*
 * From so many used slots on, who claims one looks at so many others first, in turn: the dead
 * make room before there is none.
 */
enum { CL_CROWD = CL_SLOTS / 2, CL_CROWD_LOOKS = 8 };

/* What a reaper remembers of each slot between two looks; private memory. */
struct cl_slot_watch {
	uint64_t claim;	     /* the claim that free_since belongs to */
	uint64_t free_since;
};

/*
 * Claims a slot for the process @self, which has none there; dead slots are reaped when no
 * other is free, see also CL_CROWD.  Returns the slot, or -EUSERS when all are taken, by the
 * living or by whom it cannot be told yet: since when that is so is left in the file for who
 * comes later.
 */
int cl_holder_claim(struct cl_region *region, const struct cl_identity *self, uint64_t now, uint64_t settle);
/* Gives a slot back; it must not have holds left. */
void cl_holder_release(struct cl_region *region, unsigned int slot);

struct cl_reaped {
	unsigned int slots;    /* dead ones that were reaped */
	unsigned int holds;    /* and what they held */
	unsigned int settling; /* dead perhaps: look again soon */
	unsigned int alive;
};
/*
 * Looks at every claimed slot and reaps the dead.  @each, if not NULL, is told
 * of each hold, with the dead one's slot, before it is cleared.
 */
struct cl_reaped cl_holder_reap(struct cl_region *region, struct cl_slot_watch *watch,
				uint64_t now, uint64_t settle,
				void (*each)(void *data, unsigned int slot, uint32_t record),
				void *data);

#endif

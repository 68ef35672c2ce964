/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds and mappings: what this process has open of others.
 *
 * A hold is one of these per record, whatever the number of opens; it owns our
 * bit in the exporter's file from before the driver's first open until after
 * the driver's last close.  A mapping (mappings.h) is one per address, or event, that the
 * driver gave us.
 *
 * Both are under cl_imports_lock, which functions that end in _locked want held, and which is
 * let go of around the driver's calls; what is in flight meanwhile is counted (pending,
 * closing), so that neither goes away under it.
 */
#ifndef CL_HOLDS_H
#define CL_HOLDS_H

#include <errno.h>
#include "shim/base/table.h"
#include "shim/driver/context.h"
#include "shim/driver/driver.h"
#include "shim/importer/peers.h"
#include "shim/shm/record.h"

struct cl_mapping {
	struct cl_link link;   /* the newest of its address is in the table, the others behind it */
	/* a chain, the newest first, of the same address: in another context, or just being closed */
	struct cl_node node;
	struct cl_hold *hold;     /* NULL: unmanaged */
	struct cl_belongs of;
	CUdevice device;
	uint64_t opens, closing, since, size;
	uint32_t note, stack, exporter_pid; /* for reports: its entry there, of the first open */
	uint8_t kind;
	bool embedded; /* it is some hold's `first` */
};
struct cl_hold {
	struct cl_link link;
	struct cl_peer *peer;
	uint32_t generation;
	bool pinned;	      /* no bit of ours: the block is kept for good */
	bool stale;	      /* its bit was lost, and its block has gone: not to be opened any more */
	bool detached;	      /* not in the table any more: another of its record is */
	bool gone;	      /* nor is it open: its memory goes with `first` */
	bool mapped;	      /* `first` is in use */
	uint64_t opens;	      /* of all its mappings */
	uint64_t pending;     /* threads in the driver's open with it */
	struct cl_mapping first; /* one allocation for most imports */
};

static inline uint32_t cl_hold_file(const struct cl_hold *hold)
{
	return (uint32_t)(hold->link.key >> 32);
}
static inline uint32_t cl_hold_record(const struct cl_hold *hold)
{
	return (uint32_t)hold->link.key;
}

/*
 * Our bit keeps its generation.  Where the record of @hold has gone on to another
 * all the same, somebody took us for dead, and it: what is opened now is no matter of
 * what we still have open of that block.  False: the file is damaged.
 */
bool cl_hold_detach_locked(struct cl_hold *hold);
/* A hold of what @stamp names, of which there is none; as cl_hold_get_locked(). */
int cl_hold_take_locked(struct cl_peer *peer, const struct cl_stamp *stamp, const void *handle,
			struct cl_hold **held);

extern struct cl_table cl_holds; /* by cl_hold_key() */
static inline uint64_t cl_hold_key(uint32_t file_id, uint32_t record)
{
	return (uint64_t)file_id << 32 | record;
}
static inline bool cl_hold_has_gone_on(const struct cl_hold *hold)
{
	return cl_life_generation(cl_record_life(&hold->peer->region, cl_hold_record(hold))) !=
	       hold->generation;
}
/*
 * Takes (or shares) the hold of what @stamp names.  0 with *held set (NULL: it is
 * pinned), or -ESTALE, -EBADMSG.
 */
static inline int cl_hold_get_locked(struct cl_peer *peer, const struct cl_stamp *stamp, const void *handle,
				     struct cl_hold **held)
{
	struct cl_hold *hold = cl_table_find(&cl_holds, cl_hold_key(stamp->file_id, stamp->record));

	if (hold && __builtin_expect(cl_hold_has_gone_on(hold), 0) && cl_hold_detach_locked(hold))
		hold = NULL;
	if (!hold)
		return cl_hold_take_locked(peer, stamp, handle, held);
	/* our bit keeps its generation: any other is stale, and its bit must not be touched */
	if (hold->generation != stamp->generation)
		return -ESTALE;
	if (!cl_record_is(&hold->peer->region, stamp->record, handle))
		return -EBADMSG;
	cl_record_opened(&hold->peer->region, stamp->record);
	hold->pending++;
	*held = hold;
	return 0;
}
/* Whether @err means that the handle is to be refused. */
bool cl_hold_is_refusal(int err);
/* Gives @hold back, with which nothing is open or being opened. */
void cl_hold_drop_locked(struct cl_hold *hold);
static inline void cl_hold_put_locked(struct cl_hold *hold)
{
	if (!hold->opens && !hold->pending)
		cl_hold_drop_locked(hold);
}
/* Frees the memory of @hold. */
void cl_hold_free_locked(struct cl_hold *hold);
/* The lock of our slot may have gone with our descriptor: then it is had again, or @hold is pinned. */
void cl_hold_keep_locked(struct cl_hold *hold, struct cl_stamp stamp, const void *handle);
/*
 * Where @peer has ended, and a later process has its number: what is still open of the
 * one is no matter of what is opened of the other.  True: so it is,
 * and @peer may be gone.
 */
bool cl_hold_succeeded_locked(struct cl_peer *peer);
void cl_holds_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds: each makes an exporter keep a block that we have open.
 *
 * There is one hold for each record, however often it is open.  It has our bit in the
 * exporter's file from before the driver's first open until after the driver's last close.  A
 * mapping (mappings.h) is one address, or event, that the driver gave us.
 *
 * Holds and mappings are under cl_imports_lock, which functions that end in _locked want held.
 * No thread keeps it during a call of the driver's; `pending` and `closing` count the calls that
 * are under way, so that neither hold nor mapping is freed meanwhile.
 */
#ifndef CL_HOLDS_H
#define CL_HOLDS_H

#include <errno.h>
#include "shim/base/table.h"
#include "shim/driver/context.h"
#include "shim/driver/driver.h"
#include "shim/importer/peers.h"
#include "shim/shm/record.h"

/* AddressSanitizer finds a use after free only of memory that is freed, and not kept for reuse. */
#ifdef __has_feature /* clang's way to say so */
#if __has_feature(address_sanitizer)
#define CL_FREED_IS_FREED
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define CL_FREED_IS_FREED
#endif

struct cl_mapping {
	struct cl_link link;   /* the newest of its address is in the table */
	/* the chain of one address, newest first: opened in another context, or just being closed */
	struct cl_node node;
	struct cl_hold *hold;     /* NULL: unmanaged */
	struct cl_belongs of;
	CUdevice device;
	uint64_t opens, closing, since, size;
	uint32_t log_entry, stack, exporter_pid; /* for reports: import log entry, stack of the first open */
	uint8_t kind;
	bool embedded; /* it is some hold's `first` */
};
/* The phases of a pool's import.  limbo/pool_imports.c has the table of the steps from one to another. */
enum cl_pool_import_phase {
	CL_IMPORT_NEW,	   /* the driver has mapped it, and it is not among the mappings yet: the first */
	CL_IMPORT_OPEN,	   /* imported more often than freed */
	CL_IMPORT_FREED,   /* freed as often, but some stream has not reached its free */
	CL_IMPORT_GOING,   /* its last free is with the driver: another block may be at its address */
	CL_IMPORT_COVERED, /* a block of this process was exported at its address: it was unmapped past us */
	CL_IMPORT_PHASES,
};
/* A mapping of a pool's block: see limbo/pool_imports.h, which alone knows the rest of it. */
struct cl_pool_import {
	struct cl_mapping mapping;
	struct cl_stamp own;	/* the stamp of the block if this process exported it, else .file_id is 0 */
	uint64_t turn;		/* the key of its turn, see turns.h */
	uint64_t came;		/* the number of its newest import: each import has the next one */
	CUmemoryPool pool;	/* the pool named by the newest import */
	uint64_t by_handle;	/* how many of its opens are by a handle: limbo/pool_opens.h */
	uint64_t rests;		/* of counted frees, see pool_imports.h; changed by the thread with the turn */
	uint8_t phase;		/* enum cl_pool_import_phase */
	uint32_t freed_at;	/* the stack of its last free, if it is FREED */
};
struct cl_hold {
	struct cl_link link;
	struct cl_peer *peer;
	uint32_t generation;
	bool pinned;	      /* we have no bit: the exporter keeps the block until it ends */
	bool stale;	      /* our bit was lost and the block is gone: must not be opened any more */
	bool detached;	      /* not in the table any more: its record or file id is another's now */
	bool gone;	      /* given back, but `first` is in use: freed with it */
	bool mapped;	      /* `first` is in use */
	bool late;	      /* taken after its exporter had freed the block, and not told of yet */
	int device;	      /* of a pool's block that is open: its device, as this process counts */
	uint64_t opens;	      /* of all its mappings */
	uint64_t pending;     /* opens of it that are in the driver */
	union { /* one allocation for most imports */
		struct cl_mapping first;
		struct cl_pool_import first_of_pool;
	};
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
 * While our bit is set the exporter cannot start a new generation of the record.  If it has, we
 * were declared dead and lost the bit: detaches @hold, so that a new open gets a hold of its own.
 * Returns false if we still have the bit: then the file is damaged.
 */
bool cl_hold_detach_locked(struct cl_hold *hold);
/* Takes a new hold of what @stamp names.  Returns as cl_hold_get_locked(). */
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
 * Takes the hold of what @stamp names, or shares the one that we have, for one open.  Returns 0,
 * -ESTALE if the handle's block was freed, or -EBADMSG if the record has another handle.  *held
 * must be NULL, and stays NULL if there is no memory for a hold, so that the block is only pinned.
 */
static inline int cl_hold_get_locked(struct cl_peer *peer, const struct cl_stamp *stamp, const void *handle,
				     struct cl_hold **held)
{
	struct cl_hold *hold = cl_table_find(&cl_holds, cl_hold_key(stamp->file_id, stamp->record));

	if (hold && __builtin_expect(cl_hold_has_gone_on(hold), 0) && cl_hold_detach_locked(hold))
		hold = NULL;
	if (!hold)
		return cl_hold_take_locked(peer, stamp, handle, held);
	/* our bit keeps this generation, so the handle of any other is stale */
	if (hold->generation != stamp->generation)
		return -ESTALE;
	if (!cl_record_is(&hold->peer->region, stamp->record, handle))
		return -EBADMSG;
	cl_record_opened(&hold->peer->region, stamp->record);
	hold->pending++;
	*held = hold;
	return 0;
}
/* Returns true if @err means that the handle must be refused. */
bool cl_hold_is_refusal(int err);
/* Gives @hold back.  Nothing of it is open or being opened. */
void cl_hold_drop_locked(struct cl_hold *hold);
static inline void cl_hold_put_locked(struct cl_hold *hold)
{
	if (!hold->opens && !hold->pending)
		cl_hold_drop_locked(hold);
}
/* Frees the memory of @hold. */
void cl_hold_free_locked(struct cl_hold *hold);
/*
 * Makes sure that the lock of our slot stands, which is lost when the program closes our
 * descriptor.  Pins @hold if the lock cannot be had, and marks it stale if its block is gone.
 */
void cl_hold_keep_locked(struct cl_hold *hold, struct cl_stamp stamp, const void *handle);
/*
 * Returns true if @peer has ended and a later process has its file id.  Then the holds of @peer
 * and @peer itself are detached, so that opens find the later one; @peer may be freed.
 */
bool cl_hold_succeeded_locked(struct cl_peer *peer);
void cl_holds_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process has open of other exporters: holds and mappings.
 *
 * A hold makes an exporter keep a block that we have open.  There is one for each record, however
 * often it is open.  It has our bit in the exporter's file from before the driver's first open until
 * after the driver's last close.  A mapping is one address (of an event: its CUevent) that the driver
 * gave us.  There is one for each hold and context at an address.
 *
 * Both are under cl_imports_lock, which functions that end in _locked want held.  The others take it, but
 * for cl_imports_each().  No thread keeps it during a call of the driver's; `pending` and `closing` count
 * the calls that are under way, so that neither hold nor mapping is freed meanwhile.
 */
#ifndef CL_MAPPINGS_H
#define CL_MAPPINGS_H

#include <errno.h>
#include "shim/base/table.h"
#include "shim/diag/report_data.h"
#include "shim/diag/recent_closes.h"
#include "shim/driver/context.h"
#include "shim/driver/driver.h"
#include "shim/importer/peers.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/record.h"

struct cl_mapping {
	struct cl_link link;   /* in the table, if it is the oldest mapping at its address */
	/*
	 * The chain of an address, oldest first: others were opened in another context, are just being closed, or have a
	 * hold that is lost.  A close takes the current context's first, else the oldest.  So of one context's
	 * opens the newest hold, the one that surely counts, goes last.
	 */
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
	CL_IMPORT_NEW,	   /* each begins so: the driver has mapped it, and it is not among the mappings yet */
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
	bool awaited;		/* the program has destroyed its pool, whose end waits until it is unmapped */
	uint32_t freed_at;	/* the stack of its last free, if it is FREED */
};
/* ------------------------------------------------------------------------ holds */
struct cl_hold {
	struct cl_link link;
	struct cl_peer *peer;
	uint32_t generation;
	bool pinned;	      /* we have no bit: the exporter keeps the block until it ends */
	bool stale;	      /* our bit was lost and the block is gone: must not be opened any more */
	bool detached;	      /* not in the table any more: its record or file id is another's now */
	bool gone;	      /* given back, but `first` is in use: freed with it */
	bool mapped;	      /* `first` is in use */
	bool late;	      /* taken after its exporter had freed the block, and not reported yet */
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
 * -ESTALE if the handle's block was freed, -EBADMSG if the record has another handle, or -EAGAIN if
 * its exporter is just finding out whether it may free the block: see cl_hold_wait().  *held
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
/*
 * Called when a hold could not be had yet (-EAGAIN), without a lock, so that other threads open and close meanwhile.
 * Waits a moment and returns true: the caller asks for the hold again.  If the waits of @wait have taken too long,
 * returns false at once: the caller refuses the handle.  Then a free of the block waits in the driver, or its exporter
 * was stopped or killed during one.
 */
struct cl_hold_wait {
	uint64_t until; /* all zeros at first */
	unsigned int tries;
};
bool cl_hold_wait(struct cl_hold_wait *wait);
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
 * Returns true if @peer's file has ended and a later process has its file id.  Then the holds of @peer
 * and @peer itself are detached, so that opens find the later one; @peer may be freed.
 */
bool cl_hold_succeeded_locked(struct cl_peer *peer);

/* --------------------------------------------------------------------- mappings */
/* An open in progress: see open.h. */
struct cl_opening {
	struct cl_hold *hold;
	struct cl_context *context; /* set when the driver has opened it; NULL: not known */
	CUdevice device;
	uint32_t stack;
	enum cl_sight sight; /* of an unmanaged import: where its exporter's file would be */
	bool unmanaged; /* no hold can be had: its exporter runs without culimbo, or its file is not here */
	bool stale; /* CULIMBO_MODE=observe: the driver is asked all the same, and then cl_open_tell_stale() reports it */
};

/* One table for each enum cl_kind.  The key is the device address, or the CUevent. */
extern struct cl_table cl_mappings[];
static inline struct cl_mapping *cl_mapping_find_locked(enum cl_kind kind, uint64_t key)
{
	return cl_table_find(&cl_mappings[kind], key);
}
/* Returns true if a call of the program may be ending the context of @mapping, and @mapping with it. */
static inline bool cl_mapping_is_going(const struct cl_mapping *mapping)
{
	return cl_context_ends(mapping->of.context);
}
/*
 * Adds one successful open at @key.  @oldest is what cl_mapping_find_locked() returned.
 * Returns its mapping, NULL if there is no memory for a new one.
 */
struct cl_mapping *cl_mapping_add_locked(enum cl_kind kind, uint64_t key, struct cl_mapping *oldest,
			   const struct cl_opening *o, uint32_t exporter_pid);
/*
 * Ends one close of @mapping that cl_close_begin() began.  @closed is false if the driver has
 * refused it.  @mapping may be freed.
 */
void cl_mapping_closed_locked(enum cl_kind kind, struct cl_mapping *mapping, bool closed, uint32_t stack);
/* Fills @to with what the log of recent closes keeps of the last close of @mapping, at @stack. */
void cl_mapping_last_close(struct cl_about *to, enum cl_kind kind, const struct cl_mapping *mapping,
			   uint32_t stack);

/* Counts a close of an import, here and for others to read. */
static inline void cl_count_close_locked(void)
{
	cl_count_locked(closes);
	if (cl_own_has_file())
		cl_live_add_locked(&cl_own, CL_LIVE_CLOSES, 1);
}

/* Traces an open or a close of an import.  @hold is NULL if the import is unmanaged. */
#define cl_trace_mapping(what_, kind_, key_, hold, ...)                                  \
	cl_trace(what_, .kind = (uint8_t)(kind_), .key = (key_),                         \
		 .size = (hold) ? (hold)->peer->region.record[cl_hold_record(hold)].size : 0, \
		 .file_id = (hold) ? cl_hold_file(hold) : 0,                            \
		 .record = (hold) ? cl_hold_record(hold) : CL_NO_RECORD,                   \
		 .generation = (hold) ? (hold)->generation : 0,                          \
		 .pid = (hold) ? (hold)->peer->region.header->exporter.pid : 0, ##__VA_ARGS__)
/* One import, as this process knows it. */
struct cl_import {
	uint64_t key;		/* device address, or the CUevent */
	uint64_t size;		/* bytes; 0: not known, or an event */
	uint64_t opens;		/* not closed yet */
	uint64_t since;		/* first opened, CLOCK_MONOTONIC ns */
	uint32_t exporter_pid;	/* as it calls itself; 0: not known (unmanaged) */
	uint32_t file_id, record, generation;
	uint32_t stack;		/* of the first open */
	uint8_t device;		/* as this process counts */
	enum cl_kind kind;
	bool managed;		/* its exporter knows of us */
	bool stays;		/* its exporter has freed it */
	bool told;		/* its exporter has ended, and has reported it */
};
/* Calls @each for every import.  The caller holds cl_imports_lock. */
void cl_imports_each(void (*each)(const struct cl_import *import, void *data), void *data);

/* Returns true if @dptr is an open import: *about says which, and since when and where it is open. */
bool cl_import_find(CUdeviceptr dptr, struct cl_about *about);
/* Returns the context in which @key was opened, NULL if that is not known or none is open there. */
CUcontext cl_mapping_context(enum cl_kind kind, uint64_t key);
/*
 * Forgets @mapping because the driver has unmapped it: its context has ended.  Gives its hold back.
 * @mapping may be freed.
 */
void cl_mapping_lost_locked(struct cl_mapping *mapping);

void cl_imports_forget(void); /* in a forked child */

#endif

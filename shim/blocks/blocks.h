/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks that this process exported, memory and events, and its exporter file.
 *
 * Found by device address (memory), by event, or by record.  Everything here
 * is under cl_exports_lock, which the caller holds.
 */
#ifndef CL_BLOCKS_H
#define CL_BLOCKS_H

#include "shim/diag/happened.h"
#include "shim/diag/notes.h"
#include "shim/driver/context.h"
#include "shim/driver/driver.h"
#include "shim/self/own_file.h"
#include "shim/shm/record.h"
#include "shim/base/list.h"
#include "shim/base/table.h"

/*
 * The state of a block.  limbo/limbo.c has the table of the steps from one to another, and
 * cl_block_set_state() there takes them: nothing else changes a state.
 */
enum cl_block_state {
	CL_BLOCK_LIVE,	    /* exported, not freed: as it begins */
	CL_BLOCK_FREEING,   /* a thread of the program is freeing it */
	CL_BLOCK_GRACE,	    /* in limbo: a handle may still be on its way; in a bucket of the wheel */
	CL_BLOCK_HELD,	    /* in limbo: waits for its holders */
	CL_BLOCK_FENCED,    /* in limbo: waits for a stream to get to its free */
	CL_BLOCK_READY,	    /* in limbo: may go as soon as somebody looks */
	CL_BLOCK_BLOCKED,   /* in limbo: would go if its context were not just ending */
	CL_BLOCK_RELEASING, /* a thread of ours is in the driver with it, to give it back */
	CL_BLOCK_UNTRACKED, /* freed, but without a record: nobody can say who holds it */
	CL_BLOCK_ORPHANED,  /* the driver has it no more, but holders keep its record */
	CL_BLOCK_DELETED,   /* no more; its memory is just given back */
	CL_BLOCK_STATES,
};

/* There may be millions: 104 bytes.  What finds it comes first, in one line of the cache. */
struct cl_block {
	struct cl_link link;	       /* its key: device address, or the CUevent */
	uint64_t handle;	       /* a fingerprint of the driver's, see cl_block_has_handle() */
	uint32_t record;	       /* CL_NO_RECORD: it could not get one */
	uint32_t own_opens;	       /* opens in this very process */
	uint8_t kind;		       /* enum cl_kind */
	uint8_t state;		       /* enum cl_block_state */
	uint8_t device;
	uint8_t bucket;		       /* of the wheel, while in CL_BLOCK_GRACE */
	bool hashed : 1;	       /* it is found by its key */
	bool early : 1;		       /* its free goes to the driver before its grace is over */
	bool unfenced : 1;	       /* nobody can say when its stream has got to its free: kept to the end */
	/* (not of the byte above: read without the lock by who has the block) */
	bool context_died;	       /* its context ended while a thread was in the driver with it */
	bool forced_out;	       /* an event that the driver has had back before its importers were done */
	struct cl_belongs of;	       /* whose memory (event) it is */
	uint64_t size;		       /* bytes; 0 for an event */
	struct cl_fence *fence;	       /* of a stream-ordered free, until it is reached; NULL: none */
	uint64_t before;	       /* see cl_record_release_begin() */
	struct cl_node node;	       /* of the list that its state has */
};

/* An event's block is this larger one: events have an order among themselves, see limbo.c. */
struct cl_event_block {
	struct cl_block block;
	struct cl_node order; /* of the events of the limbo */
};

extern struct cl_table cl_block_tables[CL_EVENT + 1];
/* The block that @of is in. */
static inline struct cl_block *cl_block_of(struct cl_belongs *of)
{
	return (struct cl_block *)((char *)of - offsetof(struct cl_block, of));
}
static inline struct cl_block *cl_block_find(enum cl_kind kind, uint64_t key)
{
	return cl_table_find(&cl_block_tables[kind], key);
}
/*
 * Whether @handle, 64 bytes as the driver made them, is of what @block was first
 * exported as, from whichever context it was asked for.  (The record's copy can be written
 * by others.  Ours is 8 bytes: of 2 to the 64 others one is taken for it.)
 */
bool cl_block_has_handle(const struct cl_block *block, const void *handle);
struct cl_block *cl_block_of_record(uint32_t record);

/*
 * The memory of one block that is to be exported, and of what leads from its record to it: got
 * before the driver is asked for a handle, so that no handle leaves of what cannot be noted.
 * NULL: there is none, and that is logged.
 */
struct cl_block *cl_block_prepare_locked(enum cl_kind kind);
/* Gives back what was prepared (or NULL) and is not used: the driver has refused. */
void cl_block_discard_locked(struct cl_block *prepared);
/*
 * Makes @prepared a block that is CL_BLOCK_LIVE, with a record of @what if one can be had (else
 * .record is CL_NO_RECORD, and the reason was logged).  @stack: where it is exported, as of
 * cl_notes_stack().  *generation is what goes into the stamp.
 */
struct cl_block *cl_block_new(struct cl_block *prepared, const struct cl_export *what,
			      struct cl_context *context, uint32_t stack, uint32_t *generation);

/* Whether a thread is in the driver with @block, or its context is just ending: what it will be is not known yet. */
static inline bool cl_block_is_taken(const struct cl_block *block)
{
	return (1u << CL_BLOCK_FREEING | 1u << CL_BLOCK_BLOCKED | 1u << CL_BLOCK_RELEASING) >> block->state & 1;
}

/* Whether the program has freed @block; NULL: it is none. */
static inline bool cl_block_in_limbo(const struct cl_block *block)
{
	return block && block->state != CL_BLOCK_LIVE;
}

/* What there is to say of a misuse of @block, which is in the limbo. */
struct cl_about cl_block_about_locked(const struct cl_block *block);

/* Out of the hash and of its context: its key is free for another block. */
void cl_block_unhash(struct cl_block *block);
/* After its last step, CL_BLOCK_DELETED, and after its record was released: gives record and memory back. */
void cl_block_delete(struct cl_block *block);

/* All blocks that are found by their key, in no order.  @each may delete its block, and add none. */
void cl_block_each(enum cl_kind kind, void (*each)(struct cl_block *block, void *data), void *data);

/* All blocks that have a record, also those that are in no hash any more (CL_BLOCK_ORPHANED). */
void cl_block_each_record(void (*each)(struct cl_block *block, void *data), void *data);

/* A forked child forgets its parent's. */
void cl_blocks_forget(void);

#endif

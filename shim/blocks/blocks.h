/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks that this process has exported, which are memory, events or blocks of pools, and their
 * records.
 *
 * A block is found by its device address or its CUevent, or by its record.  Everything here is
 * under cl_exports_lock, which the caller holds, and nothing makes a CUDA call.
 */
#ifndef CL_BLOCKS_H
#define CL_BLOCKS_H

#include "shim/blocks/address_filter.h"
#include "shim/blocks/own_pools.h"
#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/driver/context.h"
#include "shim/driver/devices.h"
#include "shim/driver/driver.h"
#include "shim/self/own_file.h"
#include "shim/shm/record.h"
#include "shim/base/list.h"
#include "shim/base/spare.h"
#include "shim/base/table.h"

/*
 * The states of a block.  limbo/limbo.c has the table of the steps from one to another.  Only
 * cl_block_set_state() in limbo/limbo.h changes a state.
 */
enum cl_block_state {
	CL_BLOCK_LIVE,	    /* exported, not freed: the first state */
	CL_BLOCK_FREEING,   /* a thread of the program is freeing it */
	CL_BLOCK_GRACE,	    /* in limbo, in a bucket of the wheel: a handle may still be on its way */
	CL_BLOCK_HELD,	    /* in limbo: waits for its holders */
	CL_BLOCK_FENCED,    /* in limbo: waits for its stream to reach its free */
	CL_BLOCK_READY,	    /* in limbo: the next collection gives it back */
	CL_BLOCK_BLOCKED,   /* in limbo: it is READY but for its context, which is ending */
	CL_BLOCK_RELEASING, /* a thread of ours is in the driver with it, to give it back */
	CL_BLOCK_UNTRACKED, /* freed, but without a record: nobody can say who holds it */
	/* the driver no longer has it, or the program has unmapped it (virtual memory); holders keep its record */
	CL_BLOCK_ORPHANED,
	CL_BLOCK_DELETED,   /* its struct is about to be freed */
	CL_BLOCK_STATES,
};

/*
 * There may be millions: 88 bytes, which malloc makes 96.  8 bytes more would take 16, and with the tables that
 * find a block more than the 128 bytes a block that doc/performance.md allows.  The fields that find a block
 * share the first cache line.
 */
struct cl_block {
	struct cl_link link;	       /* its key: device address, or the CUevent */
	uint64_t handle;	       /* a fingerprint of the driver's handle, see cl_block_has_handle() */
	uint32_t record;	       /* CL_NO_RECORD: none could be had */
	uint32_t own_opens;	       /* how often this process itself has it open */
	uint8_t kind;		       /* enum cl_kind */
	uint8_t state;		       /* enum cl_block_state */
	uint8_t device;
	uint8_t bucket;		       /* of the wheel, while it is GRACE */
	bool hashed : 1;	       /* it is in its table */
	bool early : 1;		       /* its free goes to the driver before its grace is over */
	bool unfenced : 1;	       /* nobody can say when its stream reaches its free, so it is never given back */
	bool counted : 1;	       /* `kept_mapped` counts it */
	bool context_died : 1;	       /* its context ended while a thread was in the driver with it */
	bool waits : 1;		       /* of a pool: the pool counts it as in the limbo */
	uint8_t alone : 2;	       /* while it is GRACE: see shim/limbo/grace.c */
	/* not a bit of the byte above: the thread that has the block reads it without the lock */
	bool forced_out;	       /* an event that the driver got back before its importers were done */
	uint16_t context;	       /* its index in cl_context_at; a block of a pool has no context */
	union {
		struct cl_node of;	  /* on the list of .context */
		struct cl_own_pool *pool; /* of a block of a pool; NULL: the driver has not said which */
	};
	uint64_t size;		       /* bytes; 0 for an event */
	struct cl_fence *fence;	       /* that of its stream-ordered free, until it is reached; NULL: none */
	struct cl_node node;	       /* on the list of its state */
};

_Static_assert(sizeof(void *) != 8 || sizeof(struct cl_block) <= 88, "see above");

/* The block of an event: the events of the limbo have an order of their own. */
struct cl_event_block {
	struct cl_block block;
	struct cl_node order; /* on `events` of the limbo */
};

enum { CL_RECORDS_RESTING = 256 };
/*
 * 96 KiB of them.  A program that shares small blocks in a loop frees many thousand a second, and the limbo gives them back
 * some hundred at once: a grace ends in 64 steps.
 */
enum { CL_MOST_SPARE_BLOCKS = 1024 };

struct cl_blocks {
	struct cl_region *region; /* has their records */
	struct cl_table table[CL_KINDS]; /* by enum cl_kind */
	struct {
		uint32_t *free; /* a stack of released records */
		uint32_t free_n, free_size;
		uint32_t fresh; /* the records from this one on were never used */
		uint32_t chunks; /* how many chunks of records the file has */
		uint32_t prepared; /* exports under way: by_record has room for as many fresh records */
	} records;
	struct cl_list spares; /* freed blocks, none of an event: CL_MOST_SPARE_BLOCKS at most */
	struct cl_made_event *made_events; /* of event_owner.c */
	struct cl_own_pools own_pools;
	struct cl_address_filter filter;
	struct cl_device_entries devices;
	struct cl_block **by_record[CL_CHUNKS];
	struct {
		uint32_t resting[CL_RECORDS_RESTING]; /* a ring */
		uint64_t rested; /* how many were ever put there */
	} freed;
};
/* What @blocks, an lvalue, begins as: with records in @region_, and @bits_, all zeros, for its filter. */
#define CL_BLOCKS_BEGIN(blocks, region_, bits_)                                     \
	{ .region = (region_),                                                      \
	  .table = { CL_TABLE_BEGIN((blocks).table[0]), CL_TABLE_BEGIN((blocks).table[1]), \
		     CL_TABLE_BEGIN((blocks).table[2]), CL_TABLE_BEGIN((blocks).table[3]), \
		     CL_TABLE_BEGIN((blocks).table[4]) }, \
	  .filter = { .bits = (bits_) } }
/* Begins @blocks, which is all zeros, in the same way; another may have used @bits. */
void cl_blocks_begin(struct cl_blocks *blocks, struct cl_region *region,
		     struct cl_filter_bits *bits);

static inline struct cl_block *cl_block_find(const struct cl_blocks *blocks, enum cl_kind kind,
					     uint64_t key)
{
	return cl_table_find(&blocks->table[kind], key);
}
/*
 * Returns true if @handle, 64 bytes as the driver made them, is a handle of the same memory or
 * event that @block was first exported as, from whichever context.  It compares fingerprints of
 * 8 bytes, so 1 wrong handle in 2^64 passes.  Other processes can change the record's copy.
 */
bool cl_block_has_handle(const struct cl_block *block, const void *handle);
#define CL_SMALL_BLOCK (2u << 20) /* bytes: the driver puts smaller allocations side by side */
/*
 * Returns true if what importers have of @block is good after the driver has freed it.  An event's handle opens after
 * its destroy, too.  Memory of 2 MiB and more is an allocation of its own, which its importers go on reading (both
 * measured).  A pool uses a freed block of any size again.
 */
static inline bool cl_block_outlasts_its_free(const struct cl_block *block)
{
	return block->kind == CL_EVENT || (block->kind == CL_MEMORY && block->size >= CL_SMALL_BLOCK);
}
/* Returns the block with @record, or NULL if no block has it. */
struct cl_block *cl_block_of_record(const struct cl_blocks *blocks, uint32_t record);

/*
 * Allocates a block of @kind, and the entry that leads to it from its record, before the driver
 * is asked for a handle: so no handle leaves of a block that we lack memory for.  Returns NULL,
 * and logs it, without memory.
 */
struct cl_block *cl_block_prepare_locked(struct cl_blocks *blocks, enum cl_kind kind);
/*
 * Has the pool that the driver calls @pool count @block, which is prepared or LIVE, before a handle of it leaves: else
 * the end of the pool would not wait for the block.  Returns false, and logs it, without memory.  Returns true and does
 * nothing if the block is not of a pool, if its pool is known, or if @pool is 0: the driver does not say which it is.
 */
bool cl_block_prepare_pool_locked(struct cl_blocks *blocks, struct cl_block *block, uint64_t pool);
/* Frees @prepared, which may be NULL: no block is made of it. */
void cl_block_discard_locked(struct cl_blocks *blocks, struct cl_block *prepared);
/*
 * Makes @prepared a LIVE block with a record of @what, and returns it.  It belongs to @context, but a block
 * of a pool belongs to none.  *generation goes into the stamp.  If no record can be had, the reason is
 * logged, .record is CL_NO_RECORD and *generation is left alone.  @stack is that of the export, from
 * cl_stack_write().
 */
struct cl_block *cl_block_new(struct cl_blocks *blocks, struct cl_block *prepared,
			      const struct cl_export *what, struct cl_context *context,
			      uint32_t stack, uint32_t *generation);

/* Returns the context that @block belongs to, or NULL: none. */
static inline struct cl_context *cl_block_context(const struct cl_block *block)
{
	return cl_context_at[block->context];
}
/* @block belongs to no context any more. */
static inline void cl_block_leave_context(struct cl_block *block)
{
	if (block->context == CL_CONTEXT_NONE)
		return;
	cl_list_remove(&cl_block_context(block)->blocks, &block->of);
	block->context = CL_CONTEXT_NONE;
}

/* Returns true if a thread is freeing @block or giving it back, or its context is known to be ending. */
static inline bool cl_block_is_taken(const struct cl_block *block)
{
	return (1u << CL_BLOCK_FREEING | 1u << CL_BLOCK_BLOCKED | 1u << CL_BLOCK_RELEASING) >> block->state & 1;
}

/* Returns true if the program frees or has freed @block; false for NULL. */
static inline bool cl_block_in_limbo(const struct cl_block *block)
{
	return block && block->state != CL_BLOCK_LIVE;
}

/*
 * Tells the pool of @block that the block is in the limbo (@waits), or that the driver has got it back.
 * Does nothing for a block that is not of a pool, or if the pool knows it.
 */
void cl_block_waits_for_pool(struct cl_blocks *blocks, struct cl_block *block, bool waits);

/* Returns what a finding says of @block, which is in the limbo. */
struct cl_about cl_block_about_locked(const struct cl_blocks *blocks, const struct cl_block *block);

/* Takes @block out of its table and off its context's list: another block may get its key. */
void cl_block_unhash(struct cl_blocks *blocks, struct cl_block *block);
/* Frees @block, which is DELETED, and lets another block use its record, which is released. */
void cl_block_delete(struct cl_blocks *blocks, struct cl_block *block);

/* Calls @each for all blocks of @kind in the table, in no order.  It may delete its block, and add none. */
void cl_block_each(struct cl_blocks *blocks, enum cl_kind kind,
		   void (*each)(struct cl_block *block, void *data), void *data);

/*
 * @record has just become free.  It is not used again before CL_RECORDS_RESTING others have become free.
 * Meanwhile an importer that opens a handle of its block too late finds when and where that was freed.
 */
void cl_block_rest_record_locked(struct cl_blocks *blocks, uint32_t record);

/* Returns the first record that was never used: those from there on are free, or have no memory. */
uint32_t cl_block_records_locked(const struct cl_blocks *blocks);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks that this process exported: see blocks.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/hot.h"
#include "shim/blocks/address_filter.h"
#include "shim/blocks/blocks.h"
#include "shim/base/fingerprint.h"
#include "shim/base/log.h"
#include "shim/diag/report_data.h"
#include "shim/self/self.h"

/* -------------------------------------------------------------- found by key */
CL_HOT_SHARING void cl_block_unhash(struct cl_blocks *blocks, struct cl_block *block)
{
	cl_block_leave_context(block);
	if (!block->hashed)
		return;
	cl_table_remove(&blocks->table[block->kind], &block->link);
	block->hashed = false;
}

void cl_block_each(struct cl_blocks *blocks, enum cl_kind kind,
		   void (*each)(struct cl_block *block, void *data), void *data)
{
	struct cl_link *link, *next;

	CL_TABLE_EACH (&blocks->table[kind], link, next)
		each((struct cl_block *)link, data);
}

/* -------------------------------------------------------------------- handles */
/*
 * The fingerprint leaves out bytes 0 to 7: they name the context that was current at the export, so
 * one block has two handles in two contexts.  The driver opens either (measured).  It leaves out bytes 56 to 63, as a
 * record does: they are zero, or name the same memory again for other GPUs (shm/handle.h).
 */
static inline uint64_t fingerprint_of(const uint8_t *handle)
{
	return cl_fingerprint(handle + 8, 0);
}

bool cl_block_has_handle(const struct cl_block *block, const void *handle)
{
	return block->handle == fingerprint_of(handle);
}

CL_HOT_SHARING struct cl_block *cl_block_of_record(const struct cl_blocks *blocks, uint32_t record)
{
	struct cl_block **chunk = record < CL_RECORDS ? blocks->by_record[record / CL_CHUNK] : NULL;

	return chunk ? chunk[record % CL_CHUNK] : NULL;
}

/* ------------------------------------------------------------------- records */
/* Makes room in by_record for one more fresh record.  Returns false without memory. */
static bool record_prepare(struct cl_blocks *blocks)
{
	uint32_t last = blocks->records.fresh + blocks->records.prepared;
	struct cl_block ***chunk;

	/* beyond CL_RECORDS there is no record to be had */
	if (last < CL_RECORDS) {
		chunk = &blocks->by_record[last / CL_CHUNK];
		if (!*chunk)
			*chunk = calloc(CL_CHUNK, sizeof **chunk);
		if (!*chunk)
			return false;
	}
	blocks->records.prepared++;
	return true;
}

static uint32_t record_get(struct cl_blocks *blocks)
{
	uint32_t record = blocks->records.fresh;
	int err;

	if (blocks->region == &cl_own && !cl_own_need_locked(false))
		return CL_NO_RECORD;
	if (!blocks->records.chunks)
		blocks->records.chunks = 1; /* the file comes with one */
	if (blocks->records.free_n)
		return blocks->records.free[--blocks->records.free_n];
	/* we count chunks ourselves: other processes can damage the header's count */
	if (record >= CL_STAMP_RECORDS || record / CL_CHUNK >= blocks->records.chunks) {
		cl_self_keep_descriptor(blocks->region, CL_LOCK_EXPORTER);
		/* the file has room for more than a stamp can name */
		err = record < CL_STAMP_RECORDS ? cl_region_grow(blocks->region) : -ENFILE;
		if (!err)
			err = cl_region_need_word(blocks->region, 0, record);
		if (err) {
			cl_log_once(CL_LOG_ERROR,
				    "no room for one more export (%u now): %s; blocks exported from here on "
				    "are not tracked: once freed, those under 2 MiB stay allocated until "
				    "this process ends",
				    record, strerror(-err));
			return CL_NO_RECORD;
		}
		blocks->records.chunks = record / CL_CHUNK + 1;
	}
	blocks->records.fresh++;
	return record;
}

static void record_put(struct cl_blocks *blocks, uint32_t record)
{
	blocks->by_record[record / CL_CHUNK][record % CL_CHUNK] = NULL;
	/* all its generations are used up: one more use could make an old handle valid again */
	if (!cl_record_reusable(blocks->region, record))
		return;
	if (blocks->records.free_n == blocks->records.free_size) {
		uint32_t size = blocks->records.free_size ? blocks->records.free_size * 2 : 256;
		uint32_t *more = realloc(blocks->records.free, size * sizeof *more);

		if (!more)
			return; /* nobody uses the record again, which wastes its 112 bytes */
		blocks->records.free = more;
		blocks->records.free_size = size;
	}
	blocks->records.free[blocks->records.free_n++] = record;
}

void cl_block_rest_record_locked(struct cl_blocks *blocks, uint32_t record)
{
	uint32_t n = blocks->records.free_n, *place;

	/* it may be free for good */
	if (!n || blocks->records.free[n - 1] != record)
		return;
	place = &blocks->freed.resting[blocks->freed.rested % CL_RECORDS_RESTING];
	if (blocks->freed.rested++ < CL_RECORDS_RESTING)
		blocks->records.free_n--;
	else
		blocks->records.free[n - 1] = *place;
	*place = record;
}

/* -------------------------------------------------------------------- blocks */
/* Returns a block of @kind that is all zeros otherwise, or NULL without memory. */
static inline struct cl_block *block_alloc(struct cl_blocks *blocks, enum cl_kind kind)
{
	struct cl_block *block = kind == CL_EVENT ? NULL : cl_spare_take(&blocks->spares);

	if (block)
		memset(block, 0, sizeof *block);
	else
		block = calloc(1, kind == CL_EVENT ? sizeof(struct cl_event_block) : sizeof *block);
	if (block)
		block->kind = (uint8_t)kind;
	return block;
}

static inline void block_free(struct cl_blocks *blocks, struct cl_block *block)
{
	if (block->kind == CL_EVENT)
		free(block);
	else
		cl_spare_give(&blocks->spares, block, CL_MOST_SPARE_BLOCKS);
}

static void say_no_memory(void)
{
	cl_log_once(CL_LOG_WARN, "no memory for the record of an export: the export is refused with "
				 "CUDA_ERROR_OUT_OF_MEMORY. The process is out of host memory, not of the GPU's");
}

CL_HOT_SHARING struct cl_block *cl_block_prepare_locked(struct cl_blocks *blocks, enum cl_kind kind)
{
	struct cl_block *block = block_alloc(blocks, kind);

	if (block && record_prepare(blocks))
		return block;
	if (block)
		block_free(blocks, block);
	say_no_memory();
	return NULL;
}

CL_HOT_SHARING bool cl_block_prepare_pool_locked(struct cl_blocks *blocks, struct cl_block *block, uint64_t pool)
{
	if (block->kind != CL_POOL || block->pool || !pool)
		return true;
	block->pool = cl_own_pool_get(&blocks->own_pools, pool);
	if (!block->pool)
		say_no_memory();
	return block->pool;
}

/* One export under way has ended.  A child that was forked meanwhile does not count it. */
static void prepared_is_used(struct cl_blocks *blocks)
{
	if (blocks->records.prepared)
		blocks->records.prepared--;
}

void cl_block_discard_locked(struct cl_blocks *blocks, struct cl_block *prepared)
{
	if (!prepared)
		return;
	prepared_is_used(blocks);
	if (prepared->kind == CL_POOL)
		cl_own_pool_put(&blocks->own_pools, prepared->pool);
	block_free(blocks, prepared);
}

CL_HOT_SHARING struct cl_block *cl_block_new(struct cl_blocks *blocks, struct cl_block *block,
					     const struct cl_export *what, struct cl_context *context,
					     uint32_t stack, uint32_t *generation)
{
	block->link.key = what->base;
	block->handle = fingerprint_of(what->handle);
	block->size = what->kind != CL_EVENT ? what->size : 0;
	block->device = (uint8_t)what->device;
	if (what->kind != CL_POOL) {
		block->context = context->index;
		cl_list_add_front(&context->blocks, &block->of);
	}
	cl_table_add(&blocks->table[block->kind], &block->link);
	block->hashed = true;
	if (what->kind != CL_EVENT)
		cl_address_filter_add(&blocks->filter, blocks->table, 1u << CL_MEMORY | 1u << CL_POOL,
				      block->link.key);
	block->record = record_get(blocks);
	prepared_is_used(blocks);
	if (block->record != CL_NO_RECORD) {
		if (what->kind != CL_EVENT) /* gets the device its entry in the header, for when the block is in the limbo */
			cl_device_limbo_locked(&blocks->devices, blocks->region, what->device);
		/* the record is free, so nobody reads its stacks yet */
		blocks->region->record[block->record].export_stack = stack;
		cl_record_freed_from(blocks->region, block->record, 0);
		*generation = cl_record_publish(blocks->region, block->record, what);
		blocks->by_record[block->record / CL_CHUNK][block->record % CL_CHUNK] = block;
		atomic_fetch_add_explicit(&blocks->region->header->live_blocks, 1, memory_order_relaxed);
	}
	return block;
}

CL_HOT_SHARING void cl_block_delete(struct cl_blocks *blocks, struct cl_block *block)
{
	cl_block_unhash(blocks, block);
	if (block->record != CL_NO_RECORD)
		record_put(blocks, block->record);
	if (block->kind == CL_POOL) {
		cl_block_waits_for_pool(blocks, block, false);
		cl_own_pool_put(&blocks->own_pools, block->pool);
	}
	block_free(blocks, block);
}

CL_HOT_SHARING void cl_block_waits_for_pool(struct cl_blocks *blocks, struct cl_block *block, bool waits)
{
	if (block->kind != CL_POOL || block->waits == waits)
		return;
	block->waits = waits;
	if (waits)
		cl_own_pool_entered(block->pool);
	else
		cl_own_pool_left(&blocks->own_pools, block->pool);
}

struct cl_about cl_block_about_locked(const struct cl_blocks *blocks, const struct cl_block *block)
{
	struct cl_about about = {
		.key = block->link.key,
		.kind = (uint8_t)block->kind,
		.size = block->size,
		.device = block->device,
	};

	if (block->record != CL_NO_RECORD) {
		const struct cl_record *r = &blocks->region->record[block->record];

		about.record = block->record;
		about.file_id = blocks->region->file_id;
		about.generation = cl_life_generation(cl_record_life(blocks->region, block->record));
		about.stack = atomic_load_explicit(&r->free_stack, memory_order_relaxed);
		about.when = atomic_load_explicit(&r->freed, memory_order_relaxed);
	}
	return about;
}

uint32_t cl_block_records_locked(const struct cl_blocks *blocks)
{
	return blocks->records.fresh;
}

void cl_blocks_begin(struct cl_blocks *blocks, struct cl_region *region,
		     struct cl_filter_bits *bits)
{
	blocks->region = region;
	for (unsigned int kind = 0; kind < CL_KINDS; kind++)
		blocks->table[kind] = (struct cl_table)CL_TABLE_BEGIN(blocks->table[kind]);
	cl_address_filter_begin(&blocks->filter, bits);
}

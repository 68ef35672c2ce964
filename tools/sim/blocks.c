/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of this process: those of cuMemAlloc, those of pools, and imports.
 *
 * Below 2 MiB blocks share a 2 MiB chunk (fact 1).
 *
 * What must hold:
 * - the place of the block freed last is used again first (facts 2, 3, 11);
 * - a chunk of cuMemAlloc goes back to the device with its last block;
 * - a block that is freed to a pool stays the pool's, mapped and known to importers,
 *   until one of these: the program next waits for a stream, an event or a context
 *   and the pool has more than its release threshold; the program trims the pool; an
 *   allocation finds too little (facts 11, 13, 17, 31);
 * - everything here is under sim.lock.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* ---- what pools keep ---- */

static struct sim_region *cached; /* newest first */

static void uncache(struct sim_region *region)
{
	if (!region->cached)
		return;
	for (struct sim_region **at = &cached; *at; at = &(*at)->next_cached) {
		if (*at != region)
			continue;
		*at = region->next_cached;
		break;
	}
	region->cached = false;
}

/* Gives the region back to the device, which gets it later if a block of it was exported. */
static void give_back(struct sim_region *region)
{
	if (region->pool && region->kind != SIM_POOL_IMPORT) {
		region->pool->reserved -= region->pages * SIM_PAGE;
		if (sim_mempool_keeps(region->pool, region->segment))
			region->pool->lost += region->pages * SIM_PAGE;
	}
	sim_region_free(region);
}

static void cache(struct sim_region *region)
{
	if (!region->pool->magic) {
		give_back(region); /* its pool has been destroyed */
		return;
	}
	region->cached = true;
	region->next_cached = cached;
	cached = region;
}

/* Returns the region of the same size that was freed last. */
static struct sim_region *cached_of(const struct sim_context *context, const struct sim_memory_pool *pool,
				    size_t pages)
{
	for (struct sim_region *r = cached; r; r = r->next_cached)
		if (r->pool == pool && r->context == context && r->pages == pages && r->kind == SIM_ASYNC)
			return r;
	return NULL;
}

void sim_memory_trim(struct sim_memory_pool *pool, size_t keep)
{
	struct sim_region *oldest;

	do {
		oldest = NULL;
		for (struct sim_region *r = cached; r; r = r->next_cached)
			if ((!pool || r->pool == pool) && r->pool->reserved > keep)
				oldest = r;
		if (oldest) {
			uncache(oldest);
			give_back(oldest);
		}
	} while (oldest);
}

uint64_t sim_memory_used(const struct sim_memory_pool *pool)
{
	uint64_t used = pool->still_used;

	for (const struct sim_region *r = sim_pool_owner(pool->device)->regions; r; r = r->next) {
		if (r->pool != pool || r->cached)
			continue;
		if (r->kind == SIM_ASYNC)
			used += r->pages * SIM_PAGE;
		else if (r->kind == SIM_ASYNC_CHUNK)
			used += (SIM_UNITS - r->chunk->free_units) * (uint64_t)SIM_UNIT;
	}
	return used;
}

void sim_memory_waited(void)
{
	struct sim_region *over;

	do {
		over = NULL;
		for (struct sim_region *r = cached; r && !over; r = r->next_cached)
			if (r->pool->reserved > r->pool->attribute[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD])
				over = r;
		if (over)
			sim_memory_trim(over->pool,
					over->pool->attribute[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD]);
	} while (over);
}

CUresult sim_memory_take(struct sim_context *context, enum sim_kind kind, size_t pages,
			 struct sim_region **region)
{
	CUresult result = sim_region_take(context, kind, pages, region);

	if (!result || !cached)
		return result;
	sim_memory_trim(NULL, 0);
	return sim_region_take(context, kind, pages, region);
}

/* Takes pages for a pool; with NULL for cuMemAlloc. */
static CUresult take(struct sim_context *context, enum sim_kind kind, size_t pages,
		     struct sim_memory_pool *pool, struct sim_region **region)
{
	CUresult result;

	if (pool && pool->most) {
		if (pool->reserved + pages * SIM_PAGE > pool->most)
			sim_memory_trim(pool, 0);
		if (pool->reserved + pages * SIM_PAGE > pool->most)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = sim_memory_take(context, kind, pages, region);
	if (result || !pool)
		return result;
	(*region)->pool = pool;
	pool->reserved += pages * SIM_PAGE;
	if (pool->exportable)
		pool_publish((*region)->segment, (*region)->base, POOL_BY_POINTER);
	return CUDA_SUCCESS;
}

/* ---- blocks in a shared chunk ---- */

static bool unit_used(const struct sim_chunk *chunk, unsigned int unit)
{
	return chunk->used[unit / 64] >> (unit % 64) & 1;
}

static bool units_free(const struct sim_chunk *chunk, unsigned int first, unsigned int units)
{
	for (unsigned int i = first; i < first + units; i++)
		if (i >= SIM_UNITS || unit_used(chunk, i))
			return false;
	return true;
}

static void set_units(struct sim_chunk *chunk, unsigned int first, unsigned int units, bool used)
{
	for (unsigned int i = first; i < first + units; i++) {
		if (used)
			chunk->used[i / 64] |= UINT64_C(1) << (i % 64);
		else
			chunk->used[i / 64] &= ~(UINT64_C(1) << (i % 64));
	}
	if (used)
		chunk->free_units -= units;
	else
		chunk->free_units += units;
}

static int find_units(struct sim_chunk *chunk, unsigned int units)
{
	unsigned int run = 0;

	if (chunk->free_units < units)
		return -1;
	while (chunk->lowest_free < SIM_UNITS && unit_used(chunk, chunk->lowest_free))
		chunk->lowest_free++;
	for (unsigned int i = chunk->lowest_free; i < SIM_UNITS;) {
		if (unit_used(chunk, i)) {
			run = 0;
			i += chunk->units[i] ? chunk->units[i] : 1;
			continue;
		}
		if (++run == units)
			return (int)(i + 1 - units);
		i++;
	}
	return -1;
}

static CUresult small_alloc(struct sim_context *context, enum sim_kind kind, size_t bytes,
			    struct sim_memory_pool *pool, uint64_t *address)
{
	unsigned int units = (unsigned int)((bytes + SIM_UNIT - 1) / SIM_UNIT);
	struct sim_region *region = NULL;
	CUresult result;
	int unit = -1;

	if (context->last_chunk && context->last_chunk->kind == kind &&
	    context->last_units == units && context->last_chunk->pool == pool &&
	    units_free(context->last_chunk->chunk, context->last_unit, units)) {
		region = context->last_chunk;
		unit = (int)context->last_unit;
		goto found;
	}
	/* The list has the newest first, so the last one found is the oldest chunk with room. */
	for (struct sim_region *r = context->regions; r; r = r->next) {
		int at;

		if (r->kind != kind || r->pool != pool)
			continue;
		at = find_units(r->chunk, units);
		if (at >= 0) {
			region = r;
			unit = at;
		}
	}
	if (unit < 0) {
		result = take(context, kind, 1, pool, &region);
		if (result)
			return result;
		region->chunk = calloc(1, sizeof(*region->chunk));
		if (!region->chunk) {
			give_back(region);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		region->chunk->free_units = SIM_UNITS;
		unit = 0;
	}
found:
	uncache(region);
	set_units(region->chunk, (unsigned int)unit, units, true);
	region->chunk->units[unit] = (uint16_t)units;
	region->chunk->size[unit] = (uint32_t)bytes;
	region->chunk->id[unit] = sim_next_id();
	*address = region->base + (uint64_t)unit * SIM_UNIT;
	return CUDA_SUCCESS;
}

static void small_free(struct sim_region *region, unsigned int unit)
{
	struct sim_chunk *chunk = region->chunk;
	unsigned int units = chunk->units[unit];

	set_units(chunk, unit, units, false);
	chunk->units[unit] = 0;
	chunk->doomed[unit / 64] &= ~(UINT64_C(1) << (unit % 64));
	if (unit < chunk->lowest_free)
		chunk->lowest_free = unit;
	if (chunk->free_units == SIM_UNITS && !region->pool) {
		sim_region_free(region);
		return;
	}
	region->context->last_chunk = region;
	region->context->last_unit = unit;
	region->context->last_units = units;
	if (chunk->free_units == SIM_UNITS)
		cache(region);
}

/* ---- blocks ---- */

struct sim_context *sim_pool_owner(int device)
{
	static struct sim_context owner[SIM_DEVICES_MAX];

	owner[device].device = device;
	return &owner[device];
}

CUresult sim_memory_alloc(struct sim_context *context, enum sim_kind kind, size_t bytes,
			  struct sim_memory_pool *pool, uint64_t *address)
{
	size_t pages = (bytes + SIM_PAGE - 1) / SIM_PAGE;
	struct sim_region *region;
	CUresult result;

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > pool_memory())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (pool)
		context = sim_pool_owner(pool->device);
	if (bytes < SIM_PAGE && kind == SIM_BLOCK)
		return small_alloc(context, SIM_CHUNK, bytes, pool, address);
	if (bytes < SIM_PAGE && kind == SIM_ASYNC)
		return small_alloc(context, SIM_ASYNC_CHUNK, bytes, pool, address);
	region = pool ? cached_of(context, pool, pages) : NULL;
	if (region) {
		uncache(region);
		region->id = sim_next_id();
		region->sync_memops = 0;
	} else {
		result = take(context, kind, pages, pool, &region);
		if (result)
			return result;
	}
	region->size = bytes;
	*address = region->base;
	return CUDA_SUCCESS;
}

static bool mapped_block_at(struct sim_region *region, uint64_t address, struct sim_block *block)
{
	for (struct sim_vmm_map *map = region->maps; map; map = map->next) {
		if (address < map->base || address >= map->base + map->size)
			continue;
		block->base = map->base;
		block->size = map->size;
		block->id = map->id;
		block->region = region;
		return true;
	}
	return false;
}

/* Finds the pool import, not freed yet, that is at @offset of the region or contains it. */
static struct sim_import *import_at(const struct sim_region *region, uint64_t offset)
{
	for (unsigned int i = 0; i < region->import_slots; i++) {
		struct sim_import *import = &region->imports[i];

		if (import->count && offset >= import->offset && offset - import->offset < import->size)
			return import;
	}
	return NULL;
}

static bool imported_block_at(struct sim_region *region, uint64_t address, struct sim_block *block)
{
	const struct sim_import *import = import_at(region, address - region->base);

	/* from its stream-ordered free on no call knows it, whatever its stream does (measured) */
	if (!import || import->doomed)
		return false;
	block->base = region->base + import->offset;
	block->size = import->size;
	block->id = import->id;
	return true;
}

bool sim_block_at(uint64_t address, struct sim_block *block)
{
	struct sim_region *region = sim_region_at(address);
	unsigned int unit;

	if (!region || region->cached)
		return false;
	block->region = region;
	switch (region->kind) {
	case SIM_RESERVED:
		return mapped_block_at(region, address, block);
	case SIM_POOL_IMPORT:
		return imported_block_at(region, address, block);
	case SIM_CHUNK:
	case SIM_ASYNC_CHUNK:
		unit = (unsigned int)((address - region->base) / SIM_UNIT);
		if (!unit_used(region->chunk, unit))
			return false;
		while (!region->chunk->units[unit])
			unit--;
		block->base = region->base + (uint64_t)unit * SIM_UNIT;
		block->size = region->chunk->size[unit];
		block->id = region->chunk->id[unit];
		return true;
	default:
		block->base = region->base;
		block->size = region->size ? region->size : region->pages * SIM_PAGE;
		block->id = region->id;
		return true;
	}
}

bool sim_device_range(uint64_t address, size_t bytes)
{
	uint64_t end = address + bytes;

	if (end < address)
		return false;
	while (address < end) {
		struct sim_region *region = sim_region_at(address);
		struct sim_block block;

		if (!region || region->cached)
			return false;
		if (region->kind == SIM_RESERVED) {
			if (!mapped_block_at(region, address, &block))
				return false;
			address = block.base + block.size;
		} else {
			/* As on a GPU, the rest of the pages can be touched. */
			address = region->base + region->pages * SIM_PAGE;
		}
	}
	return true;
}

/*
 * One free unmaps it, however often it was imported (fact 15); for an exception see
 * note_import().
 */
static CUresult free_import(struct sim_region *region, uint64_t address)
{
	struct sim_import *import = import_at(region, address - region->base);

	if (!import || address != region->base + import->offset)
		return CUDA_ERROR_INVALID_VALUE;
	if (--import->count) /* the block was imported again while this free waited in a stream */
		return CUDA_SUCCESS;
	memset(import, 0, sizeof(*import));
	for (unsigned int i = 0; i < region->import_slots; i++)
		if (region->imports[i].count)
			return CUDA_SUCCESS;
	sim_region_free(region);
	return CUDA_SUCCESS;
}

CUresult sim_memory_free(uint64_t address)
{
	struct sim_region *region = sim_region_at(address);
	unsigned int unit;

	if (!region || region->cached)
		return CUDA_ERROR_INVALID_VALUE;
	switch (region->kind) {
	case SIM_CHUNK:
	case SIM_ASYNC_CHUNK:
		unit = (unsigned int)((address - region->base) / SIM_UNIT);
		if ((address - region->base) % SIM_UNIT || !region->chunk->units[unit])
			return CUDA_ERROR_INVALID_VALUE;
		small_free(region, unit);
		return CUDA_SUCCESS;
	case SIM_POOL_IMPORT:
		return free_import(region, address);
	case SIM_ASYNC:
		if (address != region->base)
			return CUDA_ERROR_INVALID_VALUE;
		region->doomed = false;
		cache(region);
		return CUDA_SUCCESS;
	case SIM_BLOCK:
	case SIM_MANAGED:
		if (address != region->base)
			return CUDA_ERROR_INVALID_VALUE;
		sim_region_free(region);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static unsigned int unit_of(const struct sim_block *block)
{
	return (unsigned int)((block->base - block->region->base) / SIM_UNIT);
}

bool sim_memory_doomed(const struct sim_block *block)
{
	if (block->region->kind == SIM_POOL_IMPORT)
		return import_at(block->region, block->base - block->region->base)->doomed;
	if (block->region->chunk)
		return block->region->chunk->doomed[unit_of(block) / 64] >> (unit_of(block) % 64) & 1;
	return block->region->doomed;
}

bool sim_memory_of_pool(const struct sim_region *region)
{
	return region->kind == SIM_ASYNC || region->kind == SIM_ASYNC_CHUNK ||
	       region->kind == SIM_POOL_IMPORT;
}

void sim_memory_doom(const struct sim_block *block, bool doom)
{
	struct sim_region *region = block->region;
	uint64_t bit;

	if (region->kind == SIM_POOL_IMPORT) {
		import_at(region, block->base - region->base)->doomed = doom;
		return;
	}
	if (!region->chunk) {
		region->doomed = doom;
		return;
	}
	bit = UINT64_C(1) << (unit_of(block) % 64);
	if (doom)
		region->chunk->doomed[unit_of(block) / 64] |= bit;
	else
		region->chunk->doomed[unit_of(block) / 64] &= ~bit;
}

void sim_memory_wait_frees(struct sim_context *context)
{
	while (context->freeing)
		sim_wait_changed(0);
}

void sim_memory_free_context(struct sim_context *context)
{
	while (context->regions) {
		uncache(context->regions);
		give_back(context->regions);
	}
}

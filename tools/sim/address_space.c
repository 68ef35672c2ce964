/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's device addresses, and the blocks in them.
 *
 * Device addresses are real ones: a reserved range of this process in which
 * each allocation maps its part of the pool.  Below 2 MiB blocks share a 2 MiB
 * chunk (fact 1).
 *
 * What must hold:
 * - the lowest address that fits is taken, and the place of the block freed
 *   last first of all, so that freeing and allocating the same size again gives
 *   the same address (facts 2 and 3);
 * - a chunk goes back to the pool with its last block;
 * - everything here is under sim.lock.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

static struct {
	char *base; /* the reserved range */
	size_t pages;
	struct sim_region **page; /* who has each page of it */
	bool *taken;
	uint64_t next_id;
	size_t freed_page, freed_pages; /* the range given back last */
} space;

/* ---- the address space ---- */

CUresult sim_address_space_init(void)
{
	size_t total = pool_memory() * pool_devices();
	size_t bytes = (size_t)64 << 30;
	char *at = MAP_FAILED;

	if (bytes < 4 * total)
		bytes = 4 * total;
	while (bytes >= ((size_t)1 << 30)) {
		at = mmap(NULL, bytes + SIM_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			  -1, 0);
		if (at != MAP_FAILED)
			break;
		bytes /= 2;
	}
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	space.base = (char *)(((uintptr_t)at + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE);
	space.pages = bytes / SIM_PAGE;
	space.page = calloc(space.pages, sizeof(*space.page));
	space.taken = calloc(space.pages, sizeof(*space.taken));
	return space.page && space.taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool pages_free(size_t first, size_t pages)
{
	if (first + pages > space.pages)
		return false;
	for (size_t i = 0; i < pages; i++)
		if (space.taken[first + i])
			return false;
	return true;
}

uint64_t sim_address_take(size_t pages, size_t alignment)
{
	size_t step = alignment / SIM_PAGE ? alignment / SIM_PAGE : 1;
	size_t i = 0, skew = 0;

	if (step > 1)
		skew = (alignment - (uintptr_t)space.base % alignment) % alignment / SIM_PAGE;
	if (space.freed_pages == pages && step == 1 && pages_free(space.freed_page, pages))
		i = space.freed_page;
	else
		for (i = skew; i + pages <= space.pages; i += step)
			if (!space.taken[i] && pages_free(i, pages))
				break;
	if (i + pages > space.pages)
		return 0;
	memset(space.taken + i, 1, pages * sizeof(*space.taken));
	return (uint64_t)(uintptr_t)(space.base + i * SIM_PAGE);
}

void sim_address_give(uint64_t base, size_t pages)
{
	size_t first = ((uintptr_t)base - (uintptr_t)space.base) / SIM_PAGE;

	memset(space.taken + first, 0, pages * sizeof(*space.taken));
	memset(space.page + first, 0, pages * sizeof(*space.page));
	space.freed_page = first;
	space.freed_pages = pages;
}

void sim_address_set(uint64_t base, size_t pages, struct sim_region *region)
{
	size_t first = ((uintptr_t)base - (uintptr_t)space.base) / SIM_PAGE;

	for (size_t i = 0; i < pages; i++)
		space.page[first + i] = region;
}

void sim_unmap(uint64_t base, size_t bytes)
{
	mmap((void *)(uintptr_t)base, bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

struct sim_region *sim_region_at(uint64_t address)
{
	uintptr_t from = (uintptr_t)space.base;

	if (!from || address < from || address >= from + space.pages * SIM_PAGE)
		return NULL;
	return space.page[(address - from) / SIM_PAGE];
}

CUresult sim_memory_needed(int device)
{
	size_t free_bytes;

	if (!sim_options()->needed)
		return CUDA_SUCCESS;
	pool_usage((unsigned int)device, &free_bytes);
	return free_bytes < sim_options()->needed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

uint64_t sim_next_id(void)
{
	return ++space.next_id;
}

/* ---- regions ---- */

struct sim_region *sim_region_new(struct sim_context *context, enum sim_kind kind, uint64_t base,
				  size_t pages, uint32_t segment)
{
	struct sim_region *region = calloc(1, sizeof(*region));

	if (!region)
		return NULL;
	region->kind = kind;
	region->base = base;
	region->pages = pages;
	region->segment = segment;
	region->context = context;
	region->id = sim_next_id();
	if (context) {
		region->device = context->device;
		region->next = context->regions;
		context->regions = region;
	}
	if (base)
		sim_address_set(base, pages, region);
	return region;
}

/* Gives back all that the region has; its addresses are free afterwards. */
void sim_region_free(struct sim_region *region)
{
	if (region->context) {
		struct sim_region **at = &region->context->regions;

		while (*at != region)
			at = &(*at)->next;
		*at = region->next;
		if (region->context->last_chunk == region)
			region->context->last_chunk = NULL;
	}
	if (region->kind != SIM_RESERVED) {
		if (region->kind == SIM_BLOCK || region->kind == SIM_CHUNK)
			pool_unpublish(region->segment);
		if (region->base)
			sim_unmap(region->base, region->pages * SIM_PAGE);
		pool_drop(region->segment);
	}
	if (region->base)
		sim_address_give(region->base, region->pages);
	free(region->chunk);
	free(region->imports);
	free(region);
}

CUresult sim_region_take(struct sim_context *context, enum sim_kind kind, size_t pages,
				struct sim_region **region)
{
	uint32_t segment;
	uint64_t base = 0;

	if (pool_take((unsigned int)context->device, pages * SIM_PAGE, &segment))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (kind != SIM_ARRAY) {
		base = sim_address_take(pages, SIM_PAGE);
		if (!base)
			goto drop;
		if (pool_map(segment, 0, pages * SIM_PAGE, (void *)(uintptr_t)base))
			goto unmap;
	}
	*region = sim_region_new(context, kind, base, pages, segment);
	if (!*region)
		goto unmap;
	if (kind == SIM_BLOCK || kind == SIM_CHUNK)
		pool_publish(segment, base);
	return CUDA_SUCCESS;
unmap:
	if (base) {
		sim_unmap(base, pages * SIM_PAGE);
		sim_address_give(base, pages);
	}
drop:
	pool_drop(segment);
	return CUDA_ERROR_OUT_OF_MEMORY;
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

static CUresult small_alloc(struct sim_context *context, enum sim_kind kind, size_t bytes, void *pool,
			    uint64_t *address)
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
	/* The list has the newest first: the oldest chunk with room is the last found. */
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
		result = sim_region_take(context, kind, 1, &region);
		if (result)
			return result;
		region->pool = pool;
		region->chunk = calloc(1, sizeof(*region->chunk));
		if (!region->chunk) {
			sim_region_free(region);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		region->chunk->free_units = SIM_UNITS;
		unit = 0;
	}
found:
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
	if (chunk->free_units == SIM_UNITS) {
		sim_region_free(region);
		return;
	}
	region->context->last_chunk = region;
	region->context->last_unit = unit;
	region->context->last_units = units;
}

/* ---- blocks ---- */

CUresult sim_memory_alloc(struct sim_context *context, enum sim_kind kind, size_t bytes, void *pool,
			  uint64_t *address)
{
	struct sim_region *region;
	CUresult result;

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > pool_memory())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (bytes < SIM_PAGE && kind == SIM_BLOCK)
		return small_alloc(context, SIM_CHUNK, bytes, pool, address);
	if (bytes < SIM_PAGE && kind == SIM_ASYNC)
		return small_alloc(context, SIM_ASYNC_CHUNK, bytes, pool, address);
	result = sim_region_take(context, kind, (bytes + SIM_PAGE - 1) / SIM_PAGE, &region);
	if (result)
		return result;
	region->size = bytes;
	region->pool = pool;
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
bool sim_block_at(uint64_t address, struct sim_block *block)
{
	struct sim_region *region = sim_region_at(address);
	unsigned int unit;

	if (!region)
		return false;
	block->region = region;
	switch (region->kind) {
	case SIM_RESERVED:
		return mapped_block_at(region, address, block);
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

		if (!region)
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

CUresult sim_memory_free(uint64_t address)
{
	struct sim_region *region = sim_region_at(address);
	unsigned int unit;

	if (!region)
		return CUDA_ERROR_INVALID_VALUE;
	switch (region->kind) {
	case SIM_CHUNK:
	case SIM_ASYNC_CHUNK:
		unit = (unsigned int)((address - region->base) / SIM_UNIT);
		if ((address - region->base) % SIM_UNIT || !region->chunk->units[unit])
			return CUDA_ERROR_INVALID_VALUE;
		small_free(region, unit);
		return CUDA_SUCCESS;
	case SIM_BLOCK:
	case SIM_ASYNC:
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
	if (block->region->chunk)
		return block->region->chunk->doomed[unit_of(block) / 64] >> (unit_of(block) % 64) & 1;
	return block->region->doomed;
}

void sim_memory_doom(const struct sim_block *block, bool doom)
{
	struct sim_region *region = block->region;
	uint64_t bit;

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
	while (context->regions)
		sim_region_free(context->regions);
}

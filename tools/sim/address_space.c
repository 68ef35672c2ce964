/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's device addresses, and the regions in them.
 *
 * Device addresses are real addresses: they lie in a reserved range of this process,
 * and each allocation maps its part of the pool there.
 *
 * What must hold:
 * - an allocation first gets the place of the region freed last, and otherwise the
 *   lowest address that fits.  So a free and an allocation of the same size give
 *   the same address (facts 2 and 3);
 * - everything here is under sim.lock.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

static struct {
	char *base; /* the reserved range */
	size_t pages;
	struct sim_region **page; /* the region of each of its pages */
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

/* Gives back all that the region has, and frees its addresses. */
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
		if (region->kind != SIM_IMPORT && region->kind != SIM_POOL_IMPORT)
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
		pool_publish(segment, base, POOL_BY_HANDLE);
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

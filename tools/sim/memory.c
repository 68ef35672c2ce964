/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's device addresses, and the blocks in them: cuMemAlloc and its
 * kin, arrays, pinned host memory.
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
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Takes pages of the device and maps them; *region has them. */
static CUresult take_region(struct sim_context *context, enum sim_kind kind, size_t pages,
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
		result = take_region(context, kind, 1, &region);
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
	result = take_region(context, kind, (bytes + SIM_PAGE - 1) / SIM_PAGE, &region);
	if (result)
		return result;
	region->size = bytes;
	region->pool = pool;
	*address = region->base;
	return CUDA_SUCCESS;
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
		return sim_vmm_block_at(region, address, block);
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
			if (!sim_vmm_block_at(region, address, &block))
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

/* ---- the calls ---- */

SIM_CALL(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!free_bytes || !total) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		pool_usage((unsigned int)context->device, free_bytes);
		*total = pool_memory();
	}
	sim_leave();
	return result;
}

SIM_CALL(cuMemAlloc_v2, (CUdeviceptr *dptr, size_t bytes))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	uint64_t address;

	if (result)
		return result;
	result = sim_capture_forbids();
	if (result)
		goto out;
	sim_memory_wait_frees(context);
	result = dptr ? sim_memory_alloc(context, SIM_BLOCK, bytes, NULL, &address)
		      : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*dptr = (CUdeviceptr)address;
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemAllocPitch_v2, (CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
			      unsigned int element))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	uint64_t address;

	if (result)
		return result;
	result = sim_capture_forbids();
	if (result)
		goto out;
	sim_memory_wait_frees(context);
	if (!dptr || !pitch || !width || !height || width > SIZE_MAX - 511 ||
	    (width + 511) / 512 * 512 > SIZE_MAX / height ||
	    (element != 4 && element != 8 && element != 16)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		result = sim_memory_alloc(context, SIM_BLOCK, (width + 511) / 512 * 512 * height, NULL,
					  &address);
		if (!result) {
			*pitch = (width + 511) / 512 * 512;
			*dptr = (CUdeviceptr)address;
		}
	}
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemAllocManaged, (CUdeviceptr *dptr, size_t bytes, unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	uint64_t address;

	if (result)
		return result;
	result = sim_capture_forbids();
	if (result)
		goto out;
	sim_memory_wait_frees(context);
	if (!dptr || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
		      flags != CU_MEM_ATTACH_SINGLE))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		result = sim_memory_alloc(context, SIM_MANAGED, bytes, NULL, &address);
	if (!result)
		*dptr = (CUdeviceptr)address;
out:
	sim_leave();
	return result;
}

/* Needs no current context: the block knows its own. */
SIM_CALL(cuMemFree_v2, (CUdeviceptr dptr))
{
	CUresult result = sim_ready();
	struct sim_context *owner = NULL;
	struct sim_block block;

	if (result || !dptr)
		return result;
	pthread_mutex_lock(&sim.lock);
	/* (what is doomed is freed already, though the stream that it was freed in may not have got there) */
	if (sim_block_at(dptr, &block) && block.base == dptr && block.region->kind != SIM_IMPORT &&
	    !sim_memory_doomed(&block))
		owner = block.region->context;
	if (!owner) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	result = owner->sticky ? owner->sticky : sim_capture_forbids();
	if (result)
		goto out;
	/* It waits for the work of the context, whatever uses the block. */
	owner->freeing++;
	sim_context_wait(owner);
	owner->freeing--;
	pthread_cond_broadcast(&sim.changed);
	result = sim_memory_free(dptr);
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemGetAddressRange_v2, (CUdeviceptr *base, size_t *size, CUdeviceptr dptr))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_block block;

	if (result)
		return result;
	if (sim_block_at(dptr, &block)) {
		if (base)
			*base = (CUdeviceptr)block.base;
		if (size)
			*size = block.size;
	} else {
		result = CUDA_ERROR_NOT_FOUND;
	}
	sim_leave();
	return result;
}

/* ---- forms of CUDA 2.0, with 32-bit addresses: here, and of no use ---- */

SIM_CALL(cuMemAlloc, (unsigned int *dptr, unsigned int bytes))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuMemAllocPitch, (unsigned int *dptr, unsigned int *pitch, unsigned int width,
			   unsigned int height, unsigned int element))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuMemFree, (unsigned int dptr))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuMemGetAddressRange, (unsigned int *base, unsigned int *size, unsigned int dptr))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuMemGetInfo, (unsigned int *free_bytes, unsigned int *total))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuMemHostGetDevicePointer, (unsigned int *dptr, void *pointer, unsigned int flags))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuArrayCreate, (CUarray *handle, const void *wanted))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuArray3DCreate, (CUarray *handle, const void *wanted))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- arrays: device memory that is counted and can't be reached ---- */

static size_t format_bytes(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	default:
		return 0;
	}
}

static CUresult array_create(struct sim_region **array, const CUDA_ARRAY3D_DESCRIPTOR *wanted,
			     unsigned int levels)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	size_t bytes;

	if (result)
		return result;
	bytes = wanted ? format_bytes(wanted->Format) * wanted->NumChannels : 0;
	if (!array || !bytes || !wanted->Width || !levels || wanted->NumChannels > 4 ||
	    wanted->Width > 1 << 20 || wanted->Height > 1 << 20 || wanted->Depth > 1 << 16) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		bytes *= wanted->Width * (wanted->Height ? wanted->Height : 1) *
			 (wanted->Depth ? wanted->Depth : 1);
		if (levels > 1)
			bytes += bytes / 2;
		sim_memory_wait_frees(context);
		if (bytes > pool_memory())
			result = CUDA_ERROR_OUT_OF_MEMORY;
		else
			result = take_region(context, SIM_ARRAY, (bytes + SIM_PAGE - 1) / SIM_PAGE, array);
		if (!result)
			(*array)->size = bytes;
	}
	sim_leave();
	return result;
}

static CUresult array_destroy(struct sim_region *array)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	result = CUDA_ERROR_INVALID_HANDLE;
	for (struct sim_region *r = context->regions; r; r = r->next) {
		if (r != array || r->kind != SIM_ARRAY)
			continue;
		sim_context_wait(context);
		sim_region_free(r);
		result = CUDA_SUCCESS;
		break;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuArrayCreate_v2, (CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *wanted))
{
	CUDA_ARRAY3D_DESCRIPTOR full = { 0 };

	if (wanted) {
		full.Width = wanted->Width;
		full.Height = wanted->Height;
		full.Format = wanted->Format;
		full.NumChannels = wanted->NumChannels;
	}
	return array_create((struct sim_region **)handle, wanted ? &full : NULL, 1);
}

SIM_CALL(cuArray3DCreate_v2, (CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *wanted))
{
	return array_create((struct sim_region **)handle, wanted, 1);
}

SIM_CALL(cuMipmappedArrayCreate, (CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *wanted,
				  unsigned int levels))
{
	return array_create((struct sim_region **)handle, wanted, levels);
}

SIM_CALL(cuArrayDestroy, (CUarray handle))
{
	return array_destroy((struct sim_region *)handle);
}

SIM_CALL(cuMipmappedArrayDestroy, (CUmipmappedArray handle))
{
	return array_destroy((struct sim_region *)handle);
}

/* ---- pinned host memory ---- */

struct host_range {
	struct host_range *next;
	char *base;
	size_t size;
	unsigned int flags;
	bool registered; /* the program's own memory */
	struct sim_context *context;
	uint64_t id;
};

static struct host_range *host_ranges;

static struct host_range *host_find(const void *address)
{
	for (struct host_range *h = host_ranges; h; h = h->next)
		if ((const char *)address >= h->base && (const char *)address < h->base + h->size)
			return h;
	return NULL;
}

bool sim_host_at(const void *address, void **base, size_t *size, unsigned int *flags,
		 struct sim_context **context, uint64_t *id)
{
	struct host_range *h = host_find(address);

	if (!h)
		return false;
	*base = h->base;
	*size = h->size;
	*flags = h->flags;
	*context = h->context;
	*id = h->id;
	return true;
}

static CUresult host_add(void *base, size_t size, unsigned int flags, bool registered)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct host_range *h;

	if (result)
		return result;
	h = calloc(1, sizeof(*h));
	if (registered && host_find(base)) {
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
		free(h);
	} else if (!h) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		*h = (struct host_range){ host_ranges, base, size, flags, registered, context,
					  sim_next_id() };
		host_ranges = h;
	}
	sim_leave();
	return result;
}

static CUresult host_remove(void *base, bool registered)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct host_range *h = NULL;

	if (result)
		return result;
	sim_context_wait(context);
	for (struct host_range **at = &host_ranges; *at; at = &(*at)->next) {
		if ((*at)->base != base || (*at)->registered != registered)
			continue;
		h = *at;
		*at = h->next;
		break;
	}
	sim_leave();
	if (!h)
		return registered ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
	if (!registered)
		munmap(h->base, h->size);
	free(h);
	return CUDA_SUCCESS;
}

SIM_CALL(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned int flags))
{
	CUresult result = sim_ready();
	void *at;

	if (result)
		return result;
	if (!pointer || !bytes || flags > 7 || bytes > SIZE_MAX / 2)
		return CUDA_ERROR_INVALID_VALUE;
	bytes = (bytes + 4095) / 4096 * 4096;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = host_add(at, bytes, flags, false);
	if (result)
		munmap(at, bytes);
	else
		*pointer = at;
	return result;
}

SIM_CALL(cuMemAllocHost_v2, (void **pointer, size_t bytes))
{
	return cuMemHostAlloc(pointer, bytes, 0);
}

SIM_CALL(cuMemAllocHost, (void **pointer, unsigned int bytes))
{
	return cuMemHostAlloc(pointer, bytes, 0);
}

SIM_CALL(cuMemFreeHost, (void *pointer))
{
	return host_remove(pointer, false);
}

SIM_CALL(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned int flags))
{
	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return host_add(pointer, bytes, flags, true);
}

SIM_CALL(cuMemHostRegister, (void *pointer, size_t bytes, unsigned int flags))
{
	return cuMemHostRegister_v2(pointer, bytes, flags);
}

SIM_CALL(cuMemHostUnregister, (void *pointer))
{
	return host_remove(pointer, true);
}

SIM_CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr *dptr, void *pointer, unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (dptr && !flags && host_find(pointer))
		*dptr = (CUdeviceptr)(uintptr_t)pointer;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}

SIM_CALL(cuMemHostGetFlags, (unsigned int *flags, void *pointer))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct host_range *h;

	if (result)
		return result;
	h = host_find(pointer);
	if (flags && h)
		*flags = h->flags;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}

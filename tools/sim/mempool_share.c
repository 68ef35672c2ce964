/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools shared between processes: a descriptor or a fabric handle names a pool, export data name a block of it.
 *
 * Export data, of which the driver writes and reads 48 bytes (fact 12):
 *
 *   bytes  0-3   the exporter (client number)
 *          4-7   the pool's number there
 *          8-15  address of the pages in the exporter
 *         16-23  bytes of the pages
 *         24-31  offset of the block in the pages: an offset beyond them crashes
 *         32-39  bytes of the block
 *         40-47  a number that differs for each allocation: not read
 *
 * What must hold:
 * - nothing is kept alive: a block that the exporter frees is the pool's again, and the
 *   next block gets the same pages that an importer has mapped (facts 11 and 13);
 * - an import maps the exporter's pages, once however often it is made; one free unmaps
 *   them (fact 15);
 * - pages of which a block was exported are held until the pool is destroyed and its last
 *   descriptor closed, and pages that an importer ever mapped until its imported pool is
 *   destroyed (measured).  Only the exporter's pool can use them again: once it has given
 *   them back, by its threshold or a trim, nobody has them (fact 31).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* The importer of a larger block crashes (fact 16: 5 GiB work, 6 do not). */
#define IMPORT_MAX ((uint64_t)5 << 30)

struct data {
	uint32_t client;
	uint32_t pool;
	uint64_t base;
	uint64_t bytes;
	uint64_t offset;
	uint64_t size;
	uint64_t number;
};

_Static_assert(sizeof(struct data) == 48 && sizeof(CUmemPoolPtrExportData) == 64, "bytes 48-63 are not ours");

struct sim_memory_pool *sim_mempool_of(CUmemoryPool handle)
{
	struct sim_memory_pool *pool = (struct sim_memory_pool *)handle;

	return pool && pool->magic == SIM_MEMPOOL_MAGIC ? pool : NULL;
}

/* ---- pools ---- */

bool sim_mempool_keep(struct sim_memory_pool *pool, uint32_t segment)
{
	unsigned int n = pool->kept_segments;

	/* a destroyed pool with live blocks: our choice */
	if (!pool->magic || sim_mempool_keeps(pool, segment))
		return true;
	if (!(n & (n - 1))) {
		uint32_t *kept = realloc(pool->kept, (n ? 2 * n : 1) * sizeof(*kept));

		if (!kept)
			return false;
		pool->kept = kept;
	}
	pool->kept[pool->kept_segments++] = segment;
	pool_keep(segment, pool->imported ? 0 : pool->number);
	return true;
}

void sim_mempool_let_go(struct sim_memory_pool *pool)
{
	while (pool->kept_segments)
		pool_drop(pool->kept[--pool->kept_segments]);
	free(pool->kept);
	pool->kept = NULL;
}

SIM_CALL(cuMemPoolExportToShareableHandle, (void *shareable, CUmemoryPool handle,
					    CUmemAllocationHandleType type, unsigned long long flags))
{
	CUresult result = sim_ready();
	struct sim_memory_pool *pool;
	int fd;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	result = sim_capture_forbids(); /* measured, as the other two */
	if (result)
		goto out;
	pool = sim_mempool_of(handle);
	result = CUDA_ERROR_INVALID_VALUE;
	if (!shareable || !pool || flags || !sim_is_handle_type(type) || !(pool->types & (unsigned int)type))
		goto out;
	if ((unsigned int)type == SIM_FABRIC) {
		struct sim_fabric_handle name = { SIM_FABRIC_POOL, pool_client(), pool->number,
						  pool_physical((unsigned int)pool->device) };

		memset(shareable, 0, SIM_FABRIC_BYTES);
		memcpy(shareable, &name, sizeof(name));
		pool->exported = true;
		result = CUDA_SUCCESS;
		goto out;
	}
	fd = pool_export_mempool(pool->number, pool_physical((unsigned int)pool->device));
	if (fd < 0) {
		result = CUDA_ERROR_OPERATING_SYSTEM;
		goto out;
	}
	pool->exported = true;
	*(int *)shareable = fd;
	result = CUDA_SUCCESS;
out:
	sim_leave();
	return result;
}

static struct sim_memory_pool *imported; /* all that there ever were; under sim.lock */

static struct sim_memory_pool *new_import(uint32_t client, uint32_t number, int device)
{
	struct sim_memory_pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->magic = SIM_MEMPOOL_MAGIC;
	pool->device = device;
	pool->imported = true;
	pool->client = client;
	pool->number = number;
	pool->next_imported = imported;
	imported = pool;
	return pool;
}

/* Returns an error of pool_import_fd().  A fabric handle can be imported while its exporter lives (our choice). */
static int named_by(void *shareable, CUmemAllocationHandleType type, uint32_t *client, uint32_t *number,
		    unsigned int *device)
{
	struct sim_fabric_handle name;

	if ((unsigned int)type != SIM_FABRIC)
		return pool_import_mempool((int)(intptr_t)shareable, client, number, device);
	if (!shareable)
		return -EINVAL;
	memcpy(&name, shareable, sizeof(name));
	if (name.kind != SIM_FABRIC_POOL || name.bytes >= SIM_DEVICES_MAX || !pool_client_alive(name.client))
		return -EINVAL;
	*client = name.client;
	*number = (uint32_t)name.id;
	*device = (unsigned int)name.bytes;
	return 0;
}

/* A pool that is imported already is given once more and counted, so that its last destroy ends it (measured). */
SIM_CALL(cuMemPoolImportFromShareableHandle, (CUmemoryPool *handle, void *shareable,
					      CUmemAllocationHandleType type, unsigned long long flags))
{
	CUresult result = sim_ready();
	struct sim_memory_pool *pool;
	uint32_t client, number;
	unsigned int device;

	if (result)
		return result;
	if (!handle || flags || !sim_is_handle_type(type))
		return CUDA_ERROR_INVALID_VALUE;
	switch (named_by(shareable, type, &client, &number, &device)) {
	case 0:
		break;
	case -ENOENT:
		return CUDA_ERROR_UNKNOWN; /* as in fact 24 */
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (pool_reachable(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sim.lock);
	for (pool = imported; pool; pool = pool->next_imported)
		if (pool->magic && pool->client == client && pool->number == number)
			break;
	if (!pool)
		pool = new_import(client, number, pool_reachable(device));
	if (pool) {
		pool->times++;
		*handle = (CUmemoryPool)pool;
	}
	sim_leave();
	return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Measured for imports, and documented for all: another device reaches a pool's memory only if it is let in. */
bool sim_pool_reaches(const struct sim_region *region, int device)
{
	const struct sim_memory_pool *pool = region->pool;

	if (!sim_options()->pool_access || !sim_memory_of_pool(region) || pool->on_host)
		return true;
	if (pool->of)
		pool = pool->of;
	return pool->device == device || pool->reach >> (device & 63) & 1;
}

SIM_CALL(cuMemPoolSetAccess, (CUmemoryPool handle, const CUmemAccessDesc *access, size_t count))
{
	CUresult result = sim_ready();
	struct sim_memory_pool *pool;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	pool = sim_mempool_of(handle);
	if (!pool || !access || !count)
		result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !result && i < count; i++)
		result = sim_knows(&access[i].location) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	for (size_t i = 0; !result && i < count; i++) {
		uint64_t bit = UINT64_C(1) << (access[i].location.id & 63);

		pool->reach = access[i].flags ? pool->reach | bit : pool->reach & ~bit;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuMemPoolGetAccess, (CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location))
{
	CUresult result = sim_ready();
	struct sim_memory_pool *pool;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	pool = sim_mempool_of(handle);
	if (!flags || !location || !pool)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!sim_knows(location))
		result = CUDA_ERROR_INVALID_DEVICE;
	else
		*flags = location->id == pool->device || pool->reach >> (location->id & 63) & 1 ?
				 CU_MEM_ACCESS_FLAGS_PROT_READWRITE :
				 CU_MEM_ACCESS_FLAGS_PROT_NONE;
	sim_leave();
	return result;
}

/* ---- pointers ---- */

SIM_CALL(cuMemPoolExportPointer, (CUmemPoolPtrExportData *out, CUdeviceptr dptr))
{
	CUresult result = sim_ready();
	struct sim_block block;
	struct data data;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	result = sim_capture_forbids();
	/* our choice: a block freed in stream order counts as freed */
	if (result) {
		sim_leave();
		return result;
	}
	if (!out || !sim_block_at(dptr, &block) || block.base != dptr ||
	    (block.region->kind != SIM_ASYNC && block.region->kind != SIM_ASYNC_CHUNK) ||
	    !block.region->pool->exported || sim_memory_doomed(&block)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (!sim_mempool_keep(block.region->pool, block.region->segment)) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		data.client = pool_client();
		data.pool = block.region->pool->number;
		data.base = block.region->base;
		data.bytes = block.region->pages * SIM_PAGE;
		data.offset = block.base - block.region->base;
		data.size = block.size;
		data.number = block.id;
		memcpy(out->reserved, &data, sizeof(data));
	}
	sim_leave();
	return result;
}

static CUresult map_pages(struct sim_memory_pool *pool,
			  const struct data *data, uint32_t segment, struct sim_region **region)
{
	size_t pages = data->bytes / SIM_PAGE;
	uint64_t base = sim_address_take(pages, SIM_PAGE);

	if (!base)
		return CUDA_ERROR_MAP_FAILED;
	if (pool_map(segment, 0, data->bytes, (void *)(uintptr_t)base) || !sim_mempool_keep(pool, segment))
		goto unmap;
	*region = sim_region_new(sim_pool_owner(pool->device), SIM_POOL_IMPORT, base, pages, segment);
	if (!*region)
		goto unmap;
	(*region)->device = pool->device;
	(*region)->pool = pool;
	(*region)->client = data->client;
	(*region)->their_base = data->base;
	return CUDA_SUCCESS;
unmap:
	sim_unmap(base, data->bytes);
	sim_address_give(base, pages);
	return CUDA_ERROR_MAP_FAILED;
}

/* Notes the block in the region.  If it is imported already, this is the same import. */
static bool note_import(struct sim_region *region, const struct data *data)
{
	struct sim_import *slot = NULL;

	for (unsigned int i = 0; i < region->import_slots; i++) {
		struct sim_import *import = &region->imports[i];

		if (import->count && import->offset == data->offset) {
			/* a free that waits in a stream no longer unmaps it (measured) */
			import->count += import->doomed;
			import->doomed = false;
			return true;
		}
		if (!import->count)
			slot = import;
	}
	if (!slot) {
		unsigned int slots = region->import_slots ? 2 * region->import_slots : 4;

		slot = realloc(region->imports, slots * sizeof(*slot));
		if (!slot)
			return false;
		memset(slot + region->import_slots, 0, (slots - region->import_slots) * sizeof(*slot));
		region->imports = slot;
		slot += region->import_slots;
		region->import_slots = slots;
	}
	*slot = (struct sim_import){ .offset = data->offset, .count = 1, .size = data->size, .id = sim_next_id() };
	return true;
}

static CUresult import_pointer(struct sim_memory_pool *pool, const struct data *data, uint64_t *address)
{
	struct sim_region *region = NULL;
	uint32_t segment;
	CUresult result;

	/* a block of this process is mapped at another address */
	if (data->client != pool->client || data->pool != pool->number ||
	    !data->bytes || data->bytes % SIM_PAGE || !data->size ||
	    data->size > data->bytes - data->offset)
		return CUDA_ERROR_INVALID_VALUE;
	if (pool_open(data->client, data->base, data->bytes, POOL_BY_POINTER, NULL, &segment))
		return CUDA_ERROR_INVALID_VALUE;
	for (struct sim_region *r = sim_pool_owner(pool->device)->regions; r; r = r->next)
		if (r->kind == SIM_POOL_IMPORT && r->segment == segment)
			region = r;
	if (pool_segment_device(segment) != pool_physical((unsigned int)pool->device)) {
		pool_drop(segment);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (region) {
		pool_drop(segment); /* the region has its own hold */
	} else {
		result = map_pages(pool, data, segment, &region);
		if (result) {
			pool_drop(segment);
			return result;
		}
	}
	if (!note_import(region, data)) {
		if (!region->imports)
			sim_region_free(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*address = region->base + data->offset;
	return CUDA_SUCCESS;
}

SIM_CALL(cuMemPoolImportPointer, (CUdeviceptr *dptr, CUmemoryPool handle, CUmemPoolPtrExportData *in))
{
	CUresult result = sim_ready();
	struct sim_memory_pool *pool;
	struct data data;
	uint64_t address;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	result = sim_capture_forbids();
	if (result)
		goto out;
	pool = sim_mempool_of(handle);
	if (!dptr || !in || !pool || !pool->imported) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	memcpy(&data, in->reserved, sizeof(data));
	if (data.offset >= data.bytes || data.size > IMPORT_MAX) {
		sim_leave();
		sim_crash();
	}
	result = import_pointer(pool, &data, &address);
	if (!result)
		*dptr = (CUdeviceptr)address;
out:
	sim_leave();
	return result;
}

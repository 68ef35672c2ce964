/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory handles, by which a process opens another process's block.
 *
 * The handle names pages, not the block: the exporter, the address of its 2 MiB
 * chunk or its big block, the size.  Nothing in it says which block was meant.  That
 * is the hazard that this driver exists to show (facts 2 and 3).
 *
 *   bytes  0-7   the context that was current when the handle was made, an address: not read
 *          8-11  exporter's pid        refused if it is the opener's own (facts 7 and 28), else ignored
 *         12-15  zero                  not read
 *         16-23  bytes of the pages
 *         24-27  exporter (client number)
 *         28-35  address of the pages in the exporter
 *         36     device
 *         40     counter of the pages  not read
 *         41-47  exporter's cookie     read when something of it is open
 *         48-55  offset of the block in the pages
 *         56-63  zero; of pages of a multiple of 512 MiB, where there are two devices, not zero.  Read where
 *                there are two devices, by a process on another one than the block's: it must be as it was made (measured)
 *
 * What must hold:
 * - an open maps the exporter's own pages, once in a process however often they
 *   are opened, and as many closes unmap them;
 * - pages that an importer has mapped are given to no other allocation, whatever
 *   the exporter does (facts 5 and 6).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct handle {
	uint64_t context;
	uint32_t pid;
	uint32_t zero2;
	uint64_t bytes;
	uint32_t client;
	uint32_t base_low, base_high;
	uint8_t device;
	uint8_t zero3[3];
	uint64_t cookie;
	uint64_t offset;
	uint64_t tail;
};

_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "64 bytes");
_Static_assert(offsetof(struct handle, bytes) == 16, "size at 16");
_Static_assert(offsetof(struct handle, client) == 24, "identity at 24");
_Static_assert(offsetof(struct handle, device) == 36, "device at 36");
_Static_assert(offsetof(struct handle, cookie) == 40, "cookie at 40");
_Static_assert(offsetof(struct handle, tail) == 56, "tail at 56");

enum { COUNTER = 0xff, FABRIC_PAGE = 512 << 20 };

/* Two devices are joined by a fabric, and the driver names big pages there once more, at the end of a handle. */
static uint64_t tail_of(const struct handle *handle)
{
	uint64_t base = (uint64_t)handle->base_high << 32 | handle->base_low;

	if (pool_devices_here() < 2 || handle->bytes % FABRIC_PAGE)
		return 0;
	return (UINT64_C(0x5c000000) + base / SIM_PAGE) << 32 | (0x5c000003u + handle->device);
}

SIM_CALL(cuIpcGetMemHandle, (CUipcMemHandle *out, CUdeviceptr dptr))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_block block;
	struct handle handle;

	if (result)
		return result;
	/*
	 * A block freed in stream order can be exported until that stream is waited for
	 * (measured).
	 */
	if (!out || !sim_block_at(dptr, &block) ||
	    (block.region->kind != SIM_BLOCK && block.region->kind != SIM_CHUNK)) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	memset(&handle, 0, sizeof(handle));
	handle.context = (uintptr_t)context;
	handle.pid = pool_pid();
	handle.bytes = block.region->pages * SIM_PAGE;
	handle.client = pool_client();
	handle.base_low = (uint32_t)block.region->base;
	handle.base_high = (uint32_t)(block.region->base >> 32);
	handle.device = (uint8_t)pool_physical((unsigned int)block.region->device);
	handle.cookie = pool_cookie() | (pool_segment_serial(block.region->segment) & COUNTER);
	handle.offset = block.base - block.region->base;
	handle.tail = tail_of(&handle);
	if (sim_options()->random_tail)
		handle.zero2 = (uint32_t)sim_handle_tail(handle.base_low ^ handle.offset);
	memcpy(out->reserved, &handle, sizeof(handle));
out:
	sim_leave();
	return result;
}

/* Counts another open of the block at @offset of @region. */
static bool count_open(struct sim_region *region, uint64_t offset)
{
	struct sim_import *free_slot = NULL;

	for (unsigned int i = 0; i < region->import_slots; i++) {
		struct sim_import *import = &region->imports[i];

		if (import->count && import->offset == offset) {
			import->count++;
			return true;
		}
		if (!import->count && !free_slot)
			free_slot = import;
	}
	if (!free_slot) {
		unsigned int slots = region->import_slots ? 2 * region->import_slots : 4;
		struct sim_import *grown = realloc(region->imports, slots * sizeof(*grown));

		if (!grown)
			return false;
		memset(grown + region->import_slots, 0,
		       (slots - region->import_slots) * sizeof(*grown));
		free_slot = &grown[region->import_slots];
		region->imports = grown;
		region->import_slots = slots;
	}
	free_slot->offset = offset;
	free_slot->count = 1;
	return true;
}

static bool still_open(const struct sim_region *region)
{
	for (unsigned int i = 0; i < region->import_slots; i++)
		if (region->imports[i].count)
			return true;
	return false;
}

/*
 * Returns true if another context of this process has the block at @offset of @segment open: then
 * an open is refused.  Measured for contexts of one device; those of others are taken not to matter.
 */
static bool other_context_has(const struct sim_context *context, uint32_t segment, uint64_t offset)
{
	for (struct sim_context *other = sim_contexts; other; other = other->earlier)
		for (struct sim_region *r = other->regions; r && other != context && other->device == context->device; r = r->next)
			if (r->kind == SIM_IMPORT && r->segment == segment)
				for (unsigned int i = 0; i < r->import_slots; i++)
					if (r->imports[i].count && r->imports[i].offset == offset)
						return true;
	return false;
}

static CUresult map_import(struct sim_context *context, const struct handle *handle,
			   uint32_t segment, struct sim_region **region)
{
	size_t pages = handle->bytes / SIM_PAGE;
	uint64_t base = sim_address_take(pages, SIM_PAGE);

	if (!base)
		return CUDA_ERROR_MAP_FAILED;
	if (pool_map(segment, 0, handle->bytes, (void *)(uintptr_t)base))
		goto unmap;
	*region = sim_region_new(context, SIM_IMPORT, base, pages, segment);
	if (!*region)
		goto unmap;
	(*region)->client = handle->client;
	(*region)->device = pool_reachable(handle->device);
	return CUDA_SUCCESS;
unmap:
	sim_unmap(base, handle->bytes);
	sim_address_give(base, pages);
	return CUDA_ERROR_MAP_FAILED;
}

static CUresult open_handle(struct sim_context *context, const struct handle *handle,
			    uint64_t *address)
{
	uint64_t base = (uint64_t)handle->base_high << 32 | handle->base_low;
	struct sim_region *region = NULL;
	uint64_t its_cookie = handle->cookie & ~(uint64_t)COUNTER;
	const uint64_t *cookie = NULL;
	uint32_t segment;
	CUresult result;

	if (handle->pid == pool_pid() || handle->client == pool_client())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!handle->bytes || handle->bytes % SIM_PAGE || handle->offset >= handle->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	/* documented: a device need not be visible here; out of reach, as in a container without it: our choice */
	if (pool_reachable(handle->device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	for (struct sim_region *r = context->regions; r; r = r->next)
		if (r->kind == SIM_IMPORT && r->client == handle->client)
			cookie = &its_cookie;
	switch (pool_open(handle->client, base, handle->bytes, POOL_BY_HANDLE, cookie, &segment)) {
	case 0:
		break;
	case -ENOENT:
		/* It is gone; the error differs for a chunk (fact 4). */
		return handle->bytes == SIM_PAGE ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
	case -ESRCH:
		return CUDA_ERROR_INVALID_HANDLE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (struct sim_region *r = context->regions; r; r = r->next)
		if (r->kind == SIM_IMPORT && r->segment == segment)
			region = r;
	result = CUDA_ERROR_INVALID_VALUE;
	if (pool_segment_device(segment) != handle->device)
		goto drop;
	if (pool_physical((unsigned int)context->device) != handle->device && pool_devices_here() > 1 && handle->tail != tail_of(handle))
		goto drop;
	result = CUDA_ERROR_INVALID_HANDLE;
	if (other_context_has(context, segment, handle->offset))
		goto drop;
	result = CUDA_ERROR_TOO_MANY_PEERS;
	if (!sim_has_room_for_peer(context, pool_reachable(handle->device)))
		goto drop;
	if (!region) {
		result = map_import(context, handle, segment, &region);
		if (result)
			goto drop;
	} else {
		pool_drop(segment); /* the region has its own hold */
	}
	if (!count_open(region, handle->offset)) {
		if (!still_open(region))
			sim_region_free(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*address = region->base + handle->offset;
	return CUDA_SUCCESS;
drop:
	pool_drop(segment);
	return result;
}

static struct sim_import *find_open(CUdeviceptr dptr, struct sim_region **region)
{
	*region = sim_region_at(dptr);
	if (!*region || (*region)->kind != SIM_IMPORT)
		return NULL;
	for (unsigned int i = 0; i < (*region)->import_slots; i++) {
		struct sim_import *import = &(*region)->imports[i];

		if (import->count && import->offset == dptr - (*region)->base)
			return import;
	}
	return NULL;
}

/*
 * @once: the form of CUDA 4.1, which does not count opens, and refuses what is open already
 * (measured).
 */
static CUresult open_call(CUdeviceptr *dptr, CUipcMemHandle in, unsigned int flags, bool once)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct handle handle;
	uint64_t address;

	/*
	 * flags are checked before the context, and of them only this bit; a capturing stream makes
	 * no difference (measured)
	 */
	bool flagged = flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

	if (result)
		return flagged ? result : CUDA_ERROR_INVALID_VALUE;
	if (!dptr || !flagged)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		memcpy(&handle, in.reserved, sizeof(handle));
		result = open_handle(context, &handle, &address);
		if (!result && once) {
			struct sim_region *region;
			struct sim_import *import = find_open(address, &region);

			if (import->count > 1) {
				import->count--;
				result = CUDA_ERROR_ALREADY_MAPPED;
			}
		}
		if (!result)
			*dptr = (CUdeviceptr)address;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *dptr, CUipcMemHandle in, unsigned int flags))
{
	return open_call(dptr, in, flags, false);
}

SIM_CALL(cuIpcOpenMemHandle, (CUdeviceptr *dptr, CUipcMemHandle in, unsigned int flags))
{
	return open_call(dptr, in, flags, true);
}

SIM_CALL(cuIpcCloseMemHandle, (CUdeviceptr dptr))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_region *region;
	struct sim_import *import;

	if (result)
		return result;
	if (!find_open(dptr, &region)) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	sim_context_wait(region->context);
	/* Look it up again: the wait released the lock. */
	import = find_open(dptr, &region);
	if (!import) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	import->count--;
	if (!still_open(region))
		sim_region_free(region);
out:
	sim_leave();
	return result;
}

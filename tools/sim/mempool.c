/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation, as far as programs need it.  mempool_share.c shares pools.
 *
 * What must hold:
 * - an allocation is usable when the call returns; a free takes effect when the
 *   stream reaches it; memory of cuMemAlloc (fact 2) comes back when the stream is
 *   synchronised after that (measured), and can't be freed twice meanwhile; a
 *   pool's memory goes to the pool, which keeps it as blocks.c says;
 * - cuMemAllocAsync allocates from the pool of the stream's device, whatever context is
 *   current (measured);
 * - this memory can't be shared by a handle (fact 8);
 * - a stream that captures allocates from pools without a handle type only, and frees only
 *   what a capture has allocated (both measured).  That memory has its pool's properties, and
 *   shares nothing with other memory (documented: graphs have memory of their own).  It is
 *   taken when it is captured, which a GPU does when the graph is launched.
 */
#include <stdlib.h>
#include <string.h>

#include "queue.h"

static struct sim_memory_pool default_pool[SIM_DEVICES_MAX];
static struct sim_memory_pool *device_pool[SIM_DEVICES_MAX];

/* Finds a pool from which memory can be allocated: not an imported one. */
static struct sim_memory_pool *pool_of(CUmemoryPool handle)
{
	struct sim_memory_pool *object = sim_mempool_of(handle);

	return object && !object->imported ? object : NULL;
}

/* Under sim.lock. */
static struct sim_memory_pool *default_of(int device)
{
	default_pool[device].magic = SIM_MEMPOOL_MAGIC;
	default_pool[device].device = device;
	default_pool[device].is_default = true;
	return &default_pool[device];
}

/* ---- what captures have allocated; under sim.lock ---- */

static struct captured {
	uint64_t address;
	struct captured *next;
} *captured;

static struct captured **captured_at(uint64_t address)
{
	struct captured **at = &captured;

	while (*at && (*at)->address != address)
		at = &(*at)->next;
	return at;
}

/* The block at @address is allocated now, by a capture or not, or it is freed. */
static CUresult set_captured(uint64_t address, bool is_captured)
{
	struct captured **at = captured_at(address), *one = *at;

	if (is_captured == !!one)
		return CUDA_SUCCESS;
	if (!is_captured) {
		*at = one->next;
		free(one);
		return CUDA_SUCCESS;
	}
	one = malloc(sizeof(*one));
	if (!one)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*one = (struct captured){ .address = address, .next = captured };
	captured = one;
	return CUDA_SUCCESS;
}

/* The pool of what captures allocate from @pool, NULL: no memory.  Under sim.lock. */
static struct sim_memory_pool *for_graphs(struct sim_memory_pool *pool)
{
	if (!pool->graphs) {
		pool->graphs = calloc(1, sizeof(*pool->graphs));
		if (!pool->graphs)
			return NULL;
		*pool->graphs = (struct sim_memory_pool){ .magic = SIM_MEMPOOL_MAGIC, .device = pool->device,
							  .on_host = pool->on_host, .of = pool };
	}
	return pool->graphs;
}

static CUresult allocate(CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle, bool own_pool,
			 CUstream stream_handle)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_memory_pool *object;
	struct sim_stream *stream;
	uint64_t address;

	if (result)
		return result;
	result = dptr ? sim_stream_get(context, stream_handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result)
		goto out;
	if (own_pool) {
		object = pool_of(handle);
	} else {
		object = device_pool[stream->context->device];
		if (!object)
			object = default_of(stream->context->device);
	}
	if (!object)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (object->exportable && stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE)
		result = CUDA_ERROR_NOT_SUPPORTED; /* the capture stays good */
	else if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
		result = sim_capture_forbids(); /* measured for a pool of the program */
	if (!result && stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE)
		object = for_graphs(object);
	if (!result && !object)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!result)
		result = sim_memory_alloc(context, SIM_ASYNC, bytes, object, &address);
	if (!result)
		result = set_captured(address, stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	if (!result)
		*dptr = (CUdeviceptr)address;
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemAllocAsync, (CUdeviceptr *dptr, size_t bytes, CUstream stream))
{
	return allocate(dptr, bytes, NULL, false, stream);
}

SIM_CALL(cuMemAllocAsync_ptsz, (CUdeviceptr *dptr, size_t bytes, CUstream stream))
{
	return allocate(dptr, bytes, NULL, false, SIM_PER_THREAD(stream));
}

SIM_CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle,
				   CUstream stream))
{
	return allocate(dptr, bytes, handle, true, stream);
}

SIM_CALL(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle,
					CUstream stream))
{
	return allocate(dptr, bytes, handle, true, SIM_PER_THREAD(stream));
}

/* p: the stream, if the memory is cuMemAlloc's */
static void run_free(struct sim_operation *op)
{
	if (!op->p[0] || !sim_stream_owes(op->p[0], op->a[0]))
		sim_memory_free(op->a[0]);
}

/*
 * Returns 0, or the error that @stream gives for a free of @address (measured).  A capture accepts a
 * free of memory that was allocated in it; we assume that of all memory that a capture has allocated.
 */
static CUresult stream_forbids_free(struct sim_context *context, struct sim_stream *stream, uint64_t address)
{
	CUresult result = stream == context->streams ? sim_legacy_forbidden(context, false) : CUDA_SUCCESS;

	if (result)
		return result;
	if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return *captured_at(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	return sim_capture_forbids();
}

SIM_CALL(cuMemFreeAsync, (CUdeviceptr dptr, CUstream stream_handle))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;
	struct sim_operation *op;
	struct sim_block block;
	bool is_there;

	if (result)
		return result;
	result = sim_stream_get(context, stream_handle, &stream);
	if (result || !dptr)
		goto out;
	is_there = sim_block_at(dptr, &block) && block.base == dptr && !sim_memory_doomed(&block);
	is_there = is_there && (sim_memory_of_pool(block.region) || block.region->kind == SIM_BLOCK ||
				block.region->kind == SIM_CHUNK);
	/* an error of the stream comes before an error of the memory (measured) */
	result = stream_forbids_free(context, stream, dptr);
	if (!result && !is_there)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result)
		goto out;
	op = sim_operation_new(run_free);
	if (op) {
		op->a[0] = dptr;
		op->under_lock = true;
		if (block.region->kind == SIM_BLOCK || block.region->kind == SIM_CHUNK)
			op->p[0] = stream;
		sim_memory_doom(&block, true);
	}
	result = sim_submit(stream, op, NULL);
	if (result)
		sim_memory_doom(&block, false);
	else
		set_captured(dptr, false);
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemFreeAsync_ptsz, (CUdeviceptr dptr, CUstream stream))
{
	return cuMemFreeAsync(dptr, SIM_PER_THREAD(stream));
}

/* ---- pools ---- */

static CUresult enter(void)
{
	CUresult result = sim_ready();

	if (!result)
		pthread_mutex_lock(&sim.lock);
	return result;
}

static CUresult get_pool(CUmemoryPool *handle, CUdevice device, bool is_default)
{
	CUresult result = enter();

	if (result)
		return result;
	if (!handle || device < 0 || (unsigned int)device >= pool_devices())
		result = handle ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	else if (!is_default && device_pool[device])
		*handle = (CUmemoryPool)device_pool[device];
	else
		*handle = (CUmemoryPool)default_of(device);
	sim_leave();
	return result;
}

SIM_CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *handle, CUdevice device))
{
	return get_pool(handle, device, true);
}

SIM_CALL(cuDeviceGetMemPool, (CUmemoryPool *handle, CUdevice device))
{
	return get_pool(handle, device, false);
}

SIM_CALL(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool handle))
{
	CUresult result = enter();

	if (result)
		return result;
	if (device < 0 || (unsigned int)device >= pool_devices())
		result = CUDA_ERROR_INVALID_DEVICE;
	else if (!pool_of(handle))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		device_pool[device] = pool_of(handle);
	sim_leave();
	return result;
}

/* CUDA 13.0: by location.  Only pinned memory of devices has pools here. */
static CUresult get_pool_at(CUmemoryPool *handle, const CUmemLocation *location, CUmemAllocationType type, bool is_default)
{
	if (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return sim_ready() ? sim_ready() : CUDA_ERROR_INVALID_VALUE;
	return get_pool(handle, location->id, is_default);
}

SIM_CALL(cuMemGetDefaultMemPool, (CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type))
{
	return get_pool_at(handle, location, type, true);
}

SIM_CALL(cuMemGetMemPool, (CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type))
{
	return get_pool_at(handle, location, type, false);
}

SIM_CALL(cuMemSetMemPool, (CUmemLocation *location, CUmemAllocationType type, CUmemoryPool handle))
{
	if (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return sim_ready() ? sim_ready() : CUDA_ERROR_INVALID_VALUE;
	return cuDeviceSetMemPool(location->id, handle);
}

SIM_CALL(cuMemPoolCreate, (CUmemoryPool *handle, const CUmemPoolProps *wanted))
{
	static _Atomic uint32_t last_number;
	CUresult result = sim_ready();
	struct sim_memory_pool *object;

	if (result)
		return result;
	if (!handle || !wanted || wanted->location.id < 0 ||
	    (unsigned int)wanted->location.id >= pool_devices() ||
	    ((unsigned int)wanted->handleTypes & ~(unsigned int)SIM_HANDLE_TYPES))
		return CUDA_ERROR_INVALID_VALUE;
	object = calloc(1, sizeof(*object));
	if (!object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	object->magic = SIM_MEMPOOL_MAGIC;
	object->device = wanted->location.id;
	object->on_host = wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
	/* maxSize, which CUDA 11's headers have among the reserved bytes */
	memcpy(&object->most, (const char *)&wanted->win32SecurityAttributes + sizeof(void *), sizeof(object->most));
	object->types = (unsigned int)wanted->handleTypes;
	object->exportable = object->types != 0;
	object->number = atomic_fetch_add(&last_number, 1) + 1;
	*handle = (CUmemoryPool)object;
	return CUDA_SUCCESS;
}

/*
 * Returns true if a pointer of the imported @pool is mapped (measured: its destroy gives 1, the
 * pointer stays good).
 */
static bool is_mapped(const struct sim_memory_pool *pool)
{
	if (!pool->imported)
		return false;
	for (const struct sim_region *r = sim_pool_owner(pool->device)->regions; r; r = r->next)
		for (unsigned int i = 0; r->kind == SIM_POOL_IMPORT && r->pool == pool && i < r->import_slots; i++)
			/* our choice: a free counts even if its stream has not reached it */
			if (r->imports[i].count && !r->imports[i].doomed)
				return true;
	return false;
}

/* The pool's memory stays until it is freed (fact 18); the object stays readable. */
SIM_CALL(cuMemPoolDestroy, (CUmemoryPool handle))
{
	CUresult result = enter();
	struct sim_memory_pool *object = sim_mempool_of(handle);

	if (result)
		return result;
	result = sim_capture_forbids(); /* measured */
	if (!result && (!object || object->is_default || is_mapped(object)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result) {
		;
	} else if (object->times > 1) {
		object->times--;
	} else {
		sim_memory_trim(object, 0);
		if (object->graphs) {
			sim_memory_trim(object->graphs, 0);
			object->graphs->magic = 0;
		}
		sim_mempool_let_go(object);
		object->magic = 0;
		for (unsigned int d = 0; d < SIM_DEVICES_MAX; d++)
			if (device_pool[d] == object)
				device_pool[d] = NULL;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep))
{
	CUresult result = enter();

	if (result)
		return result;
	if (pool_of(handle))
		sim_memory_trim(pool_of(handle), keep);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}

/* The high-water marks stay what the program sets them to.  The first three are ints, the others 64 bits wide. */
static size_t attribute_bytes(CUmemPool_attribute attribute)
{
	return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? 4 : 8;
}

SIM_CALL(cuMemPoolSetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value))
{
	CUresult result = enter();
	struct sim_memory_pool *object;

	if (result)
		return result;
	object = pool_of(handle);
	if (!object || !value || (unsigned int)attribute >= SIM_MEMPOOL_ATTRIBUTES)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		memcpy(&object->attribute[attribute], value, attribute_bytes(attribute));
	sim_leave();
	return result;
}

SIM_CALL(cuMemPoolGetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value))
{
	CUresult result = enter();
	struct sim_memory_pool *object;

	if (result)
		return result;
	object = pool_of(handle);
	if (!object || !value || (unsigned int)attribute >= SIM_MEMPOOL_ATTRIBUTES)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) {
		uint64_t bytes = object->reserved + object->lost;

		if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
			bytes = sim_memory_used(object);
		memcpy(value, &bytes, sizeof(bytes));
	} else if (attribute == 10) { /* EXPORT_HANDLE_TYPES, since CUDA 13.1 */
		CUmemAllocationHandleType types = (CUmemAllocationHandleType)object->types;

		memcpy(value, &types, sizeof(types));
	} else {
		memcpy(value, &object->attribute[attribute], attribute_bytes(attribute));
	}
	sim_leave();
	return result;
}

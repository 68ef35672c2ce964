/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries about a pointer.
 *
 * What must hold: for an unknown pointer cuPointerGetAttribute fails, while
 * cuPointerGetAttributes returns zeros and succeeds.
 */
#include <string.h>

#include "sim.h"

struct what {
	bool known, device, host;
	struct sim_block block;
	struct sim_context *context;
	void *base;
	size_t size;
	unsigned int flags;
	uint64_t id;
	int ordinal;
};

static void look(uint64_t address, struct what *what)
{
	memset(what, 0, sizeof(*what));
	if (sim_block_at(address, &what->block)) {
		what->device = true;
		what->context = sim_memory_of_pool(what->block.region) ? NULL : what->block.region->context;
		what->base = (void *)(uintptr_t)what->block.base;
		what->size = what->block.size;
		what->id = what->block.id;
		what->ordinal = pool_told(what->block.region->kind == SIM_RESERVED ? sim_vmm_device(what->block.region, address)
										   : what->block.region->device);
	} else if (sim_host_at((void *)(uintptr_t)address, &what->base, &what->size, &what->flags,
			       &what->context, &what->id)) {
		what->host = true;
		what->ordinal = what->context->device;
	}
	what->known = what->device || what->host;
}

static bool is_on_host(const struct what *what)
{
	const struct sim_memory_pool *pool = what->device ? what->block.region->pool : NULL;

	return what->host || (pool && pool->on_host);
}

static size_t mapping_size(const struct what *what)
{
	const struct sim_region *region = what->block.region;
	const size_t piece = (size_t)32 << 20;

	if (!what->device || region->kind == SIM_RESERVED)
		return what->size;
	return sim_memory_of_pool(region) ? (region->pages * SIM_PAGE + piece - 1) / piece * piece : region->pages * SIM_PAGE;
}

/* Writes the value of @attribute for @address, in the attribute's width. */
static CUresult tell(void *out, int attribute, uint64_t address, const struct what *what)
{
	enum sim_kind kind = what->device ? what->block.region->kind : SIM_ARRAY;
	const struct sim_memory_pool *pool;
	bool legacy = what->device && (kind == SIM_BLOCK || kind == SIM_CHUNK);

#define GIVE(type, value)                                                                          \
	do {                                                                                       \
		type given = (type)(value);                                                        \
		memcpy(out, &given, sizeof(given));                                                \
		return CUDA_SUCCESS;                                                               \
	} while (0)

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		GIVE(CUcontext, what->context);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		GIVE(unsigned int, is_on_host(what) ? CU_MEMORYTYPE_HOST
				   : what->device ? CU_MEMORYTYPE_DEVICE : 0);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		GIVE(CUdeviceptr, what->known ? address : 0);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (what->device && kind != SIM_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		GIVE(void *, what->known ? (uintptr_t)address : 0);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		GIVE(unsigned int, what->device ? what->block.region->sync_memops : 0);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		GIVE(unsigned long long, what->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		GIVE(unsigned int, kind == SIM_MANAGED);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		GIVE(int, what->known ? what->ordinal : -2);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		GIVE(bool, legacy);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		/* for virtual memory the whole reservation (fact 21) */
		GIVE(void *, kind == SIM_RESERVED ? (uintptr_t)what->block.region->base
						  : (uintptr_t)what->base);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		GIVE(size_t, kind == SIM_RESERVED ? what->block.region->pages * SIM_PAGE : what->size);
	case 18: /* MAPPING_SIZE: of a pool, whole pieces (measured: 32 MiB for a block of 4 MiB) */
		GIVE(size_t, mapping_size(what));
	case 19: /* MAPPING_BASE_ADDR */
		GIVE(void *, kind == SIM_RESERVED || !what->device ? (uintptr_t)what->base
								   : (uintptr_t)what->block.region->base);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		GIVE(bool, what->known);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		GIVE(unsigned long long,
		     kind == SIM_RESERVED ? sim_vmm_types(what->block.region, address) :
		     /* of pools: assumed */
		     kind == SIM_ASYNC || kind == SIM_ASYNC_CHUNK ? what->block.region->pool->types : 0);
	case 17: /* MEMPOOL_HANDLE, since CUDA 11.3 */
		pool = what->device ? what->block.region->pool : NULL;
		GIVE(CUmemoryPool, pool && pool->of ? pool->of : pool);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
#undef GIVE
}

SIM_CALL(cuPointerGetAttribute, (void *out, CUpointer_attribute attribute, CUdeviceptr dptr))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct what what;

	if (result)
		return result;
	look(dptr, &what);
	result = out && what.known ? tell(out, (int)attribute, dptr, &what) : CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}

SIM_CALL(cuPointerGetAttributes, (unsigned int count, CUpointer_attribute *attributes, void **out,
				  CUdeviceptr dptr))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct what what;

	if (result)
		return result;
	if (!attributes || !out || !count)
		result = CUDA_ERROR_INVALID_VALUE;
	look(dptr, &what);
	for (unsigned int i = 0; !result && i < count; i++) {
		result = tell(out[i], (int)attributes[i], dptr, &what);
		if (result && attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
			memset(out[i], 0, sizeof(void *));
			result = CUDA_SUCCESS;
		}
	}
	sim_leave();
	return result;
}

SIM_CALL(cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr dptr))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_block block;

	if (result)
		return result;
	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !sim_block_at(dptr, &block))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		block.region->sync_memops = *(const unsigned int *)value;
	sim_leave();
	return result;
}

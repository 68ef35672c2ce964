/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuMemAlloc and related calls, arrays.  blocks.c has the blocks.
 *
 * What must hold: everything here is under sim.lock.
 */
#include <stdlib.h>

#include "sim.h"

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

/* The driver 580.159.04 counts a pool's block that cuMemFree() has freed as used for good (measured). */
static uint64_t stays_used(const struct sim_block *block)
{
	if (block->region->kind == SIM_ASYNC)
		return block->region->pages * SIM_PAGE;
	return block->region->kind == SIM_ASYNC_CHUNK ? (block->size + SIM_UNIT - 1) / SIM_UNIT * SIM_UNIT : 0;
}

/* This needs no current context, because the block has its own; but it is refused in one that has ended (measured). */
SIM_CALL(cuMemFree_v2, (CUdeviceptr dptr))
{
	const struct sim_context *current = sim_context_current();
	CUresult result = sim_ready();
	struct sim_context *owner = NULL;
	struct sim_block block;
	struct sim_memory_pool *pool = NULL;
	uint64_t used = 0;
	bool of_pool;

	if (result || !dptr)
		return result;
	pthread_mutex_lock(&sim.lock);
	/* an error of a capture comes before an error of the memory (measured) */
	result = sim_capture_forbids();
	if (!result && current && !current->alive)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (result)
		goto out;
	/* a doomed block counts as freed, even if its stream has not reached the free */
	if (sim_block_at(dptr, &block) && block.base == dptr && block.region->kind != SIM_IMPORT &&
	    !sim_memory_doomed(&block))
		owner = block.region->context; /* NULL for virtual memory */
	if (!owner) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	result = owner->sticky;
	if (result)
		goto out;
	/* The free waits for all work of the context, unless the block is a pool's (fact 33). */
	of_pool = sim_memory_of_pool(block.region);
	if (of_pool) {
		pool = block.region->pool;
		used = stays_used(&block);
	} else {
		owner->freeing++;
		sim_context_wait(owner);
		owner->freeing--;
		pthread_cond_broadcast(&sim.changed);
	}
	result = sim_memory_free(dptr);
	if (of_pool && !result) {
		if (used)
			pool->still_used += used;
		/* a pool that has more than its threshold gives that back at once (measured) */
		sim_memory_waited();
	}
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

#if CUDA_VERSION >= 11070
/* Only for a block with its own pages (fact 27); the descriptor keeps the memory. */
SIM_CALL(cuMemGetHandleForAddressRange, (void *handle, CUdeviceptr dptr, size_t size,
					 CUmemRangeHandleType type, unsigned long long flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_block block;
	int fd;

	if (result)
		return result;
	if (!handle || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || !size || size % 4096 ||
	    dptr % 4096 || !sim_block_at(dptr, &block) || block.region->kind != SIM_BLOCK ||
	    size > block.base + block.size - dptr) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		fd = pool_export_fd(block.region->segment, POOL_NAME_DMA_BUF);
		if (fd >= 0)
			*(int *)handle = fd;
		else
			result = CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_leave();
	return result;
}
#endif

/* ---- forms of CUDA 2.0 with 32-bit addresses, which exist and are useless ---- */

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
			result = sim_memory_take(context, SIM_ARRAY,
						 (bytes + SIM_PAGE - 1) / SIM_PAGE, array);
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

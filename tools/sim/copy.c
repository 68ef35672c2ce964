/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills of memory.
 *
 * Device addresses are addresses of this process, so each operation is a memcpy or a
 * memset, in stream order.
 *
 * What must hold: where device memory is required, any other address is an error, not
 * a crash.  Synchronous forms go through the default stream and wait.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { HOST = 1, DEVICE = 2, EITHER = HOST | DEVICE };

/* Returns true if @bytes at @address may be touched as @side, in @context. */
static bool reachable(const struct sim_context *context, uint64_t address, size_t bytes, int side)
{
	if ((side & DEVICE) && sim_region_at(address))
		return sim_device_range(address, bytes) && sim_pool_reaches(sim_region_at(address), context->device);
	if (side & HOST)
		return address && !sim_region_at(address);
	/* Pinned host memory has a device address: its own address. */
	if (side == DEVICE) {
		struct sim_context *of;
		unsigned int flags;
		void *base;
		size_t size;
		uint64_t id;

		return sim_host_at((void *)(uintptr_t)address, &base, &size, &flags, &of, &id) &&
		       address + bytes <= (uint64_t)(uintptr_t)base + size;
	}
	return false;
}

/* ---- the operations of the stream ---- */

/* a: destination, source, width, height, destination pitch, source pitch */
static void run_copy(struct sim_operation *op)
{
	char *to = (char *)(uintptr_t)op->a[0];
	const char *from = (const char *)(uintptr_t)op->a[1];

	for (uint64_t row = 0; row < op->a[3]; row++)
		memmove(to + row * op->a[4], from + row * op->a[5], op->a[2]);
}

/* a: destination, value, count, height, pitch, bytes of one element */
static void run_set(struct sim_operation *op)
{
	for (uint64_t row = 0; row < op->a[3]; row++) {
		char *to = (char *)(uintptr_t)(op->a[0] + row * op->a[4]);

		if (op->a[5] == 1)
			memset(to, (int)op->a[1], op->a[2]);
		else
			for (uint64_t i = 0; i < op->a[2]; i++)
				memcpy(to + i * op->a[5], &op->a[1], op->a[5]);
	}
}

struct area {
	uint64_t destination, source;
	size_t width, height, destination_pitch, source_pitch;
};

static bool pageable(uint64_t address)
{
	struct sim_context *context;
	unsigned int flags;
	void *base;
	size_t size;
	uint64_t id;

	return !sim_region_at(address) &&
	       !sim_host_at((void *)(uintptr_t)address, &base, &size, &flags, &context, &id);
}

static CUresult submit(struct sim_context *context, CUstream handle, bool wait,
		       struct sim_operation *op)
{
	struct sim_stream *stream;
	uint64_t ticket;
	CUresult result = sim_stream_get(context, handle, &stream);

	if (result) {
		free(op);
		return result;
	}
	result = sim_submit(stream, op, &ticket);
	if (!result && wait)
		sim_stream_wait(stream, ticket);
	return result;
}

static CUresult copy(const struct area *area, int to, int from, CUstream handle, bool wait)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_operation *op;

	if (result)
		return result;
	if (!area->width || !area->height)
		goto out;
	if ((area->height > 1 &&
	     (area->width > area->destination_pitch || area->width > area->source_pitch)) ||
	    !reachable(context, area->destination, (area->height - 1) * area->destination_pitch + area->width,
		       to) ||
	    !reachable(context, area->source, (area->height - 1) * area->source_pitch + area->width, from)) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	if (!wait && to == DEVICE && from == EITHER && pageable(area->source))
		sim_memory_wait_frees(context);
	op = sim_operation_new(run_copy);
	if (op) {
		op->a[0] = area->destination;
		op->a[1] = area->source;
		op->a[2] = area->width;
		op->a[3] = area->height;
		op->a[4] = area->destination_pitch;
		op->a[5] = area->source_pitch;
	}
	result = submit(context, handle, wait, op);
out:
	sim_leave();
	return result;
}

static CUresult copy_line(uint64_t destination, int to, uint64_t source, int from, size_t bytes,
			  CUstream handle, bool wait)
{
	const struct area area = { destination, source, bytes, 1, bytes, bytes };

	return copy(&area, to, from, handle, wait);
}

static CUresult set(CUdeviceptr destination, uint32_t value, size_t element, size_t pitch, size_t count,
		    size_t height, CUstream handle, bool wait)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_operation *op;

	if (result)
		return result;
	if (!count || !height)
		goto out;
	if (destination % element || count > SIZE_MAX / element ||
	    (height > 1 && count * element > pitch) ||
	    !reachable(context, destination, (height - 1) * pitch + count * element, DEVICE)) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	op = sim_operation_new(run_set);
	if (op) {
		op->a[0] = destination;
		op->a[1] = value;
		op->a[2] = count;
		op->a[3] = height;
		op->a[4] = pitch;
		op->a[5] = element;
	}
	result = submit(context, handle, wait, op);
out:
	sim_leave();
	return result;
}

/* ---- the calls: synchronous ones have a _ptds form, the others a _ptsz one ---- */

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

SIM_CALL(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))
{
	return copy_line(to, DEVICE, ADDRESS(from), EITHER, bytes, NULL, true);
}

SIM_CALL(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t bytes))
{
	return copy_line(to, DEVICE, ADDRESS(from), EITHER, bytes, CU_STREAM_PER_THREAD, true);
}

SIM_CALL(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))
{
	return copy_line(ADDRESS(to), EITHER, from, DEVICE, bytes, NULL, true);
}

SIM_CALL(cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t bytes))
{
	return copy_line(ADDRESS(to), EITHER, from, DEVICE, bytes, CU_STREAM_PER_THREAD, true);
}

SIM_CALL(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes))
{
	return copy_line(to, DEVICE, from, DEVICE, bytes, NULL, true);
}

SIM_CALL(cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes))
{
	return copy_line(to, DEVICE, from, DEVICE, bytes, CU_STREAM_PER_THREAD, true);
}

SIM_CALL(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes))
{
	return copy_line(to, EITHER, from, EITHER, bytes, NULL, true);
}

SIM_CALL(cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes))
{
	return copy_line(to, EITHER, from, EITHER, bytes, CU_STREAM_PER_THREAD, true);
}

SIM_CALL(cuMemcpyPeer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			CUcontext from_context, size_t bytes))
{
	return copy_line(to, DEVICE, from, DEVICE, bytes, NULL, true);
}

SIM_CALL(cuMemcpyPeer_ptds, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			     CUcontext from_context, size_t bytes))
{
	return copy_line(to, DEVICE, from, DEVICE, bytes, CU_STREAM_PER_THREAD, true);
}

SIM_CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))
{
	return copy_line(to, DEVICE, ADDRESS(from), EITHER, bytes, stream, false);
}

SIM_CALL(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))
{
	return cuMemcpyHtoDAsync_v2(to, from, bytes, SIM_PER_THREAD(stream));
}

SIM_CALL(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))
{
	return copy_line(ADDRESS(to), EITHER, from, DEVICE, bytes, stream, false);
}

SIM_CALL(cuMemcpyDtoHAsync_v2_ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))
{
	return cuMemcpyDtoHAsync_v2(to, from, bytes, SIM_PER_THREAD(stream));
}

SIM_CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
{
	return copy_line(to, DEVICE, from, DEVICE, bytes, stream, false);
}

SIM_CALL(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
{
	return cuMemcpyDtoDAsync_v2(to, from, bytes, SIM_PER_THREAD(stream));
}

SIM_CALL(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
{
	return copy_line(to, EITHER, from, EITHER, bytes, stream, false);
}

SIM_CALL(cuMemcpyAsync_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
{
	return cuMemcpyAsync(to, from, bytes, SIM_PER_THREAD(stream));
}

SIM_CALL(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			     CUcontext from_context, size_t bytes, CUstream stream))
{
	return copy_line(to, DEVICE, from, DEVICE, bytes, stream, false);
}

SIM_CALL(cuMemcpyPeerAsync_ptsz, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				  CUcontext from_context, size_t bytes, CUstream stream))
{
	return copy_line(to, DEVICE, from, DEVICE, bytes, SIM_PER_THREAD(stream), false);
}

/* ---- two dimensions; arrays can't be reached ---- */

static int side_2d(CUmemorytype type)
{
	switch (type) {
	case CU_MEMORYTYPE_HOST:
		return EITHER;
	case CU_MEMORYTYPE_DEVICE:
		return DEVICE;
	case CU_MEMORYTYPE_UNIFIED:
		return EITHER;
	default:
		return 0;
	}
}

static CUresult copy_2d(const CUDA_MEMCPY2D *c, CUstream stream, bool wait)
{
	struct area area;

	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	if (!side_2d(c->srcMemoryType) || !side_2d(c->dstMemoryType))
		return CUDA_ERROR_NOT_SUPPORTED;
	area.width = c->WidthInBytes;
	area.height = c->Height;
	area.source_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
	area.destination_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
	area.source = (c->srcMemoryType == CU_MEMORYTYPE_HOST ? ADDRESS(c->srcHost) : c->srcDevice) +
		      c->srcY * area.source_pitch + c->srcXInBytes;
	area.destination =
		(c->dstMemoryType == CU_MEMORYTYPE_HOST ? ADDRESS(c->dstHost) : c->dstDevice) +
		c->dstY * area.destination_pitch + c->dstXInBytes;
	return copy(&area, side_2d(c->dstMemoryType), side_2d(c->srcMemoryType), stream, wait);
}

SIM_CALL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *c))
{
	return copy_2d(c, NULL, true);
}

SIM_CALL(cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *c))
{
	return copy_2d(c, CU_STREAM_PER_THREAD, true);
}

SIM_CALL(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *c))
{
	return copy_2d(c, NULL, true);
}

SIM_CALL(cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *c))
{
	return copy_2d(c, CU_STREAM_PER_THREAD, true);
}

SIM_CALL(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *c, CUstream stream))
{
	return copy_2d(c, stream, false);
}

SIM_CALL(cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *c, CUstream stream))
{
	return copy_2d(c, SIM_PER_THREAD(stream), false);
}

/* ---- setting ---- */

#define SET_CALLS(bits, type, element)                                                             \
	SIM_CALL(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count))                 \
	{                                                                                          \
		return set(to, value, element, 0, count, 1, NULL, true);                           \
	}                                                                                          \
	SIM_CALL(cuMemsetD##bits##_v2_ptds, (CUdeviceptr to, type value, size_t count))            \
	{                                                                                          \
		return set(to, value, element, 0, count, 1, CU_STREAM_PER_THREAD, true);           \
	}                                                                                          \
	SIM_CALL(cuMemsetD##bits##Async,                                                           \
		 (CUdeviceptr to, type value, size_t count, CUstream stream))                      \
	{                                                                                          \
		return set(to, value, element, 0, count, 1, stream, false);                        \
	}                                                                                          \
	SIM_CALL(cuMemsetD##bits##Async_ptsz,                                                      \
		 (CUdeviceptr to, type value, size_t count, CUstream stream))                      \
	{                                                                                          \
		return set(to, value, element, 0, count, 1, SIM_PER_THREAD(stream), false);        \
	}                                                                                          \
	SIM_CALL(cuMemsetD2D##bits##_v2,                                                           \
		 (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height))          \
	{                                                                                          \
		return set(to, value, element, pitch, width, height, NULL, true);                  \
	}                                                                                          \
	SIM_CALL(cuMemsetD2D##bits##_v2_ptds,                                                      \
		 (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height))          \
	{                                                                                          \
		return set(to, value, element, pitch, width, height, CU_STREAM_PER_THREAD, true);  \
	}                                                                                          \
	SIM_CALL(cuMemsetD2D##bits##Async, (CUdeviceptr to, size_t pitch, type value,              \
					    size_t width, size_t height, CUstream stream))         \
	{                                                                                          \
		return set(to, value, element, pitch, width, height, stream, false);               \
	}                                                                                          \
	SIM_CALL(cuMemsetD2D##bits##Async_ptsz, (CUdeviceptr to, size_t pitch, type value,         \
						 size_t width, size_t height, CUstream stream))    \
	{                                                                                          \
		return set(to, value, element, pitch, width, height, SIM_PER_THREAD(stream),       \
			   false);                                                                 \
	}

SET_CALLS(8, unsigned char, 1)
SET_CALLS(16, unsigned short, 2)
SET_CALLS(32, unsigned int, 4)

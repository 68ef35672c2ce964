/* SPDX-License-Identifier: Apache-2.0 */
/* How memory was made: see made.h. */
#include <stdint.h>

#include "shim/driver/made.h"
#include "shim/driver/visit.h"

#define ASK(to, attribute, dptr) (cl_driver.cuPointerGetAttribute(to, attribute, dptr) == CUDA_SUCCESS)

/*
 * For device memory of no pool, of which CUDA makes no legacy handle: returns true if cuMemCreate made it.
 * Such memory belongs to no context, the driver says its handle types, and the reservation in which it
 * lies may be larger.
 */
static bool is_virtual(CUdeviceptr dptr, const struct cl_memory_made *memory, unsigned long long types)
{
	CUcontext context = NULL;
	CUdeviceptr start = 0;
	size_t size = 0;

	if (types || (ASK(&context, CU_POINTER_ATTRIBUTE_CONTEXT, dptr) && !context))
		return true;
	return ASK(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, dptr) &&
	       ASK(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, dptr) &&
	       (start != memory->base || size != memory->size);
}

static enum cl_made made_of(CUdeviceptr dptr, const struct cl_memory_made *memory)
{
	unsigned int type = 0, managed = 0;
	unsigned long long types = 0;
	CUmemoryPool pool = NULL;
	/* an int has room for what a driver may write there */
	int legacy = 0;

	if (!ASK(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, dptr))
		return CL_MADE_UNKNOWN;
	if (ASK(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, dptr) && (managed & 0xff))
		return CL_MADE_MANAGED;
	if (type == CU_MEMORYTYPE_HOST)
		return CL_MADE_HOST;
	if (ASK(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, dptr) && pool)
		return CL_MADE_POOL;
	/* a driver that does not know the attribute is older than what it refuses to share */
	if (!ASK(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, dptr) || (legacy & 0xff))
		return CL_MADE_ALLOC;
	if (!ASK(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, dptr))
		types = 0;
	if (is_virtual(dptr, memory, types))
		return types ? CL_MADE_VIRTUAL : CL_MADE_VIRTUAL_ALONE;
	return CL_MADE_OTHER;
}

struct cl_memory_made cl_memory_made(CUdeviceptr dptr)
{
	CL_CALLS_OF_OURS;
	struct cl_memory_made memory = { .made = CL_MADE_UNKNOWN, .base = dptr };
	CUdeviceptr base = dptr;
	int device = 0;
	size_t size = 0;

	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) == CUDA_SUCCESS) {
		memory.base = base;
		memory.size = size;
	} else if (ASK(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, dptr) &&
		   ASK(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, dptr)) { /* of host memory */
		memory.base = base;
		memory.size = size;
	}
	memory.made = made_of(dptr, &memory);
	if (memory.made != CL_MADE_UNKNOWN && ASK(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, dptr) && device > 0)
		memory.device = device;
	return memory;
}

CUmemoryPool cl_pool_of_memory(CUdeviceptr dptr)
{
	CUmemoryPool pool = NULL;

	return ASK(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, dptr) ? pool : NULL;
}

int cl_pool_memory_device(CUdeviceptr dptr)
{
	unsigned int type = 0;
	int device = 0;

	if (ASK(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, dptr) && type == CU_MEMORYTYPE_HOST)
		return CL_NO_DEVICE;
	if (!ASK(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, dptr))
		return 0;
	return device >= 0 && device < CL_NO_DEVICE ? device : CL_NO_DEVICE;
}

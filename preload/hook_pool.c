/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for memory pools.  Without CULIMBO_SHARE=all each costs one load and one branch; a hook that returns a pool costs
 * two loads and two branches.  hook_memory.c has the allocations from pools, hook_descriptor.c their descriptors,
 * hook_ipc.c their pointers and their end.
 */
#include "preload/hook_table.h"
#include "shim/base/options.h"
#include "shim/shim.h"

/* Evaluates @call, which writes a pool of the driver's to @pool: the program gets the one that it sees. */
#define SHOWN(pool, call)                                          \
	({                                                         \
		CUresult given;                                    \
                                                                   \
		if (cl_shares_all())                               \
			cl_async_before();                         \
		given = (call);                                    \
		if (cl_shares_all() && given == CUDA_SUCCESS)      \
			*(pool) = cl_async_after(*(pool));         \
		given;                                             \
	})

CUresult CUDAAPI cl_hook_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	return SHOWN(pool, cl_driver.cuDeviceGetDefaultMemPool(pool, device));
}

CUresult CUDAAPI cl_hook_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	return SHOWN(pool, cl_driver.cuDeviceGetMemPool(pool, device));
}

CUresult CUDAAPI cl_hook_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	if (cl_shares_all())
		cl_async_before();
	return cl_driver.cuDeviceSetMemPool(device, pool);
}

CUresult CUDAAPI cl_hook_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	return SHOWN(pool, cl_driver.cuMemGetDefaultMemPool(pool, location, type));
}

CUresult CUDAAPI cl_hook_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	return SHOWN(pool, cl_driver.cuMemGetMemPool(pool, location, type));
}

CUresult CUDAAPI cl_hook_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	return cl_shares_all() ? cl_async_create(pool, props) : cl_driver.cuMemPoolCreate(pool, props);
}

CUresult CUDAAPI cl_hook_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	return cl_shares_all() ? cl_async_get_attribute(pool, attribute, value) :
				 cl_driver.cuMemPoolGetAttribute(pool, attribute, value);
}

CUresult CUDAAPI cl_hook_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	return cl_shares_all() ? cl_async_set_attribute(pool, attribute, value) :
				 cl_driver.cuMemPoolSetAttribute(pool, attribute, value);
}

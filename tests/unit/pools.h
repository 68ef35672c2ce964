/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake driver's pools, for the tests of pools that are shared by pointer.  Exporter and importer are one
 * process: CUDA lets a process import its own pointers, at another address.
 */
#ifndef TEST_POOLS_H
#define TEST_POOLS_H

#include "tests/unit/limbo.h"

#include "shim/limbo/pool_imports.h"
#include "shim/shm/pool_data.h"

#define IMPORTED 0x20000000000ull /* the distance from an exported address to that of its import */
#define POOL ((CUmemoryPool)0x900)
#define OWN_POOL ((CUmemoryPool)0x700) /* has what this process exports */
#define DEFAULT_POOL ((CUmemoryPool)0x800)

static struct {
	bool uses_all; /* the driver writes all 64 bytes */
	bool on_host;
	bool unsaid; /* the driver does not say of which pool a block is */
	int device; /* has all pools */
	_Atomic unsigned int imports, unmaps, frees;
	_Atomic bool mapped[64];
	uint8_t came[64]; /* the data that the driver got last */
	CUmemoryPool handle; /* has what is exported from now on; NULL: OWN_POOL */
	CUmemoryPool current; /* what the device allocates from */
	CUmemoryPool destroyed; /* last */
	unsigned int destroys, refusals, frees_before; /* how many frees the driver had got before the last one */
	CUresult destroy_result, unmap_result;
} pool;

static CUresult pool_export(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	driver_entered();
	if (p == CL_NO_MEMORY || !fake_find(p) || p % DEVICE_STEP || !atomic_load(&fake_at(p)->live))
		return fake.none_result ? fake.none_result : CUDA_ERROR_INVALID_VALUE;
	memset(data->reserved, 0x11, pool.uses_all ? 64 : CL_POOL_DRIVERS);
	memcpy(data->reserved + 24, &p, sizeof p);
	memcpy(data->reserved + 32, &fake_at(p)->size, 8);
	return CUDA_SUCCESS;
}

static CUresult pool_import(CUdeviceptr *p, CUmemoryPool from, CUmemPoolPtrExportData *data)
{
	driver_entered();
	CHECK(from == POOL);
	memcpy(pool.came, data->reserved, 64);
	memcpy(p, data->reserved + 24, sizeof *p);
	pool.mapped[(*p - DEVICE_BASE) / DEVICE_STEP] = true;
	*p += IMPORTED;
	pool.imports++;
	return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr p)
{
	_Atomic bool *mapped = &pool.mapped[(p - IMPORTED - DEVICE_BASE) / DEVICE_STEP];

	driver_entered();
	if (pool.unmap_result)
		return pool.unmap_result;
	if (!*mapped)
		return CUDA_ERROR_INVALID_VALUE;
	*mapped = false;
	pool.unmaps++;
	return CUDA_SUCCESS;
}
static CUresult pool_free(CUdeviceptr p)
{
	pool.frees++;
	return p >= DEVICE_BASE + IMPORTED ? unmap(p) : fake_free(p);
}
static CUresult pool_free_async(CUdeviceptr p, CUstream stream)
{
	return p >= DEVICE_BASE + IMPORTED ? unmap(p) : fake_free_async(p, stream);
}

static CUresult pool_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
		if (pool.unsaid)
			return CUDA_ERROR_INVALID_VALUE;
		*(CUmemoryPool *)data = pool.handle ? pool.handle : OWN_POOL;
		return CUDA_SUCCESS;
	}
	/* a pool block has no context */
	CHECK(attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL || attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
	if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		*(unsigned int *)data = pool.on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
	else
		*(int *)data = pool.device;
	return CUDA_SUCCESS;
}

static CUresult pool_destroy(CUmemoryPool handle)
{
	driver_entered();
	if (pool.destroy_result)
		return pool.destroy_result;
	/* of an imported one some pointer is mapped */
	for (size_t i = 0; handle == POOL && i < sizeof pool.mapped / sizeof pool.mapped[0]; i++)
		if (pool.mapped[i]) {
			pool.refusals++;
			return CUDA_ERROR_INVALID_VALUE;
		}
	pool.destroyed = handle;
	pool.destroys++;
	pool.frees_before = pool.frees;
	return CUDA_SUCCESS;
}
static CUresult one_device(int *n)
{
	*n = 1;
	return CUDA_SUCCESS;
}
static CUresult get_current(CUmemoryPool *handle, CUdevice device)
{
	*handle = pool.current;
	return CUDA_SUCCESS;
}
static CUresult set_current(CUdevice device, CUmemoryPool handle)
{
	pool.current = handle;
	return CUDA_SUCCESS;
}
static CUresult get_default(CUmemoryPool *handle, CUdevice device)
{
	*handle = DEFAULT_POOL;
	return CUDA_SUCCESS;
}

static void start_pools(void)
{
	memset(&pool, 0, sizeof pool);
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuMemPoolExportPointer = pool_export;
	cl_driver.cuMemPoolImportPointer = pool_import;
	cl_driver.cuMemFree_v2 = pool_free;
	cl_driver.cuMemFreeAsync = pool_free_async;
	cl_driver.cuPointerGetAttribute = pool_attribute;
	cl_driver.cuMemPoolDestroy = pool_destroy;
	cl_driver.cuDeviceGetCount = one_device;
	cl_driver.cuDeviceGetMemPool = get_current;
	cl_driver.cuDeviceSetMemPool = set_current;
	cl_driver.cuDeviceGetDefaultMemPool = get_default;
}

static CUdeviceptr shared(CUmemPoolPtrExportData *data)
{
	CUdeviceptr p = fake_alloc(4096, NULL);

	memset(data, 0xee, sizeof *data);
	CHECK_EQUAL(cl_pool_pointer_export(data, p), CUDA_SUCCESS);
	return p;
}

static inline CUdeviceptr imported(CUmemPoolPtrExportData *data)
{
	bool told = true;
	CUdeviceptr p;

	CHECK_EQUAL(cl_pool_pointer_import(&p, POOL, data, &told), CUDA_SUCCESS);
	CHECK(!told);
	return p;
}

static inline enum cl_block_state state_in_pool(CUdeviceptr p)
{
	const struct cl_block *block;
	enum cl_block_state state;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(&cl_exporter.blocks, CL_POOL, p);
	state = block ? (enum cl_block_state)block->state : CL_BLOCK_DELETED;
	cl_unlock(&cl_exports_lock);
	return state;
}

#endif

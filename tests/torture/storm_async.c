/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storm's stream-ordered memory, which is shared by legacy handles.  It comes from the default pool, or from one
 * of the thread's own, which is destroyed now and then: its blocks live on.
 *
 * Rule: A block's first handle is made before its pool is destroyed, since a destroyed pool can't be exported.
 */
#include "tests/torture/storm.h"

static __thread CUmemoryPool own; /* NULL: none */
static __thread CUdevice own_device;

static CUresult alloc_of_own(CUdeviceptr *address, CUdevice device, CUstream stream)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };
	CUresult result = CUDA_SUCCESS;

	if (own && own_device != device)
		result = async_end_pool();
	if (!result && !own)
		result = cu.cuMemPoolCreate(&own, &properties);
	own_device = device;
	if (!result)
		return cu.cuMemAllocFromPoolAsync(address, BYTES, own, stream);
	own = NULL;
	return result;
}

CUresult async_alloc(CUdeviceptr *address, CUdevice device)
{
	CUresult result = dice(2) ? alloc_of_own(address, device, NULL) : cu.cuMemAllocAsync(address, BYTES, NULL);

	return result ? result : cu.cuStreamSynchronize(NULL);
}

CUresult async_end_pool(void)
{
	CUresult result = own ? cu.cuMemPoolDestroy(own) : CUDA_SUCCESS;

	own = NULL;
	return result;
}

CUresult async_close(CUdeviceptr address)
{
	return cu.cuIpcCloseMemHandle(address);
}

bool async_is_counted(void)
{
	return here % 2 == 0;
}

CUresult async_tell(CUdevice device)
{
	uint64_t reserved = 0, used = 0;
	CUmemoryPool pool;
	CUresult result = cu.cuDeviceGetDefaultMemPool(&pool, device);

	if (!result)
		result = cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
	if (!result)
		result = cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	atomic_store(&me->pool_used, async_is_counted() ? used : 0);
	atomic_store(&me->pool_kept, reserved);
	return result;
}

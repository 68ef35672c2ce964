/* SPDX-License-Identifier: Apache-2.0 */
/* Parts: stream-ordered memory under CULIMBO_SHARE=all: what an allocation costs, and a handle once more. */
#include "tests/bench/parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/options.h"
#include "shim/descriptors/server.h"
#include "shim/life.h"
#include "shim/shim.h"
#include "shim/shm/pool_data.h"
#include "shim/shm/pool_handle.h"

#define DEFAULT ((CUmemoryPool)0x900)
#define STAND_IN ((CUmemoryPool)0x901)
enum { MEMPOOL_HANDLE = 17 };

/* ------------------------------------------------------------ the null driver */
NULL_DRIVER static CUresult null_refuse(CUipcMemHandle *handle, CUdeviceptr p)
{
	(void)handle, (void)p;
	return CUDA_ERROR_INVALID_VALUE;
}
NULL_DRIVER static CUresult null_export(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	memset(data->reserved, 0, CL_POOL_DRIVERS);
	memcpy(data->reserved + 24, &p, sizeof p);
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	const CUmemoryPool pool = STAND_IN;
	const int none = 0;

	(void)p;
	if ((int)attribute == MEMPOOL_HANDLE)
		memcpy(data, &pool, sizeof pool);
	else
		memcpy(data, &none, sizeof none);
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	*base = p;
	*size = 512;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	(void)props;
	*pool = STAND_IN;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_get(CUmemoryPool *pool, CUdevice device)
{
	(void)device;
	*pool = DEFAULT;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_set(CUdevice device, CUmemoryPool pool)
{
	(void)device, (void)pool;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_destroy(CUmemoryPool pool)
{
	(void)pool;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_descriptor(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type,
					    unsigned long long flags)
{
	(void)pool, (void)type, (void)flags;
	*(int *)shareable = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	(void)pool, (void)attribute, (void)value;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_count(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_alloc(CUdeviceptr *p, size_t bytes, CUstream stream)
{
	(void)bytes, (void)stream;
	*p = block_at(0);
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_alloc_from(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)pool;
	return null_alloc(p, bytes, stream);
}
NULL_DRIVER static CUresult null_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
	(void)stream;
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

/* ----------------------------------------------------------------- operations */
static void op_alloc(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	MUST(cl_async_alloc(&p, 512, NULL, false) == CUDA_SUCCESS);
}
static void op_get_again(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	MUST(cl_memory_export(&handle, block_at(n_blocks / 2)) == CUDA_SUCCESS && cl_is_pool_handle(&handle));
}

int async_exporter(int argc, char **argv)
{
	(void)argc;
	n_blocks = strtoull(argv[0], NULL, 0);
	make_board(n_blocks);
	prepare();
	cl_driver.cuIpcGetMemHandle = null_refuse;
	cl_driver.cuMemPoolExportPointer = null_export;
	cl_driver.cuPointerGetAttribute = null_attribute;
	cl_driver.cuMemGetAddressRange_v2 = null_range;
	cl_driver.cuMemPoolCreate = null_create;
	cl_driver.cuMemPoolDestroy = null_destroy;
	cl_driver.cuDeviceGetDefaultMemPool = cl_driver.cuDeviceGetMemPool = null_get;
	cl_driver.cuDeviceSetMemPool = null_set;
	cl_driver.cuMemPoolExportToShareableHandle = null_descriptor;
	cl_driver.cuMemPoolGetAttribute = cl_driver.cuMemPoolSetAttribute = null_pool_attribute;
	cl_driver.cuDeviceGetCount = null_count;
	cl_driver.cuMemAllocAsync = null_alloc;
	cl_driver.cuMemAllocFromPoolAsync = null_alloc_from;
	cl_driver.cuStreamIsCapturing = null_capturing;
	cl_options.share.number = CL_SHARE_ALL;
	/* the service is looked at once a millisecond, and single steps take longer */
	if (bench_counting)
		cl_serve_look = UINT64_MAX;
	measure("async-alloc", op_alloc, 10000);
	for (uint64_t i = 0; i < n_blocks; i++)
		MUST(cl_memory_export(&board->handle[i], block_at(i)) == CUDA_SUCCESS);
	measure("async-get-again", op_get_again, 10000);
	cl_process_end(0);
	return 0;
}

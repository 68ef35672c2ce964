/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks for shared memory.  An export or import makes the process one that shares. */
#include "preload/hook_table.h"
#include "preload/sharer.h"
#include "shim/base/hot.h"
#include "shim/base/options.h"
#include "shim/shim.h"

CL_HOT_SHARING CUresult CUDAAPI cl_hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	cl_sharer_remember();
	return cl_memory_export(handle, dptr);
}

CUresult CUDAAPI cl_hook_cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle,
					    unsigned int flags)
{
	cl_sharer_remember();
	return cl_memory_import(dptr, handle, flags, cl_driver.cuIpcOpenMemHandle);
}

CL_HOT_SHARING CUresult CUDAAPI cl_hook_cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle,
							      unsigned int flags)
{
	cl_sharer_remember();
	return cl_memory_import(dptr, handle, flags, cl_driver.cuIpcOpenMemHandle_v2);
}

CL_HOT_SHARING CUresult CUDAAPI cl_hook_cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	if (!cl_sharing())
		return cl_driver.cuIpcCloseMemHandle(dptr);
	return cl_memory_close(dptr);
}

CUresult CUDAAPI cl_hook_cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr dptr)
{
	cl_sharer_remember();
	/* only we have made its pool exportable: the driver gets an address that it refuses, as it would refuse this one */
	if (cl_shares_all() && cl_async_hides(dptr))
		dptr = CL_NO_MEMORY;
	return cl_pool_pointer_export(data, dptr);
}

CUresult CUDAAPI cl_hook_cuMemPoolImportPointer(CUdeviceptr *dptr, CUmemoryPool pool,
						CUmemPoolPtrExportData *data)
{
	cl_sharer_remember();
	return cl_pool_pointer_import(dptr, pool, data, NULL);
}

CUresult CUDAAPI cl_hook_cuMemPoolDestroy(CUmemoryPool pool)
{
	if (cl_shares_all())
		return cl_async_destroy(pool);
	if (!cl_sharing())
		return cl_driver.cuMemPoolDestroy(pool);
	return cl_pool_destroy(pool);
}

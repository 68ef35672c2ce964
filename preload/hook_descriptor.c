/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for memory that programs share by descriptors and fabric handles: it is counted, after the driver has
 * done what was asked.  Two calls do more.  Under CULIMBO_SHARE=all an export of what only we have made exportable is
 * refused.  An import of a pool is counted for its destroy, too (cl_pool_import()).  cuMemMap() is here because only it
 * says how large an import is; under CULIMBO_SHARE=all it also says where virtual memory lies.
 */
#include "preload/hook_table.h"
#include "shim/base/hot.h"
#include "shim/base/options.h"
#include "preload/sharer.h"
#include "shim/shim.h"

/* CU_MEM_HANDLE_TYPE_FABRIC: cuda.h has this name from 12.3 on. */
enum { FABRIC = 8 };

/* Returns @as or, if @type is a fabric handle, the call behind it in enum cl_call. */
static enum cl_call by(enum cl_call as, CUmemAllocationHandleType type)
{
	return (unsigned int)type == FABRIC ? as + 1 : as;
}

CUresult CUDAAPI cl_hook_cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
						      CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result;

	/* the program did not ask for such memory: the driver would refuse it (measured) */
	if (cl_shares_all() && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && cl_virtual_is_hidden(handle))
		return CUDA_ERROR_INVALID_VALUE;
	result = cl_driver.cuMemExportToShareableHandle(shareable, handle, type, flags);
	if (result == CUDA_SUCCESS) {
		cl_sharer_remember_counted();
		cl_descriptor_note(by(CL_CALL_EXPORT, type), handle);
	}
	return result;
}

CUresult CUDAAPI cl_hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
							CUmemAllocationHandleType type)
{
	CUresult result = cl_driver.cuMemImportFromShareableHandle(handle, shareable, type);

	if (result == CUDA_SUCCESS) {
		cl_sharer_remember_counted();
		cl_descriptor_note(by(CL_CALL_IMPORT, type), *handle);
	}
	return result;
}

CUresult CUDAAPI cl_hook_cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool,
							  CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result;

	/* the driver refuses that of a pool which the program has not made exportable */
	if (cl_shares_all())
		pool = cl_async_to_export(pool);
	result = cl_driver.cuMemPoolExportToShareableHandle(shareable, pool, type, flags);
	if (result == CUDA_SUCCESS) {
		cl_sharer_remember_counted();
		cl_descriptor_note(by(CL_CALL_POOL_EXPORT, type), 0);
	}
	return result;
}

CUresult CUDAAPI cl_hook_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable,
							    CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = cl_pool_import(pool, shareable, type, flags);

	if (result == CUDA_SUCCESS) {
		cl_sharer_remember_counted();
		cl_descriptor_note(by(CL_CALL_POOL_IMPORT, type), 0);
	}
	return result;
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemMap(CUdeviceptr dptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
				  unsigned long long flags)
{
	CUresult result = cl_driver.cuMemMap(dptr, size, offset, handle, flags);

	if (__builtin_expect(cl_descriptor_imports_wait(), 0) && result == CUDA_SUCCESS)
		cl_descriptor_mapped(handle, size);
	if (cl_shares_all() && result == CUDA_SUCCESS)
		cl_virtual_mapped(dptr, size, offset, handle);
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for virtual memory.  Without CULIMBO_SHARE=all each costs one load and one branch.  Beside that the hooks of
 * cuPointerGetAttribute() and cuPointerGetAttributes() ask whether a handle of another process is open here, which costs
 * two of each; that of cuMemGetAddressRange() asks only this.  The hook of cuCtxEnablePeerAccess() always asks the
 * driver which devices it is about.  That takes 540 instructions with the simulated driver (callgrind), beside a call
 * that takes the driver long.
 */
#include "preload/hook_table.h"
#include "shim/base/hot.h"
#include "shim/base/options.h"
#include "shim/shim.h"

CUresult CUDAAPI cl_hook_cuMemAddressReserve(CUdeviceptr *dptr, size_t size, size_t alignment, CUdeviceptr wanted,
					     unsigned long long flags)
{
	CUresult result = cl_driver.cuMemAddressReserve(dptr, size, alignment, wanted, flags);

	if (cl_shares_all() && result == CUDA_SUCCESS)
		cl_virtual_reserved(*dptr, size);
	return result;
}

CUresult CUDAAPI cl_hook_cuMemAddressFree(CUdeviceptr dptr, size_t size)
{
	return cl_shares_all() ? cl_virtual_address_free(dptr, size) : cl_driver.cuMemAddressFree(dptr, size);
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemUnmap(CUdeviceptr dptr, size_t size)
{
	return cl_shares_all() ? cl_virtual_unmap_now(dptr, size) : cl_driver.cuMemUnmap(dptr, size);
}

CL_HOT CUresult CUDAAPI cl_hook_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	return cl_shares_all() ? cl_virtual_release(handle) : cl_driver.cuMemRelease(handle);
}

CUresult CUDAAPI cl_hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result = cl_driver.cuMemRetainAllocationHandle(handle, address);

	if (cl_shares_all() && result == CUDA_SUCCESS)
		cl_virtual_retained(*handle, (CUdeviceptr)(uintptr_t)address);
	return result;
}

CUresult CUDAAPI cl_hook_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
								CUmemGenericAllocationHandle handle)
{
	CUresult result = cl_driver.cuMemGetAllocationPropertiesFromHandle(prop, handle);

	if (cl_shares_all() && result == CUDA_SUCCESS)
		cl_virtual_properties(prop, handle);
	return result;
}

CUresult CUDAAPI cl_hook_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr)
{
	CUresult result = cl_driver.cuPointerGetAttribute(data, attribute, dptr);

	return cl_shares_all() || cl_virtual_imports_any() ? cl_virtual_attribute(data, attribute, dptr, result) : result;
}

CUresult CUDAAPI cl_hook_cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data,
						CUdeviceptr dptr)
{
	CUresult result = cl_driver.cuPointerGetAttributes(n, attributes, data, dptr);

	return cl_shares_all() || cl_virtual_imports_any() ? cl_virtual_attributes(n, attributes, data, dptr, result) : result;
}

CUresult CUDAAPI cl_hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr)
{
	CUresult result = cl_driver.cuMemGetAddressRange_v2(base, size, dptr);

	return cl_virtual_imports_any() ? cl_virtual_address_range(base, size, dptr, result) : result;
}

CUresult CUDAAPI cl_hook_cuCtxEnablePeerAccess(CUcontext ctx, unsigned int flags)
{
	CUresult result = cl_driver.cuCtxEnablePeerAccess(ctx, flags);

	/* also before anything is shared or open here: the driver does not say later who has access */
	if (result == CUDA_SUCCESS)
		cl_virtual_peer_enabled(ctx);
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front door for virtual memory: the functions that hooks call (see shim.h).
 *
 * A hook calls those of the first group, up to cl_virtual_is_hidden(), only if cl_shares_all() is true, whether
 * the process shares anything yet or not.  The others also serve a process that only imports, whatever
 * CULIMBO_SHARE is here: when a program asks about memory that it has opened by a virtual handle, it gets the
 * answers that it would get about memory opened by a legacy handle.
 *
 * Any thread may call these functions.  It must hold no lock of ours, but for the one that ends in _locked.
 */
#ifndef CL_VIRTUAL_H
#define CL_VIRTUAL_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include "shim/importer/mirror.h"
#include "shim/limbo/pool_opens.h"

/* In place of the driver's calls cuMemCreate(), cuMemRelease(), cuMemUnmap() and cuMemAddressFree(): they call it. */
CUresult cl_virtual_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			   unsigned long long flags);
CUresult cl_virtual_release(CUmemGenericAllocationHandle handle);
CUresult cl_virtual_unmap_now(CUdeviceptr dptr, size_t size);
CUresult cl_virtual_address_free(CUdeviceptr dptr, size_t size);
/*
 * The driver has reserved addresses, given the program the handle of what is mapped at @dptr once more, or mapped
 * @handle, from @offset on, at @dptr: remembers it.
 */
void cl_virtual_reserved(CUdeviceptr dptr, size_t size);
void cl_virtual_retained(CUmemGenericAllocationHandle handle, CUdeviceptr dptr);
void cl_virtual_mapped(CUdeviceptr dptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle);
/* The driver has filled in @prop: puts in the handle types that the program asked for, where we have asked for more. */
void cl_virtual_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
/*
 * Returns true if the driver makes descriptors of @handle's memory only because we have asked for that, and the
 * program must not see it: an export of it is to fail as without us.
 */
bool cl_virtual_is_hidden(CUmemGenericAllocationHandle handle);
/*
 * The program has asked for @attribute of @dptr, and the driver's answer is @result and *@data.  Changes *@data
 * where the program must get another answer.  Returns @result, or CUDA_SUCCESS if @dptr lies in an import but nothing
 * is mapped there, which the driver refuses.
 */
CUresult cl_virtual_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr, CUresult result);
/* The same after cuPointerGetAttributes(), which has the driver fill in all that it can. */
CUresult cl_virtual_attributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr dptr,
			       CUresult result);

/* Returns false if certainly no import is open here that needs cl_virtual_attribute() or cl_virtual_address_range(). */
static inline bool cl_virtual_imports_any(void)
{
	return cl_mirrors_any() || cl_pool_opens_any();
}
/*
 * The driver has answered cuMemGetAddressRange() of @dptr with @result.  If @dptr lies in an import, sets *@base and
 * *@size, of which each pointer may be NULL, to those of the import, and returns CUDA_SUCCESS.  Else returns @result.
 */
CUresult cl_virtual_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr dptr, CUresult result);
/* The current context has got access to the memory of @peer: gives its device access to what is open there. */
void cl_virtual_peer_enabled(CUcontext peer);

/*
 * Returns CUDA_SUCCESS, and the device of the current context in *@device.  Returns the driver's error if there is no
 * current context, or if it has ended.
 */
CUresult cl_virtual_current_device(CUdevice *device);
/*
 * For shim.c, in place of cuIpcOpenMemHandle() of a virtual @handle.  Returns what the program gets.  @open is the
 * driver's function, for a handle whose exporter has no file here.
 */
CUresult cl_virtual_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			   CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int));
/* Returns true if virtual memory is open at @dptr, the program's own or an import.  The caller holds cl_imports_lock. */
bool cl_virtual_is_open_locked(CUdeviceptr dptr);
/*
 * In place of cuIpcCloseMemHandle().  Returns false, and has done nothing, if @dptr was not opened by a virtual handle.
 * Else *@result is what the program gets.
 */
bool cl_virtual_close(CUdeviceptr dptr, CUresult *result);

#endif

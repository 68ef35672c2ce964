/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front door for virtual memory: see shim.h.  A hook calls the first group only if cl_shares_all() is
 * true, whether the process shares anything yet or not.  Of another process's memory, opened by a virtual
 * handle, programs are answered as of a legacy one, whatever CULIMBO_SHARE is here.
 */
#ifndef CL_VIRTUAL_H
#define CL_VIRTUAL_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include "shim/importer/mirror.h"
#include "shim/limbo/pool_opens.h"

/* In place of the driver's calls. */
CUresult cl_virtual_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			   unsigned long long flags);
CUresult cl_virtual_release(CUmemGenericAllocationHandle handle);
CUresult cl_virtual_unmap_now(CUdeviceptr dptr, size_t size);
CUresult cl_virtual_address_free(CUdeviceptr dptr, size_t size);
/* After the driver's calls, which have succeeded. */
void cl_virtual_reserved(CUdeviceptr dptr, size_t size);
void cl_virtual_retained(CUmemGenericAllocationHandle handle, CUdeviceptr dptr);
void cl_virtual_mapped(CUdeviceptr dptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle);
/* What the program reads is what it has asked for, in place of what the driver was asked for. */
void cl_virtual_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
/* Returns true if @handle's memory has descriptors only because we asked for them, and the program is not told. */
bool cl_virtual_is_hidden(CUmemGenericAllocationHandle handle);
/*
 * @result is the driver's answer.  Returns that, or CUDA_SUCCESS where only the driver does not know @dptr: in a
 * hole of an import.
 */
CUresult cl_virtual_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr, CUresult result);

/* Returns true if another process's virtual memory may be open here: the queries are for that, too. */
static inline bool cl_virtual_imports_any(void)
{
	return cl_mirrors_any() || cl_pool_opens_any();
}
/* What cuMemGetAddressRange() answers of an import, likewise; @base and @size may be NULL. */
CUresult cl_virtual_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr dptr, CUresult result);
/* The current context has got access to the memory of @peer. */
void cl_virtual_peer_enabled(CUcontext peer);

/* The device of the current context, or the driver's error if the context can do nothing any more. */
CUresult cl_virtual_current_device(CUdevice *device);
/* For shim.c: cuIpcOpenMemHandle() of a virtual @handle, and cuIpcCloseMemHandle(). */
CUresult cl_virtual_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			   CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int));
/* Returns true if virtual memory is open at @dptr, the program's own or an import.  The caller holds cl_imports_lock. */
bool cl_virtual_is_open_locked(CUdeviceptr dptr);
/* Returns false if @dptr is not open as a virtual one. */
bool cl_virtual_close(CUdeviceptr dptr, CUresult *result);

#endif

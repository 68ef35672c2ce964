/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front door for stream-ordered memory under CULIMBO_SHARE=all: see shim.h.  A hook calls the first group only
 * if cl_shares_all() is true, whether the process shares anything yet or not.
 */
#ifndef CL_POOL_HANDLES_H
#define CL_POOL_HANDLES_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* In place of the driver's calls.  @per_thread: the program called the _ptsz form. */
CUresult cl_async_alloc(CUdeviceptr *dptr, size_t bytes, CUstream stream, bool per_thread);
CUresult cl_async_alloc_from(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread);
CUresult cl_async_create(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cl_async_destroy(CUmemoryPool pool);
CUresult cl_async_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cl_async_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
/* Before the driver is asked for or given a device's pool. */
void cl_async_before(void);
/* After it has answered: the pool that the program sees for @pool. */
CUmemoryPool cl_async_after(CUmemoryPool pool);
/* The pool that the driver is to export for @pool, which it refuses if the program could not have it exported. */
CUmemoryPool cl_async_to_export(CUmemoryPool pool);
/* Returns true if the driver would refuse to export a pointer to @dptr without us. */
bool cl_async_hides(CUdeviceptr dptr);

/* For shim.c: cuIpcOpenMemHandle() of a @handle of a pool's block, cuIpcCloseMemHandle(), and frees of what is open. */
CUresult cl_pool_handle_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			       CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int));
/* Returns true if a block of a pool is open at @dptr so, the program's own or an import.  The caller holds cl_imports_lock. */
bool cl_pool_handle_is_open_locked(CUdeviceptr dptr);
/* Returns false if @dptr is not open so. */
bool cl_pool_handle_close(CUdeviceptr dptr, CUresult *result);

#endif

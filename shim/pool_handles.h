/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front door for stream-ordered memory under CULIMBO_SHARE=all: the functions that hooks call (see shim.h).
 *
 * A hook calls those of the first group, up to cl_async_hides(), only if cl_shares_all() is true, whether the process
 * shares anything yet or not.  Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_POOL_HANDLES_H
#define CL_POOL_HANDLES_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include "shim/driver/driver.h"
#include "shim/exporter/async.h"

/* Comes before the driver's call that gets or sets a device's pool: makes the stand-ins (exporter/async.h). */
void cl_async_before(void);
/*
 * The driver has refused to allocate @bytes in @stream from @pool, or if @pool is NULL from the pool of the stream's
 * device, with CUDA_ERROR_NOT_SUPPORTED.  Returns what the program gets: see cl_async_alloc_captured().
 */
CUresult cl_async_alloc_refused(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread);

/*
 * In place of cuMemAllocAsync() and cuMemAllocFromPoolAsync(), with their results.  @per_thread, a constant: the program
 * called the _ptsz form.  They are compiled into the hooks, which so execute three or six instructions more.
 */
static inline CUresult cl_async_alloc(CUdeviceptr *dptr, size_t bytes, CUstream stream, bool per_thread)
{
	CUresult result;

	if (__builtin_expect(!atomic_load_explicit(&cl_async_made, memory_order_acquire), 0))
		cl_async_before();
	result = (per_thread ? cl_driver.cuMemAllocAsync_ptsz : cl_driver.cuMemAllocAsync)(dptr, bytes, stream);
	return __builtin_expect(result == CUDA_ERROR_NOT_SUPPORTED, 0) ?
		       cl_async_alloc_refused(dptr, bytes, NULL, stream, per_thread) :
		       result;
}
static inline CUresult cl_async_alloc_from(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream,
					   bool per_thread)
{
	CUresult result = (per_thread ? cl_driver.cuMemAllocFromPoolAsync_ptsz : cl_driver.cuMemAllocFromPoolAsync)(
		dptr, bytes, pool, stream);

	return __builtin_expect(result == CUDA_ERROR_NOT_SUPPORTED, 0) ?
		       cl_async_alloc_refused(dptr, bytes, pool, stream, per_thread) :
		       result;
}

/* In place of cuMemPoolCreate(), -Destroy(), -GetAttribute() and -SetAttribute(), with their results. */
CUresult cl_async_create(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cl_async_destroy(CUmemoryPool pool);
CUresult cl_async_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cl_async_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
/* Comes after a call that gets a device's pool, for which the driver has returned @pool.  Returns the program's pool. */
CUmemoryPool cl_async_after(CUmemoryPool pool);
/*
 * The program exports @pool.  Returns the pool that the hook has the driver export: one that the driver refuses, if
 * @pool is exportable only because of us and the program must not see that; else @pool.
 */
CUmemoryPool cl_async_to_export(CUmemoryPool pool);
/* Returns true if @dptr is of a pool that is exportable only because of us, so that its export must be refused. */
bool cl_async_hides(CUdeviceptr dptr);

/*
 * For shim.c, in place of cuIpcOpenMemHandle() of a @handle of a pool's block.  Returns what the program gets.  @open is
 * the driver's function, for a handle whose exporter can't be found.
 */
CUresult cl_pool_handle_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			       CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int));
/*
 * Returns true if a block of a pool is open at @dptr by such a handle, the program's own block or an import.  The
 * caller holds cl_imports_lock.
 */
bool cl_pool_handle_is_open_locked(CUdeviceptr dptr);
/*
 * In place of cuIpcCloseMemHandle().  Returns false if @dptr was not opened by such a handle, or if the thread of
 * another close was faster.  Else *@result is what the program gets.
 */
bool cl_pool_handle_close(CUdeviceptr dptr, CUresult *result);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The front door for stream-ordered memory: see pool_handles.h. */
#include <errno.h>
#include <string.h>

#include "shim/base/options.h"
#include "shim/door.h"
#include "shim/driver/made.h"
#include "shim/driver/wait.h"
#include "shim/exporter/async.h"
#include "shim/exporter/pool_handle.h"
#include "shim/importer/open.h"
#include "shim/importer/virtual.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/pool_opens.h"
#include "shim/pool_handles.h"
#include "shim/refused.h"
#include "shim/shim.h"
#include "shim/shm/gc.h"

enum { CL_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES = 10 }; /* since CUDA 13.1 */

/* --------------------------------------------------------------------- allocations */
CUresult cl_async_alloc_refused(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	return cl_async_alloc_captured(dptr, bytes, pool, stream, per_thread);
}

/* --------------------------------------------------------------------------- pools */
void cl_async_before(void)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	cl_async_need();
}

CUmemoryPool cl_async_after(CUmemoryPool pool)
{
	return cl_async_shown(pool);
}

CUresult cl_async_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	return cl_async_pool_create(pool, props);
}

CUresult cl_async_destroy(CUmemoryPool pool)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	CUmemoryPool real = cl_async_default_of(pool);
	struct cl_async_pool *known;
	CUresult result;

	/* to the program @pool is a default pool, which the driver refuses to destroy */
	if (real)
		return cl_driver.cuMemPoolDestroy(real);
	known = cl_async_destroy_begin(&cl_exporter, pool);
	result = cl_sharing() ? cl_pool_destroy(pool) : cl_driver.cuMemPoolDestroy(pool);
	cl_async_destroy_end(&cl_exporter, known, result == CUDA_SUCCESS);
	/* the driver has set the devices that allocated from it to their real default pools */
	if (result == CUDA_SUCCESS)
		cl_async_set_again();
	return result;
}

CUresult cl_async_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	cuuint64_t threshold;
	CUresult result;

	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && value) {
		result = cl_async_threshold_get(pool, &threshold);
		if (result == CUDA_SUCCESS)
			memcpy(value, &threshold, sizeof threshold);
		return result;
	}
	/* what we have added is kept from the program */
	if ((int)attribute == CL_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES)
		pool = cl_async_as_asked(pool);
	return cl_driver.cuMemPoolGetAttribute(pool, attribute, value);
}

CUresult cl_async_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	cuuint64_t threshold;

	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && value) {
		memcpy(&threshold, value, sizeof threshold);
		return cl_async_threshold_set(pool, threshold);
	}
	return cl_driver.cuMemPoolSetAttribute(pool, attribute, value);
}

CUmemoryPool cl_async_to_export(CUmemoryPool pool)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	CUmemoryPool asked = cl_async_as_asked(pool);

	/* with all,visible the program may export it: raises its threshold, as our exports do (exporter/async.h) */
	if (asked == pool && cl_async_is_added(pool))
		cl_async_hand_out(pool);
	return asked;
}

bool cl_async_hides(CUdeviceptr dptr)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	CUmemoryPool pool = cl_pool_of_memory(dptr);

	return pool && cl_async_as_asked(pool) != pool;
}

/* ---------------------------------------------------------------- opens and closes */
/*
 * The handle names nothing that can be opened.  Reports it as stale, or, if nothing is known of it, has the driver
 * refuse it.  Returns the error that the program gets.  @form has the block's export data, or is NULL if they could not
 * be read.
 */
static CUresult refuse(CUdeviceptr *dptr, CUipcMemHandle handle, const struct cl_pool_form *form, unsigned int flags,
		       CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	CUipcMemHandle copy = handle;
	struct cl_resolved resolved;
	struct cl_opening o;
	CUresult result;

	/* the form in which the record has the handle, with the stamp behind it */
	if (form) {
		memcpy(copy.reserved, form, 8 + CL_POOL_DRIVERS);
		memcpy(copy.reserved + 56, form->data + 56, 8);
	}
	cl_look_up(&resolved, &copy, CL_POOL);
	memcpy(&resolved.pid, handle.reserved + offsetof(struct cl_pool_handle, pid), sizeof resolved.pid);
	if (resolved.own)
		return cl_open_refuse(&resolved, CL_POOL);
	result = cl_open_begin(&o, &resolved, CL_POOL);
	if (result != CUDA_SUCCESS)
		return result;
	cl_open_give_up(&o);
	if (form)
		return cl_open_refuse(&resolved, CL_POOL);
	result = open(dptr, handle, flags);
	cl_refused_open_of_ours(CL_MADE_POOL, resolved.pid, 0, result, CL_WHY_RESULT_ALONE);
	return result;
}

/* Opens a handle that this process has made itself.  Returns what the program gets. */
static CUresult open_own(const struct cl_pool_resolved *resolved, CUdeviceptr *dptr)
{
	struct cl_pool_form form = resolved->form;
	struct cl_resolved plain = { .handle = form.zeros, .stamp = resolved->stamp, .pid = resolved->handle.pid,
				     .kind = CL_POOL, .own = true, .known = true };
	int err;

	/* in the form of a handle, without a stamp */
	memset(form.data + CL_POOL_DRIVERS, 0, sizeof form.data - CL_POOL_DRIVERS);
	err = cl_pool_handle_own_open(&cl_exporter, resolved->stamp, form.zeros, dptr);
	return !err ? CUDA_SUCCESS : err == -ENOMEM ? cl_virtual_say(plain.pid, err) : cl_open_refuse(&plain, CL_POOL);
}

/*
 * Opens the block of @resolved: imports its pool, if that is not done yet, and its pointer.  Returns
 * CUDA_SUCCESS; CUDA_ERROR_INVALID_HANDLE if the handle is stale or its exporter is dead; or another error for the
 * program, and true in *@told if a finding says it already.
 */
static CUresult open_resolved(struct cl_pool_resolved *resolved, CUdevice device, CUdeviceptr *dptr, bool *told)
{
	/* cuIpcOpenMemHandle() spoils no stream capture, and an import of a pool's pointer does (measured) */
	CL_CALLS_OF_OURS;
	struct cl_context_name name = cl_context_name_current();
	struct cl_pool_open *open = cl_pool_open_prepare();
	struct cl_imported_pool *pool;
	CUresult result;

	if (!open)
		return cl_virtual_say(resolved->handle.pid, -ENOMEM);
	/* CUDA opens no legacy handle of a process that has ended, but would import a pool's pointer */
	if (cl_gc_judge(&resolved->peer->region) == CL_DEAD) {
		cl_pool_open_discard(open);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	result = cl_imported_pool_get(resolved, device, &pool);
	if (result == CUDA_SUCCESS) {
		result = cl_imported_pool_give_access(pool, device);
		if (result != CUDA_SUCCESS)
			result = cl_virtual_say_refused(resolved->handle.pid, result);
		else
			result = cl_pool_pointer_import(dptr, cl_imported_pool_handle(pool),
							(CUmemPoolPtrExportData *)(void *)resolved->form.data, told);
		if (result == CUDA_SUCCESS) {
			cl_pool_open_add(open, *dptr, &name, pool);
			return result;
		}
		cl_pool_open_gives_up(&cl_exporter, pool);
	}
	cl_pool_open_discard(open);
	return result;
}

CUresult cl_pool_handle_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			       CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	struct cl_pool_resolved resolved;
	struct cl_pool_handle made;
	bool told = false;
	CUdevice device;
	CUresult result;

	if (cl_open_has_wrong_arguments(dptr, flags)) {
		memcpy(&made, &handle, sizeof made);
		cl_refused_open_of_ours(CL_MADE_POOL, made.pid, 0, CUDA_ERROR_INVALID_VALUE, CL_WHY_ARGUMENTS);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (cl_observes()) {
		result = open(dptr, handle, flags);
		memcpy(&made, &handle, sizeof made);
		cl_refused_open_of_ours(CL_MADE_POOL, made.pid, 0, result, CL_WHY_ALL_OBSERVES);
		return result;
	}
	result = cl_virtual_current_device(&device);
	if (result != CUDA_SUCCESS)
		return result;
	if (cl_pool_resolve(&resolved, &handle))
		return refuse(dptr, handle, NULL, flags, open);
	if (!resolved.peer)
		return open_own(&resolved, dptr);
	result = open_resolved(&resolved, device, dptr, &told);
	if (result != CUDA_ERROR_INVALID_HANDLE && !told)
		cl_refused_open_of_ours(CL_MADE_POOL, resolved.handle.pid, resolved.size, result, CL_WHY_RESULT_ALONE);
	cl_pool_resolved_put(&resolved);
	/* its generation is over, or its exporter is dead */
	if (result == CUDA_ERROR_INVALID_HANDLE)
		result = refuse(dptr, handle, &resolved.form, flags, open);
	return result;
}

bool cl_pool_handle_is_open_locked(CUdeviceptr dptr)
{
	return cl_pool_open_is_open_locked(dptr) || (cl_shares_all() && cl_pool_handle_own_is_open(dptr));
}

/* Closes one open of @dptr.  Returns false if another thread has closed the last one meanwhile. */
static bool close_open(CUdeviceptr dptr, CUresult *result, bool *wake)
{
	/* the driver's close of a legacy handle waits as a free does, and spoils no capture (both measured) */
	CL_CALLS_OF_OURS;

	cl_wait_as_a_free_here();
	return cl_pool_open_close(&cl_exporter, dptr, result, wake);
}

bool cl_pool_handle_close(CUdeviceptr dptr, CUresult *result)
{
	bool wake = false;
	CUdevice device;

	if (cl_pool_handle_own_close(&cl_exporter, dptr)) {
		*result = CUDA_SUCCESS;
		return true;
	}
	if (!cl_pool_opens_any() || !cl_pool_open_is_open(dptr))
		return false;
	*result = cl_virtual_current_device(&device);
	if (*result != CUDA_SUCCESS)
		return true;
	if (!close_open(dptr, result, &wake))
		return false;
	if (wake)
		cl_collector_wake_by(&cl_exporter, cl_now() + CL_FENCE_FIRST);
	return true;
}

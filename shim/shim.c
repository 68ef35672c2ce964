/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front door: a hook calls one of these functions in place of its driver call (shim.h).  The
 * function passes the guard (door.h), finds out whose the address is, and calls the exporter,
 * the importer or the driver.
 */
#include <errno.h>
#include <string.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/base/options.h"
#include "shim/blocks/address_filter.h"
#include "shim/blocks/event_owner.h"
#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/door.h"
#include "shim/driver/context.h"
#include "shim/driver/made.h"
#include "shim/exporter/async.h"
#include "shim/exporter/export.h"
#include "shim/exporter/free.h"
#include "shim/exporter/own_open.h"
#include "shim/exporter/pool_handle.h"
#include "shim/exporter/virtual.h"
#include "shim/importer/close.h"
#include "shim/importer/mappings.h"
#include "shim/importer/mirror.h"
#include "shim/importer/open.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/pool_imports.h"
#include "shim/limbo/pool_opens.h"
#include "shim/refused.h"
#include "shim/shim.h"
#include "shim/shm/pool_handle.h"
#include "shim/shm/virtual_handle.h"

/* ------------------------------------------------------------------ exporting */
/* noinline: keeps its registers and its stack frame out of the fast path. */
CL_HOT_SHARING static __attribute__((noinline)) CUresult export_carefully(CUipcMemHandle *handle, CUdeviceptr dptr,
									  enum cl_export_as as)
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);
	CUresult result;

	if (!shares)
		return cl_driver.cuIpcGetMemHandle(handle, dptr);
	result = as == CL_EXPORT_NEW ? cl_export_new(&cl_exporter, handle, dptr) :
				       cl_export_carefully(&cl_exporter, handle, dptr);
	if (__builtin_expect(result != CUDA_SUCCESS, 0))
		cl_refused_handle(dptr, result);
	return result;
}

/*
 * @dptr was refused before: asks the driver first, where a new export needs memory of ours for its
 * answer.  Returns CUDA_SUCCESS if the answer is another now, and it is to be exported with all care.
 */
static __attribute__((noinline)) CUresult export_refused_before(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	CUresult result = cl_driver.cuIpcGetMemHandle(handle, dptr);

	if (cl_refused_again(dptr, result))
		return result;
	/* a handle without a stamp would bypass us */
	if (result == CUDA_SUCCESS)
		memset(handle, 0, sizeof *handle);
	return CUDA_SUCCESS;
}

/*
 * Virtual memory, and memory of pools.  For a first handle of it the driver is asked first, and refuses it.  For one
 * more handle two queries are enough.
 */
static __attribute__((noinline)) bool export_ours(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);
	struct cl_virtual_found found;
	CUmemoryPool pool;

	if (!shares || !handle || !cl_virtual_is_on())
		return false;
	if (cl_virtual_find(&cl_exporter, dptr, &found))
		return cl_virtual_share_again(handle, dptr, &found) ||
		       (cl_driver.cuIpcGetMemHandle(handle, dptr) == CUDA_ERROR_INVALID_VALUE &&
			cl_virtual_share(&cl_exporter, handle, dptr, &found));
	/* memory of cuMemAlloc() is none of a pool, and has the driver's handle */
	pool = cl_async_made ? cl_pool_of_memory(dptr) : NULL;
	return pool && (cl_pool_share_again(&cl_exporter, handle, dptr, pool) ||
			(cl_driver.cuIpcGetMemHandle(handle, dptr) == CUDA_ERROR_INVALID_VALUE &&
			 cl_pool_share(&cl_exporter, handle, dptr)));
}

CL_HOT_SHARING CUresult cl_memory_export(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	CL_DOOR_FAST(passes);
	enum cl_export_as as = CL_EXPORT_NOT_SIMPLY;

	if (cl_shares_all() && export_ours(handle, dptr))
		return CUDA_SUCCESS;
	if (passes) {
		as = cl_export_simply(&cl_exporter, handle, dptr);
		if (as == CL_EXPORT_NOT_SIMPLY && __builtin_expect(cl_refused_before(dptr), 0) &&
		    !cl_block_may_be(&cl_exporter.blocks.filter, dptr)) {
			CUresult refusal = export_refused_before(handle, dptr);

			if (refusal != CUDA_SUCCESS)
				return refusal;
		}
	}
	return as == CL_EXPORT_DONE ? CUDA_SUCCESS : export_carefully(handle, dptr, as);
}

CUresult cl_event_export(CUipcEventHandle *handle, CUevent event)
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);
	struct cl_block *prepared;
	CUresult result;

	if (!shares)
		return cl_driver.cuIpcGetEventHandle(handle, event);
	result = cl_export_event_begin(&cl_exporter, event, &prepared);
	if (result != CUDA_SUCCESS)
		return result;
	result = cl_driver.cuIpcGetEventHandle(handle, event);
	/* the driver has a limit of shared events: beyond it, creating or exporting one fails (measured) */
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		struct cl_retry retry;

		cl_retry_begin(&retry, CL_RETRY_EVENT, (struct cl_need){ 0 });
		while (result == CUDA_ERROR_OUT_OF_MEMORY && cl_retry_again(&retry))
			result = cl_driver.cuIpcGetEventHandle(handle, event);
		cl_retry_end(&retry);
	}
	if (result != CUDA_SUCCESS) {
		cl_export_event_refused(&cl_exporter, prepared);
		return result;
	}
	cl_import_event_created(event); /* the driver has accepted it, so it lives, whoever created it */
	return cl_export_event(&cl_exporter, handle, event, prepared);
}

/* ------------------------------------------------------------------ importing */
/*
 * Opens a handle of a block of this process itself.  The driver refuses such a handle with "no
 * context" (measured), and then we open it.  What the driver refuses before it looks
 * at the handle (wrong flags, no current context) stays refused.
 */
static CUresult import_own(const struct cl_resolved *resolved, CUdeviceptr *dptr, CUipcMemHandle handle,
			   unsigned int flags,
			   CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	CUdeviceptr opened;
	CUcontext ctx = NULL;
	CUresult result = open(&opened, handle, flags);

	if (result == CUDA_SUCCESS)
		cl_driver.cuIpcCloseMemHandle(opened);
	else if (result != CUDA_ERROR_INVALID_CONTEXT ||
		 cl_driver.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
		return result;
	return cl_own_open(&cl_exporter, resolved->stamp, resolved->handle, dptr) ?
		       cl_open_refuse(resolved, CL_MEMORY) :
		       CUDA_SUCCESS;
}

CL_HOT_SHARING CUresult cl_memory_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
					 CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);
	struct cl_resolved resolved;
	struct cl_opening o;
	CUresult result;

	if (!shares)
		return open(dptr, handle, flags);
	if (cl_is_virtual_handle(&handle))
		return cl_virtual_import(dptr, handle, flags, open);
	if (cl_is_pool_handle(&handle))
		return cl_pool_handle_import(dptr, handle, flags, open);
	cl_look_up(&resolved, &handle, CL_MEMORY);
	if (resolved.own && dptr && !cl_observes())
		return import_own(&resolved, dptr, handle, flags, open);
	result = cl_open_begin(&o, &resolved, CL_MEMORY);
	if (result != CUDA_SUCCESS)
		return cl_open_has_wrong_arguments(dptr, flags) ? CUDA_ERROR_INVALID_VALUE : result;
	if (cl_open_is_of_namesake(&resolved) && !cl_observes())
		handle = cl_open_rename(&resolved, handle);
	result = open(dptr, handle, flags);
	if (result == CUDA_SUCCESS) {
		CUresult refusal;

		if (cl_open_end(&o, &resolved, CL_MEMORY, (uint64_t)*dptr))
			return result;
		if (cl_observes()) {
			cl_open_tell_stale(&resolved, CL_MEMORY, (uint64_t)*dptr, CUDA_SUCCESS);
		} else {
			refusal = cl_open_refuse(&resolved, CL_MEMORY);
			cl_driver.cuIpcCloseMemHandle(*dptr);
			result = refusal;
		}
		cl_open_give_up(&o);
		return result;
	}
	cl_open_give_up(&o);
	/* one bug, one finding */
	if (o.stale)
		cl_open_tell_stale(&resolved, CL_MEMORY, 0, result);
	else
		cl_refused_open(&resolved, &handle, result, cl_open_has_wrong_arguments(dptr, flags));
	return result;
}

CUresult cl_event_import(CUevent *event, CUipcEventHandle handle)
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);
	struct cl_resolved resolved;
	struct cl_opening o;
	CUresult result;

	if (!shares)
		return cl_driver.cuIpcOpenEventHandle(event, handle);
	cl_look_up(&resolved, &handle, CL_EVENT);
	if (resolved.own) /* the driver refuses a process's own event, with the right error */
		return cl_driver.cuIpcOpenEventHandle(event, handle);
	result = cl_open_begin(&o, &resolved, CL_EVENT);
	if (result != CUDA_SUCCESS)
		return result;
	result = cl_driver.cuIpcOpenEventHandle(event, handle);
	if (result == CUDA_SUCCESS) {
		CUresult refusal;

		if (cl_open_end(&o, &resolved, CL_EVENT, (uint64_t)(uintptr_t)*event))
			return result;
		if (cl_observes()) {
			cl_open_tell_stale(&resolved, CL_EVENT, (uint64_t)(uintptr_t)*event, CUDA_SUCCESS);
		} else {
			refusal = cl_open_refuse(&resolved, CL_EVENT);
			cl_driver.cuEventDestroy_v2(*event);
			result = refusal;
		}
	} else if (o.stale) {
		cl_open_tell_stale(&resolved, CL_EVENT, 0, result);
	}
	cl_open_give_up(&o);
	if (result == CUDA_ERROR_INVALID_CONTEXT && cl_open_is_of_namesake(&resolved))
		cl_open_say_namesake(&resolved);
	return result;
}

/* -------------------------------------------------------------------- closing */
static bool own_has(enum cl_kind kind, uint64_t key)
{
	return cl_own_has(&cl_exporter, kind, key) ||
	       (kind == CL_MEMORY && (cl_virtual_is_open_locked(key) || cl_pool_handle_is_open_locked(key)));
}

CL_HOT_SHARING CUresult cl_memory_close(CUdeviceptr dptr)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	struct cl_mapping *mapping;
	CUresult result;
	bool last;

	if (!shares)
		return cl_driver.cuIpcCloseMemHandle(dptr);
	mapping = cl_close_begin(CL_MEMORY, dptr, own_has, &last);
	if (!mapping && (cl_mirrors_any() || cl_shares_all()) && cl_virtual_close(dptr, &result))
		return result;
	if (!mapping && (cl_pool_opens_any() || cl_shares_all()) && cl_pool_handle_close(dptr, &result))
		return result;
	if (!mapping && cl_own_close(&cl_exporter, dptr))
		return CUDA_SUCCESS;
	result = cl_driver.cuIpcCloseMemHandle(dptr);
	if (mapping)
		cl_close_end(CL_MEMORY, mapping, result == CUDA_SUCCESS, last);
	else if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_MAP_FAILED)
		cl_close_again(dptr);
	return result;
}

/* -------------------------------------------------------------------- freeing */
/* After a free that went to the driver: reports it if the program has freed an import.  Returns @result. */
static __attribute__((noinline)) CUresult not_ours(CUdeviceptr dptr, CUresult result)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	struct cl_about import;

	if (result != CUDA_ERROR_INVALID_VALUE || !dptr)
		return result;
	if (cl_import_find(dptr, &import))
		cl_happened(CL_FINDING_IMPORT_FREED, &import, cl_stack_write(true));
	else
		cl_pool_import_freed_again(dptr);
	return result;
}

/*
 * Returns true if @dptr was never exported, and no block of a pool is imported there, as with most
 * pointers.  Takes no lock and looks at no block.  Returns false if no thread does the collector's work,
 * because the slow path does it.
 */
CL_HOT_SHARING static bool is_none_of_ours(CUdeviceptr dptr)
{
	return !cl_pool_import_may_be(&cl_exporter.pool_imports, dptr) &&
	       __builtin_expect(!cl_block_may_be(&cl_exporter.blocks.filter, dptr), 1) &&
	       !cl_collector_is_inline(&cl_exporter.collector);
}

static inline CUresult import_freed(CUresult result, bool wake)
{
	if (__builtin_expect(wake, 0))
		cl_collector_wake_by(&cl_exporter, cl_now() + CL_FENCE_FIRST);
	return result;
}

CL_HOT_SHARING static __attribute__((noinline)) CUresult free_what_may_be_ours(CUdeviceptr dptr)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	bool wake = false;
	CUresult result;

	if (!shares)
		return cl_driver.cuMemFree_v2(dptr);
	if (cl_pool_opens_any() && cl_pool_open_refuses_free(dptr)) {
		/* an error of a capture, which the driver's free spoils, comes before one of the memory (measured) */
		result = cl_driver.cuMemFree_v2(CL_NO_MEMORY);
		return not_ours(dptr, result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result);
	}
	/* what was imported there is not what was exported there before, see pool_imports.h */
	if (cl_pool_imports_any(&cl_exporter) && cl_pool_import_free(&cl_exporter, dptr, &result, &wake))
		return import_freed(result, wake);
	if (cl_free_memory(&cl_exporter, dptr, &result))
		return result;
	return not_ours(dptr, cl_driver.cuMemFree_v2(dptr));
}

CL_HOT_SHARING CUresult cl_memory_free(CUdeviceptr dptr)
{
	CUresult result;

	if (!is_none_of_ours(dptr))
		return free_what_may_be_ours(dptr);
	result = cl_driver.cuMemFree_v2(dptr);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : not_ours(dptr, result);
}

static CUresult free_async_what_may_be_ours(CUdeviceptr dptr, CUstream stream, bool per_thread,
					    CUresult (*bare)(CUdeviceptr, CUstream))
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	bool wake = false;
	CUresult result;

	if (!shares)
		return bare(dptr, stream);
	if (cl_pool_opens_any() && cl_pool_open_refuses_free(dptr)) {
		/* an error of the stream comes before one of the memory (measured) */
		result = bare(CL_NO_MEMORY, stream);
		return not_ours(dptr, result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result);
	}
	if (cl_pool_imports_any(&cl_exporter) &&
	    cl_pool_import_free_async(&cl_exporter, dptr, stream, per_thread, bare, &result, &wake))
		return import_freed(result, wake);
	if (cl_free_memory_async(&cl_exporter, dptr, stream, per_thread, bare, &result))
		return result;
	return not_ours(dptr, bare(dptr, stream));
}

CUresult cl_memory_free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	CUresult (*bare)(CUdeviceptr, CUstream) =
		per_thread ? cl_driver.cuMemFreeAsync_ptsz : cl_driver.cuMemFreeAsync;
	CUresult result;

	if (!is_none_of_ours(dptr))
		return free_async_what_may_be_ours(dptr, stream, per_thread, bare);
	result = bare(dptr, stream);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : not_ours(dptr, result);
}

CUresult cl_event_destroy(CUevent event, CUresult (*destroy)(CUevent))
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	CUresult result;

	if (!shares)
		return destroy(event);
	if (cl_import_event_destroy(event, destroy, own_has, &result))
		return result;
	cl_event_owner_drop(&cl_exporter.blocks, event);
	if (cl_free_event(&cl_exporter, event, destroy, &result))
		return result;
	if (cl_import_event_destroyed_again(event) && !cl_observes()) /* without us the driver would crash (measured) */
		return CUDA_ERROR_INVALID_HANDLE;
	return destroy(event);
}

CUresult cl_unshared_event_destroy(CUevent event, CUresult (*destroy)(CUevent))
{
	/* most programs have no interprocess event */
	if (__builtin_expect(atomic_load_explicit(&cl_event_owners, memory_order_relaxed) != 0, 0)) {
		CL_GUARD(ours);

		/* a forked child may have the lock as another thread of its parent's had it */
		if (ours && cl_driver_works())
			cl_event_owner_drop(&cl_exporter.blocks, event);
	}
	return destroy(event);
}

/* --------------------------------------------------------------------- creation */
void cl_event_created(CUevent event)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	cl_import_event_created(event);
}

void cl_shareable_event_created(CUevent event)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	cl_event_owner_set(&cl_exporter.blocks, event);
}

/* Does the collector's work, by CL_DOOR on return.  noinline: most processes have a thread for it. */
static __attribute__((noinline)) void collect_inline(void)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
}

CL_HOT_SHARING void cl_memory_allocates(void)
{
	if (__builtin_expect(cl_collector_is_inline(&cl_exporter.collector), 0))
		collect_inline();
}

/* ------------------------------------------------- when memory or events run out */
bool cl_retry_again(struct cl_retry *retry)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	if (cl_callbacks_inside() || cl_options.disable.number || cl_observes() || cl_self.ended)
		return false;
	if (retry->want == CL_RETRY_EVENT && !cl_sharing())
		return false;
	cl_self_prepare();
	return cl_reclaim_again(retry);
}

void cl_retry_end(struct cl_retry *retry)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	cl_reclaim_end(retry);
}

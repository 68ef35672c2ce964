/* SPDX-License-Identifier: Apache-2.0 */
/* Exports: see export.h. */
#include <string.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/blocks/address_filter.h"
#include "shim/blocks/blocks.h"
#include "shim/blocks/event_owner.h"
#include "shim/diag/report_data.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/driver/devices.h"
#include "shim/exporter/export.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/press.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/pool_imports.h"
#include "shim/self/self.h"
#include "shim/shm/handle.h"

static inline void stamp(struct cl_exporter *ex, void *handle, enum cl_kind kind, uint32_t record, uint32_t generation)
{
	cl_handle_put_stamp(handle, kind, cl_region_stamp(ex->blocks.region, record, generation));
}

/*
 * The handle of @block, which has a record, has no room for a stamp, so its importer cannot say that it has it.  It is
 * never given back, unless that does importers no harm: to keep all would take memory from others.
 */
static void exported_unstamped_locked(struct cl_exporter *ex, const struct cl_block *block)
{
	cl_count(unmanaged_exports);
	if (!cl_block_outlasts_its_free(block))
		atomic_store_explicit(&ex->blocks.region->record[block->record].pinned, 1, memory_order_relaxed);
	if (block->kind == CL_POOL) {
		cl_log_once(CL_LOG_WARN,
			    "this driver uses all 64 bytes of a pool pointer's export data and leaves no room for "
			    "culimbo's stamp: importers cannot say what they hold, so what this process shares by "
			    "pool pointers is kept until it ends, freed or not. Tell us the driver's version; "
			    "CULIMBO_HELD_BYTES limits what is kept");
		return;
	}
	cl_log_once(CL_LOG_WARN,
		    "this driver uses bytes of an IPC handle that others leave unused, so there is no room for culimbo's stamp: "
		    "importers cannot say what they hold. Blocks of 2 MiB and more that this process frees go back as without "
		    "culimbo, and smaller ones are kept until it ends. Tell us the driver's version; CULIMBO_HELD_BYTES "
		    "limits what is kept");
}

/* Counts an export of @block, and stamps @handle with its record if there is room for a stamp. */
CL_HOT_SHARING static void stamp_locked(struct cl_exporter *ex, void *handle, struct cl_block *block,
					uint32_t generation)
{
	cl_count_locked(exports);
	cl_trace_block(CL_TRACE_EXPORTED, block, .generation = generation,
		       .value = block->record == CL_NO_RECORD ?
					0 : ex->blocks.region->record[block->record].export_stack);
	if (block->record == CL_NO_RECORD)
		return;
	cl_live_add_locked(ex->blocks.region, CL_LIVE_HANDLES, 1);
	if (cl_handle_has_room(handle, block->kind))
		stamp(ex, handle, block->kind, block->record, generation);
	else
		exported_unstamped_locked(ex, block);
}

CL_HOT_SHARING bool cl_export_again_locked(struct cl_exporter *ex, void *handle, struct cl_block *block,
					   uint64_t now)
{
	uint32_t generation = 0;

	if (!block || cl_block_in_limbo(block) ||
	    (block->record != CL_NO_RECORD && !cl_block_has_handle(block, handle)))
		return false;
	if (block->record != CL_NO_RECORD)
		generation = cl_record_export_again(ex->blocks.region, block->record, now);
	stamp_locked(ex, handle, block, generation);
	return true;
}

CL_HOT_SHARING CUresult cl_export_publish_locked(struct cl_exporter *ex, void *handle, struct cl_export *what,
						 const struct cl_context_name *of, uint32_t stack,
						 struct cl_block *prepared, const uint64_t *returned,
						 struct cl_about *misused, bool *orphaned)
{
	struct cl_context *context;
	struct cl_block *block;
	uint32_t generation = 0;

	/* this comes first, since it lets go of the lock if the context is new */
	cl_context_get_locked(of, &cl_exports_lock);
	block = cl_limbo_find_settled_locked(ex, what->kind, what->base);
	what->now = cl_now(); /* the two calls above may have waited */
	if (cl_export_again_locked(ex, handle, block, what->now)) {
		cl_block_discard_locked(&ex->blocks, prepared);
		return CUDA_SUCCESS;
	}
	if (cl_block_in_limbo(block)) {
		cl_block_discard_locked(&ex->blocks, prepared);
		*misused = cl_block_about_locked(&ex->blocks, block);
		memset(handle, 0, 64);
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* when the driver was asked it may have been in the limbo, and now be gone */
	if (!block && returned && *returned != cl_limbo_returned_locked(ex)) {
		cl_block_discard_locked(&ex->blocks, prepared);
		return CL_EXPORT_ASK_AGAIN;
	}
	/* @block was known, but the driver has since made another block at its address */
	if (!prepared)
		prepared = cl_block_prepare_locked(&ex->blocks, what->kind);
	if (!prepared || !cl_block_prepare_pool_locked(&ex->blocks, prepared, what->pool)) {
		cl_block_discard_locked(&ex->blocks, prepared);
		memset(handle, 0, 64);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (block) /* the driver freed it behind our back */
		*orphaned = cl_limbo_forget_block_locked(ex, block);
	context = cl_context_find_locked(of);
	block = cl_block_new(&ex->blocks, prepared, what, context ? context : &cl_context_unknown, stack,
			     &generation);
	stamp_locked(ex, handle, block, generation);
	return CUDA_SUCCESS;
}

void cl_export_tell_after_free(const struct cl_about *misused)
{
	cl_happened(CL_FINDING_EXPORTED_AFTER_FREE, misused, cl_stack_write(false));
}

/* Asks the driver about the block that @dptr lies in.  Returns false if it knows none. */
CL_HOT_SHARING static bool describe(struct cl_exporter *ex, CUdeviceptr dptr, struct cl_export *what,
				    struct cl_context_name *of)
{
	CUdeviceptr base = dptr;
	CUcontext ctx = NULL;
	uint8_t uuid[CL_UUID];
	size_t size = 0;

	/* an interior pointer gives the handle of its block */
	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS)
		return false;
	what->base = base;
	what->size = size;
	cl_driver.cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, base);
	cl_driver.cuPointerGetAttribute(&what->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base);
	cl_grace_know_device(ex, what->device);
	*of = cl_context_name_of(ctx, what->device);
	/* the limbo needs the UUID, and the driver is asked for it without a lock */
	cl_device_uuid(what->device, uuid);
	return true;
}

static bool is_in_limbo(struct cl_exporter *ex, CUdeviceptr dptr)
{
	bool is;

	cl_lock(&cl_exports_lock);
	is = cl_block_in_limbo(cl_block_find(&ex->blocks, CL_MEMORY, dptr));
	cl_unlock(&cl_exports_lock);
	return is;
}

CL_HOT_SHARING enum cl_export_as cl_export_simply(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr)
{
	enum cl_export_as as = CL_EXPORT_NOT_SIMPLY;
	struct cl_block *block;

	/*
	 * Two cases go the long way before the driver is asked: a block that the program has
	 * freed, and an address that is certainly new, for which we need memory first.
	 */
	if (!cl_block_may_be(&ex->blocks.filter, dptr) || (!cl_limbo_is_empty(ex) && is_in_limbo(ex, dptr)) ||
	    cl_driver.cuIpcGetMemHandle(handle, dptr) != CUDA_SUCCESS)
		return as;
	cl_lock(&cl_exports_lock);
	block = cl_block_find(&ex->blocks, CL_MEMORY, dptr);
	if (!block) {
		as = CL_EXPORT_NEW;
	} else if (cl_export_is_simple_locked(block) && cl_handle_has_room(handle->reserved, CL_MEMORY) &&
		   cl_block_has_handle(block, handle->reserved)) {
		/* reads the clock under the lock, so that an earlier time never overwrites a later one */
		stamp(ex, handle->reserved, CL_MEMORY, block->record,
		      cl_record_export_again(ex->blocks.region, block->record, cl_now()));
		cl_count_locked(exports);
		cl_live_add_locked(ex->blocks.region, CL_LIVE_HANDLES, 1);
		as = CL_EXPORT_DONE;
	}
	cl_unlock(&cl_exports_lock);
	/* should the export be refused, a handle without a stamp would bypass us */
	if (as == CL_EXPORT_NOT_SIMPLY)
		memset(handle, 0, sizeof *handle);
	return as;
}

/* Publishes the block of @handle, which the driver has given.  See cl_export_publish_locked() for the rest. */
CL_HOT_SHARING static CUresult publish_memory(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr,
					      struct cl_block *prepared, uint64_t returned)
{
	struct cl_export what = { .kind = CL_MEMORY,
				  .base = dptr,
				  .handle = (const uint8_t *)handle->reserved };
	struct cl_about misused = { .key = 0 };
	struct cl_context_name of = { .device = -1 };
	CUresult result = CUDA_SUCCESS;
	bool orphaned = false;
	uint32_t stack;

	/*
	 * If @dptr points into a block that has just left the limbo, the driver refuses when we
	 * ask again.  If it gives a handle but no size, @dptr counts as the start of a block.
	 */
	if (!describe(ex, dptr, &what, &of)) {
		result = cl_driver.cuIpcGetMemHandle(handle, dptr);
		if (result == CUDA_SUCCESS)
			describe(ex, dptr, &what, &of);
		else /* the first handle has no stamp, and would bypass us */
			memset(handle, 0, sizeof *handle);
	}
	stack = result == CUDA_SUCCESS ? cl_stack_write(false) : 0;
	if (result == CUDA_SUCCESS)
		cl_pool_import_cover(ex, what.base);
	cl_lock(&cl_exports_lock);
	if (result == CUDA_SUCCESS)
		result = cl_export_publish_locked(ex, handle->reserved, &what, &of, stack, prepared,
						  what.base == dptr ? NULL : &returned, &misused,
						  &orphaned);
	else
		cl_block_discard_locked(&ex->blocks, prepared);
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(ex, orphaned);
	if (misused.key)
		cl_export_tell_after_free(&misused);
	return result;
}

void cl_export_discard(struct cl_exporter *ex, struct cl_block *prepared)
{
	cl_lock(&cl_exports_lock);
	cl_block_discard_locked(&ex->blocks, prepared);
	cl_unlock(&cl_exports_lock);
}

CL_HOT_SHARING static CUresult export_carefully(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr)
{
	struct cl_block *block, *prepared = NULL;
	struct cl_about misused;
	uint64_t returned;
	CUresult result;
	bool known, freed;

	cl_lock(&cl_exports_lock);
	block = cl_limbo_find_settled_locked(ex, CL_MEMORY, dptr);
	freed = cl_block_in_limbo(block);
	known = block && !freed;
	if (freed)
		misused = cl_block_about_locked(&ex->blocks, block);
	else if (!known)
		prepared = cl_block_prepare_locked(&ex->blocks, CL_MEMORY);
	returned = cl_limbo_returned_locked(ex);
	cl_unlock(&cl_exports_lock);
	if (freed) {
		cl_export_tell_after_free(&misused);
		return cl_context_refusal();
	}
	if (!known && !prepared)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cl_driver.cuIpcGetMemHandle(handle, dptr);
	if (result != CUDA_SUCCESS) {
		cl_export_discard(ex, prepared);
		return result;
	}
	if (known) {
		cl_lock(&cl_exports_lock);
		block = cl_limbo_find_settled_locked(ex, CL_MEMORY, dptr);
		known = cl_export_again_locked(ex, handle->reserved, block, cl_now());
		cl_unlock(&cl_exports_lock);
	}
	return known ? CUDA_SUCCESS : publish_memory(ex, handle, dptr, prepared, returned);
}

CL_HOT_SHARING CUresult cl_export_new(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr)
{
	/* UINT64_MAX: if @dptr points into an unknown block, that may have gone back: ask again */
	CUresult result = publish_memory(ex, handle, dptr, NULL, UINT64_MAX);

	return result == CL_EXPORT_ASK_AGAIN ? cl_export_carefully(ex, handle, dptr) : result;
}

CL_HOT_SHARING CUresult cl_export_carefully(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr)
{
	CUresult result;

	do
		result = export_carefully(ex, handle, dptr);
	while (result == CL_EXPORT_ASK_AGAIN);
	return result;
}

CUresult cl_export_event_begin(struct cl_exporter *ex, CUevent event, struct cl_block **prepared)
{
	struct cl_about misused;
	struct cl_block *block;
	bool freed;

	*prepared = NULL;
	cl_lock(&cl_exports_lock);
	block = cl_limbo_find_settled_locked(ex, CL_EVENT, (uint64_t)(uintptr_t)event);
	freed = cl_block_in_limbo(block);
	if (freed)
		misused = cl_block_about_locked(&ex->blocks, block);
	else if (!block)
		*prepared = cl_block_prepare_locked(&ex->blocks, CL_EVENT);
	cl_unlock(&cl_exports_lock);
	if (!freed)
		return block || *prepared ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	/* without culimbo the driver crashes on it (measured) */
	cl_export_tell_after_free(&misused);
	return CUDA_ERROR_INVALID_HANDLE;
}

void cl_export_event_refused(struct cl_exporter *ex, struct cl_block *prepared)
{
	cl_export_discard(ex, prepared);
}

CUresult cl_export_event(struct cl_exporter *ex, CUipcEventHandle *handle, CUevent event,
			 struct cl_block *prepared)
{
	struct cl_export what = { .kind = CL_EVENT, .base = (uint64_t)(uintptr_t)event };
	struct cl_about misused = { .key = 0 };
	struct cl_context_name owner = cl_event_owner(&ex->blocks, event);
	CUresult result;
	bool orphaned = false;
	uint32_t stack;

	what.handle = (const uint8_t *)handle->reserved;
	stack = prepared ? cl_stack_write(false) : 0;
	cl_lock(&cl_exports_lock);
	what.device = owner.device;
	result = cl_export_publish_locked(ex, handle->reserved, &what, &owner, stack, prepared, NULL,
					  &misused, &orphaned);
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(ex, orphaned);
	if (misused.key)
		cl_export_tell_after_free(&misused);
	return result;
}

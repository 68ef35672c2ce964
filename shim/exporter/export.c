/* SPDX-License-Identifier: Apache-2.0 */
/* Exports: see export.h. */
#include <string.h>

#include "shim/base/log.h"
#include "shim/blocks/blocks.h"
#include "shim/blocks/event_owner.h"
#include "shim/diag/notes.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/driver/devices.h"
#include "shim/driver/gate.h"
#include "shim/exporter/export.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/context_loss.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/limbo.h"
#include "shim/self/self.h"

static void stamp(void *handle, uint32_t record, uint32_t generation)
{
	uint64_t tail = cl_region_stamp(&cl_own, record, generation);

	memcpy((char *)handle + 56, &tail, sizeof tail);
}

static bool has_room_for_stamp(const void *handle)
{
	uint64_t tail;

	memcpy(&tail, (const char *)handle + 56, sizeof tail);
	return !tail;
}

/* No room for a stamp: importers find the record by the whole handle.  False: they can't. */
static bool index_by_handle_locked(struct cl_block *block, const void *handle)
{
	int err;

	cl_log_once(CL_LOG_WARN,
		    "this driver uses all 64 bytes of an IPC handle: blocks are found by the whole of it, so "
		    "a stale handle that is equal to a live one cannot be told from it");
	if (block->indexed)
		return true;
	cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
	err = cl_region_need_by_handle(&cl_own);
	if (err) {
		cl_log_once(CL_LOG_ERROR,
			    "no room to find blocks by their handles (%s): importers cannot say what they hold, "
			    "so what is exported is kept to the end once freed",
			    strerror(-err));
		return false;
	}
	cl_own_go_by_handle_locked();
	cl_record_index(&cl_own, block->record, handle);
	block->indexed = true;
	return true;
}

/* Who opens @block is not seen: it is never given back. */
static void pin_locked(const struct cl_block *block)
{
	cl_count(unmanaged_exports);
	if (block->record != CL_NO_RECORD)
		atomic_store_explicit(&cl_own.record[block->record].pinned, 1, memory_order_relaxed);
}

/* An export of which nothing can be noted. */
static void keep_unnoted_locked(enum cl_kind kind, uint64_t base)
{
	cl_count(unmanaged_exports);
	if (kind == CL_MEMORY)
		cl_unnoted_keep(base);
	cl_log_once(CL_LOG_WARN, "no memory to note an export: its block is kept to the end once freed, for "
				 "nobody can say who has it (an event is not protected, as without culimbo)");
}

/* Exported: gives @handle the stamp that leads to @block's record, or what leads there instead. */
static void mark_locked(void *handle, struct cl_block *block, uint32_t generation)
{
	cl_count_locked(exports);
	cl_trace_block(CL_TRACE_EXPORTED, block, .generation = generation);
	if (block->record == CL_NO_RECORD)
		return;
	if (has_room_for_stamp(handle))
		stamp(handle, block->record, generation);
	else if (!index_by_handle_locked(block, handle))
		pin_locked(block);
}

/*
 * What is there (@block, with no thread in the driver) once more, at @now, by @handle, which
 * gets its stamp.  False: nothing, or not the same any more.
 */
static bool export_again_locked(void *handle, struct cl_block *block, uint64_t now)
{
	uint32_t generation = 0;

	if (!block || cl_block_in_limbo(block) ||
	    (block->record != CL_NO_RECORD && !cl_block_has_handle(block, handle)))
		return false;
	if (block->record != CL_NO_RECORD)
		generation = cl_record_export_again(&cl_own, block->record, now);
	mark_locked(handle, block, generation);
	return true;
}

/*
 * The block @what, known or not.  *misuse: what is to be noted, without the lock;
 * *orphaned: for cl_collector_watch_holders().
 */
static CUresult publish_locked(void *handle, const struct cl_export *what, CUcontext ctx, bool primary,
			       uint32_t stack, struct cl_finding *misuse, bool *orphaned)
{
	struct cl_block *block;
	uint32_t generation = 0;

	/* one that has the address of a context whose end is not noted yet: it would go with that */
	while (cl_gate_ends_locked(ctx, what->device, primary))
		cl_gate_wait_locked();
	block = cl_limbo_find_settled_locked(what->kind, what->base);
	if (export_again_locked(handle, block, what->now))
		return CUDA_SUCCESS;
	if (cl_block_in_limbo(block)) {
		cl_count(exported_after_free);
		*misuse = cl_block_about_locked(CL_FOUND_EXPORTED_AFTER_FREE, what->kind, what->base, block);
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* it has gone behind our back: the driver made another handle for its address, which is a new block's */
	if (block)
		*orphaned = cl_limbo_forget_block_locked(block);
	block = cl_block_new(what, ctx, primary, stack, &generation);
	if (block)
		mark_locked(handle, block, generation);
	else
		keep_unnoted_locked(what->kind, what->base);
	/* a handle of it is under way that leads nowhere */
	if (block && what->kind == CL_MEMORY && cl_unnoted_kept(what->base))
		pin_locked(block);
	return CUDA_SUCCESS;
}

/* What the driver says of the block that @dptr lies in. */
static bool describe(CUdeviceptr dptr, struct cl_export *what, CUcontext *ctx, bool *primary)
{
	CUdeviceptr base = dptr;
	uint8_t uuid[CL_UUID];
	size_t size = 0;

	/* an interior pointer gives the handle of its block */
	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS)
		return false;
	what->base = base;
	what->size = size;
	cl_driver.cuPointerGetAttribute(ctx, CU_POINTER_ATTRIBUTE_CONTEXT, base);
	cl_driver.cuPointerGetAttribute(&what->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base);
	cl_grace_know_device(what->device);
	*primary = cl_context_resolve(ctx, what->device);
	/* asked here, without a lock, for when it is in the limbo */
	cl_device_uuid(what->device, uuid);
	return true;
}

static bool is_in_limbo(CUdeviceptr dptr)
{
	bool is;

	cl_lock(&cl_exports_lock);
	is = cl_block_in_limbo(cl_block_find(CL_MEMORY, dptr));
	cl_unlock(&cl_exports_lock);
	return is;
}

enum cl_export_as cl_export_simply(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	enum cl_export_as as = CL_EXPORT_NOT_SIMPLY;
	struct cl_block *block;

	/* (the driver is not asked for what the program has freed) */
	if ((!cl_limbo_is_empty() && is_in_limbo(dptr)) ||
	    cl_driver.cuIpcGetMemHandle(handle, dptr) != CUDA_SUCCESS)
		return as;
	cl_lock(&cl_exports_lock);
	block = cl_block_find(CL_MEMORY, dptr);
	if (cl_unnoted_freed(dptr, false)) {
		/* it is to be refused */
	} else if (!block) {
		as = CL_EXPORT_NEW;
	} else if (!cl_block_in_limbo(block) && !cl_limbo_is_busy_locked(block) &&
		   block->record != CL_NO_RECORD && has_room_for_stamp(handle->reserved) &&
		   cl_block_has_handle(block, handle->reserved)) {
		/* (the clock under the lock, so that a later time is never overwritten by an earlier one) */
		stamp(handle->reserved, block->record,
		      cl_record_export_again(&cl_own, block->record, cl_now()));
		cl_count_locked(exports);
		as = CL_EXPORT_DONE;
	}
	cl_unlock(&cl_exports_lock);
	/* without its stamp it would lead past us, should the export be refused */
	if (as == CL_EXPORT_NOT_SIMPLY)
		memset(handle, 0, sizeof *handle);
	return as;
}

CUresult cl_export_new(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	CL_UNCANCELLED;
	struct cl_export what = { .kind = CL_MEMORY,
				  .base = dptr,
				  .handle = (const uint8_t *)handle->reserved };
	struct cl_finding misuse = { .kind = CL_FOUND_NOTHING };
	CUcontext ctx = NULL;
	CUresult result = CUDA_SUCCESS;
	bool primary = false, orphaned = false, described = describe(dptr, &what, &ctx, &primary);
	uint32_t stack;

	/* a pointer into what was in the limbo, and has just gone from it: the driver says so, asked again */
	if (!described) {
		result = cl_driver.cuIpcGetMemHandle(handle, dptr);
		if (result != CUDA_SUCCESS)
			return result;
		described = describe(dptr, &what, &ctx, &primary);
	}
	stack = described ? cl_notes_stack(false) : 0;
	cl_lock(&cl_exports_lock);
	what.now = cl_now();
	if (described)
		result = publish_locked(handle->reserved, &what, ctx, primary, stack, &misuse,
					&orphaned);
	else
		keep_unnoted_locked(CL_MEMORY, dptr);
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(orphaned);
	if (misuse.kind)
		cl_block_misused(&misuse);
	return result;
}

enum cl_export_as cl_export_carefully(CUipcMemHandle *handle, CUdeviceptr dptr,
								  CUresult *result)
{
	CL_UNCANCELLED;
	struct cl_finding misuse = { .kind = CL_FOUND_NOTHING };
	struct cl_block *block;
	bool known, freed;

	cl_lock(&cl_exports_lock);
	block = cl_limbo_find_settled_locked(CL_MEMORY, dptr);
	freed = cl_block_in_limbo(block) || cl_unnoted_freed(dptr, false);
	known = block && !freed;
	if (freed)
		misuse = cl_block_about_locked(CL_FOUND_EXPORTED_AFTER_FREE, CL_MEMORY, dptr, block);
	cl_unlock(&cl_exports_lock);
	if (freed) {
		cl_count(exported_after_free);
		cl_block_misused(&misuse);
		*result = cl_context_refusal();
		return CL_EXPORT_DONE;
	}
	cl_collector_called();
	*result = cl_driver.cuIpcGetMemHandle(handle, dptr);
	if (*result != CUDA_SUCCESS)
		return CL_EXPORT_DONE;
	cl_lock(&cl_exports_lock);
	block = known ? cl_limbo_find_settled_locked(CL_MEMORY, dptr) : NULL;
	known = export_again_locked(handle->reserved, block, cl_now());
	cl_unlock(&cl_exports_lock);
	return known ? CL_EXPORT_DONE : CL_EXPORT_NEW;
}

bool cl_export_event_was_freed(CUevent event, bool *known)
{
	struct cl_finding misuse = { .kind = CL_FOUND_NOTHING };
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct cl_block *block;
	bool freed;

	cl_lock(&cl_exports_lock);
	block = cl_limbo_find_settled_locked(CL_EVENT, key);
	freed = cl_block_in_limbo(block);
	*known = block && !freed;
	if (freed)
		misuse = cl_block_about_locked(CL_FOUND_EXPORTED_AFTER_FREE, CL_EVENT, key, block);
	cl_unlock(&cl_exports_lock);
	if (freed) { /* bare, the driver crashes on it (measured) */
		cl_count(exported_after_free);
		cl_block_misused(&misuse);
	}
	return freed;
}

CUresult cl_export_event(CUipcEventHandle *handle, CUevent event, bool known)
{
	struct cl_export what = { .kind = CL_EVENT, .base = (uint64_t)(uintptr_t)event };
	struct cl_finding misuse = { .kind = CL_FOUND_NOTHING };
	struct cl_event_owner owner = { .ctx = NULL };
	CUresult result;
	bool orphaned = false;
	uint32_t stack;

	what.handle = (const uint8_t *)handle->reserved;
	if (!known)
		cl_event_owner_ask(event);
	stack = known ? 0 : cl_notes_stack(false);
	cl_lock(&cl_exports_lock);
	what.now = cl_now();
	cl_event_owner_locked(event, &owner);
	what.device = owner.device;
	result = publish_locked(handle->reserved, &what, owner.ctx, owner.primary, stack, &misuse, &orphaned);
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(orphaned);
	if (misuse.kind)
		cl_block_misused(&misuse);
	return result;
}

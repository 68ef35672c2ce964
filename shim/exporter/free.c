/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a block that the program frees: see free.h. */
#include "shim/base/log.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/driver/gate.h"
#include "shim/driver/visit.h"
#include "shim/exporter/free.h"
#include "shim/limbo/collect.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/context_loss.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/limbo.h"
#include "shim/self/self.h"

/* What is to be done with a pointer that the program frees. */
enum free_as {
	FREE_NOT_OURS, /* the driver's matter alone */
	FREE_AGAIN,    /* it is in the limbo already */
	FREE_NOW,      /* nobody has it or can get it: the driver's, and ours to forget */
	FREE_DEFERRED, /* into the limbo, when all has been waited for */
};

/*
 * Decides, and takes the block for this thread (CL_BLOCK_FREEING), so that a
 * second free of it waits and then finds it freed: then *again says of what.  *ctx: its context,
 * NULL: not known.
 */
static enum free_as take_for_free(enum cl_kind kind, uint64_t key, struct cl_block **taken, CUcontext *ctx,
				  struct cl_about *again)
{
	struct cl_block *block;
	enum free_as as = FREE_NOT_OURS;

	cl_lock(&cl_exports_lock);
	block = cl_limbo_find_settled_locked(kind, key);
	if (cl_block_in_limbo(block)) {
		as = FREE_AGAIN;
		*again = cl_block_about_locked(block);
	} else if (block) {
		as = cl_limbo_can_skip_locked(block, cl_now()) ? FREE_NOW : FREE_DEFERRED;
		cl_block_set_state(block, CL_BLOCK_FREEING);
		*taken = block;
		*ctx = block->of.context ? block->of.context->handle : NULL;
	}
	cl_unlock(&cl_exports_lock);
	return as;
}

/* The driver has refused to free @block.  True: its context ended meanwhile, and it is ORPHANED. */
static bool not_freed_locked(struct cl_block *block)
{
	if (block->context_died)
		return cl_limbo_forget_block_locked(block);
	cl_block_set_state(block, CL_BLOCK_LIVE);
	return false;
}

/* FREE_NOW: the driver has freed @block, or has refused to, and it is as before. */
static CUresult freed_now(struct cl_block *block, CUresult result)
{
	bool freed = result == CUDA_SUCCESS, orphaned = false;

	cl_lock(&cl_exports_lock);
	if (block->record != CL_NO_RECORD)
		cl_record_release_end(&cl_own, block->record, block->before, freed);
	if (freed) {
		if (block->early) {
			cl_count(graces_cut);
			cl_count_add(graces_cut_bytes, block->size);
		}
		cl_trace_block(CL_TRACE_RELEASED, block, .flags = CL_TRACE_AT_ONCE);
		if (block->kind == CL_EVENT)
			cl_limbo_event_went();
		if (block->record != CL_NO_RECORD)
			atomic_fetch_sub_explicit(&cl_own.header->live_blocks, 1,
						  memory_order_relaxed);
		cl_limbo_delete_locked(block);
	} else {
		orphaned = not_freed_locked(block);
	}
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(orphaned);
	return result;
}

static void free_failed(struct cl_block *block)
{
	bool orphaned;

	cl_lock(&cl_exports_lock);
	orphaned = not_freed_locked(block);
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(orphaned);
}

/*
 * The program has freed @block, and all that the driver's free waits for has been waited for,
 * or @fence (or NULL) says when it has been.
 */
static CUresult into_limbo(struct cl_block *block, struct cl_fence *fence)
{
	uint32_t stack = block->record == CL_NO_RECORD ? 0 : cl_notes_stack(false);
	uint64_t look = UINT64_MAX;
	bool orphaned = false, over = false, detached;

	cl_lock(&cl_exports_lock);
	if (block->record != CL_NO_RECORD)
		cl_own.record[block->record].free_stack = stack;
	if (fence)
		cl_fence_add_locked(fence, block);
	if (block->context_died)
		orphaned = cl_limbo_forget_block_locked(block);
	else
		look = cl_limbo_enter_locked(block, cl_now(), &over);
	detached = cl_fences_any_detached_locked();
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	/* in this thread: who frees fast must not be faster than the memory comes back (measured) */
	if (over)
		cl_limbo_collect(false);
	if (look != UINT64_MAX)
		cl_collector_wake_by(look);
	if (detached)
		cl_collector_wake();
	cl_collector_watch_holders(orphaned);
	return CUDA_SUCCESS;
}

/*
 * Waits for what the driver's free of a block of @ctx would wait for, and fails as
 * it would: by freeing something else of that context.  cuCtxSynchronize() is not
 * the same: where a stream captures in relaxed mode it fails and spoils the
 * capture, and a free does neither (measured, doc/measurements.md).
 */
static CUresult wait_as_a_free(CUcontext ctx)
{
	CUdeviceptr stand_in;
	bool pushed;
	CUresult result = cl_context_push(ctx, &pushed);

	if (result != CUDA_SUCCESS)
		return result;
	result = cl_driver.cuMemAlloc_v2(&stand_in, 1);
	if (result == CUDA_SUCCESS)
		result = cl_driver.cuMemFree_v2(stand_in);
	else if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = cl_driver.cuCtxSynchronize();
	cl_context_pop(pushed);
	return result;
}

static void freed_again(const struct cl_about *again)
{
	cl_happened(again->kind == CL_EVENT ? CL_FOUND_EVENT_DESTROYED_TWICE : CL_FOUND_FREED_TWICE, again,
		    cl_notes_stack(false));
}

bool cl_free_memory(CUdeviceptr dptr, CUresult *result)
{
	struct cl_block *block = NULL;
	struct cl_about again;
	CUcontext ctx = NULL;

	switch (take_for_free(CL_MEMORY, dptr, &block, &ctx, &again)) {
	case FREE_NOT_OURS:
		return false;
	case FREE_AGAIN:
		freed_again(&again);
		*result = CUDA_ERROR_INVALID_VALUE;
		return true;
	case FREE_NOW:
		*result = freed_now(block, cl_driver.cuMemFree_v2(dptr));
		return true;
	case FREE_DEFERRED:
		break;
	}
	*result = wait_as_a_free(ctx);
	if (*result == CUDA_SUCCESS)
		*result = into_limbo(block, NULL);
	else
		free_failed(block);
	return true;
}

/* Nobody can say when its stream has got to the free. */
static void keep_unfenced(struct cl_block *block)
{
	cl_lock(&cl_exports_lock);
	if (block->record != CL_NO_RECORD)
		atomic_store_explicit(&cl_own.record[block->record].pinned, 1, memory_order_relaxed);
	block->unfenced = true;
	cl_unlock(&cl_exports_lock);
	cl_log_once(CL_LOG_WARN, "no memory to note in which stream's order a block is freed, or it is not known: "
				 "it is kept to the end");
}

bool cl_free_memory_async(CUdeviceptr dptr, CUstream stream, bool per_thread,
			  CUresult (*bare)(CUdeviceptr, CUstream), CUresult *result)
{
	struct cl_block *block = NULL;
	struct cl_about again;
	CUcontext ctx = NULL;
	struct cl_fence *fence;
	bool capturing;

	switch (take_for_free(CL_MEMORY, dptr, &block, &ctx, &again)) {
	case FREE_NOT_OURS:
		return false;
	case FREE_AGAIN: /* unlike cuMemFree(), it needs a context */
		freed_again(&again);
		*result = cl_context_refusal();
		return true;
	case FREE_NOW:
		*result = freed_now(block, bare(dptr, stream));
		return true;
	case FREE_DEFERRED:
		break;
	}
	*result = cl_fence_make(stream, per_thread, &fence, &capturing);
	if (*result == CUDA_SUCCESS && capturing)
		*result = bare(dptr, stream);
	if (*result != CUDA_SUCCESS || capturing) {
		free_failed(block);
		return true;
	}
	if (!fence)
		keep_unfenced(block);
	*result = into_limbo(block, fence);
	return true;
}

bool cl_free_event(CUevent event, CUresult (*destroy)(CUevent), CUresult *result)
{
	struct cl_block *block = NULL;
	struct cl_about again;
	CUcontext ctx = NULL;

	switch (take_for_free(CL_EVENT, (uint64_t)(uintptr_t)event, &block, &ctx, &again)) {
	case FREE_NOT_OURS:
		return false;
	case FREE_AGAIN: /* bare, the driver crashes on it (measured) */
		freed_again(&again);
		*result = CUDA_ERROR_INVALID_HANDLE;
		return true;
	case FREE_NOW:
		*result = freed_now(block, destroy(event));
		return true;
	case FREE_DEFERRED:
		break;
	}
	*result = into_limbo(block, NULL);
	return true;
}

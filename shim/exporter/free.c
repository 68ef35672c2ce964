/* SPDX-License-Identifier: Apache-2.0 */
/* The program frees a block or destroys an event: see free.h. */
#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/base/clock.h"
#include "shim/base/log.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/driver/gate.h"
#include "shim/driver/visit.h"
#include "shim/driver/wait.h"
#include "shim/exporter/free.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/release.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/limbo.h"
#include "shim/self/self.h"

/* What we do with a pointer that the program frees. */
enum free_as {
	FREE_NOT_OURS, /* the driver alone frees it */
	FREE_AGAIN,    /* the program has freed it before */
	FREE_NOW,      /* nobody has it or can get it: the driver frees it, and we forget it */
	FREE_DEFERRED, /* it goes into the limbo, after the wait of a free */
	FREE_OBSERVED, /* CULIMBO_MODE=observe: the driver frees it, whoever has it */
};

/* A free under way. */
struct taken {
	struct cl_block *block; /* this thread has it (CL_BLOCK_FREEING) */
	CUcontext ctx;		/* its context, or NULL */
	struct cl_wait_in wait_in;
	uint64_t before;	/* of FREE_NOW: for cl_record_release_end() */
	struct cl_about again;	/* of FREE_AGAIN: the block */
};

/*
 * Returns what we do with @key.  Unless that is FREE_NOT_OURS or FREE_AGAIN, this thread gets the block.  A
 * second free of a block waits for the first one, and then is FREE_AGAIN.
 */
CL_HOT_SHARING static enum free_as take_for_free(struct cl_exporter *ex, enum cl_kind kind, uint64_t key,
						 struct taken *taken)
{
	struct cl_block *block;
	enum free_as as = FREE_NOT_OURS;

	cl_lock(&cl_exports_lock);
	block = cl_limbo_find_settled_locked(ex, kind, key);
	if (cl_block_in_limbo(block)) {
		as = FREE_AGAIN;
		taken->again = cl_block_about_locked(&ex->blocks, block);
	} else if (block) {
		as = cl_observes() ? FREE_OBSERVED :
		     cl_limbo_can_skip_locked(ex, block, cl_now(), &taken->before) ? FREE_NOW : FREE_DEFERRED;
		cl_block_set_state(ex, block, CL_BLOCK_FREEING);
		taken->block = block;
		taken->ctx = cl_block_context(block) ? cl_block_context(block)->handle : NULL;
		taken->wait_in = cl_wait_in(cl_block_context(block));
	}
	cl_unlock(&cl_exports_lock);
	return as;
}

/*
 * The driver refused to free @block, so it is LIVE again.  If its context has ended meanwhile it
 * is forgotten instead; returns true if it is ORPHANED then.
 */
static bool not_freed_locked(struct cl_exporter *ex, struct cl_block *block)
{
	bool orphaned = false;

	if (!cl_limbo_context_died_locked(ex, block, &orphaned))
		cl_block_set_state(ex, block, CL_BLOCK_LIVE);
	return orphaned;
}

/* This thread is back from the driver with a block, which is ORPHANED now if @orphaned: lets go of cl_exports_lock. */
static void unlock_after_free(struct cl_exporter *ex, bool orphaned)
{
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(ex, orphaned);
}

/* Ends FREE_NOW: the driver has freed the block, or has refused to. */
CL_HOT_SHARING static CUresult freed_now(struct cl_exporter *ex, const struct taken *taken, CUresult result)
{
	struct cl_block *block = taken->block;
	bool freed = result == CUDA_SUCCESS, orphaned = false;

	cl_lock(&cl_exports_lock);
	if (block->record != CL_NO_RECORD)
		cl_record_release_end(ex->blocks.region, block->record, taken->before, freed);
	if (freed) {
		if (block->early) {
			cl_count(graces_cut);
			cl_count_add(graces_cut_bytes, block->size);
		}
		cl_trace_block(CL_TRACE_RELEASED, block, .flags = CL_TRACE_AT_ONCE);
		if (block->kind == CL_EVENT)
			cl_limbo_event_went(ex);
		if (block->record != CL_NO_RECORD)
			atomic_fetch_sub_explicit(&ex->blocks.region->header->live_blocks, 1,
						  memory_order_relaxed);
		cl_limbo_delete_locked(ex, block);
	} else {
		orphaned = not_freed_locked(ex, block);
	}
	unlock_after_free(ex, orphaned);
	return result;
}

/*
 * Ends FREE_OBSERVED: the driver has freed @block, or has refused to.  A freed one is forgotten.  Processes that
 * have it open keep its record until they close it, and later opens of its handles are seen to be stale.
 */
static CUresult freed_observed(struct cl_exporter *ex, struct cl_block *block, CUresult result)
{
	uint32_t stack = 0, record = block->record;
	bool tracked = record != CL_NO_RECORD, orphaned;
	struct cl_still_entry *still = NULL;

	if (result == CUDA_SUCCESS && tracked) {
		stack = cl_stack_write(false);
		still = cl_still_look(ex, block);
	}
	cl_lock(&cl_exports_lock);
	if (result == CUDA_SUCCESS) {
		if (tracked) {
			cl_record_freed_from(ex->blocks.region, block->record, stack);
			cl_record_to_limbo(ex->blocks.region, block->record, cl_now());
			cl_still_enter_locked(ex, block, still);
			cl_record_freed_observed(ex->blocks.region, block->record);
		}
		orphaned = cl_limbo_forget_block_locked(ex, block);
		if (tracked && !orphaned)
			cl_block_rest_record_locked(&ex->blocks, record);
	} else {
		orphaned = not_freed_locked(ex, block);
	}
	unlock_after_free(ex, orphaned);
	return result;
}

static void free_failed(struct cl_exporter *ex, struct cl_block *block)
{
	cl_lock(&cl_exports_lock);
	unlock_after_free(ex, not_freed_locked(ex, block));
}

/* Puts @block into the limbo, after the wait of a free.  A stream-ordered one has a @fence instead. */
CL_HOT_SHARING static CUresult into_limbo(struct cl_exporter *ex, struct cl_block *block, struct cl_fence *fence)
{
	uint32_t stack = block->record == CL_NO_RECORD ? 0 : cl_stack_write(false);
	struct cl_still_entry *still = NULL;
	uint64_t look = UINT64_MAX;
	bool orphaned = false, over = false, detached;

	if (__builtin_expect(cl_options.strict.number, 0))
		still = cl_still_look(ex, block);
	cl_lock(&cl_exports_lock);
	if (block->record != CL_NO_RECORD)
		cl_record_freed_from(ex->blocks.region, block->record, stack);
	if (fence)
		cl_fence_add_locked(ex, fence, block);
	if (cl_limbo_context_died_locked(ex, block, &orphaned)) {
		cl_still_discard(still);
	} else {
		look = cl_limbo_enter_locked(ex, block, cl_now(), &over);
		if (__builtin_expect(cl_options.strict.number, 0))
			cl_still_enter_locked(ex, block, still);
	}
	detached = cl_fences_any_detached_locked(ex);
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	/* this thread collects: the program must not free faster than memory comes back (measured) */
	if (over)
		cl_limbo_collect(ex, false);
	if (look != UINT64_MAX)
		cl_collector_wake_by(ex, look);
	if (detached)
		cl_collector_wake(ex);
	cl_collector_watch_holders(ex, orphaned);
	return CUDA_SUCCESS;
}

/* Waits for all that the driver's free of the block of @taken would wait for, and fails as it would. */
static CUresult wait_as_a_free(const struct taken *taken)
{
	struct cl_stay stay;
	CUresult result = cl_stay_begin(&stay, taken->ctx, CL_STAY_AS_PROGRAM);

	if (result != CUDA_SUCCESS)
		return result;
	result = cl_wait_as_a_free(taken->wait_in);
	cl_stay_end(&stay);
	return result;
}

/*
 * @result is the driver's answer to a free of CL_NO_MEMORY.  The driver looks for other errors, such as a
 * stream capture, which it spoils, before it looks at the memory (measured, doc/measurements.md).  Returns
 * that error, or CUDA_ERROR_INVALID_VALUE if nothing but the memory is wrong.
 */
static CUresult refused(CUresult result)
{
	return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

static void freed_again(const struct cl_about *again)
{
	cl_happened(again->kind == CL_EVENT ? CL_FINDING_EVENT_DESTROYED_TWICE : CL_FINDING_FREED_TWICE, again,
		    cl_stack_write(false));
}

/*
 * Takes @dptr, memory of whichever kind, and frees it by @bare unless it has to go into the limbo: then returns
 * FREE_DEFERRED, and this thread has the block.  After FREE_NOT_OURS nothing was done.  After any other answer
 * *result is what the program gets.  always_inline, so that the free of the common case is a direct call.
 */
static inline __attribute__((always_inline)) enum free_as
free_or_take(struct cl_exporter *ex, CUdeviceptr dptr, CUstream stream, CUresult (*bare)(CUdeviceptr, CUstream),
	     struct taken *taken, CUresult *result)
{
	enum free_as as = take_for_free(ex, CL_MEMORY, dptr, taken);

	if (as == FREE_NOT_OURS)
		as = take_for_free(ex, CL_POOL, dptr, taken);
	switch (as) {
	case FREE_AGAIN:
		freed_again(&taken->again);
		*result = refused(bare(CL_NO_MEMORY, stream));
		break;
	case FREE_NOW:
		*result = freed_now(ex, taken, bare(dptr, stream));
		break;
	case FREE_OBSERVED:
		*result = freed_observed(ex, taken->block, bare(dptr, stream));
		break;
	case FREE_NOT_OURS:
	case FREE_DEFERRED:
		break;
	}
	return as;
}

static CUresult free_in_no_stream(CUdeviceptr dptr, CUstream stream)
{
	(void)stream;
	return cl_driver.cuMemFree_v2(dptr);
}

CL_HOT_SHARING bool cl_free_memory(struct cl_exporter *ex, CUdeviceptr dptr, CUresult *result)
{
	struct taken taken;
	enum free_as as = free_or_take(ex, dptr, NULL, free_in_no_stream, &taken, result);

	if (as != FREE_DEFERRED)
		return as != FREE_NOT_OURS;
	/* the driver's free of a pool's block waits for nothing (measured) */
	*result = taken.block->kind == CL_POOL ? cl_context_pool_free_refusal() : wait_as_a_free(&taken);
	if (*result == CUDA_SUCCESS)
		*result = into_limbo(ex, taken.block, NULL);
	else
		free_failed(ex, taken.block);
	return true;
}

/* Pins @block, which has no fence: nobody can say when its stream has reached its free. */
static void pin_unfenced(struct cl_exporter *ex, struct cl_block *block)
{
	cl_lock(&cl_exports_lock);
	if (block->record != CL_NO_RECORD)
		atomic_store_explicit(&ex->blocks.region->record[block->record].pinned, 1,
				      memory_order_relaxed);
	block->unfenced = true;
	cl_unlock(&cl_exports_lock);
	if (!cl_driver_works()) /* it shuts down, and this process with it */
		return;
	cl_log_once(CL_LOG_WARN,
		    "no host memory for the fence of a stream-ordered free, or the stream's context is not known: "
		    "culimbo cannot tell when the stream reaches the free, so such blocks stay allocated until "
		    "this process ends");
}

bool cl_free_memory_async(struct cl_exporter *ex, CUdeviceptr dptr, CUstream stream,
			  bool per_thread, CUresult (*bare)(CUdeviceptr, CUstream),
			  CUresult *result)
{
	struct taken taken;
	enum free_as as = free_or_take(ex, dptr, stream, bare, &taken, result);
	struct cl_fence *fence;
	bool capturing = false;

	if (as != FREE_DEFERRED)
		return as != FREE_NOT_OURS;
	*result = refused(bare(CL_NO_MEMORY, stream));
	if (*result == CUDA_ERROR_INVALID_VALUE)
		*result = cl_fence_make(stream, per_thread, &fence, &capturing);
	if (*result == CUDA_SUCCESS && capturing)
		*result = bare(dptr, stream);
	if (*result != CUDA_SUCCESS || capturing) {
		free_failed(ex, taken.block);
		return true;
	}
	if (!fence)
		pin_unfenced(ex, taken.block);
	*result = into_limbo(ex, taken.block, fence);
	return true;
}

bool cl_free_event(struct cl_exporter *ex, CUevent event, CUresult (*destroy)(CUevent),
		   CUresult *result)
{
	struct taken taken;

	switch (take_for_free(ex, CL_EVENT, (uint64_t)(uintptr_t)event, &taken)) {
	case FREE_NOT_OURS:
		return false;
	case FREE_AGAIN: /* without culimbo the driver crashes on it (measured) */
		freed_again(&taken.again);
		*result = CUDA_ERROR_INVALID_HANDLE;
		return true;
	case FREE_NOW:
		*result = freed_now(ex, &taken, destroy(event));
		return true;
	case FREE_OBSERVED:
		*result = freed_observed(ex, taken.block, destroy(event));
		return true;
	case FREE_DEFERRED:
		break;
	}
	*result = into_limbo(ex, taken.block, NULL);
	return true;
}

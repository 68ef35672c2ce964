/* SPDX-License-Identifier: Apache-2.0 */
/* Gives blocks back to the driver: see release.h. */
#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/diag/trace.h"
#include "shim/driver/visit.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/release.h"
#include "shim/self/self.h"

uint64_t cl_limbo_events_back(const struct cl_exporter *ex)
{
	return atomic_load_explicit(&ex->limbo.events_back, memory_order_relaxed);
}

void cl_limbo_event_went(struct cl_exporter *ex)
{
	atomic_fetch_add_explicit(&ex->limbo.events_back, 1, memory_order_relaxed);
}

CUresult cl_give_back(struct cl_exporter *ex, struct cl_block *block, CUstream stream, bool *wait)
{
	if (block->kind == CL_EVENT) {
		CUresult result = cl_driver.cuEventDestroy_v2((CUevent)(uintptr_t)block->link.key);

		cl_limbo_event_went(ex);
		return result;
	}
	/* a device without memory pools refuses */
	if (stream && cl_driver.cuMemFreeAsync((CUdeviceptr)block->link.key, stream) == CUDA_SUCCESS) {
		*wait = true;
		return CUDA_SUCCESS;
	}
	return cl_driver.cuMemFree_v2((CUdeviceptr)block->link.key);
}

/* Returns the context to visit for @block.  One that belongs to none has no context that could end. */
static struct cl_context *context_of(const struct cl_block *block)
{
	return block->of.context ? block->of.context : &cl_context_unknown;
}

void cl_give_back_alone_locked(struct cl_exporter *ex, struct cl_block *block)
{
	struct cl_visit visit;
	CUstream stream;
	bool wait = false;

	cl_visit_begin_locked(&visit, context_of(block));
	stream = block->kind == CL_MEMORY ? cl_visit_free_stream(&visit) : NULL;
	cl_give_back(ex, block, stream, &wait);
	/* the memory is back only after this (measured); the stream has nothing but our frees */
	if (wait)
		cl_driver.cuStreamSynchronize(stream);
	cl_visit_end_locked(&visit);
}

void cl_release_detached_locked(struct cl_exporter *ex)
{
	struct cl_fence *fence;
	struct cl_visit visit;

	while ((fence = cl_fence_take_detached_locked(ex)) != NULL) {
		cl_visit_begin_locked(&visit, fence->of.context);
		cl_driver.cuEventDestroy_v2(fence->event);
		cl_visit_end_locked(&visit);
		cl_fence_drop_locked(fence);
	}
}

void cl_batch_release_locked(struct cl_exporter *ex, struct cl_batch *batch,
			     struct cl_collected *sum)
{
	CUstream stream = NULL;
	bool wait = false;

	cl_visit_begin_locked(&batch->visit, context_of(batch->block[0]));
	for (unsigned int i = 0; i < batch->n; i++)
		if (batch->block[i]->kind == CL_MEMORY) {
			stream = cl_visit_free_stream(&batch->visit);
			break;
		}
	for (unsigned int i = 0; i < batch->n; i++)
		batch->result[i] = batch->block[i]->forced_out ?
					   CUDA_SUCCESS :
					   cl_give_back(ex, batch->block[i], stream, &wait);
	/* the memory is back only after this (measured); the stream has nothing but our frees */
	if (wait)
		cl_driver.cuStreamSynchronize(stream);
	cl_visit_end_locked(&batch->visit);
	for (unsigned int i = 0; i < batch->n; i++) {
		struct cl_block *block = batch->block[i];

		if (batch->result[i] != CUDA_SUCCESS)
			cl_log_once(CL_LOG_WARN,
				    "the driver refused to take block %#llx back (CUDA error %d): its "
				    "memory is lost to this process until it ends",
				    (unsigned long long)block->link.key, (int)batch->result[i]);
		sum->blocks++;
		sum->bytes += block->size;
		cl_count(limbo_released);
		cl_count_add(limbo_bytes_released, block->size);
		cl_limbo_account(ex, block, -1);
		cl_trace_block(CL_TRACE_RELEASED, block, .value = ex->limbo.bytes);
		if (block->kind == CL_EVENT)
			cl_limbo_event_forget(ex, block);
		cl_limbo_delete_locked(ex, block);
	}
}

void cl_batch_take_locked(struct cl_exporter *ex, struct cl_batch *batch)
{
	struct cl_block *block, *next;

	batch->n = batch->seen = 0;
	CL_LIST_EACH_REMOVING (block, next, &ex->limbo.ready, struct cl_block, node) {
		if (batch->n == CL_BATCH)
			break;
		if (cl_limbo_context_ends(block)) {
			cl_block_set_state(ex, block, CL_BLOCK_BLOCKED);
			batch->seen++;
			continue;
		}
		if (batch->n && block->of.context != batch->block[0]->of.context)
			break;
		batch->seen++;
		if (block->own_opens || !cl_record_try_release(ex->blocks.region, block->record)) {
			cl_block_set_state(ex, block, CL_BLOCK_HELD);
			continue;
		}
		cl_block_set_state(ex, block, CL_BLOCK_RELEASING);
		batch->block[batch->n++] = block;
	}
}

void cl_release_ask_streams_locked(struct cl_exporter *ex)
{
	struct cl_fence *fence[CL_BATCH];
	CUevent event[CL_BATCH];
	/* Fences that other threads add meanwhile are left to a later round, so that this one ends. */
	uint64_t most, round = cl_fences_round_locked(ex, &most);
	unsigned int n, reached;

	for (uint64_t sum = 0; sum <= most; sum += reached) {
		struct cl_visit visit;

		n = cl_fences_take_locked(ex, round, fence, event, CL_BATCH);
		if (!n)
			return;
		cl_visit_begin_locked(&visit, fence[0]->of.context);
		/* any other error counts as reached: the driver's free then has to deal with it */
		for (reached = 0; reached < n; reached++) {
			if (cl_driver.cuEventQuery(event[reached]) == CUDA_ERROR_NOT_READY)
				break;
			cl_driver.cuEventDestroy_v2(event[reached]);
		}
		cl_visit_end_locked(&visit);
		for (unsigned int i = 0; i < n; i++) {
			struct cl_block *block = cl_fence_asked_locked(ex, fence[i], i < reached);

			if (block && block->state == CL_BLOCK_FENCED)
				cl_block_set_state(ex, block, CL_BLOCK_READY);
		}
		cl_gate_changed_locked();
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Giving blocks back to the driver: see release.h. */
#include "shim/base/log.h"
#include "shim/diag/trace.h"
#include "shim/driver/visit.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/release.h"
#include "shim/self/self.h"

/* Relaxed: who waits for one asks the driver next. */
static _Atomic uint64_t events_back;

uint64_t cl_limbo_events_back(void)
{
	return atomic_load_explicit(&events_back, memory_order_relaxed);
}

void cl_limbo_event_went(void)
{
	atomic_fetch_add_explicit(&events_back, 1, memory_order_relaxed);
}

CUresult cl_give_back(struct cl_block *block, CUstream stream, bool *wait)
{
	if (block->kind == CL_EVENT) {
		CUresult result = cl_driver.cuEventDestroy_v2((CUevent)(uintptr_t)block->link.key);

		cl_limbo_event_went();
		return result;
	}
	/* a device without memory pools refuses */
	if (stream && cl_driver.cuMemFreeAsync((CUdeviceptr)block->link.key, stream) == CUDA_SUCCESS) {
		*wait = true;
		return CUDA_SUCCESS;
	}
	return cl_driver.cuMemFree_v2((CUdeviceptr)block->link.key);
}

void cl_batch_begin_locked(struct cl_batch *batch)
{
	cl_gate_enter_locked(&batch->use, batch->block[0]->ctx, batch->block[0]->device);
	cl_unlock(&cl_exports_lock);
}
void cl_batch_end_locked(struct cl_batch *batch)
{
	cl_lock(&cl_exports_lock);
	cl_gate_leave_locked(&batch->use);
}

void cl_release_strays_locked(void)
{
	struct cl_fence *fence;
	struct cl_gate_use use;

	while ((fence = cl_fence_take_stray_locked(cl_limbo_fence_ends)) != NULL) {
		cl_gate_enter_locked(&use, fence->ctx, fence->device);
		cl_unlock(&cl_exports_lock);
		cl_driver.cuEventDestroy_v2(fence->event);
		cl_lock(&cl_exports_lock);
		cl_gate_leave_locked(&use);
		cl_fence_drop_locked(fence);
	}
}

void cl_batch_release_locked(struct cl_batch *batch, struct cl_collected *sum)
{
	CUcontext ctx = batch->block[0]->ctx;
	struct cl_visit visit;
	CUstream stream = NULL;
	bool wait = false;

	cl_batch_begin_locked(batch);
	visit = cl_visit_begin(ctx);
	for (unsigned int i = 0; ctx && i < batch->n; i++)
		if (batch->block[i]->kind == CL_MEMORY) {
			stream = cl_free_stream(ctx, batch->block[i]->device);
			break;
		}
	for (unsigned int i = 0; i < batch->n; i++)
		batch->result[i] = batch->block[i]->forced_out ?
					   CUDA_SUCCESS :
					   cl_give_back(batch->block[i], stream, &wait);
	/* only then the memory is back (measured); nothing but our frees is on it */
	if (wait)
		cl_driver.cuStreamSynchronize(stream);
	cl_visit_end(&visit);
	cl_batch_end_locked(batch);
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
		cl_limbo_account(block, -1);
		cl_trace_block(CL_TRACE_RELEASED, block, .value = cl_limbo.bytes);
		if (block->kind == CL_EVENT)
			cl_limbo_event_forget(block);
		cl_limbo_delete_locked(block);
	}
}

void cl_batch_take_locked(struct cl_batch *batch)
{
	struct cl_block *block, *next;

	batch->n = batch->seen = 0;
	CL_LIST_EACH_REMOVING (block, next, &cl_limbo.ready, struct cl_block, node) {
		if (batch->n == CL_BATCH)
			break;
		if (cl_limbo_context_ends(block)) {
			cl_block_set_state(block, CL_BLOCK_BLOCKED);
			batch->seen++;
			continue;
		}
		if (batch->n && block->ctx != batch->block[0]->ctx)
			break;
		batch->seen++;
		if (block->own_opens || !cl_record_try_release(&cl_own, block->record)) {
			cl_block_set_state(block, CL_BLOCK_HELD);
			continue;
		}
		cl_block_set_state(block, CL_BLOCK_RELEASING);
		batch->block[batch->n++] = block;
	}
}

void cl_release_ask_streams_locked(void)
{
	struct cl_fence *fence[CL_BATCH];
	CUevent event[CL_BATCH];
	/* What other threads free meanwhile is another collection's: this one comes to an end. */
	uint64_t most, round = cl_fences_round_locked(&most);
	unsigned int n, reached;

	for (uint64_t sum = 0; sum <= most; sum += reached) {
		struct cl_gate_use use;
		struct cl_visit visit;

		n = cl_fences_take_locked(round, cl_limbo_fence_ends, fence, event, CL_BATCH);
		if (!n)
			return;
		cl_gate_enter_locked(&use, fence[0]->ctx, fence[0]->device);
		cl_unlock(&cl_exports_lock);
		visit = cl_visit_begin(use.ctx);
		/* an error is not "not yet": then the driver's free has to cope */
		for (reached = 0; reached < n; reached++) {
			if (cl_driver.cuEventQuery(event[reached]) == CUDA_ERROR_NOT_READY)
				break;
			cl_driver.cuEventDestroy_v2(event[reached]);
		}
		cl_visit_end(&visit);
		cl_lock(&cl_exports_lock);
		cl_gate_leave_locked(&use);
		for (unsigned int i = 0; i < n; i++) {
			struct cl_block *block = cl_fence_asked_locked(fence[i], i < reached);

			if (block && block->state == CL_BLOCK_FENCED)
				cl_block_set_state(block, CL_BLOCK_READY);
		}
		cl_gate_changed_locked();
	}
}

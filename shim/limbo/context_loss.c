/* SPDX-License-Identifier: Apache-2.0 */
/* What the limbo forgets when a context ends: see context_loss.h. */
#include <stdlib.h>

#include "shim/base/options.h"
#include "shim/diag/trace.h"
#include "shim/driver/visit.h"
#include "shim/limbo/context_loss.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/release.h"
#include "shim/self/self.h"

bool cl_limbo_forget_block_locked(struct cl_block *block)
{
	const unsigned int not_in_limbo = 1u << CL_BLOCK_LIVE | 1u << CL_BLOCK_FREEING | 1u << CL_BLOCK_UNTRACKED;
	bool in_limbo = !(not_in_limbo >> block->state & 1), tracked = block->record != CL_NO_RECORD;
	bool orphaned = tracked && !cl_record_gone(&cl_own, block->record);

	if (block->fence)
		cl_fence_wait_locked(block->fence, false);
	cl_fence_detach_locked(block);
	cl_block_set_state(block, orphaned ? CL_BLOCK_ORPHANED : CL_BLOCK_DELETED);
	block->own_opens = 0;
	if (in_limbo)
		cl_limbo_account(block, -1);
	else if (tracked)
		atomic_fetch_sub_explicit(&cl_own.header->live_blocks, 1, memory_order_relaxed);
	if (tracked && block->kind == CL_EVENT) {
		cl_limbo_event_forget(block);
		cl_limbo_event_went(); /* (its place with it, measured) */
	}
	if (tracked)
		cl_trace_block(CL_TRACE_GONE, block, .value = cl_limbo.bytes);
	cl_block_unhash(block);
	if (!orphaned)
		cl_block_delete(block);
	return orphaned;
}

static bool same_context(const struct cl_gate_use *use, const struct cl_block *block)
{
	return cl_gate_is_of(use, block->ctx, block->device, block->primary);
}

static void forget_with_context(struct cl_block *block, void *ended)
{
	if (!same_context(ended, block))
		return;
	if (cl_block_is_taken(block)) /* a thread of the program is freeing it just now */
		block->context_died = true;
	else
		cl_limbo_forget_block_locked(block);
}

/*
 * Destroying an event after its context is a crash (measured).  Where we don't
 * know which context it was made in, any that ends may be it.
 */
static void forget_unknown_event(struct cl_block *block, void *data)
{
	(void)data;
	if (!block->ctx && block->state != CL_BLOCK_LIVE && !cl_block_is_taken(block))
		cl_limbo_forget_block_locked(block);
}

static bool fence_has_ended(const struct cl_fence *fence, const void *ended)
{
	return cl_gate_is_of(ended, fence->ctx, fence->device, fence->primary);
}

/* Its stream is no more, so nothing is on it that could come to @block. */
static void stream_is_gone(struct cl_block *block)
{
	if (block->state == CL_BLOCK_FENCED)
		cl_block_set_state(block, CL_BLOCK_READY);
}

bool cl_limbo_context_go_on(CUcontext ctx, CUdevice device, bool gone)
{
	struct cl_gate_use *use, ended = { .ctx = ctx, .device = device };
	struct cl_block *block;
	bool waited;

	cl_lock(&cl_exports_lock);
	/* events beyond the limit and fences are passed over while their context may be ending */
	waited = cl_limbo.blocked.n || cl_fences_wait_locked() || cl_fences_any_stray_locked() ||
		 cl_limbo.events.n > cl_options.max_events.number;
	/* so is what others hold beyond the limit; and a collection may have found nothing else to do */
	if (cl_options.held_bytes.number && cl_limbo.held.n) {
		waited = true;
		cl_limbo_not_quiet();
	}
	use = cl_gate_open_locked(ctx, device);
	while ((block = CL_LIST_FIRST(&cl_limbo.blocked, struct cl_block, node)) != NULL)
		cl_limbo_settle(block, cl_now(), true);
	/* its streams went with it; of a primary one we don't know the handle here */
	if (gone) {
		cl_free_stream_forget_locked(ctx, device);
		cl_unnoted_context_gone();
		if (cl_fences_any_locked())
			cl_fences_ended_locked(fence_has_ended, &ended, stream_is_gone);
		if (cl_context_has_any(&cl_block_tally, ctx, device)) {
			cl_block_each(CL_MEMORY, forget_with_context, &ended);
			cl_block_each(CL_EVENT, forget_with_context, &ended);
		}
		if (cl_context_any_unknown(&cl_block_tally))
			cl_block_each(CL_EVENT, forget_unknown_event, NULL);
	}
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	free(use);
	return waited || gone;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Forgets blocks and fences that the driver has dropped: see context_loss.h. */
#include "shim/limbo/exporter.h"
#include "shim/base/options.h"
#include "shim/diag/trace.h"
#include "shim/limbo/context_loss.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/release.h"
#include "shim/self/self.h"

bool cl_limbo_forget_block_locked(struct cl_exporter *ex, struct cl_block *block)
{
	const unsigned int not_in_limbo = 1u << CL_BLOCK_LIVE | 1u << CL_BLOCK_FREEING | 1u << CL_BLOCK_UNTRACKED;
	bool in_limbo = !(not_in_limbo >> block->state & 1), tracked = block->record != CL_NO_RECORD;
	bool orphaned = tracked && !cl_record_orphan(ex->blocks.region, block->record);

	/* a fence that a thread is asking about stays on its list, where rounds pass it over */
	if (block->fence)
		cl_fence_wait_locked(ex, block->fence, false);
	cl_fence_detach_locked(ex, block);
	cl_block_set_state(ex, block, orphaned ? CL_BLOCK_ORPHANED : CL_BLOCK_DELETED);
	block->own_opens = 0;
	cl_limbo_not_quiet(ex); /* the fence that it detached must be destroyed */
	if (in_limbo)
		cl_limbo_account(ex, block, -1);
	else if (tracked)
		atomic_fetch_sub_explicit(&ex->blocks.region->header->live_blocks, 1, memory_order_relaxed);
	if (tracked && block->kind == CL_EVENT) {
		cl_limbo_event_forget(ex, block);
		cl_limbo_event_went(ex); /* the driver has one more event to give (measured) */
	}
	if (tracked)
		cl_trace_block(CL_TRACE_ORPHANED, block, .value = ex->limbo.bytes);
	cl_block_unhash(&ex->blocks, block);
	if (!orphaned)
		cl_block_delete(&ex->blocks, block);
	return orphaned;
}

static void forget_what_belongs_to(struct cl_exporter *ex, struct cl_context *context)
{
	struct cl_fence *fence;
	struct cl_block *block;

	while ((fence = CL_LIST_FIRST(&context->fences, struct cl_fence, of.node)) != NULL) {
		block = cl_fence_lost_locked(ex, fence);

		/* its stream has ended, so no work on it can reach the block */
		if (block && block->state == CL_BLOCK_FENCED)
			cl_block_set_state(ex, block, CL_BLOCK_READY);
	}
	while ((block = CL_LIST_FIRST(&context->blocks, struct cl_block, of)) != NULL) {
		cl_block_leave_context(block);
		if (cl_block_is_taken(block)) /* the thread that is freeing it does it: cl_limbo_context_died_locked() */
			block->context_died = true;
		else
			cl_limbo_forget_block_locked(ex, block);
	}
}

/*
 * Forgets freed events whose context we don't know: any context that ends may be theirs, and to
 * destroy an event after its context crashes (measured).
 */
static void forget_unknown_events(struct cl_exporter *ex)
{
	struct cl_block *block, *next;

	CL_LIST_EACH_REMOVING (block, next, &cl_context_unknown.blocks, struct cl_block, of)
		if (block->kind == CL_EVENT && block->state != CL_BLOCK_LIVE && !cl_block_is_taken(block))
			cl_limbo_forget_block_locked(ex, block);
}

bool cl_limbo_contexts_ended(struct cl_exporter *ex, struct cl_list *dead, bool gone)
{
	struct cl_context *context;
	struct cl_block *block;
	bool waited;

	cl_lock(&cl_exports_lock);
	/* a collection passes over fences and surplus events while their context may be ending */
	waited = ex->limbo.blocked.n || cl_fences_wait_locked(ex) || cl_fences_any_detached_locked(ex) ||
		 ex->limbo.events.n > cl_options.max_events.number;
	/* and over HELD blocks beyond CULIMBO_HELD_BYTES; it may have set `quiet` nevertheless */
	if (cl_options.held_bytes.number && ex->limbo.held.n) {
		waited = true;
		cl_limbo_not_quiet(ex);
	}
	while ((block = CL_LIST_FIRST(&ex->limbo.blocked, struct cl_block, node)) != NULL)
		cl_limbo_settle(ex, block, cl_now(), true);
	if (gone)
		forget_unknown_events(ex);
	while ((context = CL_LIST_FIRST(dead, struct cl_context, node)) != NULL) {
		cl_list_remove(dead, &context->node);
		forget_what_belongs_to(ex, context);
		cl_context_free_locked(context);
	}
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	return waited || gone;
}

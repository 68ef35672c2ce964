/* SPDX-License-Identifier: Apache-2.0 */
/* What the limbo forgets when a context ends: see context_loss.h. */
#include "shim/base/options.h"
#include "shim/diag/trace.h"
#include "shim/limbo/context_loss.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/release.h"
#include "shim/self/self.h"

/* The driver has dropped what @block names. */
static bool forget_block(struct cl_block *block)
{
	bool limbo_has_it = block->place != CL_PLACE_PROGRAM && block->place != CL_PLACE_KEPT;

	cl_limbo_move(block, CL_PLACE_BUSY);
	cl_fence_detach_locked(block);
	block->own_opens = 0;
	if (block->record == CL_NO_RECORD) {
		cl_block_delete(block);
		return false;
	}
	if (limbo_has_it)
		cl_limbo_account(block, -1);
	else
		atomic_fetch_sub_explicit(&cl_own.header->live_blocks, 1, memory_order_relaxed);
	if (block->kind == CL_EVENT) {
		cl_limbo_event_forget(block);
		cl_limbo_event_went(); /* (its place with it, measured) */
	}
	return cl_limbo_gone_locked(block);
}

bool cl_limbo_gone_locked(struct cl_block *block)
{
	cl_trace_block(CL_TRACE_GONE, block, .value = cl_limbo.bytes);
	cl_block_unhash(block);
	if (cl_record_gone(&cl_own, block->record)) {
		cl_block_delete(block);
		return false;
	}
	block->place = CL_PLACE_GONE;
	cl_limbo.gone++;
	cl_limbo_not_quiet();
	return true;
}

bool cl_limbo_forget_block_locked(struct cl_block *block)
{
	return forget_block(block);
}

static void forget_what_belongs_to(struct cl_context *context)
{
	struct cl_belongs *of;

	while ((of = context->fences) != NULL) {
		struct cl_block *block = cl_fence_lost_locked(cl_fence_of(of));

		/* its stream is no more, so nothing is on it that could come to the block */
		if (block && block->place == CL_PLACE_DRAIN)
			cl_limbo_move(block, CL_PLACE_DUE);
	}
	while ((of = context->blocks) != NULL) {
		struct cl_block *block = cl_block_of(of);

		cl_belongs_to_none(of);
		if (block->place == CL_PLACE_BUSY) /* a thread of the program is freeing it just now */
			block->orphan = true;
		else
			forget_block(block);
	}
}

/*
 * Destroying an event after its context is a crash (measured).  Where we don't
 * know which context it was made in, any that ends may be it.
 */
static void forget_unknown_events(void)
{
	struct cl_belongs *of, *next;

	for (of = cl_context_unknown.blocks; of; of = next) {
		struct cl_block *block = cl_block_of(of);

		next = of->next;
		if (block->kind == CL_EVENT && block->place != CL_PLACE_PROGRAM &&
		    block->place != CL_PLACE_BUSY)
			forget_block(block);
	}
}

bool cl_limbo_contexts_ended(struct cl_context *dead, bool gone)
{
	struct cl_context *next;
	struct cl_block *block;
	bool waited;

	cl_lock(&cl_exports_lock);
	/* events beyond the limit and fences are passed over while their context may be ending */
	waited = cl_limbo.blocked.n || cl_fences_wait_locked() || cl_fences_any_stray_locked() ||
		 cl_limbo.events > cl_options.max_events.number;
	/* so is what others hold beyond the limit; and a collection may have found nothing else to do */
	if (cl_options.held_bytes.number && cl_limbo.held.n) {
		waited = true;
		cl_limbo_not_quiet();
	}
	while ((block = cl_limbo.blocked.first) != NULL) {
		cl_list_remove(&cl_limbo.blocked, block);
		cl_limbo_settle(block, cl_now(), true);
	}
	if (gone) {
		forget_unknown_events();
	}
	for (; dead; dead = next) {
		next = dead->next;
		forget_what_belongs_to(dead);
		cl_context_free_locked(dead);
	}
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	return waited || gone;
}

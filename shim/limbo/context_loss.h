/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forgets blocks and fences that the driver has dropped: with their context, or behind our back.
 *
 * Any thread may call these.  Functions that end in _locked want cl_exports_lock held; the
 * others take it.  None makes a CUDA call or fails.
 */
#ifndef CL_CONTEXT_LOSS_H
#define CL_CONTEXT_LOSS_H

#include "shim/limbo/limbo.h"

/*
 * Comes after cl_context_open(), which filled the list @dead: forgets all that belongs to its
 * contexts, and frees them.  @gone: a context has ended, even if @dead is empty.  Returns true if
 * the caller must wake the collector.
 */
bool cl_limbo_contexts_ended(struct cl_exporter *ex, struct cl_list *dead, bool gone);

/*
 * Forgets @block because the driver no longer has it.  Returns false if @block is deleted.
 * Returns true if importers still hold its record, so that @block is ORPHANED: the caller must
 * have the collector run within CL_REAP_EVERY (cl_collector_watch_holders()).
 */
bool cl_limbo_forget_block_locked(struct cl_exporter *ex, struct cl_block *block);

/*
 * For the thread that is freeing @block (FREEING) and is back from the driver, which has not freed it.
 * Returns true if the context of @block has ended meanwhile.  Then it forgets @block, and *orphaned is
 * what cl_limbo_forget_block_locked() returned.
 */
static inline bool cl_limbo_context_died_locked(struct cl_exporter *ex, struct cl_block *block, bool *orphaned)
{
	if (!block->context_died)
		return false;
	*orphaned = cl_limbo_forget_block_locked(ex, block);
	return true;
}

#endif

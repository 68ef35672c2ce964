/* SPDX-License-Identifier: Apache-2.0 */
/* This process imports blocks of pools that it has exported itself: see cl_pool_own_open() in pool_imports.h. */
#include <errno.h>

#include "shim/blocks/blocks.h"
#include "shim/diag/trace.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/pool_imports.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"

/* Returns the block that @stamp names, or NULL if its generation is over. */
static struct cl_block *find_own_locked(struct cl_exporter *ex, struct cl_stamp stamp)
{
	struct cl_block *block = cl_block_of_record(&ex->blocks, stamp.record);

	if (!block || block->kind != CL_POOL || block->state == CL_BLOCK_ORPHANED ||
	    cl_life_generation(cl_record_life(ex->blocks.region, stamp.record)) != stamp.generation)
		return NULL;
	return block;
}

int cl_pool_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle)
{
	struct cl_block *block;
	int err = -ESTALE;

	cl_lock(&cl_exports_lock);
	block = find_own_locked(ex, stamp);
	/*
	 * another thread is freeing the block: waits until the block is in the limbo, or LIVE again because the
	 * driver has refused
	 */
	if (block && cl_block_is_taken(block)) {
		cl_limbo_find_settled_locked(ex, CL_POOL, block->link.key);
		block = find_own_locked(ex, stamp);
	}
	if (block && !cl_block_is_taken(block) && cl_block_has_handle(block, handle)) {
		block->own_opens++;
		cl_record_opened(ex->blocks.region, stamp.record);
		cl_trace_block(CL_TRACE_OPENED, block, .generation = stamp.generation, .flags = CL_TRACE_OWN);
		err = 0;
	}
	cl_unlock(&cl_exports_lock);
	return err;
}

bool cl_pool_own_close(struct cl_exporter *ex, struct cl_stamp stamp)
{
	struct cl_block *block;
	bool wake = false;

	cl_lock(&cl_exports_lock);
	block = find_own_locked(ex, stamp);
	if (block && block->own_opens) {
		cl_trace_block(CL_TRACE_CLOSED, block, .flags = CL_TRACE_OWN);
		if (--block->own_opens == 0) {
			cl_limbo_look_again_locked(ex, block);
			wake = block->state == CL_BLOCK_READY;
		}
	}
	cl_unlock(&cl_exports_lock);
	return wake;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* This process opens a handle that it has made itself: see own_open.h. */
#include <errno.h>

#include "shim/limbo/exporter.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/trace.h"
#include "shim/exporter/own_open.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/limbo.h"
#include "shim/self/self.h"

int cl_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle,
		CUdeviceptr *dptr)
{
	struct cl_block *block;
	int err = -ESTALE;

	cl_lock(&cl_exports_lock);
	block = cl_block_of_record(&ex->blocks, stamp.record);
	if (block && block->state != CL_BLOCK_ORPHANED && !cl_block_is_taken(block) &&
	    cl_life_generation(cl_record_life(ex->blocks.region, stamp.record)) == stamp.generation &&
	    cl_block_has_handle(block, handle)) {
		block->own_opens++;
		cl_record_opened(ex->blocks.region, stamp.record);
		cl_trace_block(CL_TRACE_OPENED, block, .generation = stamp.generation, .flags = CL_TRACE_OWN);
		*dptr = (CUdeviceptr)block->link.key;
		err = 0;
	}
	cl_unlock(&cl_exports_lock);
	return err;
}

bool cl_own_has(struct cl_exporter *ex, enum cl_kind kind, uint64_t key)
{
	const struct cl_block *block;
	bool own;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(&ex->blocks, kind, key);
	own = block && (kind == CL_EVENT || block->own_opens);
	cl_unlock(&cl_exports_lock);
	return own;
}

bool cl_own_close(struct cl_exporter *ex, CUdeviceptr dptr)
{
	struct cl_block *block;
	bool wake = false, ours = false;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(&ex->blocks, CL_MEMORY, dptr);
	if (block && block->own_opens) {
		ours = true;
		cl_trace_block(CL_TRACE_CLOSED, block, .flags = CL_TRACE_OWN);
		if (--block->own_opens == 0) {
			cl_limbo_look_again_locked(ex, block);
			wake = block->state == CL_BLOCK_READY;
		}
	}
	cl_unlock(&cl_exports_lock);
	if (wake)
		cl_collector_wake(ex);
	return ours;
}

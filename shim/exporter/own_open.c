/* SPDX-License-Identifier: Apache-2.0 */
/* This process opens a handle that it has made itself: see own_open.h. */
#include <errno.h>

#include "shim/blocks/blocks.h"
#include "shim/diag/trace.h"
#include "shim/exporter/own_open.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/limbo.h"
#include "shim/self/self.h"

int cl_own_open(struct cl_stamp stamp, const void *handle, CUdeviceptr *dptr)
{
	struct cl_block *block;
	int err = -ESTALE;

	cl_lock(&cl_exports_lock);
	block = cl_block_of_record(stamp.record);
	if (block && block->state != CL_BLOCK_ORPHANED && !cl_block_is_taken(block) &&
	    cl_life_generation(cl_record_life(&cl_own, stamp.record)) == stamp.generation &&
	    cl_block_has_handle(block, handle)) {
		block->own_opens++;
		cl_record_opened(&cl_own, stamp.record);
		cl_trace_block(CL_TRACE_OPENED, block, .generation = stamp.generation, .flags = CL_TRACE_OWN);
		*dptr = (CUdeviceptr)block->link.key;
		err = 0;
	}
	cl_unlock(&cl_exports_lock);
	return err;
}

bool cl_own_has(enum cl_kind kind, uint64_t key)
{
	const struct cl_block *block;
	bool own;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(kind, key);
	own = block && (kind == CL_EVENT || block->own_opens);
	cl_unlock(&cl_exports_lock);
	return own;
}

bool cl_own_close(CUdeviceptr dptr)
{
	struct cl_block *block;
	bool wake = false, ours = false;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(CL_MEMORY, dptr);
	if (block && block->own_opens) {
		ours = true;
		cl_trace_block(CL_TRACE_CLOSED, block, .flags = CL_TRACE_OWN);
		if (--block->own_opens == 0) {
			cl_limbo_look_again_locked(block);
			wake = block->state == CL_BLOCK_READY;
		}
	}
	cl_unlock(&cl_exports_lock);
	if (wake)
		cl_collector_wake();
	return ours;
}

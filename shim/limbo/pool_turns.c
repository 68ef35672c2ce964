/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is with an import, and imports of our own blocks: see pool_imports.h. */
#include <errno.h>

#include "shim/blocks/blocks.h"
#include "shim/diag/trace.h"
#include "shim/driver/gate.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/pool_imports.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"

/* ----------------------------------------------------------------------- turns */
static __thread unsigned int held __attribute__((tls_model("initial-exec"))); /* by this thread */

bool cl_pool_turn_is_held(void)
{
	return held != 0;
}

static bool is_taken_locked(struct cl_exporter *ex, uint64_t key)
{
	const struct cl_pool_turn *turn;

	CL_LIST_EACH (turn, &ex->pool_imports.turns, const struct cl_pool_turn, node)
		if (turn->key == key)
			return true;
	return false;
}

void cl_pool_turn_begin_locked(struct cl_exporter *ex, struct cl_pool_turn *turn, uint64_t key)
{
	while (is_taken_locked(ex, key))
		cl_gate_wait_locked();
	turn->key = key;
	cl_list_add(&ex->pool_imports.turns, &turn->node);
	held++;
}

void cl_pool_turn_begin(struct cl_exporter *ex, struct cl_pool_turn *turn, uint64_t key)
{
	cl_lock(&cl_exports_lock);
	cl_pool_turn_begin_locked(ex, turn, key);
	cl_unlock(&cl_exports_lock);
}

void cl_pool_turn_end(struct cl_exporter *ex, struct cl_pool_turn *turn)
{
	cl_lock(&cl_exports_lock);
	/* a forked child has forgotten it */
	if (cl_list_has(&ex->pool_imports.turns, &turn->node))
		cl_list_remove(&ex->pool_imports.turns, &turn->node);
	held--;
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
}

/* --------------------------------------------------------------- blocks of our own */
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
	/* a thread that is freeing it may have it back, or in the limbo, in a moment */
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a context: whom it waits for, and what is forgotten with it: the importer's mappings first, then
 * fences and blocks.  See context_end.h.
 */
#include "shim/context_end.h"
#include "shim/base/log.h"
#include "shim/driver/elsewhere.h"
#include "shim/driver/gate.h"
#include "shim/driver/visit.h"
#include "shim/importer/mappings.h"
#include "shim/importer/mirror.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/pool_opens.h"
#include "shim/self/self.h"

static struct cl_context_end begin(CUcontext ctx, CUdevice device)
{
	CL_GUARD(ours);
	uint64_t until = cl_now() + CL_DRIVER_WAIT;

	if (!ours)
		return (struct cl_context_end){ .handle = ctx, .device = device };
	/* before cl_context_close(), because after it others wait for us */
	if (!ctx)
		cl_gate_await_unwatched(device, until);
	cl_gate_await_unwatched(-1, until);
	return cl_context_close(ctx, device);
}

struct cl_context_end cl_context_end_begin(CUcontext ctx, CUdevice device)
{
	/* a thread that is cancelled in the driver would never end its call, and others would wait for it */
	int before = cl_cancel_disable();
	struct cl_context_end end = begin(ctx, device);

	end.cancel_state = before;
	return end;
}

/* Closes an address that virtual memory was opened at, as often as it was opened. */
static void close_virtual(CUdeviceptr address, uint64_t opens)
{
	/* the program unmaps nothing: a capture of it must not become invalid */
	CL_CALLS_OF_OURS;
	CUresult result;

	while (opens--)
		cl_mirror_close(address, &result);
}

static void forget_mappings(struct cl_context *context)
{
	struct cl_mapping *mapping;

	cl_lock(&cl_imports_lock);
	while ((mapping = CL_LIST_FIRST(&context->mappings, struct cl_mapping, of.node)) != NULL) {
		uint64_t address = mapping->link.key, opens = mapping->kind == CL_VIRTUAL ? mapping->opens - mapping->closing : 0;

		cl_mapping_lost_locked(mapping);
		if (!opens)
			continue;
		/* the driver keeps virtual memory, but the program opened it by a handle whose memory it unmaps */
		cl_unlock(&cl_imports_lock);
		close_virtual(address, opens);
		cl_lock(&cl_imports_lock);
	}
	cl_unlock(&cl_imports_lock);
}

static void lose_pool_opens(void *context)
{
	cl_pool_opens_lost(&cl_exporter, context);
}

/* Closes the blocks of pools that were opened by handles in @context. */
static void forget_pool_opens(struct cl_context *context)
{
	bool any;
	int err = 0;

	cl_lock(&cl_imports_lock);
	any = context->pool_opens.first != NULL;
	cl_unlock(&cl_imports_lock);
	if (any)
		err = cl_without_ended_context(lose_pool_opens, context);
	if (!err)
		return;
	cl_pool_opens_outlive(context);
	cl_log(CL_LOG_WARN,
	       "cannot start a thread (error %d) to close memory whose context has ended: its exporters get that memory back "
	       "when this process closes it, or ends", err);
}

static void forget_blocks_locked(struct cl_exporter *ex, struct cl_context *context)
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
		if (cl_block_is_taken(block)) /* the thread that is freeing it forgets it: cl_limbo_context_died_locked() */
			block->context_died = true;
		else
			cl_limbo_forget_block_locked(ex, block);
	}
}

/*
 * Forgets freed events whose context we don't know: any context that ends may be theirs, and to
 * destroy an event after its context crashes (measured).
 */
static void forget_unknown_events_locked(struct cl_exporter *ex)
{
	struct cl_block *block, *next;

	CL_LIST_EACH_REMOVING (block, next, &cl_context_unknown.blocks, struct cl_block, of)
		if (block->kind == CL_EVENT && block->state != CL_BLOCK_LIVE && !cl_block_is_taken(block))
			cl_limbo_forget_block_locked(ex, block);
}

static void done(const struct cl_context_end *end, bool gone)
{
	CL_GUARD(ours);
	struct cl_list dead = { 0 };
	struct cl_context *context;
	bool waited;

	if (!ours) /* the child has nothing that belongs to a context */
		return;
	cl_context_open(end, gone, &dead);
	CL_LIST_EACH (context, &dead, struct cl_context, node) {
		forget_mappings(context);
		forget_pool_opens(context);
	}
	cl_lock(&cl_exports_lock);
	waited = cl_limbo_unblock_locked(&cl_exporter);
	if (gone)
		forget_unknown_events_locked(&cl_exporter);
	while ((context = CL_LIST_FIRST(&dead, struct cl_context, node)) != NULL) {
		cl_list_remove(&dead, &context->node);
		forget_blocks_locked(&cl_exporter, context);
		cl_context_free_locked(context);
	}
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	/* not at each end: UCX retains and releases a primary context around each of its calls */
	if (waited || gone)
		cl_collector_wake(&cl_exporter);
}

void cl_context_end_done(const struct cl_context_end *end, bool gone)
{
	done(end, gone);
	cl_cancel_restore(end->cancel_state);
}

void cl_context_end_lost(const struct cl_context_end *end)
{
	cl_gate_drop_references(end->handle ? -1 : end->device);
	done(end, true);
}

void cl_primary_ended_past_us(CUdevice device, uint64_t last)
{
	cl_context_end_lost(&(struct cl_context_end){ .device = device, .last = last });
}

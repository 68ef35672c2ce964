/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes though somebody may still have it: see forced.h.
 */
#include <string.h>

#include "shim/diag/happened.h"
#include "shim/diag/trace.h"
#include "shim/limbo/forced.h"
#include "shim/limbo/inside.h"
#include "shim/self/self.h"

/* Who holds the record of @block: a slot, or CL_SLOTS where that is not known. */
static unsigned int a_holder_of(const struct cl_block *block)
{
	uint16_t slot;

	return cl_record_holders(&cl_own, block->record, &slot, 1) ? slot : CL_SLOTS;
}

/* @slot: of who holds it; CL_SLOTS: that is not known. */
static void tell_held_forced_out_locked(const struct cl_block *block, unsigned int slot)
{
	struct cl_about about = cl_block_about_locked(block);

	if (slot < CL_SLOTS) {
		about.pid = cl_own.slot[slot].who.pid;
		memcpy(about.name, cl_own.slot[slot].name, sizeof about.name);
	}
	cl_happened_locked(CL_FOUND_HELD_FORCED_OUT, &about);
}

/*
 * The oldest block that other processes hold, of a device on which they hold too much; NULL: none.
 * (Of one that is kept unfenced nobody knows whether its stream has got to its free.)
 */
static struct cl_block *oldest_too_much_locked(void)
{
	struct cl_block *block = cl_limbo.held.first;

	while (block && (!cl_limbo_is_too_much_held(block) || !block->size || block->own_opens ||
			 block->fence || block->unfenced || cl_limbo_context_ends(block)))
		block = block->next;
	return block;
}

void cl_forced_held_out_locked(struct cl_collected *sum)
{
	struct cl_block *block;

	while ((block = oldest_too_much_locked()) != NULL) {
		unsigned int slot = a_holder_of(block);
		bool released;

		cl_limbo_move(block, CL_PLACE_BUSY);
		released = cl_record_gone(&cl_own, block->record);
		/* Its last holder may have left just now: then nothing is taken from anybody. */
		if (!released)
			tell_held_forced_out_locked(block, slot);
		cl_give_back_alone_locked(block);
		sum->blocks++;
		sum->bytes += block->size;
		cl_count(limbo_released);
		cl_count_add(limbo_bytes_released, block->size);
		cl_limbo_account(block, -1);
		cl_trace_block(CL_TRACE_RELEASED, block, .value = cl_limbo.bytes);
		/* a holder that left meanwhile made it ready while it was on no list */
		if (released || cl_record_try_release(&cl_own, block->record)) {
			cl_block_delete(block);
			continue;
		}
		cl_block_unhash(block);
		block->place = CL_PLACE_GONE;
		cl_limbo.gone++;
		cl_limbo_not_quiet();
	}
}

/* The oldest event that no other thread is at. */
static struct cl_block *oldest_free_event_locked(void)
{
	struct cl_event_block *event = cl_limbo.oldest_event;

	while (event && cl_limbo_is_busy_locked(&event->block))
		event = event->newer;
	return event ? &event->block : NULL;
}

unsigned int cl_forced_events_out_locked(uint64_t keep, bool any)
{
	uint64_t most = cl_limbo.events > keep ? cl_limbo.events - keep : 0;
	struct cl_block *block;
	unsigned int n = 0;

	for (; n < most && cl_limbo.events > keep && (block = oldest_free_event_locked()) != NULL; n++) {
		struct cl_about about;

		if (!any && block != &cl_limbo.oldest_event->block)
			break;
		cl_limbo_event_forget(block);
		cl_limbo_move(block, CL_PLACE_BUSY);
		about = cl_block_about_locked(block);
		cl_happened_locked(CL_FOUND_EVENT_FORCED_OUT, &about);
		cl_limbo.forcing++;
		cl_give_back_alone_locked(block);
		cl_limbo.forcing--;
		/* from here on as after a destroy without us: opening it still works */
		block->destroyed = true;
		cl_block_unhash(block);
		cl_limbo_settle(block, cl_now(), false);
	}
	return n;
}

void cl_limbo_force_events_out(uint64_t until)
{
	uint64_t before = cl_limbo_events_back();

	cl_lock(&cl_exports_lock);
	/* (those that others are at are counted among the limbo's) */
	while (!cl_forced_events_out_locked(cl_limbo.events > CL_BATCH ? cl_limbo.events - CL_BATCH : 0, true) &&
	       (cl_limbo.events || cl_limbo.forcing) && cl_limbo_events_back() == before &&
	       cl_gate_wait_until_locked(until))
		;
	cl_unlock(&cl_exports_lock);
}

bool cl_limbo_has_events(void)
{
	bool has;

	cl_lock(&cl_exports_lock);
	has = cl_limbo.events || cl_limbo.forcing;
	cl_unlock(&cl_exports_lock);
	return has;
}

/* Asks the streams for which blocks of CL_PLACE_KEPT wait; else nobody does. */
static void ask_for_kept_locked(void)
{
	struct cl_block *block;

	for (block = cl_limbo.kept.first; block; block = block->next)
		if (block->fence)
			cl_fence_wait_locked(block->fence, true);
	if (cl_fences_may_ask_locked())
		cl_release_ask_streams_locked();
	for (block = cl_limbo.kept.first; block; block = block->next)
		if (block->fence)
			cl_fence_wait_locked(block->fence, false);
}

bool cl_limbo_has_kept(void)
{
	bool has;

	cl_lock(&cl_exports_lock);
	has = cl_limbo.kept.n != 0;
	cl_unlock(&cl_exports_lock);
	return has;
}

struct cl_collected cl_limbo_release_kept(void)
{
	struct cl_collected sum = { .next = UINT64_MAX };
	struct cl_block *block;
	uint64_t n;

	cl_lock(&cl_exports_lock);
	ask_for_kept_locked();
	n = cl_limbo.kept.n;
	while (n-- && (block = cl_limbo.kept.first) != NULL) {
		if (block->fence || cl_limbo_context_ends(block)) {
			/* to the end of the list: it is looked at once */
			cl_limbo_move(block, CL_PLACE_BUSY);
			cl_limbo_move(block, CL_PLACE_KEPT);
			continue;
		}
		cl_limbo_move(block, CL_PLACE_BUSY);
		cl_give_back_alone_locked(block);
		sum.blocks++;
		sum.bytes += block->size;
		cl_trace_block(CL_TRACE_RELEASED, block, .flags = CL_TRACE_AT_ONCE);
		cl_block_delete(block);
	}
	cl_unlock(&cl_exports_lock);
	return sum;
}

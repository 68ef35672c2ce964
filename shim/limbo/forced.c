/* SPDX-License-Identifier: Apache-2.0 */
/* Forces blocks out though somebody may still have them: see forced.h. */
#include <string.h>

#include "shim/limbo/exporter.h"
#include "shim/base/clock.h"
#include "shim/base/log.h"
#include "shim/diag/happened.h"
#include "shim/limbo/forced.h"
#include "shim/limbo/inside.h"
#include "shim/self/self.h"

/* Returns the slot of a process that holds the record of @block, or CL_SLOTS if none is known. */
static unsigned int a_holder_of(struct cl_exporter *ex, const struct cl_block *block)
{
	uint16_t slot;

	return cl_record_holders(ex->blocks.region, block->record, &slot, 1) ? slot : CL_SLOTS;
}

/* @slot: as a_holder_of() returns it. */
static void tell_held_forced_out_locked(struct cl_exporter *ex, const struct cl_block *block,
					unsigned int slot)
{
	struct cl_about about = cl_block_about_locked(&ex->blocks, block);

	about.unnamed = !cl_burst_add(&ex->limbo.forced, cl_now());
	if (slot < CL_SLOTS) {
		about.pid = ex->blocks.region->slot[slot].who.pid;
		memcpy(about.name, ex->blocks.region->slot[slot].name, sizeof about.name);
	}
	cl_happened_locked(CL_FINDING_HELD_FORCED_OUT, &about, 0);
	cl_still_forced_out_locked(ex, block->record);
}

/* The log names a few of the blocks that are forced out, and one line tells how many more there were. */
static void tell_rest_locked(struct cl_exporter *ex)
{
	uint64_t rest = ex->limbo.forced.rest ? cl_burst_take_rest(&ex->limbo.forced, cl_now()) : 0;

	if (rest)
		cl_log(CL_LOG_WARN,
		       "%llu more freed blocks go back to the driver although other processes map them: such blocks take "
		       "more of a device than CULIMBO_HELD_BYTES, %llu",
		       (unsigned long long)rest, (unsigned long long)cl_options.held_bytes.number);
}

/* Returns true if the HELD blocks of any device take too much: only then a walk through all of `held` is worth it. */
static bool is_any_too_much(const struct cl_exporter *ex)
{
	for (unsigned int i = 0; i < CL_LIMBO_DEVICES; i++)
		if (ex->limbo.held_bytes[i] > cl_options.held_bytes.number)
			return true;
	return false;
}

/*
 * Returns the oldest block that only other processes hold, on a device where they hold too much,
 * or NULL.  It skips an .unfenced block, since nobody knows whether its stream has reached the
 * free.
 */
static struct cl_block *oldest_too_much_locked(struct cl_exporter *ex)
{
	struct cl_block *block;

	if (!is_any_too_much(ex))
		return NULL;
	CL_LIST_EACH (block, &ex->limbo.held, struct cl_block, node)
		if (cl_limbo_is_too_much_held(ex, block) && block->size && !block->own_opens &&
		    !block->fence && !block->unfenced && !cl_limbo_context_ends(block))
			return block;
	return NULL;
}

void cl_forced_held_out_locked(struct cl_exporter *ex, struct cl_collected *sum)
{
	struct cl_block *block;

	while ((block = oldest_too_much_locked(ex)) != NULL) {
		unsigned int slot = a_holder_of(ex, block);
		bool released;

		cl_block_set_state(ex, block, CL_BLOCK_RELEASING);
		released = cl_record_give_back_held(ex->blocks.region, block->record);
		/* if its last holder has just left, nothing is taken from anybody */
		if (!released)
			tell_held_forced_out_locked(ex, block, slot);
		cl_give_back_alone_locked(ex, block);
		cl_release_account_locked(ex, block, sum);
		/* a holder that left meanwhile has set the ready bit in vain, because the block was on no list */
		if (released || cl_record_try_release(ex->blocks.region, block->record)) {
			cl_limbo_delete_locked(ex, block);
			continue;
		}
		cl_block_unhash(&ex->blocks, block);
		cl_block_set_state(ex, block, CL_BLOCK_ORPHANED);
	}
	tell_rest_locked(ex);
}

/* Returns the oldest event that no other thread is busy with, or NULL. */
static struct cl_block *oldest_free_event_locked(struct cl_exporter *ex)
{
	struct cl_event_block *event;

	CL_LIST_EACH (event, &ex->limbo.events, struct cl_event_block, order)
		if (!cl_limbo_is_busy_locked(&event->block))
			return &event->block;
	return NULL;
}

unsigned int cl_forced_events_out_locked(struct cl_exporter *ex, uint64_t keep, bool any)
{
	uint64_t most = ex->limbo.events.n > keep ? ex->limbo.events.n - keep : 0;
	struct cl_block *block;
	unsigned int n = 0;

	for (; n < most && ex->limbo.events.n > keep && (block = oldest_free_event_locked(ex)) != NULL; n++) {
		struct cl_about about;

		if (!any && block != &CL_LIST_FIRST(&ex->limbo.events, struct cl_event_block, order)->block)
			break;
		cl_limbo_event_forget(ex, block);
		cl_block_set_state(ex, block, CL_BLOCK_RELEASING);
		/* a handle under way opens after the event's destroy, too (measured) */
		if (cl_limbo_is_held(ex, block)) {
			about = cl_block_about_locked(&ex->blocks, block);
			cl_happened_locked(CL_FINDING_EVENT_FORCED_OUT, &about, 0);
		}
		ex->limbo.forcing++;
		cl_give_back_alone_locked(ex, block);
		ex->limbo.forcing--;
		/* from here on it is as without culimbo: a handle of it opens after its destroy */
		block->forced_out = true;
		if (block->record != CL_NO_RECORD)
			cl_record_forced_out(ex->blocks.region, block->record);
		cl_block_unhash(&ex->blocks, block);
		cl_limbo_settle(ex, block, cl_now(), false);
	}
	return n;
}

void cl_limbo_force_events_out(struct cl_exporter *ex, uint64_t until)
{
	uint64_t before = cl_limbo_events_back(ex);

	cl_lock(&cl_exports_lock);
	/* events.n counts events that other threads are busy with, too */
	while (!cl_forced_events_out_locked(
		       ex, ex->limbo.events.n > CL_BATCH ? ex->limbo.events.n - CL_BATCH : 0, true) &&
	       (ex->limbo.events.n || ex->limbo.forcing) && cl_limbo_events_back(ex) == before &&
	       cl_gate_wait_until_locked(until))
		;
	cl_unlock(&cl_exports_lock);
}

bool cl_limbo_has_events(struct cl_exporter *ex)
{
	bool has;

	cl_lock(&cl_exports_lock);
	has = ex->limbo.events.n || ex->limbo.forcing;
	cl_unlock(&cl_exports_lock);
	return has;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Holds: see holds.h. */
#include <errno.h>
#include <stdlib.h>

#include "shim/base/log.h"
#include "shim/importer/holds.h"
#include "shim/self/self.h"

struct cl_table cl_holds = CL_TABLE_BEGIN(cl_holds);
/* Freed holds are kept for reuse: a program that opens and closes in turn then needs no malloc. */
#ifdef CL_FREED_IS_FREED
enum { MOST_SPARE = 0 };
#else
enum { MOST_SPARE = 64 };
#endif
static struct cl_list spare;

/* ----------------------------------------------------------------------- holds */
static struct cl_hold *hold_new_locked(void)
{
	struct cl_hold *hold = CL_LIST_FIRST(&spare, struct cl_hold, first.node);

	if (!hold)
		return malloc(sizeof *hold);
	cl_list_remove(&spare, &hold->first.node);
	return hold;
}

void cl_hold_free_locked(struct cl_hold *hold)
{
	if (spare.n == MOST_SPARE)
		free(hold);
	else
		cl_list_add_front(&spare, &hold->first.node);
}

/* Has the exporter keep the block until it ends, whoever closes it.  Returns 0, -ESTALE or -EBADMSG. */
static int pin(struct cl_peer *peer, struct cl_stamp stamp, const void *handle)
{
	int err = cl_record_pin(&peer->region, stamp.record, stamp.generation, handle);

	if (!err)
		cl_count(pinned);
	return err;
}

bool cl_hold_is_refusal(int err)
{
	return err == -ESTALE || err == -EBADMSG;
}

/*
 * We were taken for dead and have a new slot, or none.  Takes holds again of what is open here or
 * just being opened, unless its exporter has given it back to the driver meanwhile.
 */
static void hold_again_locked(struct cl_peer *peer)
{
	struct cl_link *link, *next;
	uint8_t handle[64];
	unsigned int lost = 0;

	CL_TABLE_EACH (&cl_holds, link, next) {
		struct cl_hold *hold = (struct cl_hold *)link;
		struct cl_stamp stamp = { .record = cl_hold_record(hold), .generation = hold->generation };
		int err = -EUSERS;

		if (hold->peer != peer || hold->pinned || !(hold->opens || hold->pending))
			continue;
		cl_record_handle(&peer->region, cl_hold_record(hold), handle);
		if (peer->slot >= 0)
			err = cl_record_hold(&peer->region, (unsigned int)peer->slot, stamp.record,
					     hold->generation, handle);
		if (!err)
			continue;
		hold->pinned = true; /* no bit of ours to clear */
		/* an open in progress can still be refused; if its block lives, it is pinned */
		if (!hold->opens)
			hold->stale = cl_hold_is_refusal(err) || pin(peer, stamp, handle);
		else
			lost++;
	}
	cl_log(CL_LOG_WARN,
	       "the program closed culimbo's descriptors and was taken for dead by process %u, which is in "
	       "another PID namespace: %u blocks that are open here are not protected any more",
	       peer->region.header->exporter.pid, lost);
}

/* Pins the block because a hold could not be had; @why: -errno. */
static int pin_unheld(struct cl_peer *peer, struct cl_stamp stamp, const void *handle, int why)
{
	cl_log_once(CL_LOG_WARN,
		    "process %u has no room for another holder (error %d): that process keeps each block that "
		    "this one opens until that process ends",
		    peer->region.header->exporter.pid, -why);
	return pin(peer, stamp, handle);
}

bool cl_hold_detach_locked(struct cl_hold *hold)
{
	bool lost;

	cl_peer_need_slot(hold->peer, &lost);
	if (lost)
		hold_again_locked(hold->peer);
	if (!hold->pinned)
		return false;
	cl_table_remove(&cl_holds, &hold->link);
	hold->detached = true;
	return true;
}

bool cl_hold_succeeded_locked(struct cl_peer *peer)
{
	struct cl_link *link, *next;

	if (!cl_peer_is_succeeded(peer))
		return false;
	CL_TABLE_EACH (&cl_holds, link, next) {
		struct cl_hold *hold = (struct cl_hold *)link;

		if (hold->peer != peer)
			continue;
		cl_table_remove(&cl_holds, link);
		hold->detached = true;
	}
	cl_peer_detach(peer);
	return true;
}

/* Returns true if @record, which we hold, is memory that its exporter has freed. */
static bool is_late(const struct cl_region *region, uint32_t record)
{
	/* an event may be opened after its destroy (measured) */
	return region->record[record].kind != CL_EVENT &&
	       cl_life_state(cl_record_life(region, record)) == CL_LIMBO;
}

int cl_hold_take_locked(struct cl_peer *peer, const struct cl_stamp *from, const void *handle,
			struct cl_hold **held)
{
	const struct cl_stamp stamp = *from;
	struct cl_hold *hold;
	bool lost;
	int err;

	hold = hold_new_locked();
	if (!hold)
		return pin_unheld(peer, stamp, handle, -ENOMEM);
	hold->link.key = cl_hold_key(stamp.file_id, stamp.record);
	hold->peer = peer;
	hold->generation = stamp.generation;
	hold->pinned = hold->stale = hold->detached = hold->gone = hold->mapped = false;
	hold->opens = hold->pending = 0;
	cl_table_add(&cl_holds, &hold->link);
	err = cl_peer_need_slot(peer, &lost);
	if (lost)
		hold_again_locked(peer);
	if (!err)
		err = cl_record_hold(&peer->region, (unsigned int)peer->slot, stamp.record,
				     stamp.generation, handle);
	if (err && !cl_hold_is_refusal(err)) {
		err = pin_unheld(peer, stamp, handle, err);
		hold->pinned = !err;
	}
	if (err) {
		cl_table_remove(&cl_holds, &hold->link);
		cl_hold_free_locked(hold);
		return err;
	}
	hold->late = __builtin_expect(cl_options.strict.number, 0) && is_late(&peer->region, stamp.record);
	hold->pending = 1;
	peer->holds++;
	*held = hold;
	return 0;
}

void cl_hold_drop_locked(struct cl_hold *hold)
{
	/* if the slot is not ours any more, our bits in it were cleared */
	if (!hold->pinned && cl_peer_has_slot(hold->peer))
		cl_record_unhold(&hold->peer->region, (unsigned int)hold->peer->slot, cl_hold_record(hold));
	cl_peer_put(hold->peer);
	if (!hold->detached)
		cl_table_remove(&cl_holds, &hold->link);
	if (hold->mapped)
		hold->gone = true;
	else
		cl_hold_free_locked(hold);
}

void cl_hold_keep_locked(struct cl_hold *hold, struct cl_stamp stamp, const void *handle)
{
	struct cl_peer *peer = hold->peer;
	bool lost;
	int err = cl_peer_keep_slot(peer, &lost);

	if (lost)
		hold_again_locked(peer);
	if (!err || hold->pinned)
		return;
	if (pin_unheld(peer, stamp, handle, err)) {
		hold->stale = !hold->opens;
		return;
	}
	if (cl_peer_has_slot(peer))
		cl_record_unhold(&peer->region, (unsigned int)peer->slot, cl_hold_record(hold));
	hold->pinned = true;
}

void cl_holds_forget(void)
{
	/* not freed: a thread of the parent may have been changing them when it forked */
	cl_holds = (struct cl_table)CL_TABLE_BEGIN(cl_holds);
	spare = (struct cl_list){ 0 };
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Holds and mappings: see mappings.h. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim/base/clock.h"
#include "shim/base/hot.h"
#include "shim/base/spare.h"
#include "shim/base/log.h"
#include "shim/diag/report_data.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/importer/mappings.h"
#include "shim/importer/turns.h"
#include "shim/self/self.h"

/* ------------------------------------------------------------------------ holds */
CL_HOT_SHARING_LOCKED struct cl_table cl_holds = CL_TABLE_BEGIN(cl_holds);
enum { MOST_SPARE = 64 };
static CL_HOT_SHARING_LOCKED struct cl_list spares; /* freed holds */

static struct cl_hold *hold_new_locked(void)
{
	struct cl_hold *hold = cl_spare_take(&spares);

	return hold ? hold : malloc(sizeof *hold);
}

void cl_hold_free_locked(struct cl_hold *hold)
{
	cl_spare_give(&spares, hold, MOST_SPARE);
}

/* Has the exporter keep the block until it ends, whoever closes it.  Returns 0, -ESTALE, -EBADMSG or -EAGAIN. */
static int pin(struct cl_peer *peer, struct cl_stamp stamp, const void *handle)
{
	int err = cl_record_pin(&peer->region, stamp.record, stamp.generation, handle);

	if (!err)
		cl_count(pinned);
	return err;
}

/*
 * How long an open waits for an exporter that may be freeing the block.  Most exporters are done by the time that
 * the first yields return; a program's free waits for the driver.
 */
#define PATIENCE 20000000ull /* ns */
enum { YIELDS = 64, PAUSE = 20000 /* ns, at first */, PAUSE_MOST = 1000000 };

bool cl_hold_wait(struct cl_hold_wait *wait)
{
	uint64_t now = cl_now();
	unsigned int pauses = wait->tries - YIELDS;
	struct timespec pause = { .tv_nsec = PAUSE_MOST };

	cl_rank_none();
	if (!wait->until)
		wait->until = now + PATIENCE;
	if (now >= wait->until)
		return false;
	if (wait->tries++ < YIELDS) {
		sched_yield();
		return true;
	}
	if (pauses < 5)
		pause.tv_nsec = PAUSE << pauses;
	nanosleep(&pause, NULL);
	return true;
}

CL_HOT_SHARING bool cl_hold_is_refusal(int err)
{
	return err == -ESTALE || err == -EBADMSG;
}

enum { SOON_DECIDED = 64 }; /* looks at a record whose exporter is about to give its block back */

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
		/* its exporter may just try to give it back, since our bit is gone: it decides soon */
		for (int i = 0; peer->slot >= 0 && i < SOON_DECIDED; i++) {
			err = cl_record_hold(&peer->region, (unsigned int)peer->slot, stamp.record,
					     hold->generation, handle);
			if (err != -EAGAIN)
				break;
			sched_yield();
		}
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
	if (why == -EBADF)
		cl_log_once(CL_LOG_WARN,
			    "no descriptor is to be had for the exporter file of process %u: that process keeps each block that "
			    "this one opens until that process ends",
			    peer->region.header->exporter.pid);
	else
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

CL_HOT_SHARING int cl_hold_take_locked(struct cl_peer *peer, const struct cl_stamp *from, const void *handle,
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
	if (err && err != -EAGAIN && !cl_hold_is_refusal(err)) {
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

CL_HOT_SHARING void cl_hold_drop_locked(struct cl_hold *hold)
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

/* --------------------------------------------------------------------- mappings */
CL_HOT_SHARING_LOCKED struct cl_table cl_mappings[] = {
	CL_TABLE_BEGIN(cl_mappings[0]),
	CL_TABLE_BEGIN(cl_mappings[1]),
	CL_TABLE_BEGIN(cl_mappings[2]),
	CL_TABLE_BEGIN(cl_mappings[3]),
	CL_TABLE_BEGIN(cl_mappings[4]),
};

/* Sets what a mapping of a pool's block has beside @mapping to what it begins with. */
static inline void pool_import_begin_locked(struct cl_mapping *mapping)
{
	struct cl_pool_import *import = (struct cl_pool_import *)mapping;

	import->own.file_id = 0;
	import->rests = import->by_handle = 0;
	import->phase = CL_IMPORT_NEW;
	import->awaited = false;
}

/* Makes a mapping at @key that is not open yet.  Returns NULL if there is no memory. */
static struct cl_mapping *mapping_new_locked(enum cl_kind kind, uint64_t key, const struct cl_opening *o,
					     uint32_t exporter_pid)
{
	struct cl_hold *hold = o->hold;
	bool embedded = hold && !hold->mapped;
	struct cl_mapping *mapping = embedded ? &hold->first :
				     malloc(kind == CL_POOL ? sizeof(struct cl_pool_import) : sizeof *mapping);

	if (!mapping)
		return NULL;
	if (embedded)
		hold->mapped = true;
	mapping->link.key = key;
	mapping->node = (struct cl_node){ NULL, NULL };
	mapping->hold = hold;
	mapping->of = (struct cl_belongs){ .context = NULL };
	mapping->device = o->device;
	mapping->opens = mapping->closing = 0;
	mapping->since = cl_now();
	mapping->size = hold ? hold->peer->region.record[cl_hold_record(hold)].size : 0;
	mapping->stack = o->stack;
	mapping->exporter_pid = hold ? hold->peer->region.header->exporter.pid : exporter_pid;
	mapping->kind = (uint8_t)kind;
	mapping->embedded = embedded;
	if (kind == CL_POOL)
		pool_import_begin_locked(mapping);
	if (o->context)
		cl_belongs_to(&mapping->of, o->context, &o->context->mappings);
	return mapping;
}

static void mapping_delete_locked(struct cl_mapping *mapping)
{
	struct cl_hold *hold;

	cl_belongs_to_none(&mapping->of);
	if (!mapping->embedded) {
		free(mapping);
		return;
	}
	hold = (struct cl_hold *)((char *)mapping - offsetof(struct cl_hold, first));
	hold->mapped = false;
	if (hold->gone)
		cl_hold_free_locked(hold);
}

/* Reports call virtual memory that was opened by a handle memory, as they do any other. */
static enum cl_kind kind_in_reports(unsigned int kind)
{
	return kind == CL_VIRTUAL ? CL_MEMORY : (enum cl_kind)kind;
}

/* Writes @mapping into the import log of our own file, for reports. */
static void mapping_log_locked(enum cl_kind kind, struct cl_mapping *mapping)
{
	const struct cl_hold *hold = mapping->hold;

	mapping->log_entry = cl_import_log_add(&(struct cl_import_entry){
		.key = mapping->link.key,
		.size = mapping->size,
		.since = mapping->since,
		.file_id = hold ? cl_hold_file(hold) : 0,
		.record = hold ? cl_hold_record(hold) : 0,
		.generation = hold ? hold->generation : 0,
		.stack = mapping->stack,
		.exporter_pid = mapping->exporter_pid,
		.kind = (uint8_t)kind_in_reports(kind),
		.device = (uint8_t)mapping->device });
}

/* Returns true if the driver may have mapped another block at the address of @mapping, which is being freed. */
static inline bool is_going_import(enum cl_kind kind, const struct cl_mapping *mapping)
{
	return kind == CL_POOL && ((const struct cl_pool_import *)mapping)->phase == CL_IMPORT_GOING;
}

CL_HOT_SHARING struct cl_mapping *cl_mapping_add_locked(enum cl_kind kind, uint64_t key, struct cl_mapping *oldest,
							const struct cl_opening *o, uint32_t exporter_pid)
{
	struct cl_hold *hold = o->hold;
	struct cl_mapping *mapping, *last = NULL;

	CL_CHAIN_EACH (mapping, oldest, struct cl_mapping, node) {
		if (mapping->hold == hold && mapping->of.context == o->context && !is_going_import(kind, mapping))
			break;
		last = mapping;
	}
	if (!mapping) {
		mapping = mapping_new_locked(kind, key, o, exporter_pid);
		if (!mapping)
			return NULL; /* our hold, and so the block, stays until we end */
		if (last)
			cl_chain_add_after(&last->node, &mapping->node);
		else
			cl_table_add(&cl_mappings[kind], &mapping->link);
	}
	/* while its last close is in the driver, a mapping has no entry in the import log */
	if (!mapping->opens++)
		mapping_log_locked(kind, mapping);
	else
		cl_import_log_opens(mapping->log_entry, mapping->opens);
	return mapping;
}

/* Deletes @mapping if it is not open and no close of it is in progress. */
CL_HOT_SHARING static void mapping_put_locked(enum cl_kind kind, struct cl_mapping *mapping)
{
	struct cl_mapping *newer = CL_LIST_NEXT(mapping, struct cl_mapping, node);

	if (mapping->opens || mapping->closing)
		return;
	if (!mapping->node.prev && !newer) {
		cl_table_remove(&cl_mappings[kind], &mapping->link);
	} else {
		if (!mapping->node.prev)
			cl_table_replace(&cl_mappings[kind], &mapping->link, &newer->link);
		cl_chain_remove(&mapping->node);
	}
	mapping_delete_locked(mapping);
}

/* Fills @to from @mapping.  @when and @stack are those of its first open or of its last close. */
static inline void tell_about(struct cl_about *to, enum cl_kind kind, const struct cl_mapping *mapping,
			      uint64_t when, uint32_t stack)
{
	const struct cl_hold *hold = mapping->hold;

	*to = (struct cl_about){ .key = mapping->link.key,
				 .size = mapping->size,
				 .when = when,
				 .stack = stack,
				 .file_id = hold ? cl_hold_file(hold) : 0,
				 .record = hold ? cl_hold_record(hold) : 0,
				 .generation = hold ? hold->generation : 0,
				 .pid = mapping->exporter_pid,
				 .kind = (uint8_t)kind_in_reports(kind),
				 .device = (uint8_t)mapping->device };
}

CL_HOT_SHARING void cl_mapping_last_close(struct cl_about *to, enum cl_kind kind, const struct cl_mapping *mapping,
					  uint32_t stack)
{
	tell_about(to, kind, mapping, cl_now_roughly(), stack);
}

CL_HOT_SHARING void cl_mapping_closed_locked(enum cl_kind kind, struct cl_mapping *mapping, bool closed,
					     uint32_t stack)
{
	struct cl_hold *hold = mapping->hold;

	mapping->closing--;
	if (closed) {
		cl_trace_mapping(CL_TRACE_CLOSED, kind, mapping->link.key, hold);
		if (mapping->opens) {
			cl_import_log_opens(mapping->log_entry, --mapping->opens);
			if (!mapping->opens && kind != CL_EVENT)
				cl_mapping_last_close(cl_recent_closes_add_memory(), kind, mapping, stack);
		}
		if (hold) {
			hold->opens--;
			cl_hold_put_locked(hold);
		}
		cl_count_close_locked();
	}
	mapping_put_locked(kind, mapping);
}

void cl_mapping_lost_locked(struct cl_mapping *mapping)
{
	cl_belongs_to_none(&mapping->of);
	cl_trace_mapping(CL_TRACE_CLOSED, mapping->kind, mapping->link.key, mapping->hold,
			 .value = mapping->opens);
	if (mapping->hold) {
		mapping->hold->opens -= mapping->opens;
		cl_hold_put_locked(mapping->hold);
		mapping->hold = NULL;
	}
	if (mapping->opens)
		cl_import_log_opens(mapping->log_entry, 0);
	mapping->opens = 0;
	mapping_put_locked((enum cl_kind)mapping->kind, mapping);
}

/* ------------------------------------------------------------- what others ask */
/* Calls @each for every mapping.  @each may delete the one that it is given. */
static void mappings_each_locked(void (*each)(enum cl_kind kind, struct cl_mapping *mapping, void *data),
				 void *data)
{
	for (int kind = CL_MEMORY; kind < CL_KINDS; kind++) {
		struct cl_link *oldest, *next;
		struct cl_mapping *mapping, *newer;

		CL_TABLE_EACH (&cl_mappings[kind], oldest, next)
			for (mapping = (struct cl_mapping *)oldest; mapping; mapping = newer) {
				newer = CL_LIST_NEXT(mapping, struct cl_mapping, node);
				each((enum cl_kind)kind, mapping, data);
			}
	}
}

struct telling {
	void (*each)(const struct cl_import *import, void *data);
	void *data;
};
static struct cl_import describe_locked(enum cl_kind kind, const struct cl_mapping *mapping)
{
	const struct cl_hold *hold = mapping->hold;
	struct cl_import import = { .key = mapping->link.key,
				    .size = mapping->size,
				    .opens = mapping->opens,
				    .since = mapping->since,
				    .exporter_pid = mapping->exporter_pid,
				    .stack = mapping->stack,
				    .device = (uint8_t)mapping->device,
				    .kind = kind_in_reports(kind),
				    .managed = hold != NULL };

	if (hold) {
		const struct cl_region *region = &hold->peer->region;
		enum cl_state state;

		import.file_id = cl_hold_file(hold);
		import.record = cl_hold_record(hold);
		import.generation = hold->generation;
		import.told = cl_peer_has_slot(hold->peer) &&
			      atomic_load_explicit(&region->slot[hold->peer->slot].told, memory_order_relaxed) &
				      CL_TOLD_BY_EXPORTER;
		state = cl_life_state(cl_record_life(region, cl_hold_record(hold)));
		import.stays = state == CL_LIMBO || state == CL_DYING;
	}
	return import;
}

static void tell(enum cl_kind kind, struct cl_mapping *mapping, void *data)
{
	const struct telling *telling = data;
	struct cl_import import = describe_locked(kind, mapping);

	telling->each(&import, telling->data);
}

bool cl_import_find(CUdeviceptr dptr, struct cl_about *import)
{
	const struct cl_mapping *mapping;

	cl_lock(&cl_imports_lock);
	mapping = cl_mapping_find_locked(CL_MEMORY, dptr);
	if (!mapping)
		mapping = cl_mapping_find_locked(CL_VIRTUAL, dptr);
	if (!mapping) {
		mapping = cl_mapping_find_locked(CL_POOL, dptr);
		if (mapping && !((const struct cl_pool_import *)mapping)->by_handle)
			mapping = NULL;
	}
	if (mapping)
		tell_about(import, CL_MEMORY, mapping, mapping->since, mapping->stack);
	cl_unlock(&cl_imports_lock);
	return mapping != NULL;
}

CUcontext cl_mapping_context(enum cl_kind kind, uint64_t key)
{
	const struct cl_mapping *mapping;
	CUcontext context = NULL;

	cl_lock(&cl_imports_lock);
	mapping = cl_mapping_find_locked(kind, key);
	if (mapping && mapping->of.context)
		context = mapping->of.context->handle;
	cl_unlock(&cl_imports_lock);
	return context;
}

void cl_imports_each(void (*each)(const struct cl_import *import, void *data), void *data)
{
	struct telling telling = { each, data };

	mappings_each_locked(tell, &telling);
}

void cl_imports_forget(void)
{
	/* their memory is not freed: a thread of the parent may have been changing them when it forked */
	for (size_t kind = 0; kind < sizeof cl_mappings / sizeof cl_mappings[0]; kind++)
		cl_mappings[kind] = (struct cl_table)CL_TABLE_BEGIN(cl_mappings[kind]);
	cl_holds = (struct cl_table)CL_TABLE_BEGIN(cl_holds);
	spares = (struct cl_list){ .n = 0 };
	cl_turns_forget();
	cl_peers_forget();
}

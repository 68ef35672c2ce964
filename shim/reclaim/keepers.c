/* SPDX-License-Identifier: Apache-2.0 */
/* Names the processes that map freed blocks: see keepers.h. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/log.h"
#include "shim/blocks/own_pools.h"
#include "shim/driver/devices.h"
#include "shim/importer/peers.h"
#include "shim/limbo/exporter.h"
#include "shim/reclaim/keepers.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/view.h"

enum { FILES = 64, KEEPERS = 16, NAMED = 3 };
/* Records of the others' files together, and records that are read under one hold of the locks: each takes some 2 us. */
enum { RECORDS = 4096, AT_ONCE = 256 };
/*
 * WALKED: so many own blocks are passed by at most, under one hold of the lock; each takes some 0.1 us.  FEW: if no more were
 * passed by, the next call that fails may look at once.
 */
enum { WALKED = 16384, FEW = 1024 };
/* The pauses after something was told; after there was nothing to tell; and after many blocks gave nothing to warn of. */
#define TOLD_EVERY 10000000000ull  /* ns */
#define LOOKED_EVERY 1000000000ull /* ns */
#define SOUGHT_EVERY 100000000ull  /* ns */

/* Blocks, and when the first of them was freed, cl_now(), ns. */
struct tally {
	uint64_t bytes, since;
};

/* A process that maps freed blocks of another one. */
struct keeper {
	uint32_t file_id;  /* of the exporter */
	unsigned int slot; /* the keeper's, in that file */
	struct cl_identity exporter, who;
	char name[17];
	bool dead;	    /* what it held is on its way back */
	struct tally all;   /* what it maps; .bytes 0: it has been told */
	struct tally again; /* of that, what the driver alone may have used again for the call */
};

struct look {
	const struct cl_lacked *lacked;
	bool tells, warns; /* of whatever others map; of what the call lacks */
	bool some_left;	   /* some blocks were not looked at or not counted */
	uint32_t own;	  /* our file; 0: we have none */
	uint32_t records; /* of others' files that may still be read */
	unsigned int walked; /* own blocks that were passed by */
	unsigned int n;
	struct keeper keeper[KEEPERS];
};

/* Returns true if a block on @ordinal, as the exporter of @header counts, is or may be on the device of @look. */
static bool is_on_device(const struct look *look, const struct cl_header *header, unsigned int ordinal)
{
	/* acquire: a process that sees the count reads the UUIDs */
	uint32_t n = atomic_load_explicit(&header->devices, memory_order_acquire);

	for (uint32_t i = CL_ANY_DEVICE + 1; look->lacked->uuid && i < n && i < CL_DEVICE_LIMBOS; i++)
		if (header->device[i].ordinal == ordinal + 1)
			return !memcmp(header->device[i].uuid, look->lacked->uuid, CL_UUID);
	return true;
}

/* Returns the entry of the process that has @slot in the file of @view, or NULL: there is no room for one more. */
static struct keeper *keeper_of(struct look *look, const struct cl_view *view, unsigned int slot)
{
	struct keeper *keeper = look->keeper;
	struct cl_view_holder holder;

	for (; keeper < look->keeper + look->n; keeper++)
		if (keeper->file_id == view->region.file_id && keeper->slot == slot)
			return keeper;
	if (look->n == KEEPERS) {
		look->some_left = true;
		return NULL;
	}
	*keeper = (struct keeper){ .file_id = view->region.file_id, .slot = slot,
				   .exporter = view->region.header->exporter };
	keeper->dead = !cl_view_slot(view, slot, &holder) || !holder.alive;
	if (!keeper->dead) {
		keeper->who = holder.who;
		memcpy(keeper->name, holder.name, sizeof keeper->name);
	}
	look->n++;
	return keeper;
}

static void count(struct tally *tally, const struct cl_view_block *block)
{
	if (!tally->bytes || block->freed < tally->since)
		tally->since = block->freed;
	tally->bytes += block->size;
}

/*
 * If @record is of a freed block that others map: counts it for one of these, so that no byte counts twice.  @again: the
 * driver alone may have used it for the call.
 */
static void look_at(struct look *look, const struct cl_view *view, uint32_t record, bool again)
{
	struct cl_view_block block;
	struct keeper *keeper;
	uint16_t slot;

	if (!cl_view_block(view, record, &block) || block.class != CL_VIEW_HELD_LIMBO || block.kind == CL_EVENT ||
	    !is_on_device(look, view->region.header, block.device) || !cl_view_holder_slots(view, record, &slot, 1))
		return;
	keeper = keeper_of(look, view, slot);
	if (!keeper)
		return;
	count(&keeper->all, &block);
	if (again)
		count(&keeper->again, &block);
}

/* Returns true if the driver alone may have used the memory of @block, which is freed, for the call. */
static bool is_reused(const struct cl_block *block, const struct cl_lacked *lacked)
{
	if (cl_block_outlasts_its_free(block) || block->size < lacked->bytes)
		return false;
	if (lacked->pool)
		return block->kind == CL_POOL && block->pool && block->pool->handle == lacked->pool;
	return lacked->small && block->kind == CL_MEMORY;
}

/* Looks at our own blocks that wait for others, the oldest first. */
static void look_at_own(struct look *look)
{
	struct cl_view view = { .region.fd = -1 };
	const struct cl_block *block;
	unsigned int told = 0, warned = 0;

	cl_lock(&cl_exports_lock);
	look->own = cl_own.file_id;
	if (look->own && cl_exporter.limbo.held.n) {
		view = (struct cl_view){ .region = cl_own, .own = true, .borrowed = true, .now = cl_now() };
		CL_LIST_EACH (block, &cl_exporter.limbo.held, const struct cl_block, node) {
			bool again = look->warns && is_reused(block, look->lacked);

			if (look->walked++ == WALKED) {
				look->some_left = true;
				break;
			}
			if (!again && !look->tells)
				continue;
			if (again ? warned++ < AT_ONCE : told++ < AT_ONCE)
				look_at(look, &view, block->record, again);
			else
				look->some_left = true;
		}
	}
	cl_unlock(&cl_exports_lock);
}

/* Looks at the next records of file @file_id, from @record on.  Returns false if these were the last. */
static bool look_into(struct look *look, int dirfd, uint32_t file_id, uint32_t record)
{
	uint32_t last = record + AT_ONCE, n = 0;
	struct cl_view view;

	/* a file that we have open must not go away meanwhile */
	cl_lock(&cl_imports_lock);
	cl_lock(&cl_exports_lock);
	if (!cl_view_open(&view, dirfd, file_id, cl_peer_has_open, NULL)) {
		n = cl_view_records(&view);
		for (; record < n && record < last && look->records; record++, look->records--)
			look_at(look, &view, record, false);
		look->some_left |= record < n && !look->records;
		cl_view_close(&view);
	}
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
	return record < n && look->records;
}

static void look_at_others(struct look *look, const struct cl_pressure *others)
{
	uint32_t files[FILES];
	unsigned int n = cl_pressure_keep(others, files, FILES);
	int dirfd = n ? cl_self_open_dir(false) : -1;

	if (dirfd < 0)
		return;
	for (unsigned int i = 0; i < n; i++)
		for (uint32_t record = 0; look_into(look, dirfd, files[i], record); record += AT_ONCE)
			sched_yield(); /* to who waits for the locks */
	close(dirfd);
}

/* Returns who is told next, or NULL: of those that keep what the call lacks, if there are any, who maps most of that. */
static struct keeper *next_of(struct look *look)
{
	struct keeper *most = NULL;

	for (unsigned int i = 0; i < look->n; i++) {
		struct keeper *keeper = &look->keeper[i];

		if (keeper->dead || !keeper->all.bytes)
			continue;
		if (!most || (keeper->again.bytes != most->again.bytes ? keeper->again.bytes > most->again.bytes :
									 keeper->all.bytes > most->all.bytes))
			most = keeper;
	}
	return most;
}

static const char *elsewhere(const struct cl_identity *who)
{
	return who->pid_ns == cl_self.identity.pid_ns ? "" : " of another PID namespace";
}

static void tell(const struct look *look, const struct keeper *keeper, uint64_t now)
{
	const struct tally *tally = keeper->again.bytes ? &keeper->again : &keeper->all;
	const char *least = look->some_left ? "at least " : "";
	char asked[64] = "a call that needs device memory", whose[64] = "this process";
	unsigned long long ago = now > tally->since ? (now - tally->since) / 1000000000 : 0, bytes = tally->bytes;

	if (look->lacked->bytes)
		snprintf(asked, sizeof asked, "an allocation of %zu bytes", look->lacked->bytes);
	if (keeper->file_id != look->own)
		snprintf(whose, sizeof whose, "process %u%s", keeper->exporter.pid, elsewhere(&keeper->exporter));
	if (keeper->again.bytes)
		cl_log(CL_LOG_WARN,
		       "%s failed, and culimbo keeps memory that it may need: process %u%s (%s) maps %s%llu bytes that this process has "
		       "freed and CUDA alone may use again, the first of them %llu s ago: it should close them, or CULIMBO_HELD_BYTES of this "
		       "process can limit what culimbo keeps of them",
		       asked, keeper->who.pid, elsewhere(&keeper->who), keeper->name, least, bytes, ago);
	else
		cl_log(CL_LOG_INFO,
		       "%s failed while process %u%s (%s) maps %s%llu bytes that %s has freed, the first of them %llu s ago: it should close "
		       "them, or CULIMBO_HELD_BYTES of %s can limit what culimbo keeps of them",
		       asked, keeper->who.pid, elsewhere(&keeper->who), keeper->name, least, bytes, whose, ago, whose);
}

/* When the next turn begins to tell, to warn of small blocks, and to warn of those of pools, cl_now(), ns. */
enum { TELLS, WARNS_SMALL, WARNS_POOL, TURNS };
static _Atomic uint64_t turn[TURNS];

/* Returns true if this thread has the turn.  relaxed: nothing else depends on it. */
static bool take_turn(unsigned int which, uint64_t now)
{
	uint64_t due = atomic_load_explicit(&turn[which], memory_order_relaxed);

	return now >= due && atomic_compare_exchange_strong_explicit(&turn[which], &due, now + TOLD_EVERY, memory_order_relaxed,
								     memory_order_relaxed);
}

static void end_turn(unsigned int which, uint64_t pause)
{
	atomic_store_explicit(&turn[which], cl_now() + pause, memory_order_relaxed);
}

void cl_keepers_tell(const struct cl_pressure *others, const struct cl_lacked *lacked)
{
	const unsigned int warning = lacked->pool ? WARNS_POOL : WARNS_SMALL;
	const bool may_warn = lacked->bytes && (lacked->pool || (lacked->small && lacked->bytes < CL_SMALL_BLOCK));
	unsigned int named = 0, warned = 0;
	struct keeper *keeper;
	uint64_t now = cl_now();
	bool tells = cl_options.log.number >= CL_LOG_INFO && take_turn(TELLS, now);
	bool warns = cl_options.log.number >= CL_LOG_WARN && may_warn && take_turn(warning, now);
	/* not on the stack: a thread of the program may have 16 KiB in all */
	struct look *look = tells || warns ? calloc(1, sizeof *look) : NULL;

	if (!look) {
		if (tells)
			end_turn(TELLS, 0);
		if (warns)
			end_turn(warning, 0);
		return;
	}
	*look = (struct look){ .lacked = lacked, .records = RECORDS, .tells = tells, .warns = warns };
	look_at_own(look);
	if (look->tells)
		look_at_others(look, others);
	for (; named < NAMED && (keeper = next_of(look)) != NULL; named++, keeper->all.bytes = keeper->again.bytes = 0) {
		warned += keeper->again.bytes != 0;
		tell(look, keeper, now);
	}
	if (look->tells)
		end_turn(TELLS, named ? TOLD_EVERY : LOOKED_EVERY);
	if (look->warns)
		end_turn(warning, warned ? TOLD_EVERY : look->walked > FEW ? SOUGHT_EVERY : 0);
	free(look);
}

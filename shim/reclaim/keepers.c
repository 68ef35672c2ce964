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
#define TOLD_EVERY 10000000000ull  /* ns */
#define LOOKED_EVERY 1000000000ull /* ns; if there was nothing to tell */

/* A process that maps freed blocks of another one. */
struct keeper {
	uint32_t file_id;  /* of the exporter */
	unsigned int slot; /* the keeper's, in that file */
	struct cl_identity exporter, who;
	char name[17];
	bool dead;	/* what it held is on its way back */
	uint64_t bytes; /* 0: it has been told */
	uint64_t since; /* when the first of these blocks was freed, cl_now(), ns */
};

struct look {
	const uint8_t *uuid; /* NULL: any device */
	uint32_t own;	  /* our file; 0: we have none */
	uint32_t records; /* of others' files that may still be read */
	unsigned int n;
	struct keeper keeper[KEEPERS];
};

/* Returns true if a block on @ordinal, as the exporter of @header counts, is or may be on the device of @look. */
static bool is_on_device(const struct look *look, const struct cl_header *header, unsigned int ordinal)
{
	/* acquire: a process that sees the count reads the UUIDs */
	uint32_t n = atomic_load_explicit(&header->devices, memory_order_acquire);

	for (uint32_t i = CL_ANY_DEVICE + 1; look->uuid && i < n && i < CL_DEVICE_LIMBOS; i++)
		if (header->device[i].ordinal == ordinal + 1)
			return !memcmp(header->device[i].uuid, look->uuid, CL_UUID);
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
	if (look->n == KEEPERS)
		return NULL;
	*keeper = (struct keeper){ .file_id = view->region.file_id, .slot = slot, .since = UINT64_MAX,
				   .exporter = view->region.header->exporter };
	keeper->dead = !cl_view_slot(view, slot, &holder) || !holder.alive;
	if (!keeper->dead) {
		keeper->who = holder.who;
		memcpy(keeper->name, holder.name, sizeof keeper->name);
	}
	look->n++;
	return keeper;
}

/* If @record is of a freed block that others map: counts it for one of these, so that no byte counts twice. */
static void look_at(struct look *look, const struct cl_view *view, uint32_t record)
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
	keeper->bytes += block.size;
	if (block.freed < keeper->since)
		keeper->since = block.freed;
}

/* Looks at our own blocks that wait for others, the oldest first. */
static void look_at_own(struct look *look)
{
	struct cl_view view = { .region.fd = -1 };
	const struct cl_block *block;
	unsigned int n = 0;

	cl_lock(&cl_exports_lock);
	look->own = cl_own.file_id;
	if (look->own && cl_exporter.limbo.held.n) {
		view = (struct cl_view){ .region = cl_own, .own = true, .borrowed = true, .now = cl_now() };
		CL_LIST_EACH (block, &cl_exporter.limbo.held, const struct cl_block, node) {
			if (n++ == AT_ONCE)
				break;
			look_at(look, &view, block->record);
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
			look_at(look, &view, record);
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

static struct keeper *largest(struct look *look)
{
	struct keeper *most = NULL;

	for (unsigned int i = 0; i < look->n; i++)
		if (!look->keeper[i].dead && look->keeper[i].bytes && (!most || look->keeper[i].bytes > most->bytes))
			most = &look->keeper[i];
	return most;
}

static const char *elsewhere(const struct cl_identity *who)
{
	return who->pid_ns == cl_self.identity.pid_ns ? "" : " of another PID namespace";
}

static void tell(const struct look *look, const struct keeper *keeper, size_t bytes, uint64_t now)
{
	char asked[64] = "a call that needs device memory", whose[64] = "this process";

	if (bytes)
		snprintf(asked, sizeof asked, "an allocation of %zu bytes", bytes);
	if (keeper->file_id != look->own)
		snprintf(whose, sizeof whose, "process %u%s", keeper->exporter.pid, elsewhere(&keeper->exporter));
	cl_log(CL_LOG_INFO,
	       "%s failed while process %u%s (%s) maps %llu bytes that %s has freed, the first of them %llu s ago: it should close "
	       "them, or CULIMBO_HELD_BYTES of %s can limit what culimbo keeps of them",
	       asked, keeper->who.pid, elsewhere(&keeper->who), keeper->name, (unsigned long long)keeper->bytes, whose,
	       (unsigned long long)(now > keeper->since ? (now - keeper->since) / 1000000000 : 0), whose);
}

void cl_keepers_tell(const struct cl_pressure *others, const uint8_t uuid[CL_UUID], size_t bytes)
{
	static _Atomic uint64_t next; /* cl_now(), ns */
	uint64_t due = atomic_load_explicit(&next, memory_order_relaxed), now = cl_now();
	struct keeper *keeper;
	struct look *look;
	unsigned int named = 0;

	/* relaxed: the thread that moves it forth has the turn, and nothing else depends on it */
	if (cl_options.log.number < CL_LOG_INFO || now < due || !atomic_compare_exchange_strong_explicit(&next, &due, now + TOLD_EVERY, memory_order_relaxed,
								 memory_order_relaxed))
		return;
	/* not on the stack: a thread of the program may have 16 KiB in all */
	look = calloc(1, sizeof *look);
	if (!look)
		return;
	look->uuid = uuid;
	look->records = RECORDS;
	look_at_own(look);
	look_at_others(look, others);
	for (; named < NAMED && (keeper = largest(look)) != NULL; named++, keeper->bytes = 0)
		tell(look, keeper, bytes, now);
	atomic_store_explicit(&next, cl_now() + (named ? TOLD_EVERY : LOOKED_EVERY), memory_order_relaxed);
	free(look);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Names the processes that map freed blocks: see keepers.h. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/log.h"
#include "shim/driver/devices.h"
#include "shim/importer/peers.h"
#include "shim/reclaim/keepers.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/view.h"

enum { FILES = 64, KEEPERS = 64, NAMED = 3, HOLDERS = 16 };
/* Records of all files together, and those that are read under one hold of the locks: each takes about a microsecond. */
enum { RECORDS = 65536, AT_ONCE = 1024 };
#define TOLD_EVERY 10000000000ull /* ns */
#define LOOKED_EVERY 100000000ull /* ns; if there was nothing to tell */

/* A process that maps freed blocks of another one. */
struct keeper {
	uint32_t file_id; /* of the exporter */
	unsigned int slot; /* the keeper's, in that file */
	uint32_t exporter_pid, pid;
	char name[17];
	uint64_t bytes;	  /* 0: it has been told */
	uint64_t since;	  /* when the first of these blocks was freed, cl_now(), ns */
};

struct look {
	const uint8_t *uuid; /* NULL: any device */
	uint32_t own;	  /* our file; 0: we have none */
	uint32_t records; /* that may still be read */
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

static void add(struct look *look, uint32_t file_id, unsigned int slot, const struct cl_view_block *block)
{
	struct keeper *keeper = look->keeper;

	while (keeper < look->keeper + look->n && (keeper->file_id != file_id || keeper->slot != slot))
		keeper++;
	if (keeper == look->keeper + KEEPERS)
		return;
	if (keeper == look->keeper + look->n) {
		*keeper = (struct keeper){ .file_id = file_id, .slot = slot, .since = block->freed };
		look->n++;
	}
	keeper->bytes += block->size;
	if (block->freed < keeper->since)
		keeper->since = block->freed;
}

/*
 * Adds those who map what the exporter of @view has freed, and says who they are.  Reads AT_ONCE records from @record on.
 * Returns false if these were the last.
 */
static bool look_at(struct look *look, const struct cl_view *view, uint32_t record)
{
	const struct cl_header *header = view->region.header;
	uint32_t n = cl_view_records(view), file_id = view->region.file_id, last = record + AT_ONCE;
	unsigned int first = look->n;
	struct cl_view_process exporter;
	struct cl_view_holder holder = { .alive = false };
	struct cl_view_block block;
	uint16_t slots[HOLDERS];

	for (; record < n && record < last && look->records; record++, look->records--) {
		unsigned int holders;

		if (!cl_view_block(view, record, &block) || block.class != CL_VIEW_HELD_LIMBO || block.kind == CL_EVENT ||
		    !is_on_device(look, header, block.device))
			continue;
		holders = cl_view_holder_slots(view, record, slots, HOLDERS);
		for (unsigned int i = 0; i < holders && i < HOLDERS; i++)
			add(look, file_id, slots[i], &block);
	}
	if (first != look->n)
		cl_view_process(view, &exporter);
	for (struct keeper *keeper = look->keeper + first; keeper < look->keeper + look->n; keeper++) {
		keeper->exporter_pid = exporter.who.pid;
		/* what a dead process held is on its way back */
		if (!cl_view_slot(view, keeper->slot, &holder) || !holder.alive)
			keeper->bytes = 0;
		keeper->pid = holder.who.pid;
		memcpy(keeper->name, holder.name, sizeof keeper->name);
	}
	return record < n && look->records;
}

static void look_into(struct look *look, int dirfd, uint32_t file_id)
{
	struct cl_view view;
	bool more = true;

	for (uint32_t record = 0; more; record += AT_ONCE) {
		more = false;
		/* a file that we have open must not go away meanwhile */
		cl_lock(&cl_imports_lock);
		cl_lock(&cl_exports_lock);
		if (!cl_view_open(&view, dirfd, file_id, cl_peer_has_open, NULL)) {
			more = look_at(look, &view, record);
			cl_view_close(&view);
		}
		cl_unlock(&cl_exports_lock);
		cl_unlock(&cl_imports_lock);
	}
}

/* Adds our own file, if we have one, and the files in @others. */
static void look_everywhere(struct look *look, const struct cl_pressure *others)
{
	uint32_t files[FILES];
	unsigned int n = cl_pressure_keep(others, files, FILES - 1);
	int dirfd;

	cl_lock(&cl_exports_lock);
	look->own = cl_own.file_id;
	cl_unlock(&cl_exports_lock);
	if (look->own)
		files[n++] = look->own;
	dirfd = n ? cl_self_open_dir(false) : -1;
	if (dirfd < 0)
		return;
	for (unsigned int i = 0; i < n; i++)
		look_into(look, dirfd, files[i]);
	close(dirfd);
}

static struct keeper *largest(struct look *look)
{
	struct keeper *most = NULL;

	for (unsigned int i = 0; i < look->n; i++)
		if (look->keeper[i].bytes && (!most || look->keeper[i].bytes > most->bytes))
			most = &look->keeper[i];
	return most;
}

static void tell(const struct look *look, const struct keeper *keeper, size_t bytes, uint64_t now)
{
	char asked[64] = "a call that needs device memory", whose[32] = "this process";

	if (bytes)
		snprintf(asked, sizeof asked, "an allocation of %zu bytes", bytes);
	if (keeper->file_id != look->own)
		snprintf(whose, sizeof whose, "process %u", keeper->exporter_pid);
	cl_log(CL_LOG_WARN,
	       "%s failed while process %u (%s) maps %llu bytes that %s has freed, the first of them %llu s ago: without culimbo "
	       "it would read what others write there. It should close them, or CULIMBO_HELD_BYTES of %s can limit what is kept",
	       asked, keeper->pid, keeper->name, (unsigned long long)keeper->bytes, whose,
	       (unsigned long long)(now > keeper->since ? (now - keeper->since) / 1000000000 : 0), whose);
}

void cl_keepers_tell(const struct cl_pressure *others, const uint8_t uuid[CL_UUID], size_t bytes)
{
	static _Atomic uint64_t next; /* cl_now(), ns */
	uint64_t due = atomic_load_explicit(&next, memory_order_relaxed), now = cl_now(), rest = 0;
	unsigned int named = 0, more = 0;
	struct keeper *keeper;
	struct look *look;

	/* relaxed: the thread that moves it forth has the turn, and nothing else depends on it */
	if (now < due || !atomic_compare_exchange_strong_explicit(&next, &due, now + LOOKED_EVERY, memory_order_relaxed,
								 memory_order_relaxed))
		return;
	/* not on the stack: a thread of the program may have 16 KiB in all */
	look = calloc(1, sizeof *look);
	if (!look)
		return;
	look->uuid = uuid;
	look->records = RECORDS;
	look_everywhere(look, others);
	for (; (keeper = largest(look)) != NULL; keeper->bytes = 0)
		if (named++ < NAMED) {
			tell(look, keeper, bytes, now);
		} else {
			more++;
			rest += keeper->bytes;
		}
	if (more)
		cl_log(CL_LOG_WARN, "%u more processes map %llu bytes that were freed", more, (unsigned long long)rest);
	if (named)
		atomic_store_explicit(&next, now + TOLD_EVERY, memory_order_relaxed);
	free(look);
}

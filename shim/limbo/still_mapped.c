/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that were freed while others had them mapped: see still_mapped.h. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/importer/peers.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/still_mapped.h"
#include "shim/self/self.h"
#include "shim/shm/view.h"

enum { HOLDERS_SEEN = 16 }; /* at most this many holders of a block are checked for being alive */

struct cl_still_entry {
	struct cl_link link;	/* its key: the record */
	struct cl_about about;	/* who has it open, since when and from where */
	uint32_t free_stack;
	unsigned int slot;	/* of that process */
	bool died;		/* without closing it */
	bool unmapped;		/* virtual memory: it becomes a finding only if .anew */
	bool anew;		/* something else was mapped at its address */
	uint64_t allocation;	/* the number of what was unmapped */
};

static bool has_holders(struct cl_exporter *ex, uint32_t record)
{
	return cl_record_holders(ex->blocks.region, record, NULL, 0) != 0;
}

/* Finds a process that lives and holds @record.  Returns false if there is none. */
static bool find_living_locked(struct cl_exporter *ex, uint32_t record, struct cl_view_holder *holder, unsigned int *slot)
{
	struct cl_view view = { .region = *ex->blocks.region, .now = cl_now() };
	uint16_t slots[HOLDERS_SEEN];
	unsigned int n = cl_record_holders(&view.region, record, slots, HOLDERS_SEEN);

	for (unsigned int i = 0; i < n && i < HOLDERS_SEEN; i++) {
		*slot = slots[i];
		if (cl_view_slot(&view, *slot, holder) && holder->alive)
			return true;
	}
	return false;
}

/* Returns an entry that names a living holder of @record, or NULL: there is none, or no memory. */
static struct cl_still_entry *entry_new_locked(struct cl_exporter *ex, uint32_t record,
					     struct cl_view_holder *holder)
{
	struct cl_still_entry *entry;
	unsigned int slot;

	if (!find_living_locked(ex, record, holder, &slot))
		return NULL;
	entry = calloc(1, sizeof *entry);
	if (!entry)
		return NULL;
	entry->link.key = record;
	entry->slot = slot;
	entry->about.pid = holder->who.pid;
	memcpy(entry->about.name, holder->name, sizeof entry->about.name);
	return entry;
}

/* Fills in when and where @holder has opened the block, as its own file says.  Wants both locks. */
static void find_open_locked(struct cl_exporter *ex, struct cl_still_entry *entry,
			     const struct cl_identity *holder)
{
	const struct cl_region *region = ex->blocks.region;
	uint32_t record = (uint32_t)entry->link.key;
	struct cl_view_import import;
	struct cl_view its;
	int dirfd;

	/* a finding that will only be counted needs none of it, and to read a long import log takes time */
	if (atomic_load_explicit(&region->header->findings, memory_order_relaxed) +
		    ex->still_mapped.entries.n >= CL_FINDINGS)
		return;
	dirfd = cl_self_open_dir(false);
	if (dirfd < 0)
		return;
	if (!cl_view_open_process(&its, dirfd, holder, cl_peer_has_open)) {
		/* the view reads by the descriptor, which the program may have closed */
		if (cl_region_fd_intact(&its.region) &&
		    cl_view_import_of(&its, region->file_id, record,
				      cl_life_generation(cl_record_life(region, record)), &import)) {
			entry->about.when = import.since;
			entry->about.stack = cl_stack_copy_locked(&its, import.stack);
		}
		cl_view_close(&its);
	}
	close(dirfd);
}

struct cl_still_entry *cl_still_look(struct cl_exporter *ex, const struct cl_block *block)
{
	struct cl_view_holder holder;
	struct cl_still_entry *entry;

	if (block->kind == CL_EVENT || block->record == CL_NO_RECORD || !has_holders(ex, block->record))
		return NULL;
	cl_lock(&cl_imports_lock);
	cl_lock(&cl_exports_lock);
	entry = entry_new_locked(ex, block->record, &holder);
	if (entry)
		find_open_locked(ex, entry, &holder.who);
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
	return entry;
}

void cl_still_discard(struct cl_still_entry *entry)
{
	free(entry);
}

static void tell_locked(const struct cl_still_entry *entry)
{
	struct cl_about about = entry->about;

	about.until = cl_now();
	cl_happened_locked(CL_FINDING_FREED_WHILE_MAPPED, &about, entry->free_stack);
}

/*
 * Returns true if @entry tells of something that no other finding tells of.  That a holder ended without closing
 * virtual memory says nothing of what it read there before.
 */
static bool is_to_be_told(const struct cl_still_entry *entry)
{
	return entry->unmapped ? entry->anew : !entry->died;
}

/* Removes @entry, and makes a finding of it if @tell. */
static void end_locked(struct cl_exporter *ex, struct cl_still_entry *entry, bool tell)
{
	cl_table_remove(&ex->still_mapped.entries, &entry->link);
	if (tell && is_to_be_told(entry))
		tell_locked(entry);
	free(entry);
}

void cl_still_enter_locked(struct cl_exporter *ex, const struct cl_block *block,
			   struct cl_still_entry *entry)
{
	struct cl_still_entry *before;
	struct cl_view_holder holder;
	struct cl_about about;

	/* the record is in the limbo: from here on an importer that takes a hold is reported as opening late */
	if (block->kind == CL_EVENT || block->record == CL_NO_RECORD || !has_holders(ex, block->record)) {
		cl_still_discard(entry);
		return;
	}
	if (!entry) /* it was opened meanwhile; where is not asked under this lock */
		entry = entry_new_locked(ex, block->record, &holder);
	if (!entry)
		return;
	/* of an earlier generation of the record, of which no collection has told us */
	before = cl_table_find(&ex->still_mapped.entries, block->record);
	if (before)
		end_locked(ex, before, true);
	about = cl_block_about_locked(&ex->blocks, block);
	entry->about.key = about.key;
	entry->about.size = about.size;
	entry->about.file_id = about.file_id;
	entry->about.record = about.record;
	entry->about.generation = about.generation;
	entry->about.kind = about.kind;
	entry->about.device = about.device;
	entry->about.at = about.when;
	entry->free_stack = about.stack;
	cl_table_add(&ex->still_mapped.entries, &entry->link);
}

/* The record may have gone on to another generation: then nobody holds what the entry is of. */
static bool is_held(struct cl_exporter *ex, const struct cl_still_entry *entry)
{
	uint32_t record = (uint32_t)entry->link.key;

	return cl_life_generation(cl_record_life(ex->blocks.region, record)) == entry->about.generation &&
	       has_holders(ex, record);
}

void cl_still_unmapped_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t allocation,
			      uint32_t stack)
{
	struct cl_still_entry *entry;

	if (!has_holders(ex, block->record))
		return;
	cl_still_enter_locked(ex, block, NULL);
	entry = cl_table_find(&ex->still_mapped.entries, block->record);
	/* without memory there is none, or one of an earlier generation */
	if (!entry || !is_held(ex, entry))
		return;
	entry->unmapped = true;
	entry->allocation = allocation;
	entry->about.made = CL_MADE_VIRTUAL;
	entry->free_stack = stack;
	entry->about.at = cl_now();
}

/* Something else was mapped where the memory of @entry was.  If a living process holds that memory, names such a one. */
static void set_anew_locked(struct cl_exporter *ex, struct cl_still_entry *entry)
{
	struct cl_view_holder holder;
	unsigned int slot;

	if (!is_held(ex, entry) || !find_living_locked(ex, (uint32_t)entry->link.key, &holder, &slot))
		return;
	entry->anew = true;
	if (slot == entry->slot)
		return;
	/* when and where that one opened it is not known here */
	entry->slot = slot;
	entry->about.pid = holder.who.pid;
	memcpy(entry->about.name, holder.name, sizeof entry->about.name);
	entry->about.when = 0;
	entry->about.stack = 0;
}

void cl_still_mapped_anew_locked(struct cl_exporter *ex, uint64_t address, uint64_t size, uint64_t allocation)
{
	struct cl_link *link, *next;

	CL_TABLE_EACH (&ex->still_mapped.entries, link, next) {
		struct cl_still_entry *entry = (struct cl_still_entry *)link;

		/* the same allocation at its old place has the bytes that the holders read */
		if (entry->unmapped && !entry->anew && entry->about.key < address + size &&
		    address < entry->about.key + entry->about.size &&
		    !(allocation && allocation == entry->allocation && address == entry->about.key))
			set_anew_locked(ex, entry);
	}
}

void cl_still_left_locked(struct cl_exporter *ex, uint32_t record)
{
	struct cl_still_entry *entry = cl_table_find(&ex->still_mapped.entries, record);

	if (entry && !is_held(ex, entry))
		end_locked(ex, entry, true);
}

void cl_still_died_locked(struct cl_exporter *ex, uint32_t record, unsigned int slot)
{
	struct cl_still_entry *entry = cl_table_find(&ex->still_mapped.entries, record);

	if (entry && entry->slot == slot)
		entry->died = true;
}

void cl_still_forced_out_locked(struct cl_exporter *ex, uint32_t record)
{
	struct cl_still_entry *entry = cl_table_find(&ex->still_mapped.entries, record);

	if (entry)
		end_locked(ex, entry, false);
}

void cl_still_end_locked(struct cl_exporter *ex)
{
	struct cl_link *link, *next;

	CL_TABLE_EACH (&ex->still_mapped.entries, link, next)
		if (!is_held(ex, (const struct cl_still_entry *)link))
			end_locked(ex, (struct cl_still_entry *)link, true);
}

struct counting {
	struct cl_exporter *ex;
	uint64_t n;
};
static void count_held(struct cl_block *block, void *data)
{
	const unsigned int not_in_limbo = 1u << CL_BLOCK_LIVE | 1u << CL_BLOCK_FREEING |
					  1u << CL_BLOCK_UNTRACKED | 1u << CL_BLOCK_ORPHANED;
	struct counting *counting = data;

	if (!(not_in_limbo >> block->state & 1) && !block->counted && has_holders(counting->ex, block->record))
		counting->n++;
}

uint64_t cl_still_kept_locked(struct cl_exporter *ex)
{
	struct counting counting = { ex, 0 };

	cl_block_each(&ex->blocks, CL_MEMORY, count_held, &counting);
	cl_block_each(&ex->blocks, CL_POOL, count_held, &counting);
	return counting.n + cl_count_get(kept_mapped);
}

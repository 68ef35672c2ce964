/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that the program has freed while another process still had them mapped: the bug that
 * culimbo exists for.  With CULIMBO_STRICT it is a finding, CL_FINDING_FREED_WHILE_MAPPED.
 *
 * An entry is made at the free: only then the holder's own file still says where it has opened the
 * block.  The finding is made when the last holder has closed the block, since only then it is
 * known how long that was.  No finding is made where another one tells of the same hold: the
 * holder died (CL_FINDING_HOLD_RECLAIMED; but see cl_still_mapped_anew_locked()), the block was forced out (CL_FINDING_HELD_FORCED_OUT), or
 * it is still mapped when this process ends (the report's class held-in-limbo, which under
 * CULIMBO_MODE=observe has blocks that the driver has back).
 *
 * An event has no entry: CUDA allows a program to destroy an event that others have open.  A block that only
 * this process itself has opened has none either: without culimbo CUDA refuses such an open.
 *
 * Entries lie in private memory, and no hold, free or open is decided by them.  If this process is
 * killed they are lost, and its file still says which blocks were freed and are held.
 * Functions that end in _locked want cl_exports_lock held.
 */
#ifndef CL_STILL_MAPPED_H
#define CL_STILL_MAPPED_H

#include "shim/base/table.h"
#include "shim/blocks/blocks.h"
#include "shim/self/self.h"
#include "shim/shm/live.h"

struct cl_exporter;
struct cl_still_entry;

struct cl_still_mapped {
	struct cl_table entries; /* by record */
};

/*
 * Before @block, which this thread is freeing, enters the limbo: finds a living process that has
 * it open, and where it was opened.  Returns an entry for cl_still_enter_locked(), or NULL.  Opens
 * that process's file.  The caller holds no lock.
 */
struct cl_still_entry *cl_still_look(struct cl_exporter *ex, const struct cl_block *block);
/* @block has entered the limbo.  If others hold it, keeps @entry, or makes one if that is NULL.  Else frees @entry. */
void cl_still_enter_locked(struct cl_exporter *ex, const struct cl_block *block,
			   struct cl_still_entry *entry);
/* Frees @entry, which may be NULL: its block does not enter the limbo. */
void cl_still_discard(struct cl_still_entry *entry);

/*
 * unmapped(): the program unmaps @block, virtual memory, at @stack.  If others hold it an entry is made, with and
 * without CULIMBO_STRICT.  mapped_anew(): the program maps something at @address.  If a living process still holds a
 * block that was there, and that is not what is mapped now, its entry becomes a finding when the last holder closes it or
 * ends: until then that holder reads the old bytes.  @allocation is the number of what is unmapped, or mapped as a whole;
 * 0 stands for another one, or a part.
 */
void cl_still_unmapped_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t allocation,
			      uint32_t stack);
void cl_still_mapped_anew_locked(struct cl_exporter *ex, uint64_t address, uint64_t size, uint64_t allocation);

/* A holder of @record has gone: if it was the last one, the entry of @record becomes a finding. */
void cl_still_left_locked(struct cl_exporter *ex, uint32_t record);
/* The process in @slot has died while it held @record. */
void cl_still_died_locked(struct cl_exporter *ex, uint32_t record, unsigned int slot);
/* @record is forced out: no finding is made of its entry. */
void cl_still_forced_out_locked(struct cl_exporter *ex, uint32_t record);
/* This process ends: makes findings of all entries whose blocks nobody holds any more. */
void cl_still_end_locked(struct cl_exporter *ex);

/* Counts a block of the limbo whose last holder has just gone, once; also without CULIMBO_STRICT. */
static inline void cl_still_count_kept(const struct cl_region *region, struct cl_block *block)
{
	/* a ready bit may be left of an earlier block with this record */
	if (block->counted || block->kind == CL_EVENT || !cl_block_in_limbo(block) ||
	    block->state == CL_BLOCK_ORPHANED) /* the driver has it no more */
		return;
	block->counted = true;
	cl_count(kept_mapped);
	cl_live_add(region, CL_LIVE_KEPT_MAPPED, 1);
}
/* Returns how many blocks were in the limbo while other processes had them mapped. */
uint64_t cl_still_kept_locked(struct cl_exporter *ex);

#endif

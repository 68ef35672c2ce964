/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records and holds: the protocol between an exporter and its importers.
 *
 * The rules are in shm/layout.h.  No globals.  The functions for the exporter
 * are called by one thread at a time (its own lock); those for an importer by
 * one thread at a time for each slot.  Any process may be killed in any of them.
 */
#ifndef CL_RECORD_H
#define CL_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/region.h"

/* What cl_record_publish() writes into a record. */
struct cl_export {
	enum cl_kind kind;
	uint64_t base, size;	   /* device address and bytes; 0 for an event */
	int device;
	const uint8_t *handle;	   /* the driver's, 64 bytes, of which the last 8 are not kept */
	uint64_t now;		   /* CLOCK_MONOTONIC, ns */
	uint64_t pool;		   /* the CUmemoryPool that has it; 0: none, or not known */
};

/* ---------------------------------------------------------- for the exporter */
/* FREE to EXPORTED.  Returns the generation for the stamp. */
uint32_t cl_record_publish(struct cl_region *region, uint32_t record, const struct cl_export *what);
/* Counts one more export.  Returns the generation for the stamp. */
uint32_t cl_record_export_again(struct cl_region *region, uint32_t record, uint64_t now);
/* EXPORTED to LIMBO: the program freed it. */
void cl_record_to_limbo(struct cl_region *region, uint32_t record, uint64_t now);
/* Writes that the program frees it at @stack (0: not known).  A holder's death may be reported at that moment. */
static inline void cl_record_freed_from(struct cl_region *region, uint32_t record, uint32_t stack)
{
	atomic_store_explicit(&region->record[record].free_stack, stack, memory_order_relaxed);
}
/* Writes that the program unmaps it, at @stack (0: not known).  What follows is cl_record_orphan(). */
void cl_record_unmapped(struct cl_region *region, uint32_t record, uint64_t now, uint32_t stack);
/*
 * LIMBO, EXPORTED or ORPHANED to the next generation's FREE, unless somebody holds the record.
 * Returns true if nobody did: then every handle of it is stale, and the block may go back to
 * the driver.  Returns false if it is held: its state is as before.
 */
bool cl_record_try_release(struct cl_region *region, uint32_t record);
/*
 * The two halves of that, for a caller that asks the driver in between.  If begin() returns
 * true the record is DYING, and the caller gives *before to end().  end() makes the record the
 * next generation's FREE if @released, else what it was before.  If begin() returns false
 * somebody holds the record, and its state is as before.
 */
bool cl_record_release_begin(struct cl_region *region, uint32_t record, uint64_t *before);
void cl_record_release_end(struct cl_region *region, uint32_t record, uint64_t before,
			   bool released);
/*
 * The driver's object has gone, although somebody may hold it.  Returns true if the record
 * is FREE now.  Returns false if holders keep it ORPHANED: the caller tries
 * cl_record_try_release() when they have closed it.
 */
bool cl_record_orphan(struct cl_region *region, uint32_t record);
/* As cl_record_orphan(), for a block that we give back although it is held: reports tell that from the end of a context. */
bool cl_record_give_back_held(struct cl_region *region, uint32_t record);
/* Marks the record of an event that we give back before its importers are done.  Its state stays as it is. */
void cl_record_forced_out(struct cl_region *region, uint32_t record);
/* Marks a record that the program has freed under CULIMBO_MODE=observe.  The caller then calls cl_record_orphan(). */
void cl_record_freed_observed(struct cl_region *region, uint32_t record);
/*
 * Returns true if @record was opened at least as often as it was exported, so that probably no
 * handle of it is under way.  This is a hint: no held block is given back because of it.
 */
bool cl_record_was_opened(const struct cl_region *region, uint32_t record);
/* Returns false if all generations of @record are used up: it must not be published again. */
bool cl_record_reusable(const struct cl_region *region, uint32_t record);
/*
 * Takes records out of the ready map into @out, at most @max, which is 64 or more.  Returns
 * how many.  The time it takes grows with what is ready, not with the number of records.
 */
unsigned int cl_record_take_ready(struct cl_region *region, uint32_t *out, unsigned int max);
/* Returns true if a record is ready.  Costs a few loads. */
bool cl_record_any_ready(const struct cl_region *region);

/* ---------------------------------------------------------- for an importer */
/*
 * Takes a hold for @slot on generation @generation of @record.  Returns 0 if it is held, -ESTALE
 * if that generation is over or never was, -EBADMSG if there is no such record or its handle is
 * not @handle (see cl_record_is()), -EAGAIN if the exporter is just finding out whether it may free
 * the block (DYING), another -errno if the holder page could not be had: then pin the block or do
 * without.
 *
 * The exporter leaves DYING within a few instructions or, when its program frees the block just then,
 * when the driver has answered; or never, if its process was killed just there.  So after -EAGAIN the
 * caller asks again for a while, without a lock.
 */
int cl_record_hold(struct cl_region *region, unsigned int slot, uint32_t record,
		   uint32_t generation, const uint8_t *handle);
/* As cl_record_hold(), without a slot: the exporter keeps the block as long as it lives. */
int cl_record_pin(struct cl_region *region, uint32_t record, uint32_t generation,
		  const uint8_t *handle);
/*
 * Counts an open of @record by an importer that holds it already.  cl_record_hold() and
 * cl_record_pin() count theirs themselves.  Any thread.
 */
void cl_record_opened(struct cl_region *region, uint32_t record);
/* Gives the hold back.  Wakes the exporter's collector if it was the last hold of a freed block. */
void cl_record_unhold(struct cl_region *region, unsigned int slot, uint32_t record);

/* ------------------------------------------------------------------ for all */
static inline uint64_t cl_record_life(const struct cl_region *region, uint32_t record)
{
	/* acquire: what was published with the state is seen with it */
	return atomic_load_explicit(&region->record[record].life, memory_order_acquire);
}
/* Returns true if anybody holds @record, by a bit or a pin. */
bool cl_record_held(const struct cl_region *region, uint32_t record);
/*
 * Returns true if @handle, 64 bytes, is the record's driver handle.  The first 8 bytes, which are
 * of the context that it was asked for in, and the last 8, where the stamp goes, are not compared.
 */
bool cl_record_is(const struct cl_region *region, uint32_t record, const void *handle);
/* Writes the record's driver handle to @handle, with zeros where the stamp goes. */
void cl_record_handle(const struct cl_region *region, uint32_t record, uint8_t handle[64]);
/* Returns how many slots hold @record, and writes up to @max of them to @slots. */
unsigned int cl_record_holders(const struct cl_region *region, uint32_t record,
			       uint16_t *slots, unsigned int max);
/* Marks @record as possibly free of holders, and wakes the collector if it sleeps. */
void cl_record_set_ready(struct cl_region *region, uint32_t record);
void cl_region_wake(struct cl_region *region);

/*
 * Clears every bit of @slot, and marks the records ready that this freed of holders.  The caller
 * owns the slot, or reaps it.  Returns the number of holds that it cleared.  Calls @each, if not
 * NULL, for each record before its bit is cleared.
 */
unsigned int cl_record_clear_slot(struct cl_region *region, unsigned int slot,
				  void (*each)(void *data, uint32_t record), void *data);

#endif

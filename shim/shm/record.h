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

/* What an export says of itself. */
struct cl_export {
	enum cl_kind kind;
	uint64_t base, size;	   /* device address and bytes; 0 for an event */
	int device;
	const uint8_t *handle;	   /* the driver's, 64 bytes; the last 8, where the stamp goes, are not noted */
	uint64_t now;		   /* CLOCK_MONOTONIC, ns */
};

/* ---------------------------------------------------------- for the exporter */
/* FREE to EXPORTED.  Returns the generation that goes into the stamp. */
uint32_t cl_record_publish(struct cl_region *region, uint32_t record, const struct cl_export *what);
/* Exported once more.  Returns the same. */
uint32_t cl_record_export_again(struct cl_region *region, uint32_t record, uint64_t now);
/* EXPORTED to LIMBO: the program freed it. */
void cl_record_to_limbo(struct cl_region *region, uint32_t record, uint64_t now);
/*
 * LIMBO (or EXPORTED) to the next generation's FREE, unless somebody holds it.
 * Returns true when nobody did: from then on every handle of it is stale, and
 * the block may go back to the driver.  False: held; it is LIMBO (EXPORTED) as before.
 */
bool cl_record_try_release(struct cl_region *region, uint32_t record);
/*
 * The same in two halves, for who must ask the driver in between: begin() leaves
 * the record DYING and says in *before what to give end(), which makes it the next
 * generation's FREE, or, when not @released, what it was.
 */
bool cl_record_release_begin(struct cl_region *region, uint32_t record, uint64_t *before);
void cl_record_release_end(struct cl_region *region, uint32_t record, uint64_t before,
			   bool released);
/*
 * The driver's object is gone, whoever held it.  Returns true when the record
 * is FREE; false when holders keep it GONE: try cl_record_try_release() when
 * they go.
 */
bool cl_record_gone(struct cl_region *region, uint32_t record);
/*
 * Whether @record was opened at least as often as it was exported: no handle of
 * it seems to be under way.  A hint, by which nothing is given back that is held.
 */
bool cl_record_was_opened(const struct cl_region *region, uint32_t record);
/* False when all generations of this record are used up: it must not be published again. */
bool cl_record_reusable(const struct cl_region *region, uint32_t record);
/*
 * Takes up to @max records out of the ready map into @out.  Costs what is
 * ready, not what there is.
 */
unsigned int cl_record_take_ready(struct cl_region *region, uint32_t *out, unsigned int max);
/* Whether anything is ready: a few loads. */
bool cl_record_any_ready(const struct cl_region *region);

/* ---------------------------------------------------------- for an importer */
/*
 * Takes a hold for @slot on generation @generation of @record.  0: held.
 * -ESTALE: that generation is over (or was never).  -EBADMSG: there is no such
 * record, or its handle is not @handle, see cl_record_is().  -ENOSPC: the hold's page
 * could not be had: pin it or do without.
 */
int cl_record_hold(struct cl_region *region, unsigned int slot, uint32_t record,
		   uint32_t generation, const uint8_t *handle);
/* The same without a slot: the block is kept as long as its exporter lives. */
int cl_record_pin(struct cl_region *region, uint32_t record, uint32_t generation,
		  const uint8_t *handle);
/*
 * Counts an open of @record by who has a hold of it, or is about to get one
 * (cl_record_hold() and cl_record_pin() count theirs).  Any thread.
 */
void cl_record_opened(struct cl_region *region, uint32_t record);
/* Gives the hold back; wakes the exporter's collector if it was the last one in limbo. */
void cl_record_unhold(struct cl_region *region, unsigned int slot, uint32_t record);

/* ------------------------------------------------------------------ for all */
static inline uint64_t cl_record_life(const struct cl_region *region, uint32_t record)
{
	/* acquire: what was published with the state is seen with it */
	return atomic_load_explicit(&region->record[record].life, memory_order_acquire);
}
/* Whether anybody holds it: counted from the bits (or pinned). */
bool cl_record_held(const struct cl_region *region, uint32_t record);
/*
 * Whether @handle, 64 bytes, is its driver handle.  Not looked at are the first 8, which are of
 * the context that it was asked for in, and the last 8, where the stamp goes.
 */
bool cl_record_is(const struct cl_region *region, uint32_t record, const void *handle);
/* That driver handle, with zeros where the stamp goes. */
void cl_record_handle(const struct cl_region *region, uint32_t record, uint8_t handle[64]);
/* How many hold it; up to @max of their slots go to @slots. */
unsigned int cl_record_holders(const struct cl_region *region, uint32_t record,
			       uint16_t *slots, unsigned int max);
/* Says that @record may have come free, and wakes the collector if it sleeps. */
void cl_record_set_ready(struct cl_region *region, uint32_t record);
void cl_region_wake(struct cl_region *region);

/*
 * Clears every bit of @slot, making ready what came free by it.  The caller
 * owns the slot, or reaps it.  Returns the number of holds that it cleared.
 * @each, if not NULL, is told of each record.
 */
unsigned int cl_record_clear_slot(struct cl_region *region, unsigned int slot,
				  void (*each)(void *data, uint32_t record), void *data);

#endif

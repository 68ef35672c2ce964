/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual memory of this process: which addresses it has reserved (cuMemAddressReserve), and which
 * allocation (cuMemCreate) is mapped where.  Only under CULIMBO_SHARE=all; what was made past our
 * hooks is not known, and not shared.
 *
 * What must hold: a reservation, and the last handle of an allocation, leave the tables before the driver's call that
 * ends them, since the driver may give them to another thread after that.  A mapping stays until the driver has
 * answered, and is .ending meanwhile.  A new entry is made after the driver's call.
 *
 * All of it is under cl_exports_lock, which the caller holds.  Nothing here calls the driver or waits.
 * Without host memory an entry is missing, and the memory is not shared.
 */
#ifndef CL_RANGES_H
#define CL_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/base/table.h"
#include "shim/driver/driver.h"

struct cl_block;

/* An allocation of the program: physical memory. */
struct cl_physical {
	struct cl_link link;	 /* its key: the driver's handle */
	bool listed;		 /* it is in the table by its handle */
	bool shareable;		 /* the driver makes descriptors of it */
	bool added;		 /* only culimbo has asked for that, not the program */
	unsigned int asked;	 /* the handle types that the program has asked for */
	uint64_t handles, ranges; /* references: the program's handles, and mappings */
	uint64_t releasing;	  /* how many calls that give a handle back are in the driver */
	uint64_t size;
	uint64_t number; /* no other allocation of this process has it */
	int device;
};

/* A mapping. */
struct cl_range {
	uint64_t base, size;
	struct cl_physical *physical; /* NULL: not known, or only a part of it is mapped here */
	struct cl_block *block;	      /* NULL: it was not shared */
	unsigned int exporting;	      /* threads that ask the driver for descriptors of it */
	bool ending;		      /* it is being unmapped; only cl_range_set_ending_locked() writes it */
};

/* A reservation. */
struct cl_reserved {
	uint64_t base, size;
	uint64_t number;	 /* no other reservation of this process has it or gets it later */
	uint16_t changes;	 /* see virtual_handle.h; raised by the first handle after a change */
	bool changed;		 /* since the last handle something was mapped here, or began or ceased to end */
	struct cl_range *range;	 /* in order of their addresses */
	size_t ranges, room;
};

static inline bool cl_range_is_shareable(const struct cl_range *range)
{
	return range->physical && range->physical->shareable && !range->ending;
}
static inline uint64_t cl_range_end(const struct cl_range *range)
{
	return range->base + range->size;
}

/* ---------------------------------------------------------------- allocations */
/* The driver has made @handle.  @what describes it; this function sets .link, .listed and the references. */
void cl_physical_add_locked(CUmemGenericAllocationHandle handle, const struct cl_physical *what);
/* Returns the allocation of @handle, or NULL if it is not known. */
struct cl_physical *cl_physical_find_locked(CUmemGenericAllocationHandle handle);
/* The driver has given the program @handle once more, of what is mapped at @address. */
void cl_physical_retained_locked(CUmemGenericAllocationHandle handle, uint64_t address);
/*
 * The program gives @handle back.  release() comes before the driver's call, and returns the allocation, or
 * NULL if it is not known.  *last becomes true if nothing else leads to it: then, if the driver accepts the call,
 * free() ends it without the lock.  In all other cases released() comes after the call; @released: it was accepted.
 */
struct cl_physical *cl_physical_release_locked(CUmemGenericAllocationHandle handle, bool *last);
void cl_physical_released_locked(struct cl_physical *physical, bool released);
void cl_physical_free(struct cl_physical *physical);

/* --------------------------------------------------------------- reservations */
/*
 * The driver has reserved these addresses.  An older reservation of them that is still in the table has been freed: past our
 * hooks, or while another thread unmapped there.  It is taken out, unless it has mappings.
 */
void cl_reserved_add_locked(uint64_t base, uint64_t size);
/*
 * Returns the reservation in which @address lies, or NULL.  Of two that overlap: the one that begins later, or else is
 * newer; behind the end of that one NULL.
 */
struct cl_reserved *cl_reserved_at_locked(uint64_t address);
/*
 * take() comes before the driver frees a reservation.  It takes the one that begins at @base out of the
 * table, or returns NULL if there is none or it has mappings.  After the driver's call free() forgets it or,
 * if the driver has refused, put_back() enters it again.
 */
struct cl_reserved *cl_reserved_take_locked(uint64_t base, uint64_t size);
void cl_reserved_put_back_locked(struct cl_reserved *reserved);
void cl_reserved_free(struct cl_reserved *reserved);

/* -------------------------------------------------------------------- mappings */
/* The driver has mapped @handle, from @offset on, at @address. */
void cl_range_add_locked(uint64_t address, uint64_t size, uint64_t offset, CUmemGenericAllocationHandle handle);
/* Returns the index of the first mapping of @reserved that ends above @address. */
size_t cl_range_from(const struct cl_reserved *reserved, uint64_t address);
/* Returns the mapping in which @address lies, or NULL. */
struct cl_range *cl_range_at_locked(uint64_t address);
/*
 * Returns how many mappings of @reserved lie within @size bytes from @address.  *first is the index of the
 * first one.  *whole becomes true if these mappings cover all @size bytes.
 */
size_t cl_ranges_within(const struct cl_reserved *reserved, uint64_t address, uint64_t size, size_t *first,
			bool *whole);
/*
 * Returns the mapping of just @size bytes at @address, with its reservation in *@reserved and its index there in *@i, if
 * it was not shared and no thread exports it.  Returns NULL if there is none, or if another entry lies there, too: then
 * it was unmapped past our hooks.
 */
struct cl_range *cl_range_alone_locked(uint64_t address, uint64_t size, struct cl_reserved **reserved, size_t *i);
/* @range of @reserved is being unmapped, or, if not @ending, it was not unmapped after all. */
void cl_range_set_ending_locked(struct cl_reserved *reserved, struct cl_range *range, bool ending);
/* Takes out the mapping @i of @reserved, which has no block. */
void cl_range_remove_locked(struct cl_reserved *reserved, size_t i);

void cl_ranges_forget(void); /* in a forked child */

#endif

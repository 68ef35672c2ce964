/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual memory of this process: see ranges.h.
 *
 * Each call about virtual memory looks into these tables once or twice.  So the functions on the way of a program that
 * shares nothing are CL_HOT, and some are compiled into their callers (always_inline, also in shim/virtual.c).
 */
#include <stdlib.h>
#include <string.h>

#include "shim/base/hot.h"
#include "shim/base/log.h"
#include "shim/exporter/ranges.h"

/* A lookup of a reservation reads only the first 64 bytes of this, a line of the processor's cache. */
static CL_HOT_LOCKED struct {
	struct cl_reserved *found;     /* what a lookup found last; NULL after a change of the table */
	struct cl_reserved **reserved; /* all of them, in order of their addresses */
	uint32_t reserved_n, reserved_room;
	struct cl_table by_handle; /* the allocations */
	uint64_t last_reservation, last_allocation; /* the numbers given last */
	bool overlapped; /* one may begin within another one: some were freed, but have mappings */
} known = { .by_handle = CL_TABLE_BEGIN(known.by_handle) };

/* ---------------------------------------------------------------- allocations */
static inline __attribute__((always_inline)) void list(struct cl_physical *physical, CUmemGenericAllocationHandle handle)
{
	physical->link.key = handle;
	physical->listed = true;
	cl_table_add(&known.by_handle, &physical->link);
}

static inline __attribute__((always_inline)) void unlist(struct cl_physical *physical)
{
	if (physical->listed)
		cl_table_remove(&known.by_handle, &physical->link);
	physical->listed = false;
}

static void put(struct cl_physical *physical)
{
	if (physical->handles || physical->ranges || physical->releasing)
		return;
	unlist(physical);
	free(physical);
}

CL_HOT struct cl_physical *cl_physical_find_locked(CUmemGenericAllocationHandle handle)
{
	return cl_table_find(&known.by_handle, handle);
}

static void say_no_memory(void)
{
	cl_log_once(CL_LOG_WARN, "no host memory to remember virtual memory: some of it cannot be shared");
}

CL_HOT void cl_physical_add_locked(CUmemGenericAllocationHandle handle, const struct cl_physical *what)
{
	struct cl_physical *old = cl_physical_find_locked(handle), *physical = malloc(sizeof *physical);

	/* the allocation that had this number was released past us; its mappings may be left */
	if (old) {
		unlist(old);
		old->handles = 0;
		put(old);
	}
	if (!physical) {
		say_no_memory();
		return;
	}
	*physical = *what;
	physical->handles = 1;
	physical->number = ++known.last_allocation;
	physical->ranges = physical->releasing = 0;
	list(physical, handle);
}

void cl_physical_retained_locked(CUmemGenericAllocationHandle handle, uint64_t address)
{
	const struct cl_range *range = cl_range_at_locked(address);
	struct cl_physical *physical = range ? range->physical : NULL, *other;

	if (!physical)
		return;
	other = cl_physical_find_locked(handle);
	if (other != physical) {
		if (other)
			unlist(other);
		unlist(physical);
		list(physical, handle);
	}
	physical->handles++;
}

CL_HOT struct cl_physical *cl_physical_release_locked(CUmemGenericAllocationHandle handle, bool *last)
{
	struct cl_physical *physical = cl_physical_find_locked(handle);

	*last = false;
	if (!physical || !physical->handles)
		return NULL;
	physical->handles--;
	physical->releasing++;
	/* another thread may get the number for a new allocation */
	if (!physical->handles && !physical->ranges) {
		unlist(physical);
		*last = physical->releasing == 1;
	}
	return physical;
}

CL_HOT void cl_physical_free(struct cl_physical *physical)
{
	free(physical);
}

void cl_physical_released_locked(struct cl_physical *physical, bool released)
{
	physical->releasing--;
	if (!released) {
		physical->handles++;
		if (!physical->listed && !cl_physical_find_locked(physical->link.key))
			list(physical, physical->link.key);
	}
	put(physical);
}

/* --------------------------------------------------------------- reservations */
/* Returns how many reservations begin at @address or below. */
static size_t count_below(uint64_t address)
{
	size_t low = 0, high = known.reserved_n;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (known.reserved[middle]->base <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static inline bool lies_in(const struct cl_reserved *reserved, uint64_t address)
{
	return address - reserved->base < reserved->size;
}

CL_HOT struct cl_reserved *cl_reserved_at_locked(uint64_t address)
{
	size_t n;

	if (known.found && lies_in(known.found, address))
		return known.found;
	n = count_below(address);
	if (!n || !lies_in(known.reserved[n - 1], address))
		return NULL;
	/* an old one that a newer one overlaps does not speak for all of its addresses */
	if (n == known.reserved_n || !lies_in(known.reserved[n - 1], known.reserved[n]->base))
		known.found = known.reserved[n - 1];
	return known.reserved[n - 1];
}

void cl_reserved_put_back_locked(struct cl_reserved *reserved)
{
	size_t n = count_below(reserved->base);

	if (known.reserved_n == known.reserved_room) {
		size_t room = 2 * known.reserved_room + 16;
		struct cl_reserved **wide = realloc(known.reserved, room * sizeof(struct cl_reserved *));

		if (!wide) {
			say_no_memory();
			cl_reserved_free(reserved);
			return;
		}
		known.reserved = wide;
		known.reserved_room = room;
	}
	/* as long as nothing overlaps, only a neighbour can; after that .overlapped is true until nothing does */
	if ((n && lies_in(known.reserved[n - 1], reserved->base)) ||
	    (n < known.reserved_n && lies_in(reserved, known.reserved[n]->base)))
		known.overlapped = true;
	memmove(known.reserved + n + 1, known.reserved + n, (known.reserved_n - n) * sizeof *known.reserved);
	known.reserved[n] = reserved;
	known.reserved_n++;
	known.found = NULL;
}

/* Returns the reservation @n of the table, and takes it out. */
static struct cl_reserved *take_out(size_t n)
{
	struct cl_reserved *reserved = known.reserved[n];

	known.found = NULL;
	known.reserved_n--;
	memmove(known.reserved + n, known.reserved + n + 1, (known.reserved_n - n) * sizeof *known.reserved);
	return reserved;
}

/* As forget_freed_locked(), where reservations of the table overlap each other.  Finds out whether some still do. */
static void forget_freed_of_all(uint64_t base, uint64_t size)
{
	uint64_t reached = 0;

	known.overlapped = false;
	for (size_t n = 0; n < known.reserved_n;) {
		const struct cl_reserved *old = known.reserved[n];
		uint64_t end = old->base + old->size;

		if (old->base < base + size && end > base && !old->ranges) {
			cl_reserved_free(take_out(n));
			continue;
		}
		if (old->base < reached)
			known.overlapped = true;
		if (end > reached)
			reached = end;
		n++;
	}
}

/* Takes out older reservations that overlap these addresses: the driver has freed them.  Those with mappings stay. */
static void forget_freed_locked(uint64_t base, uint64_t size)
{
	if (known.overlapped) {
		forget_freed_of_all(base, size);
		return;
	}
	for (size_t n = count_below(base + size - 1); n-- > 0;) {
		const struct cl_reserved *old = known.reserved[n];

		/* none overlap, so all lower ones end even earlier */
		if (old->base + old->size <= base)
			break;
		if (!old->ranges)
			cl_reserved_free(take_out(n));
	}
}

void cl_reserved_add_locked(uint64_t base, uint64_t size)
{
	struct cl_reserved *reserved = calloc(1, sizeof *reserved);

	forget_freed_locked(base, size);
	if (!reserved) {
		say_no_memory();
		return;
	}
	reserved->base = base;
	reserved->size = size;
	reserved->number = ++known.last_reservation;
	cl_reserved_put_back_locked(reserved);
}

struct cl_reserved *cl_reserved_take_locked(uint64_t base, uint64_t size)
{
	size_t n = count_below(base);
	const struct cl_reserved *reserved = n ? known.reserved[n - 1] : NULL;

	if (!reserved || reserved->base != base || reserved->size != size || reserved->ranges)
		return NULL;
	return take_out(n - 1);
}

void cl_reserved_free(struct cl_reserved *reserved)
{
	free(reserved->range);
	free(reserved);
}

/* -------------------------------------------------------------------- mappings */
CL_HOT size_t cl_range_from(const struct cl_reserved *reserved, uint64_t address)
{
	size_t low = 0, high = reserved->ranges;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (cl_range_end(&reserved->range[middle]) <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct cl_range *cl_range_at_locked(uint64_t address)
{
	struct cl_reserved *reserved = cl_reserved_at_locked(address);
	size_t i = reserved ? cl_range_from(reserved, address) : 0;

	return reserved && i < reserved->ranges && reserved->range[i].base <= address ? &reserved->range[i] : NULL;
}

CL_HOT void cl_range_add_locked(uint64_t address, uint64_t size, uint64_t offset, CUmemGenericAllocationHandle handle)
{
	struct cl_reserved *reserved = cl_reserved_at_locked(address);
	struct cl_physical *physical = cl_physical_find_locked(handle);
	size_t i;

	if (!reserved)
		return;
	if (reserved->ranges == reserved->room) {
		size_t room = 2 * reserved->room + 4;
		struct cl_range *wide = realloc(reserved->range, room * sizeof *wide);

		if (!wide) {
			say_no_memory();
			return;
		}
		reserved->range = wide;
		reserved->room = room;
	}
	/* an importer maps the whole of what a descriptor stands for */
	if (physical && (offset || size != physical->size))
		physical = NULL;
	i = cl_range_from(reserved, address);
	if (i < reserved->ranges)
		memmove(reserved->range + i + 1, reserved->range + i, (reserved->ranges - i) * sizeof *reserved->range);
	reserved->range[i] = (struct cl_range){ .base = address, .size = size, .physical = physical };
	reserved->ranges++;
	reserved->changed = true;
	if (physical)
		physical->ranges++;
}

CL_HOT struct cl_range *cl_range_alone_locked(uint64_t address, uint64_t size, struct cl_reserved **reserved, size_t *i)
{
	struct cl_reserved *at = *reserved = cl_reserved_at_locked(address);
	struct cl_range *range;

	*i = at ? cl_range_from(at, address) : 0;
	if (!at || *i == at->ranges)
		return NULL;
	range = &at->range[*i];
	if (range->base != address || range->size != size || range->block || range->exporting ||
	    (*i + 1 < at->ranges && range[1].base < cl_range_end(range)))
		return NULL;
	return range;
}

CL_HOT void cl_range_set_ending_locked(struct cl_reserved *reserved, struct cl_range *range, bool ending)
{
	range->ending = ending;
	reserved->changed = true;
}

size_t cl_ranges_within(const struct cl_reserved *reserved, uint64_t address, uint64_t size, size_t *first,
			bool *whole)
{
	uint64_t end = address + size, covered = 0;
	size_t i = cl_range_from(reserved, address), n = 0;

	if (i < reserved->ranges && reserved->range[i].base < address)
		i++;
	*first = i;
	for (; i < reserved->ranges && cl_range_end(&reserved->range[i]) <= end; i++, n++)
		covered += reserved->range[i].size;
	*whole = covered == size;
	return n;
}

CL_HOT void cl_range_remove_locked(struct cl_reserved *reserved, size_t i)
{
	struct cl_physical *physical = reserved->range[i].physical;

	reserved->ranges--;
	if (i < reserved->ranges)
		memmove(reserved->range + i, reserved->range + i + 1, (reserved->ranges - i) * sizeof *reserved->range);
	if (!physical)
		return;
	physical->ranges--;
	put(physical);
}

void cl_ranges_forget(void)
{
	/* not freed: a thread of the parent may have been changing them when it forked */
	known.by_handle = (struct cl_table)CL_TABLE_BEGIN(known.by_handle);
	known.found = NULL;
	known.reserved = NULL;
	known.reserved_n = known.reserved_room = 0;
	known.overlapped = false;
}

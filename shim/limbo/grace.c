/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grace and its budget: see grace.h.
 *
 * A page that one block covers wholly is that block's alone, so such pages are counted by arithmetic.  Only the
 * first and the last page of a block can be shared with its neighbours; each has an entry in a table, which
 * counts its waiting blocks.  Without memory for an entry the page counts once more, for that block alone.  The
 * block remembers this in .alone: bit 0 for the first of its pages that it covers in part, bit 1 for the second.
 */
#include <stdlib.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/inside.h"

enum {
	GRACES_AT_ONCE = 1024, /* of so many blocks, which were opened, one free ends the grace at most */
	LOST_AT_ONCE = 64,     /* and of so many others, whose handles become stale */
	LOOKS_MOST = 4096,     /* a free that searches for blocks that were opened looks at so many blocks at most */
	VAIN_MOST = 6,	       /* so at least LOOKS_MOST / 64 */
	TICKS_A_GRACE = 64,    /* so a block is at most 1/64 of the grace late */
};
#define MILLISECOND 1000000ull

uint64_t cl_grace_set_tick(struct cl_grace *grace)
{
	grace->tick = cl_options.grace.number / TICKS_A_GRACE;
	if (grace->tick < MILLISECOND)
		grace->tick = MILLISECOND;
	return grace->tick;
}

/* -------------------------------------------------------------------- pages */
struct cl_grace_page {
	struct cl_link link; /* its key: the wheel and the number of the page */
	uint64_t blocks;     /* so many waiting blocks of that wheel cover a part of it, those .alone not counted */
};

/* If @block lies in one page and does not fill it, returns the number of that page.  Else returns 0, as for page 0. */
static inline uint64_t only_page(const struct cl_block *block)
{
	uint64_t page = block->link.key >> CL_GRACE_PAGE_BITS;

	return block->size < CL_GRACE_PAGE && (block->link.key + block->size - 1) >> CL_GRACE_PAGE_BITS == page ? page : 0;
}

/* The pages that a block touches for which only_page() returns 0. */
struct pages {
	uint64_t inner;	   /* bytes of those that it covers wholly */
	uint64_t outer[2]; /* the numbers of those that it covers in part, .outer_n of them */
	unsigned int outer_n;
};

CL_HOT_SHARING static struct pages pages_of(const struct cl_block *block)
{
	uint64_t from = block->link.key, to = from + block->size;
	uint64_t inner_from = (from + CL_GRACE_PAGE - 1) >> CL_GRACE_PAGE_BITS, inner_to = to >> CL_GRACE_PAGE_BITS;
	struct pages pages = { .inner = 0 };

	/* it lies in page 0, which only_page() cannot name */
	if (inner_from > inner_to) {
		pages.outer_n = 1;
		return pages;
	}
	pages.inner = (inner_to - inner_from) << CL_GRACE_PAGE_BITS;
	if (from & (CL_GRACE_PAGE - 1))
		pages.outer[pages.outer_n++] = inner_from - 1;
	if (to & (CL_GRACE_PAGE - 1))
		pages.outer[pages.outer_n++] = inner_to;
	return pages;
}

static inline uint64_t key_of(unsigned int at, uint64_t page)
{
	return (uint64_t)at << (64 - CL_GRACE_PAGE_BITS) | page;
}

/* Counts a page that no entry counts yet.  Returns false without memory for the entry. */
static __attribute__((noinline)) bool page_new(struct cl_grace *grace, unsigned int at, uint64_t key)
{
	struct cl_grace_page *entry = malloc(sizeof *entry);

	grace->bytes[at] += CL_GRACE_PAGE;
	if (!entry)
		return false;
	entry->link.key = key;
	entry->blocks = 1;
	cl_table_add(&grace->pages, &entry->link);
	return true;
}

/* Counts one more waiting block on @page.  Returns false without memory for the entry of the page. */
static inline bool page_add(struct cl_grace *grace, unsigned int at, uint64_t page)
{
	struct cl_grace_page *entry = cl_table_find(&grace->pages, key_of(at, page));

	if (!entry)
		return page_new(grace, at, key_of(at, page));
	entry->blocks++;
	return true;
}

CL_HOT_SHARING static void page_remove(struct cl_grace *grace, unsigned int at, uint64_t page, bool alone)
{
	struct cl_grace_page *entry = alone ? NULL : cl_table_find(&grace->pages, key_of(at, page));

	if (entry && --entry->blocks)
		return;
	grace->bytes[at] -= CL_GRACE_PAGE;
	if (!entry)
		return;
	cl_table_remove(&grace->pages, &entry->link);
	free(entry);
}

static __attribute__((noinline)) void count_many(struct cl_grace *grace, unsigned int at, struct cl_block *block)
{
	struct pages pages = pages_of(block);

	grace->bytes[at] += pages.inner;
	for (unsigned int i = 0; i < pages.outer_n; i++)
		if (!page_add(grace, at, pages.outer[i]))
			block->alone |= (uint8_t)(1u << i) & 3;
}

static inline void count_pages(struct cl_grace *grace, unsigned int at, struct cl_block *block)
{
	uint64_t page = only_page(block);

	if (!page)
		count_many(grace, at, block);
	else if (!page_add(grace, at, page))
		block->alone = 1;
}

static void uncount_pages(struct cl_grace *grace, unsigned int at, struct cl_block *block)
{
	uint64_t page = only_page(block);
	struct pages pages;

	if (page) {
		page_remove(grace, at, page, block->alone);
	} else {
		pages = pages_of(block);
		grace->bytes[at] -= pages.inner;
		for (unsigned int i = 0; i < pages.outer_n; i++)
			page_remove(grace, at, pages.outer[i], block->alone >> i & 1);
	}
	block->alone = 0;
}

/* Returns by how many bytes the pages of @block, which waits in no wheel, would add to those of wheel @at. */
static uint64_t added_by(const struct cl_grace *grace, unsigned int at, const struct cl_block *block)
{
	uint64_t page = only_page(block), bytes;
	struct pages pages;

	if (page)
		return cl_table_find(&grace->pages, key_of(at, page)) ? 0 : CL_GRACE_PAGE;
	pages = pages_of(block);
	bytes = pages.inner;
	for (unsigned int i = 0; i < pages.outer_n; i++)
		if (!cl_table_find(&grace->pages, key_of(at, pages.outer[i])))
			bytes += CL_GRACE_PAGE;
	return bytes;
}

/* --------------------------------------------------------------- the budget */
CL_HOT_SHARING void cl_grace_know_device(struct cl_exporter *ex, CUdevice device)
{
	_Atomic uint64_t *known = &ex->grace.device_size[cl_grace_wheel_of_device(device)];
	size_t size = 0;

	if (device == CL_NO_DEVICE)
		return;
	/* relaxed, here and below: the number stands alone */
	if (atomic_load_explicit(known, memory_order_relaxed) || !cl_driver.cuDeviceTotalMem_v2)
		return;
	if (cl_driver.cuDeviceTotalMem_v2(&size, device) == CUDA_SUCCESS)
		atomic_store_explicit(known, size, memory_order_relaxed);
}

CL_HOT_SHARING bool cl_grace_is_refused_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t now,
					       bool *early)
{
	unsigned int at = cl_grace_wheel_of(block);
	uint64_t budget, most;

	*early = cl_grace_end(ex, block) > now;
	if (!*early)
		return true;
	budget = cl_grace_budget(ex, at);
	most = cl_grace_touched(block);
	if (most > budget)
		return true;
	return ex->grace.bytes[at] + most > budget && cl_record_was_opened(ex->blocks.region, block->record) &&
	       ex->grace.bytes[at] + added_by(&ex->grace, at, block) > budget;
}

CL_HOT_SHARING void cl_grace_add_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now)
{
	unsigned int at = cl_grace_wheel_of(block);
	uint64_t tick = cl_grace_tick(&ex->grace);

	block->bucket = cl_wheel_add(&ex->grace.wheel[at], &block->node, cl_grace_end(ex, block) / tick + 1,
				     now / tick);
	if (block->size)
		count_pages(&ex->grace, at, block);
	ex->grace.waiting++;
	if (at >= ex->grace.wheels_n)
		ex->grace.wheels_n = at + 1;
}

CL_HOT_SHARING void cl_grace_remove_locked(struct cl_exporter *ex, struct cl_block *block)
{
	unsigned int at = cl_grace_wheel_of(block);

	if (ex->grace.look[at].after == &block->node)
		ex->grace.look[at].after = block->node.prev;
	cl_wheel_remove(&ex->grace.wheel[at], &block->node, block->bucket);
	if (block->size)
		uncount_pages(&ex->grace, at, block);
	ex->grace.waiting--;
}

/* ----------------------------------------------------------- over the budget */
/* Returns the next block of @wheel, which has some: each in turn, over and over. */
static struct cl_block *look_on(const struct cl_wheel *wheel, struct cl_grace_look *look)
{
	struct cl_node *node = look->after ? look->after->next : wheel->bucket[look->bucket].first;

	while (!node) {
		look->bucket = (look->bucket + 1) % CL_BUCKETS;
		node = wheel->bucket[look->bucket].first;
	}
	look->after = node;
	return CL_LIST_ENTRY(node, struct cl_block, node);
}

/*
 * Returns a block in wheel @at that was opened at least as often as it was exported, or NULL.  The search goes on
 * where the one before stopped, of this free or an earlier one.  After a free that found none the next free looks at
 * half as many: a program whose importers run without culimbo has none, and each look can miss the cache.
 */
static struct cl_block *next_opened(struct cl_exporter *ex, unsigned int at, struct cl_grace_round *round)
{
	const struct cl_wheel *wheel = &ex->grace.wheel[at];
	struct cl_grace_look *look = &ex->grace.look[at];
	unsigned int most = LOOKS_MOST >> look->vain;

	for (uint64_t n = wheel->n; n && round->looks < most; n--) {
		struct cl_block *block = look_on(wheel, look);

		round->looks++;
		if (cl_record_was_opened(ex->blocks.region, block->record)) {
			look->vain = 0;
			return block;
		}
	}
	look->vain += !round->ended && look->vain < VAIN_MOST;
	round->searched = true;
	return NULL;
}

/* Returns the block of @wheel, which has some, whose grace ends first. */
static struct cl_block *first_to_end(const struct cl_wheel *wheel)
{
	return CL_LIST_FIRST(&wheel->bucket[cl_wheel_next(wheel, wheel->at + 1) % CL_BUCKETS], struct cl_block, node);
}

struct cl_block *cl_grace_next_over_locked(struct cl_exporter *ex, struct cl_block *entered,
					   struct cl_grace_round *round)
{
	unsigned int at = cl_grace_wheel_of(entered);
	const struct cl_wheel *wheel = &ex->grace.wheel[at];
	struct cl_block *block = NULL;

	if (!cl_grace_is_over(ex, entered) || !wheel->n)
		return NULL;
	if (!round->searched && round->ended < GRACES_AT_ONCE)
		block = next_opened(ex, at, round);
	if (round->searched && round->lost < LOST_AT_ONCE) {
		round->lost++;
		block = first_to_end(wheel);
	}
	if (!block && entered->state == CL_BLOCK_GRACE)
		block = entered;
	round->ended += block != NULL;
	return block;
}

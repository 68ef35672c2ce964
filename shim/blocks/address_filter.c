/* SPDX-License-Identifier: Apache-2.0 */
/* Tells addresses at which nothing was exported: see address_filter.h. */
#include <stdatomic.h>

#include "shim/base/hash.h"
#include "shim/base/hot.h"
#include "shim/blocks/address_filter.h"
#include "shim/shm/layout.h"

/*
 * A process that shares frees mostly memory that it never exported.  The table tells that, too,
 * but takes a lock and misses the cache at each block on the way.  The filter has 16 to 32 bits a
 * block.  A clear bit says that no block whose address hashes to it was in the table when the
 * bits were last rebuilt, or has come since.
 *
 * A rebuild makes a second set of bits from the table, a few words with each block that comes,
 * and then switches to it.  That is possible since a bit and a bucket of the table are both the
 * first bits of the same hash.  Readers take no lock: `seq` is odd during the switch, and a
 * reader that finds it odd or changed answers "may be".  Only the memory of bits in use is
 * touched; it begins as zeros.
 */
enum { BITS_A_BLOCK = 16, STEPS = 2 };

/* Returns the first word of the set that is not in use. */
static uint32_t other_set(const struct cl_address_filter *filter)
{
	return cl_filter_first(cl_filter_use(filter)) ^ CL_FILTER_WORDS;
}

/* Sets @bit of the set that begins at the word @first.  Returns 1, or 0 if it was set already.  Only one thread writes. */
static uint32_t set_bit(struct cl_address_filter *filter, uint32_t first, uint64_t bit)
{
	_Atomic uint64_t *word = &filter->bits->word[first + bit / 64];
	uint64_t before = atomic_load_explicit(word, memory_order_relaxed);

	if (before >> bit % 64 & 1)
		return 0;
	atomic_store_explicit(word, before | 1ull << bit % 64, memory_order_relaxed);
	return 1;
}

/* Switches to the set @use, which has @set bits that are 1. */
static void take_set(struct cl_address_filter *filter, uint32_t use, uint32_t set)
{
	uint32_t seq = atomic_load_explicit(&filter->seq, memory_order_relaxed) + 1;

	atomic_store_explicit(&filter->seq, seq, memory_order_relaxed);
	/* release: a reader of anything that is written from here on finds `seq` odd or changed */
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&filter->use, use, memory_order_relaxed);
	filter->set = set;
	atomic_store_explicit(&filter->seq, seq + 1, memory_order_release);
}

/* Sets the bits of one word that are of @table, from the buckets whose elements may have bits in it. */
static void rebuild_from(struct cl_address_filter *filter, uint32_t set, const struct cl_table *table)
{
	unsigned int log = filter->new_log - 6;
	uint64_t n = table->log > log ? 1ull << (table->log - log) : 1;
	uint64_t first = table->log > log ? filter->step * n : filter->step >> (log - table->log);

	for (uint64_t i = first; i < first + n; i++) {
		/* an undivided bucket of `old` stands for two */
		const struct cl_link *link = i / 2 < table->divided ? table->bucket[i] : table->old[i / 2];

		for (; link; link = link->next) {
			uint64_t bit = cl_hash_word(link->key) >> (64 - filter->new_log);

			if (bit / 64 == filter->step)
				filter->new_set += set_bit(filter, set, bit);
		}
	}
}

/* Rebuilds one word. */
static void rebuild_step(struct cl_address_filter *filter, const struct cl_table *tables, unsigned int kinds)
{
	uint32_t set = other_set(filter);

	atomic_store_explicit(&filter->bits->word[set + filter->step], 0, memory_order_relaxed);
	for (unsigned int kind = 0; kind < CL_KINDS; kind++)
		if (kinds >> kind & 1 && tables[kind].n)
			rebuild_from(filter, set, &tables[kind]);
	if (++filter->step == filter->steps)
		take_set(filter, set | (filter->new_log - CL_FILTER_LEAST), filter->new_set);
}

/* Returns how many addresses are in those of @tables that the filter is for. */
static uint64_t addresses_in(const struct cl_table *tables, unsigned int kinds)
{
	uint64_t n = 0;

	for (unsigned int kind = 0; kind < CL_KINDS; kind++)
		n += kinds >> kind & 1 ? tables[kind].n : 0;
	return n;
}

/* Begins a rebuild, in which the bits get twice the room that the addresses need. */
static void rebuild_begin(struct cl_address_filter *filter, const struct cl_table *tables, unsigned int kinds)
{
	uint64_t n = addresses_in(tables, kinds);
	unsigned int log;

	for (log = CL_FILTER_LEAST; log < CL_FILTER_MOST && 1ull << log < n * BITS_A_BLOCK * 2;)
		log++;
	filter->new_log = log;
	filter->new_set = filter->step = 0;
	filter->steps = 1u << (log - 6);
}

/*
 * Adds an address with @hash to the rebuild that is under way, or begins one, and rebuilds a few words.
 * noinline: most additions have none of that.
 */
static __attribute__((noinline)) void rebuild(struct cl_address_filter *filter, const struct cl_table *tables,
					      unsigned int kinds, uint64_t hash)
{
	unsigned int log = cl_filter_log(cl_filter_use(filter));
	uint64_t bit;

	if (filter->step < filter->steps) {
		/* the rebuild finds this block in the table for words that are still to come */
		bit = hash >> (64 - filter->new_log);
		if (bit / 64 < filter->step)
			filter->new_set += set_bit(filter, other_set(filter), bit);
	} else if (log < CL_FILTER_MOST ||
		   /* a set that cannot grow is rebuilt to lose the bits of blocks that have gone */
		   filter->set > 2 * addresses_in(tables, kinds)) {
		rebuild_begin(filter, tables, kinds);
	}
	for (unsigned int i = 0; i < STEPS && filter->step < filter->steps; i++)
		rebuild_step(filter, tables, kinds);
}

CL_HOT_SHARING void cl_address_filter_add(struct cl_address_filter *filter, const struct cl_table *tables,
					  unsigned int kinds, uint64_t address)
{
	uint32_t use = cl_filter_use(filter);
	uint64_t hash = cl_hash_word(address);

	filter->set += set_bit(filter, cl_filter_first(use), cl_filter_bit(use, hash));
	if (__builtin_expect(filter->step < filter->steps || (uint64_t)filter->set * BITS_A_BLOCK > 1ull << cl_filter_log(use), 0))
		rebuild(filter, tables, kinds, hash);
}

void cl_address_filter_begin(struct cl_address_filter *filter, struct cl_filter_bits *bits)
{
	filter->bits = bits;
	for (unsigned int i = 0; i < (1u << CL_FILTER_LEAST) / 64; i++)
		atomic_store_explicit(&filter->bits->word[i], 0, memory_order_relaxed);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tells addresses at which nothing was exported: see address_filter.h. */
#include <stdatomic.h>

#include "shim/base/hash.h"
#include "shim/blocks/address_filter.h"

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
enum { FEWEST_BITS = 12, MOST_BITS = 24, BITS_A_BLOCK = 16, STEPS = 2 }; /* the first two are logarithms */
static struct {
	_Atomic uint32_t seq;
	_Atomic uint32_t use; /* bit 0: the set in use; above it: the logarithm of its bits less FEWEST_BITS */
	uint32_t set; /* bits that are 1 in the set in use */
	uint32_t new_set, step, steps; /* of a rebuild; step is steps: there is none */
	unsigned int new_log;
	_Atomic uint64_t bits[2][(1u << MOST_BITS) / 64];
} exported;

static unsigned int log_of(uint32_t use)
{
	return FEWEST_BITS + use / 2;
}

static uint32_t exported_use(void)
{
	return atomic_load_explicit(&exported.use, memory_order_relaxed);
}

bool cl_block_may_be(uint64_t address)
{
	/* acquire, here and in the fence: what is read between is of one set */
	uint32_t seq = atomic_load_explicit(&exported.seq, memory_order_acquire);
	uint32_t use = exported_use();
	uint64_t bit = cl_hash_word(address) >> (64 - log_of(use));
	uint64_t word = atomic_load_explicit(&exported.bits[use % 2][bit / 64], memory_order_relaxed);

	atomic_thread_fence(memory_order_acquire);
	return (word >> bit % 64 & 1) || seq % 2 ||
	       atomic_load_explicit(&exported.seq, memory_order_relaxed) != seq;
}

/* Sets @bit.  Returns 1, or 0 if it was set already.  Only one thread writes at a time. */
static uint32_t exported_set(unsigned int which, uint64_t bit)
{
	uint64_t before = atomic_load_explicit(&exported.bits[which][bit / 64], memory_order_relaxed);

	if (before >> bit % 64 & 1)
		return 0;
	atomic_store_explicit(&exported.bits[which][bit / 64], before | 1ull << bit % 64,
			      memory_order_relaxed);
	return 1;
}

/* Switches to the set @use, which has @set bits that are 1. */
static void exported_take(uint32_t use, uint32_t set)
{
	uint32_t seq = atomic_load_explicit(&exported.seq, memory_order_relaxed) + 1;

	atomic_store_explicit(&exported.seq, seq, memory_order_relaxed);
	/* release: a reader of anything that is written from here on finds `seq` odd or changed */
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&exported.use, use, memory_order_relaxed);
	exported.set = set;
	atomic_store_explicit(&exported.seq, seq + 1, memory_order_release);
}

/* Rebuilds one word, from the buckets whose elements may have bits in it. */
static void exported_step(const struct cl_table *table)
{
	unsigned int which = !(exported_use() % 2), log = exported.new_log - 6;
	uint64_t n = table->log > log ? 1ull << (table->log - log) : 1;
	uint64_t first = table->log > log ? exported.step * n : exported.step >> (log - table->log);

	atomic_store_explicit(&exported.bits[which][exported.step], 0, memory_order_relaxed);
	for (uint64_t i = first; i < first + n; i++) {
		/* an undivided bucket of `old` stands for two */
		const struct cl_link *link = i / 2 < table->divided ? table->bucket[i] : table->old[i / 2];

		for (; link; link = link->next) {
			uint64_t bit = cl_hash_word(link->key) >> (64 - exported.new_log);

			if (bit / 64 == exported.step)
				exported.new_set += exported_set(which, bit);
		}
	}
	if (++exported.step == exported.steps)
		exported_take((exported.new_log - FEWEST_BITS) * 2 + which, exported.new_set);
}

void cl_address_filter_add(const struct cl_table *table, uint64_t address)
{
	uint32_t use = exported_use();
	unsigned int log = log_of(use);
	uint64_t bit = cl_hash_word(address) >> (64 - log);

	exported.set += exported_set(use % 2, bit);
	if (exported.step < exported.steps) {
		/* the rebuild finds this block in the table for words that are still to come */
		bit = cl_hash_word(address) >> (64 - exported.new_log);
		if (bit / 64 < exported.step)
			exported.new_set += exported_set(!(use % 2), bit);
	} else if ((uint64_t)exported.set * BITS_A_BLOCK > 1ull << log &&
		   /* a set that cannot grow is rebuilt to lose the bits of blocks that have gone */
		   (log < MOST_BITS || exported.set > 2 * table->n)) {
		for (log = FEWEST_BITS; log < MOST_BITS &&
					1ull << log < table->n * BITS_A_BLOCK * 2;)
			log++;
		exported.new_log = log;
		exported.new_set = exported.step = 0;
		exported.steps = 1u << (log - 6);
	}
	for (unsigned int i = 0; i < STEPS && exported.step < exported.steps; i++)
		exported_step(table);
}

void cl_address_filter_forget(void)
{
	exported.step = exported.steps = 0;
	for (unsigned int i = 0; i < (1u << FEWEST_BITS) / 64; i++)
		atomic_store_explicit(&exported.bits[0][i], 0, memory_order_relaxed);
	exported_take(0, 0);
}

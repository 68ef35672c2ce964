/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells by one bit that no memory at an address was exported, or, by another filter, that no block of a
 * pool was imported there.  So a free of other memory costs a few loads.  All writers of a filter hold one
 * lock: cl_exports_lock, or for imports cl_imports_lock.
 */
#ifndef CL_ADDRESS_FILTER_H
#define CL_ADDRESS_FILTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/base/table.h"

enum { CL_FILTER_LEAST = 12, CL_FILTER_MOST = 24 }; /* logarithms of how many bits a set has */

/* All zeros but for .bits: no memory was exported. */
struct cl_address_filter {
	_Atomic uint32_t seq;
	/* the first word of the set in use, and in bits 0 to 5 the logarithm of its bits less CL_FILTER_LEAST */
	_Atomic uint32_t use;
	uint32_t set; /* bits that are 1 in the set in use */
	uint32_t new_set, step, steps; /* of a rebuild; if step equals steps, none is under way */
	unsigned int new_log;
	struct cl_filter_bits *bits;
};
enum { CL_FILTER_WORDS = (1u << CL_FILTER_MOST) / 64 }; /* of a set */
struct cl_filter_bits {
	_Atomic uint64_t word[2 * CL_FILTER_WORDS]; /* two sets */
};

static inline unsigned int cl_filter_log(uint32_t use)
{
	return CL_FILTER_LEAST + use % 64;
}

/* Returns the bit for an address with @hash: the first bits of the hash. */
static inline uint64_t cl_filter_bit(uint32_t use, uint64_t hash)
{
	/* 64 - cl_filter_log(use), so written that it takes no more than the shift needs */
	return hash >> ((64 - CL_FILTER_LEAST - use) % 64);
}

static inline uint32_t cl_filter_first(uint32_t use)
{
	return use & ~63u;
}

static inline uint32_t cl_filter_use(const struct cl_address_filter *filter)
{
	return atomic_load_explicit(&filter->use, memory_order_relaxed);
}

/*
 * Returns false if @address was certainly never added; true: look it up under the lock.  Lock-free, from
 * any thread: an export sets its bit before its handle can reach another thread, and an import before the
 * program has its address.
 */
static inline bool cl_block_may_be(const struct cl_address_filter *filter, uint64_t address)
{
	/* acquire, here and in the fence: what is read between is of one set */
	uint32_t seq = atomic_load_explicit(&filter->seq, memory_order_acquire);
	uint32_t use = cl_filter_use(filter);
	uint64_t bit = cl_filter_bit(use, cl_hash_word(address));
	uint64_t word = atomic_load_explicit(&filter->bits->word[cl_filter_first(use) + bit / 64], memory_order_relaxed);

	atomic_thread_fence(memory_order_acquire);
	return (word >> bit % 64 & 1) || seq % 2 ||
	       atomic_load_explicit(&filter->seq, memory_order_relaxed) != seq;
}

/*
 * Adds @address, which is in one of @tables already, as all such addresses are.  @tables has one for each
 * enum cl_kind, and @kinds a bit for each that counts.
 */
void cl_address_filter_add(struct cl_address_filter *filter, const struct cl_table *tables,
			   unsigned int kinds, uint64_t address);
/* Begins @filter, which is all zeros, with @bits, which another filter may have used before. */
void cl_address_filter_begin(struct cl_address_filter *filter, struct cl_filter_bits *bits);

#endif

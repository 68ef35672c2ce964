/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells by one bit that no memory at an address was exported, and no block of a pool imported.  So a
 * free of other memory costs a few loads.  All writers hold cl_exports_lock.
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
	/* bit 0: the set in use; above it: the logarithm of its bits less CL_FILTER_LEAST */
	_Atomic uint32_t use;
	uint32_t set; /* bits that are 1 in the set in use */
	uint32_t new_set, step, steps; /* of a rebuild; step is steps: there is none */
	unsigned int new_log;
	struct cl_filter_bits *bits;
};
struct cl_filter_bits {
	_Atomic uint64_t of[2][(1u << CL_FILTER_MOST) / 64];
};

static inline unsigned int cl_filter_log(uint32_t use)
{
	return CL_FILTER_LEAST + use / 2;
}

static inline uint32_t cl_filter_use(const struct cl_address_filter *filter)
{
	return atomic_load_explicit(&filter->use, memory_order_relaxed);
}

/*
 * Returns false if memory at @address was certainly never exported or imported; true: look it up under the
 * lock.  Lock-free, from any thread: an export sets its bit before its handle can reach another
 * thread.
 */
static inline bool cl_block_may_be(const struct cl_address_filter *filter, uint64_t address)
{
	/* acquire, here and in the fence: what is read between is of one set */
	uint32_t seq = atomic_load_explicit(&filter->seq, memory_order_acquire);
	uint32_t use = cl_filter_use(filter);
	uint64_t bit = cl_hash_word(address) >> (64 - cl_filter_log(use));
	uint64_t word = atomic_load_explicit(&filter->bits->of[use % 2][bit / 64], memory_order_relaxed);

	atomic_thread_fence(memory_order_acquire);
	return (word >> bit % 64 & 1) || seq % 2 ||
	       atomic_load_explicit(&filter->seq, memory_order_relaxed) != seq;
}

/*
 * Adds @address, which is in one of @tables already, as all such addresses are.  There are CL_KINDS
 * of them; that of events is left out.
 */
void cl_address_filter_add(struct cl_address_filter *filter, const struct cl_table *tables,
			   uint64_t address);
/* Begins @filter, which is all zeros, with @bits, which another filter may have used before. */
void cl_address_filter_begin(struct cl_address_filter *filter, struct cl_filter_bits *bits);

#endif

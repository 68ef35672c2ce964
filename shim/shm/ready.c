/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ready map: which records may have no holder any more, and the wake-up of the collector.
 * See shm/record.h for the contract, shm/layout.h for the rules.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/shm/barrier.h"
#include "shim/shm/record.h"

/* ------------------------------------------------------------------- wake-up */
void cl_region_wake(struct cl_region *region)
{
	struct cl_header *h = region->header;

	/*
	 * Pairs with the collector, which writes `sleeping`, makes a full fence, and then looks for
	 * work once more: either it sees what we just wrote, or we see that it sleeps.
	 */
	cl_full_fence();
	if (!atomic_load_explicit(&h->sleeping, memory_order_relaxed))
		return;
	atomic_fetch_add_explicit(&h->wake, 1, memory_order_release);
	syscall(SYS_futex, &h->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ----------------------------------------------------------------- ready map */
void cl_record_set_ready(struct cl_region *region, uint32_t record)
{
	uint32_t word = record / 64, middle = word / 64;

	/* release, bottom up: a thread that takes a bit above finds the bit below */
	atomic_fetch_or_explicit(&region->ready[word], 1ull << (record % 64), memory_order_release);
	atomic_fetch_or_explicit(&region->ready_top->middle[middle], 1ull << (word % 64),
				 memory_order_release);
	atomic_fetch_or_explicit(&region->ready_top->top[middle / 64], 1ull << (middle % 64),
				 memory_order_release);
	cl_region_wake(region);
}

bool cl_record_any_ready(const struct cl_region *region)
{
	uint64_t any = 0;

	for (unsigned int i = 0; i < CL_RECORDS / 64 / 64 / 64; i++)
		any |= atomic_load_explicit(&region->ready_top->top[i], memory_order_acquire);
	return any != 0;
}

/* Takes all bits out of @word. */
static uint64_t take_bits(_Atomic uint64_t *word)
{
	return atomic_exchange_explicit(word, 0, memory_order_acq_rel);
}

unsigned int cl_record_take_ready(struct cl_region *region, uint32_t *out, unsigned int max)
{
	uint32_t chunks = atomic_load_explicit(&region->header->record_chunks, memory_order_relaxed);
	unsigned int n = 0;

	for (uint32_t t = 0; t < CL_RECORDS / 64 / 64 / 64; t++) {
		uint64_t top = take_bits(&region->ready_top->top[t]);

		while (top) {
			uint32_t m = t * 64 + (uint32_t)__builtin_ctzll(top);
			uint64_t middle = take_bits(&region->ready_top->middle[m]);

			top &= top - 1;
			while (middle) {
				uint32_t w = m * 64 + (uint32_t)__builtin_ctzll(middle);
				uint64_t bits;

				if (n + 64 > max)
					goto put_back;
				middle &= middle - 1;
				/* a damaged bit must not lead to a page without memory */
				if (w / (CL_CHUNK / 64) >= chunks)
					continue;
				bits = take_bits(&region->ready[w]);
				for (; bits; bits &= bits - 1)
					out[n++] = w * 64 + (uint32_t)__builtin_ctzll(bits);
				continue;
put_back:
				atomic_fetch_or_explicit(&region->ready_top->middle[m], middle,
							 memory_order_release);
				top |= 1ull << (m % 64);
				atomic_fetch_or_explicit(&region->ready_top->top[t], top,
							 memory_order_release);
				return n;
			}
		}
	}
	return n;
}

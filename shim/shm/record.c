/* SPDX-License-Identifier: Apache-2.0 */
/* Records and holds: see shm/record.h for the contract, shm/layout.h for the rules. */
#include <errno.h>
#include <string.h>

#include "shim/base/hot.h"
#include "shim/shm/barrier.h"
#include "shim/shm/record.h"

bool cl_record_is(const struct cl_region *region, uint32_t record, const void *handle)
{
	const struct cl_record *r = &region->record[record];

	/* not the first 8 bytes: they are of the context that the handle was asked for in */
	return memcmp(r->handle + 8, (const uint8_t *)handle + 8, sizeof r->handle - 8) == 0;
}

void cl_record_handle(const struct cl_region *region, uint32_t record, uint8_t handle[64])
{
	const struct cl_record *r = &region->record[record];

	memcpy(handle, r->handle, sizeof r->handle);
	memset(handle + sizeof r->handle, 0, 64 - sizeof r->handle);
}

static inline uint64_t bit_of(unsigned int slot)
{
	return 1ull << (slot % 64);
}

/* -------------------------------------------------------------------- holders */
CL_HOT_SHARING bool cl_record_held(const struct cl_region *region, uint32_t record)
{
	/*
	 * all words, not only those below slots_used: were that count damaged, a held block would
	 * be freed
	 */
	for (unsigned int w = 0; w < CL_WORDS; w++)
		if (cl_region_has_word(region, w, record) &&
		    atomic_load_explicit(cl_region_word(region, w, record), memory_order_acquire))
			return true;
	return atomic_load_explicit(&region->record[record].pinned, memory_order_acquire) != 0;
}

unsigned int cl_record_holders(const struct cl_region *region, uint32_t record, uint16_t *slots,
			       unsigned int max)
{
	unsigned int n = 0;

	for (unsigned int w = 0; w < CL_WORDS; w++) {
		uint64_t bits;

		if (!cl_region_has_word(region, w, record))
			continue;
		bits = atomic_load_explicit(cl_region_word(region, w, record), memory_order_acquire);
		for (; bits; bits &= bits - 1, n++)
			if (n < max)
				slots[n] = (uint16_t)(w * 64 + (unsigned int)__builtin_ctzll(bits));
	}
	return n;
}

/* ------------------------------------------------------------------- exporter */
CL_HOT_SHARING uint32_t cl_record_publish(struct cl_region *region, uint32_t record, const struct cl_export *what)
{
	struct cl_record *r = &region->record[record];
	uint32_t generation =
		cl_life_generation(atomic_load_explicit(&r->life, memory_order_relaxed));

	r->base = what->base;
	r->size = what->size;
	memcpy(r->handle, what->handle, sizeof r->handle);
	r->kind = (uint8_t)what->kind;
	r->device = (uint8_t)what->device;
	r->given_back = 0;
	r->exports = 1;
	atomic_store_explicit(&r->opens, 0, memory_order_relaxed);
	atomic_store_explicit(&r->exported, what->now, memory_order_relaxed);
	atomic_store_explicit(&r->freed, 0, memory_order_relaxed);
	atomic_store_explicit(&r->pinned, 0, memory_order_relaxed);
	/* release: a reader that reads this state reads the fields above */
	atomic_store_explicit(&r->life, cl_life(generation, CL_EXPORTED), memory_order_release);
	return generation;
}

uint32_t cl_record_export_again(struct cl_region *region, uint32_t record, uint64_t now)
{
	struct cl_record *r = &region->record[record];

	r->exports += r->exports < CL_MANY;
	atomic_store_explicit(&r->exported, now, memory_order_relaxed);
	return cl_life_generation(atomic_load_explicit(&r->life, memory_order_relaxed));
}

void cl_record_unmapped(struct cl_region *region, uint32_t record, uint64_t now, uint32_t stack)
{
	cl_record_freed_from(region, record, stack);
	atomic_store_explicit(&region->record[record].freed, now, memory_order_relaxed);
}

CL_HOT_SHARING void cl_record_to_limbo(struct cl_region *region, uint32_t record, uint64_t now)
{
	struct cl_record *r = &region->record[record];
	uint64_t life = atomic_load_explicit(&r->life, memory_order_relaxed);

	atomic_store_explicit(&r->freed, now, memory_order_relaxed);
	/*
	 * Pairs with cl_record_unhold(), which clears its bit, makes a full fence, and reads the
	 * state.  Either a cl_record_try_release() after this sees the bit clear, or
	 * cl_record_unhold() sees LIMBO and makes the record ready.
	 */
	atomic_store_explicit(&r->life, cl_life(cl_life_generation(life), CL_LIMBO),
			      memory_order_release);
	cl_full_fence();
}

CL_HOT_SHARING bool cl_record_release_begin(struct cl_region *region, uint32_t record, uint64_t *before)
{
	struct cl_record *r = &region->record[record];

	*before = atomic_load_explicit(&r->life, memory_order_relaxed);
	if (cl_record_held(region, record)) /* the common case, which makes no importer wait */
		return false;
	atomic_store_explicit(&r->life, cl_life(cl_life_generation(*before), CL_DYING),
			      memory_order_relaxed);
	/* pairs with handshake(): either we see the importer's bit, or it sees our DYING */
	cl_full_fence();
	if (!cl_record_held(region, record))
		return true;
	/* if that holder is leaving, it may have seen DYING: then it made the record ready */
	cl_record_release_end(region, record, *before, false);
	return false;
}

CL_HOT_SHARING void cl_record_release_end(struct cl_region *region, uint32_t record, uint64_t before, bool released)
{
	uint64_t life = released ? cl_life((uint64_t)cl_life_generation(before) + 1, CL_FREE) : before;

	atomic_store_explicit(&region->record[record].life, life, memory_order_release);
}

CL_HOT_SHARING bool cl_record_try_release(struct cl_region *region, uint32_t record)
{
	uint64_t before;

	if (!cl_record_release_begin(region, record, &before))
		return false;
	/* before the driver frees the block: no handle of the old generation opens from here on */
	cl_record_release_end(region, record, before, true);
	return true;
}

bool cl_record_give_back_held(struct cl_region *region, uint32_t record)
{
	region->record[record].given_back = CL_FORCED_OUT;
	return cl_record_orphan(region, record);
}

void cl_record_forced_out(struct cl_region *region, uint32_t record)
{
	region->record[record].given_back = CL_FORCED_OUT;
}

void cl_record_freed_observed(struct cl_region *region, uint32_t record)
{
	region->record[record].given_back = CL_FREED_OBSERVED;
}

bool cl_record_orphan(struct cl_region *region, uint32_t record)
{
	struct cl_record *r = &region->record[record];
	uint64_t life = atomic_load_explicit(&r->life, memory_order_relaxed);

	atomic_store_explicit(&r->life, cl_life(cl_life_generation(life), CL_ORPHANED),
			      memory_order_release);
	cl_full_fence();
	return cl_record_try_release(region, record);
}

CL_HOT_SHARING bool cl_record_reusable(const struct cl_region *region, uint32_t record)
{
	return cl_life_generation(cl_record_life(region, record)) < CL_GENERATIONS;
}

/* ------------------------------------------------------------------- importer */
/*
 * The importer's half of open against free.  Calls @set, one atomic instruction that sets its bit
 * or the pin, before it reads the state, and @clear if it is refused.  always_inline, so that @set
 * and @clear are direct calls.
 */
static inline __attribute__((always_inline)) int
handshake(struct cl_region *region, uint32_t record, uint32_t generation,
	  void (*set)(struct cl_region *, unsigned int, uint32_t),
	  void (*clear)(struct cl_region *, unsigned int, uint32_t), unsigned int slot)
{
	uint64_t life;

	set(region, slot, record);
	cl_full_fence_after_atomic();
	life = cl_record_life(region, record);
	if (cl_life_generation(life) == generation &&
	    (cl_life_state(life) == CL_EXPORTED || cl_life_state(life) == CL_LIMBO))
		return 0;
	clear(region, slot, record);
	return life == cl_life(generation, CL_DYING) ? -EAGAIN : -ESTALE;
}

static inline int check(const struct cl_region *region, uint32_t record, uint32_t generation)
{
	uint32_t chunks = atomic_load_explicit(&region->header->record_chunks, memory_order_acquire);
	uint64_t life;

	if (record >= CL_RECORDS || record / CL_CHUNK >= chunks || chunks > CL_CHUNKS)
		return -EBADMSG;
	/* most stale handles are refused here, before anything is written */
	life = cl_record_life(region, record);
	if (cl_life_generation(life) != generation)
		return -ESTALE;
	return cl_life_state(life) == CL_DYING ? -EAGAIN : 0;
}

void cl_record_opened(struct cl_region *region, uint32_t record)
{
	_Atomic uint16_t *opens = &region->record[record].opens;
	uint16_t n = atomic_load_explicit(opens, memory_order_relaxed);

	/* relaxed: the bit is set after it, by an instruction of memory_order_seq_cst */
	while (n < CL_MANY &&
	       !atomic_compare_exchange_weak_explicit(opens, &n, (uint16_t)(n + 1),
						      memory_order_relaxed, memory_order_relaxed))
		;
}

CL_HOT_SHARING bool cl_record_was_opened(const struct cl_region *region, uint32_t record)
{
	const struct cl_record *r = &region->record[record];

	return atomic_load_explicit(&r->opens, memory_order_relaxed) >= r->exports;
}

static void set_bit(struct cl_region *region, unsigned int slot, uint32_t record)
{
	atomic_fetch_or_explicit(cl_region_word(region, slot / 64, record), bit_of(slot),
				 memory_order_seq_cst);
}

CL_HOT_SHARING int cl_record_hold(struct cl_region *region, unsigned int slot, uint32_t record,
				  uint32_t generation, const uint8_t *handle)
{
	int err = check(region, record, generation);

	if (!err)
		err = cl_region_need_word(region, slot / 64, record);
	if (!err) {
		cl_record_opened(region, record);
		err = handshake(region, record, generation, set_bit, cl_record_unhold, slot);
	}
	if (err)
		return err;
	if (cl_record_is(region, record, handle))
		return 0;
	cl_record_unhold(region, slot, record);
	return -EBADMSG;
}

static void set_pin(struct cl_region *region, unsigned int slot, uint32_t record)
{
	(void)slot;
	atomic_store_explicit(&region->record[record].pinned, 1, memory_order_seq_cst);
}
/*
 * A refused pin stays set: by now it may be another importer's, too.  At worst it keeps a
 * later generation longer than necessary.
 */
static void leave_pin(struct cl_region *region, unsigned int slot, uint32_t record)
{
	(void)region, (void)slot, (void)record;
}

int cl_record_pin(struct cl_region *region, uint32_t record, uint32_t generation,
		  const uint8_t *handle)
{
	int err = check(region, record, generation);

	if (!err && !cl_record_is(region, record, handle))
		err = -EBADMSG;
	if (err)
		return err;
	cl_record_opened(region, record);
	return handshake(region, record, generation, set_pin, leave_pin, 0);
}

CL_HOT_SHARING void cl_record_unhold(struct cl_region *region, unsigned int slot, uint32_t record)
{
	struct cl_slot *s = &region->slot[slot];
	uint64_t life;

	/*
	 * `closing` names the record while its bit changes: if we are killed before we have made
	 * the record ready, the reaper does it.  It is set before and cleared after with release
	 * order; the change of the bit is a release, too.
	 */
	atomic_store_explicit(&s->closing, record + 1, memory_order_release);
#ifdef CL_PLANT_TWO_STEP_RELEASE /* a fault for the tests to find */
	uint64_t torn = atomic_load(cl_region_word(region, slot / 64, record));
	atomic_store(cl_region_word(region, slot / 64, record), torn & ~bit_of(slot));
#else
	atomic_fetch_and_explicit(cl_region_word(region, slot / 64, record), ~bit_of(slot),
				  memory_order_seq_cst);
#endif
	/* pairs with cl_record_to_limbo() and cl_record_release_begin() */
	cl_full_fence_after_atomic();
	life = cl_record_life(region, record);
	if (cl_life_state(life) >= CL_LIMBO && !cl_record_held(region, record))
		cl_record_set_ready(region, record);
	atomic_store_explicit(&s->closing, 0, memory_order_release);
}

unsigned int cl_record_clear_slot(struct cl_region *region, unsigned int slot,
				  void (*each)(void *data, uint32_t record), void *data)
{
	uint32_t chunks = atomic_load_explicit(&region->header->record_chunks, memory_order_acquire);
	uint32_t closing = atomic_load_explicit(&region->slot[slot].closing, memory_order_acquire);
	unsigned int n = 0;

	if (chunks > CL_CHUNKS)
		chunks = CL_CHUNKS;
	/* its importer was killed while it cleared this record's bit, perhaps before it made it ready */
	if (closing && (closing - 1) / CL_CHUNK < chunks)
		cl_record_set_ready(region, closing - 1);
	for (uint32_t c = 0; c < chunks; c++) {
		uint32_t first = c * CL_CHUNK;
		_Atomic uint64_t *word;

		if (!cl_region_has_word(region, slot / 64, first))
			continue;
		word = cl_region_word(region, slot / 64, first);
		for (uint32_t i = 0; i < CL_CHUNK; i++) {
			if (!(atomic_load_explicit(&word[i], memory_order_relaxed) & bit_of(slot)))
				continue;
			if (each)
				each(data, first + i);
			cl_record_unhold(region, slot, first + i);
			n++;
		}
	}
	return n;
}

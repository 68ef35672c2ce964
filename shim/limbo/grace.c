/* SPDX-License-Identifier: Apache-2.0 */
/* The grace and its budget: see grace.h. */
#include <string.h>

#include "shim/limbo/grace.h"
#include "shim/base/list.h"
#include "shim/base/options.h"
#include "shim/self/self.h"

enum {
	BUCKETS = 128,	    /* more than a grace has ticks */
	TICKS_A_GRACE = 64, /* so a block is at most 1/64 of the grace late */
	WHEELS = 64,	    /* the devices from the last wheel on share it */
	LOOKS = 32,	    /* how many blocks a search for one that was opened looks at */
	PART = 64,	    /* the default budget is at most the device's size divided by this */
};
#define MILLISECOND 1000000ull

struct wheel {
	struct cl_list bucket[BUCKETS]; /* by the tick at which its graces end, modulo BUCKETS */
	uint64_t filled[BUCKETS / 64]; /* a bit for each bucket that has blocks */
	uint64_t at;	/* the wheel has been emptied up to this tick */
	uint64_t n;	/* blocks */
	uint64_t bytes; /* of these blocks */
};
static struct wheel wheel[WHEELS];
static unsigned int wheels_n; /* the wheels from this one on were never used */
static uint64_t waiting;      /* blocks in all wheels */
static uint64_t tick;	      /* ns */

/* Bytes; 0: not known yet.  Several threads may write it, all the same: a device does not grow. */
static _Atomic uint64_t device_size[WHEELS];

static unsigned int wheel_of(CUdevice device)
{
	return device >= 0 && device < WHEELS ? (unsigned int)device : WHEELS - 1;
}

void cl_grace_know_device(CUdevice device)
{
	_Atomic uint64_t *known = &device_size[wheel_of(device)];
	size_t size = 0;

	/* relaxed, here and below: the number stands alone */
	if (atomic_load_explicit(known, memory_order_relaxed) || !cl_driver.cuDeviceTotalMem_v2)
		return;
	if (cl_driver.cuDeviceTotalMem_v2(&size, device) == CUDA_SUCCESS)
		atomic_store_explicit(known, size, memory_order_relaxed);
}

static uint64_t budget_of(unsigned int at)
{
	uint64_t budget = cl_options.grace_bytes.number;
	uint64_t size = atomic_load_explicit(&device_size[at], memory_order_relaxed);

	/* the user's own number is not cut */
	if (!cl_options.grace_bytes.from_environment && size && size / PART < budget)
		budget = size / PART;
	return budget;
}

uint64_t cl_grace_end(const struct cl_block *block)
{
	uint64_t last = block->record == CL_NO_RECORD ?
				0 :
				atomic_load_explicit(&cl_own.record[block->record].exported,
						     memory_order_relaxed);

	return last + cl_options.grace.number;
}

bool cl_grace_applies_locked(const struct cl_block *block, uint64_t now)
{
	return cl_grace_end(block) > now && block->size <= budget_of(wheel_of(block->device));
}

bool cl_grace_is_refused_locked(const struct cl_block *block, uint64_t now, bool *early)
{
	unsigned int at = wheel_of(block->device);
	uint64_t budget = budget_of(at);

	*early = cl_grace_end(block) > now;
	return !*early || block->size > budget ||
	       (block->size && wheel[at].bytes + block->size > budget &&
		cl_record_was_opened(&cl_own, block->record));
}

uint64_t cl_grace_tick(void)
{
	if (!tick) {
		tick = cl_options.grace.number / TICKS_A_GRACE;
		if (tick < MILLISECOND)
			tick = MILLISECOND;
	}
	return tick;
}

void cl_grace_add_locked(struct cl_block *block, uint64_t now)
{
	unsigned int at = wheel_of(block->device);
	struct wheel *w = &wheel[at];
	uint64_t when = cl_grace_end(block) / cl_grace_tick() + 1;

	/* an export time in the future, as of another clock, must not overrun the wheel */
	if (when > now / cl_grace_tick() + BUCKETS - 1)
		when = now / cl_grace_tick() + BUCKETS - 1;
	if (!w->n)
		w->at = now / cl_grace_tick();
	if (when <= w->at)
		when = w->at + 1;
	block->bucket = (uint8_t)(when % BUCKETS);
	cl_list_add(&w->bucket[block->bucket], &block->node);
	w->filled[block->bucket / 64] |= 1ull << block->bucket % 64;
	w->n++;
	w->bytes += block->size;
	waiting++;
	if (at >= wheels_n)
		wheels_n = at + 1;
}

void cl_grace_remove_locked(struct cl_block *block)
{
	struct wheel *w = &wheel[wheel_of(block->device)];
	struct cl_list *bucket = &w->bucket[block->bucket];

	cl_list_remove(bucket, &block->node);
	if (!bucket->n)
		w->filled[block->bucket / 64] &= ~(1ull << block->bucket % 64);
	w->n--;
	w->bytes -= block->size;
	waiting--;
}

/* Returns the first tick from @from on whose bucket has blocks, or 0 if none has. */
static uint64_t filled_from(const struct wheel *w, uint64_t from)
{
	for (uint64_t when = from; w->n && when <= w->at + BUCKETS; when++)
		if (w->filled[when % BUCKETS / 64] >> (when % 64) & 1)
			return when;
	return 0;
}

struct cl_block *cl_grace_over_locked(CUdevice device)
{
	const struct wheel *w = &wheel[wheel_of(device)];
	struct cl_block *oldest = NULL, *block;
	unsigned int looks = 0;
	uint64_t when;

	if (w->bytes <= budget_of(wheel_of(device)))
		return NULL;
	for (when = filled_from(w, w->at + 1); when; when = filled_from(w, when + 1))
		CL_LIST_EACH (block, &w->bucket[when % BUCKETS], struct cl_block, node) {
			/* an event takes no device memory */
			if (!block->size)
				continue;
			if (cl_record_was_opened(&cl_own, block->record))
				return block;
			if (!oldest)
				oldest = block;
			if (++looks == LOOKS)
				return oldest;
		}
	return oldest;
}

static void turn(struct wheel *w, uint64_t now, bool end,
		 void (*settle)(struct cl_block *block, uint64_t now, bool end))
{
	uint64_t until = now / cl_grace_tick();
	unsigned int turns = BUCKETS;

	if (!end && until - w->at < BUCKETS)
		turns = until > w->at ? (unsigned int)(until - w->at) : 0;
	for (; turns && w->n; turns--) {
		struct cl_list *bucket = &w->bucket[++w->at % BUCKETS];

		/* after a turn that came laps late, @settle puts a block that still waits into a bucket, perhaps this one */
		for (uint64_t n = bucket->n; n; n--)
			settle(CL_LIST_FIRST(bucket, struct cl_block, node), now, end);
	}
	if (w->at < until || !w->n || end)
		w->at = until;
}

void cl_grace_turn_locked(uint64_t now, bool end,
			  void (*settle)(struct cl_block *block, uint64_t now, bool end))
{
	for (unsigned int i = 0; i < wheels_n; i++)
		if (wheel[i].n)
			turn(&wheel[i], now, end, settle);
}

void cl_grace_each_locked(void (*each)(struct cl_block *block, void *data), void *data)
{
	struct cl_block *block, *next;

	for (unsigned int i = 0; i < wheels_n; i++)
		for (unsigned int b = 0; b < BUCKETS && wheel[i].n; b++)
			CL_LIST_EACH_REMOVING (block, next, &wheel[i].bucket[b], struct cl_block, node)
				each(block, data);
}

uint64_t cl_grace_n_locked(void)
{
	return waiting;
}

uint64_t cl_grace_next_locked(void)
{
	uint64_t next = UINT64_MAX;

	for (unsigned int i = 0; i < wheels_n; i++) {
		uint64_t when = filled_from(&wheel[i], wheel[i].at + 1);

		if (when && when * cl_grace_tick() < next)
			next = when * cl_grace_tick();
	}
	return next;
}

void cl_grace_forget(void)
{
	memset(wheel, 0, wheels_n * sizeof wheel[0]);
	wheels_n = 0;
	waiting = 0;
}

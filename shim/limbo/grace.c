/* SPDX-License-Identifier: Apache-2.0 */
/* The grace and its budget: see grace.h. */
#include <string.h>

#include "shim/limbo/exporter.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/inside.h"
#include "shim/base/list.h"
#include "shim/base/options.h"
#include "shim/self/self.h"

enum {
	TICKS_A_GRACE = 64, /* so a block is at most 1/64 of the grace late */
	LOOKS = 32,	    /* how many blocks a search for one that was opened looks at */
	PART = 64,	    /* the default budget is at most the device's size divided by this */
};
#define MILLISECOND 1000000ull

/* The host is the second: most processes use device 0, and each look goes up to the last used wheel. */
static unsigned int wheel_of(CUdevice device)
{
	if (device == 0)
		return 0;
	if (device == CL_NO_DEVICE)
		return 1;
	return device > 0 && device < CL_WHEELS - 1 ? (unsigned int)device + 1 : CL_WHEELS - 1;
}

void cl_grace_know_device(struct cl_exporter *ex, CUdevice device)
{
	_Atomic uint64_t *known = &ex->grace.device_size[wheel_of(device)];
	size_t size = 0;

	if (device == CL_NO_DEVICE)
		return;
	/* relaxed, here and below: the number stands alone */
	if (atomic_load_explicit(known, memory_order_relaxed) || !cl_driver.cuDeviceTotalMem_v2)
		return;
	if (cl_driver.cuDeviceTotalMem_v2(&size, device) == CUDA_SUCCESS)
		atomic_store_explicit(known, size, memory_order_relaxed);
}

static uint64_t budget_of(struct cl_exporter *ex, unsigned int at)
{
	uint64_t budget = cl_options.grace_bytes.number;
	uint64_t size = atomic_load_explicit(&ex->grace.device_size[at], memory_order_relaxed);

	/* the user's own number is not cut */
	if (!cl_options.grace_bytes.from_environment && size && size / PART < budget)
		budget = size / PART;
	return budget;
}

bool cl_grace_applies_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t now)
{
	return cl_grace_end(ex, block) > now && block->size <= budget_of(ex, wheel_of(block->device));
}

bool cl_grace_is_refused_locked(struct cl_exporter *ex, const struct cl_block *block, uint64_t now,
				bool *early)
{
	unsigned int at = wheel_of(block->device);
	uint64_t budget = budget_of(ex, at);

	*early = cl_grace_end(ex, block) > now;
	return !*early || block->size > budget ||
	       (block->size && ex->grace.wheel[at].bytes + block->size > budget &&
		cl_record_was_opened(ex->blocks.region, block->record));
}

uint64_t cl_grace_set_tick(struct cl_grace *grace)
{
	grace->tick = cl_options.grace.number / TICKS_A_GRACE;
	if (grace->tick < MILLISECOND)
		grace->tick = MILLISECOND;
	return grace->tick;
}

void cl_grace_add_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now)
{
	unsigned int at = wheel_of(block->device);
	struct cl_wheel *w = &ex->grace.wheel[at];
	uint64_t when = cl_grace_end(ex, block) / cl_grace_tick(&ex->grace) + 1;

	/* an export time in the future, as of another clock, must not overrun the wheel */
	if (when > now / cl_grace_tick(&ex->grace) + CL_GRACE_BUCKETS - 1)
		when = now / cl_grace_tick(&ex->grace) + CL_GRACE_BUCKETS - 1;
	if (!w->n)
		w->at = now / cl_grace_tick(&ex->grace);
	if (when <= w->at)
		when = w->at + 1;
	block->bucket = (uint8_t)(when % CL_GRACE_BUCKETS);
	cl_list_add(&w->bucket[block->bucket], &block->node);
	w->filled[block->bucket / 64] |= 1ull << block->bucket % 64;
	w->n++;
	w->bytes += block->size;
	ex->grace.waiting++;
	if (at >= ex->grace.wheels_n)
		ex->grace.wheels_n = at + 1;
}

void cl_grace_remove_locked(struct cl_exporter *ex, struct cl_block *block)
{
	struct cl_wheel *w = &ex->grace.wheel[wheel_of(block->device)];
	struct cl_list *bucket = &w->bucket[block->bucket];

	cl_list_remove(bucket, &block->node);
	if (!bucket->n)
		w->filled[block->bucket / 64] &= ~(1ull << block->bucket % 64);
	w->n--;
	w->bytes -= block->size;
	ex->grace.waiting--;
}

/* Returns the first tick from @from on whose bucket has blocks, or 0 if none has. */
static uint64_t filled_from(const struct cl_wheel *w, uint64_t from)
{
	for (uint64_t when = from; w->n && when <= w->at + CL_GRACE_BUCKETS; when++)
		if (w->filled[when % CL_GRACE_BUCKETS / 64] >> (when % 64) & 1)
			return when;
	return 0;
}

struct cl_block *cl_grace_over_locked(struct cl_exporter *ex, CUdevice device)
{
	const struct cl_wheel *w = &ex->grace.wheel[wheel_of(device)];
	struct cl_block *oldest = NULL, *block;
	unsigned int looks = 0;
	uint64_t when;

	if (w->bytes <= budget_of(ex, wheel_of(device)))
		return NULL;
	for (when = filled_from(w, w->at + 1); when; when = filled_from(w, when + 1))
		CL_LIST_EACH (block, &w->bucket[when % CL_GRACE_BUCKETS], struct cl_block, node) {
			/* an event takes no device memory */
			if (!block->size)
				continue;
			if (cl_record_was_opened(ex->blocks.region, block->record))
				return block;
			if (!oldest)
				oldest = block;
			if (++looks == LOOKS)
				return oldest;
		}
	return oldest;
}

static void turn(struct cl_exporter *ex, struct cl_wheel *w, uint64_t now, bool end,
		 void (*settle)(struct cl_exporter *ex, struct cl_block *block, uint64_t now, bool end))
{
	uint64_t until = now / cl_grace_tick(&ex->grace);
	unsigned int turns = CL_GRACE_BUCKETS;

	if (!end && until - w->at < CL_GRACE_BUCKETS)
		turns = until > w->at ? (unsigned int)(until - w->at) : 0;
	for (; turns && w->n; turns--) {
		struct cl_list *bucket = &w->bucket[++w->at % CL_GRACE_BUCKETS];

		/* after a turn that came laps late, @settle puts a block that still waits into a bucket, perhaps this one */
		for (uint64_t n = bucket->n; n; n--)
			settle(ex, CL_LIST_FIRST(bucket, struct cl_block, node), now, end);
	}
	if (w->at < until || !w->n || end)
		w->at = until;
}

void cl_grace_turn_locked(struct cl_exporter *ex, uint64_t now, bool end,
			  void (*settle)(struct cl_exporter *ex, struct cl_block *block, uint64_t now, bool end))
{
	for (unsigned int i = 0; i < ex->grace.wheels_n; i++)
		if (ex->grace.wheel[i].n)
			turn(ex, &ex->grace.wheel[i], now, end, settle);
}

void cl_grace_each_locked(struct cl_exporter *ex,
			  void (*each)(struct cl_exporter *ex, struct cl_block *block, void *data),
			  void *data)
{
	struct cl_block *block, *next;

	for (unsigned int i = 0; i < ex->grace.wheels_n; i++)
		for (unsigned int b = 0; b < CL_GRACE_BUCKETS && ex->grace.wheel[i].n; b++)
			CL_LIST_EACH_REMOVING (block, next, &ex->grace.wheel[i].bucket[b], struct cl_block, node)
				each(ex, block, data);
}

uint64_t cl_grace_n_locked(struct cl_exporter *ex)
{
	return ex->grace.waiting;
}

uint64_t cl_grace_next_locked(struct cl_exporter *ex)
{
	uint64_t next = UINT64_MAX;

	for (unsigned int i = 0; i < ex->grace.wheels_n; i++) {
		uint64_t when = filled_from(&ex->grace.wheel[i], ex->grace.wheel[i].at + 1);

		if (when && when * cl_grace_tick(&ex->grace) < next)
			next = when * cl_grace_tick(&ex->grace);
	}
	return next;
}

void cl_grace_forget(struct cl_grace *grace)
{
	memset(grace->wheel, 0, grace->wheels_n * sizeof grace->wheel[0]);
}

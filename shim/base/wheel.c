/* SPDX-License-Identifier: Apache-2.0 */
/* Wheels: see wheel.h. */
#include "shim/base/hot.h"
#include "shim/base/wheel.h"

CL_HOT_SHARING uint8_t cl_wheel_add(struct cl_wheel *wheel, struct cl_node *node, uint64_t when, uint64_t now)
{
	uint8_t bucket;

	/* a time in the future, as of another clock, must not overrun the wheel */
	if (when > now + CL_BUCKETS - 1)
		when = now + CL_BUCKETS - 1;
	if (!wheel->n)
		wheel->at = now;
	if (when <= wheel->at)
		when = wheel->at + 1;
	bucket = (uint8_t)(when % CL_BUCKETS);
	cl_list_add(&wheel->bucket[bucket], node);
	wheel->filled[bucket / 64] |= 1ull << bucket % 64;
	wheel->n++;
	return bucket;
}

CL_HOT_SHARING void cl_wheel_remove(struct cl_wheel *wheel, struct cl_node *node, uint8_t bucket)
{
	cl_list_remove(&wheel->bucket[bucket], node);
	if (!wheel->bucket[bucket].n)
		wheel->filled[bucket / 64] &= ~(1ull << bucket % 64);
	wheel->n--;
}

uint64_t cl_wheel_next(const struct cl_wheel *wheel, uint64_t from)
{
	for (uint64_t when = from; wheel->n && when <= wheel->at + CL_BUCKETS; when++)
		if (wheel->filled[when % CL_BUCKETS / 64] >> (when % 64) & 1)
			return when;
	return 0;
}

void cl_wheel_turn(struct cl_wheel *wheel, uint64_t now, bool all,
		   void (*due)(struct cl_node *node, void *data), void *data)
{
	unsigned int turns = CL_BUCKETS;

	if (!all && now - wheel->at < CL_BUCKETS)
		turns = now > wheel->at ? (unsigned int)(now - wheel->at) : 0;
	for (; turns && wheel->n; turns--) {
		struct cl_list *bucket = &wheel->bucket[++wheel->at % CL_BUCKETS];

		/* after a turn that came laps late, @due puts a node that still waits into a bucket, perhaps this one */
		for (uint64_t n = bucket->n; n; n--)
			due(bucket->first, data);
	}
	if (wheel->at < now || !wheel->n || all)
		wheel->at = now;
}

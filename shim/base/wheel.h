/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wheel: a table of nodes, each of which waits for a tick.  It has a bucket, a list of nodes, for
 * each of CL_BUCKETS ticks.  Adding and removing take constant time, and a turn of the wheel does not
 * look at nodes that go on waiting.
 *
 * A tick is a number that grows with time; the caller says how long one is.  A wheel of all zeros
 * is empty.  The functions take no lock: the caller holds the lock that protects the wheel.
 */
#ifndef CL_WHEEL_H
#define CL_WHEEL_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/list.h"

enum { CL_BUCKETS = 128 };
struct cl_wheel {
	struct cl_list bucket[CL_BUCKETS]; /* by the tick that its nodes wait for, modulo CL_BUCKETS */
	uint64_t filled[CL_BUCKETS / 64];  /* a bit for each bucket that has nodes */
	uint64_t at;			   /* the wheel has been turned up to this tick */
	uint64_t n;			   /* nodes */
};

/*
 * Adds @node, which is on no list, to wait for the tick @when.  @now is the tick of now.  A node never
 * waits for more than CL_BUCKETS - 1 ticks, nor for a tick that the wheel has passed.  Returns its
 * bucket, which the caller keeps for cl_wheel_remove().
 */
uint8_t cl_wheel_add(struct cl_wheel *wheel, struct cl_node *node, uint64_t when, uint64_t now);
void cl_wheel_remove(struct cl_wheel *wheel, struct cl_node *node, uint8_t bucket);

/* Returns the first tick from @from on for which nodes wait, or 0 if none does. */
uint64_t cl_wheel_next(const struct cl_wheel *wheel, uint64_t from);

/*
 * Turns the wheel up to the tick @now.  Calls @due, which removes the node that it is given, for each
 * node whose tick has come, or for all nodes if @all.  @due may add that node again.
 */
void cl_wheel_turn(struct cl_wheel *wheel, uint64_t now, bool all,
		   void (*due)(struct cl_node *node, void *data), void *data);

#endif

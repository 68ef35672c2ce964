/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts that a process writes into its file, so that others can read them while it runs.  They are sums
 * for people: no free or hold depends on them.  An open that waits for a busy exporter's descriptor service sees by
 * CL_LIVE_SERVED that it works.
 *
 * Only the process itself writes them; they only grow.  They lie behind what header_size counts, so
 * that new ones need no new layout: the first word says how many of them the process keeps.
 */
#ifndef CL_LIVE_H
#define CL_LIVE_H

#include "shim/shm/region.h"

/* New ones go to the end. */
enum cl_live {
	CL_LIVE_KNOWN,	     /* how many of these words are kept; 0: none */
	CL_LIVE_HANDLES,     /* handles made: exports, also of what was exported before */
	CL_LIVE_OPENS,	     /* of handles of other processes, those that succeeded */
	CL_LIVE_CLOSES,
	CL_LIVE_KEPT,	     /* freed blocks and destroyed events that went into the limbo */
	CL_LIVE_KEPT_MAPPED, /* of these, blocks that others had mapped and have since closed */
	CL_LIVE_SHORT,	     /* calls of the program for which the driver had no device memory at first */
	CL_LIVE_WAITED,	     /* how long culimbo took to get memory for them, ns */
	CL_LIVE_SERVED,	     /* requests whose pieces its descriptor service has sent */
	CL_LIVE_COUNTS,
};
_Static_assert(CL_LIVE_COUNTS <= CL_LIVE_ROOM, "layout 9");

/* Adds @n to count @what of @region, our own.  Any thread. */
static inline void cl_live_add(const struct cl_region *region, enum cl_live what, uint64_t n)
{
	atomic_fetch_add_explicit(&region->header->live[what], n, memory_order_relaxed);
}
/* The same for a count that changes under one lock only. */
static inline void cl_live_add_locked(const struct cl_region *region, enum cl_live what, uint64_t n)
{
	_Atomic uint64_t *to = &region->header->live[what];

	atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Returns true if the process of @region keeps count @what. */
static inline bool cl_live_is_kept(const struct cl_region *region, enum cl_live what)
{
	return atomic_load_explicit(&region->header->live[CL_LIVE_KNOWN], memory_order_relaxed) > what;
}
static inline uint64_t cl_live_get(const struct cl_region *region, enum cl_live what)
{
	return atomic_load_explicit(&region->header->live[what], memory_order_relaxed);
}

#endif

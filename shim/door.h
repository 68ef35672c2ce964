/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of a door: what has to be done for each call of the program that comes to us, before
 * anything of ours is looked at and when all of it is over.
 */
#ifndef CL_DOOR_H
#define CL_DOOR_H

#include "shim/life.h"
#include "shim/limbo/collector.h"
#include "shim/reclaim/callbacks.h"
#include "shim/self/self.h"

/* What a door is for a process that shares nothing: the way to share, or none of its business. */
enum cl_door { CL_DOOR_TO_SHARE, CL_DOOR_OF_SHARERS };

/*
 * At the top of a function that stands behind a driver call, with no lock held.  Declares
 * bool @shares: false where this process is not to be looked after, or is the copy of a fork,
 * which has none of what its parent shared; then the call is the driver's alone.
 *
 * A copy of a fork begins anew.  Until the function returns the thread is not cancelled, and
 * errno is the program's when it has returned (CL_UNCANCELLED).  Where no thread does the
 * collector's work, it has its turn when the function returns: before, it could take from the
 * limbo what the call is about, and hide a misuse.
 */
#define CL_DOOR(shares, which)                                                    \
	__attribute__((cleanup(cl_door_leave), unused))                           \
	struct cl_cancel_state cl_door = cl_cancel_state_disable();               \
	__attribute__((unused)) bool shares = cl_door_enter(which)

static inline bool cl_door_enter(enum cl_door which)
{
	if (which == CL_DOOR_TO_SHARE)
		return cl_self_start();
	if (!cl_self_is_copy())
		return true;
	cl_self_begin_anew();
	return false;
}

static inline void cl_door_leave(const struct cl_cancel_state *state)
{
	/* A callback of the program's is in the middle of more than this. */
	if (__builtin_expect(cl_collector_is_inline(), 0) && !cl_callbacks_inside())
		cl_collector_called();
	cl_cancel_state_restore(state);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CL_DOOR, the front door's guard: no cancellation, a reset after a fork, and the collector's work
 * on return.  Each function that a hook calls begins with it.
 */
#ifndef CL_DOOR_H
#define CL_DOOR_H

#include "shim/life.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/reclaim/callbacks.h"
#include "shim/self/self.h"

/* Does the call make the process one that shares (TO_SHARE), or not (OF_SHARERS)? */
enum cl_door { CL_DOOR_TO_SHARE, CL_DOOR_OF_SHARERS };

/*
 * Stands at the top of a function that a hook calls.  No lock may be held.  Declares bool @shares.
 * It is false with CL_DOOR_TO_SHARE under CULIMBO_DISABLE or where the driver does not work, and with
 * CL_DOOR_OF_SHARERS in a child that was forked without fork handlers and has nothing of what its
 * parent shared.  Then the function only calls the driver.
 *
 * Such a child first forgets its parent's state.  Until the function returns, the thread can't be
 * cancelled, and then errno is what it was before (CL_UNCANCELLED).  If no thread does the
 * collector's work, that is done when the function returns.  Done earlier, it could
 * take the block of this very call from the limbo and hide a misuse.
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
	/* a free-memory callback runs within another door of this thread, which does the work later */
	if (__builtin_expect(cl_collector_is_inline(&cl_exporter.collector), 0) && !cl_callbacks_inside())
		cl_collector_called(&cl_exporter);
	cl_cancel_state_restore(state);
}

#endif

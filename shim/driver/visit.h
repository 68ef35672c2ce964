/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A visit to the driver by a thread of ours, or on an errand of ours: to give back, to ask, to destroy.
 *
 * What must hold: nothing of ours is in the driver with a context while the program's call
 * may end it.  So a visit is counted by its context, and who ends that waits until there is none
 * (cl_context_close()).
 *
 * Functions that end in _locked want cl_exports_lock held.
 */
#ifndef CL_VISIT_H
#define CL_VISIT_H

#include <stdbool.h>
#include "shim/driver/context.h"
#include "shim/driver/driver.h"

struct cl_visit {
	struct cl_visit *outer; /* of this thread */
	struct cl_context *context;
	CUstreamCaptureMode mode;
	bool exchanged, pushed;
};
/*
 * begin() counts the visit and lets go of the lock; end() takes it again.  In between @context,
 * which does not end, is current (of an unknown one, whatever was), and the thread's capture
 * mode is relaxed: our frees are not part of what some thread of the program is capturing,
 * and must not spoil it.
 */
void cl_visit_begin_locked(struct cl_visit *visit, struct cl_context *context);
void cl_visit_end_locked(struct cl_visit *visit);

/* How many visits of this thread are in @context; and whether any thread's are in any. */
unsigned int cl_visits_of_mine(const struct cl_context *context);
bool cl_visits_any_locked(void);

/*
 * Makes @ctx (NULL: whatever is) current for this thread, without a visit: for what the
 * program's own call does in its place.  *pushed: it was not; then pop() must follow.
 */
CUresult cl_context_push(CUcontext ctx, bool *pushed);
void cl_context_pop(bool pushed);

/*
 * In a visit: a stream of our own of its context, to free on, that waits for no other stream.
 * NULL: none can be had.  The lock is not held.
 */
CUstream cl_visit_free_stream(const struct cl_visit *visit);

void cl_visit_forget(void); /* in a forked child */

#endif

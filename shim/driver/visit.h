/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A visit: a time in which a thread calls the driver for us in a given context, to free a block, to query a fence or
 * to destroy an event; or in whatever context is current, to end a pool or to unmap an import of a pool's block.
 *
 * What must hold: no thread is in a visit to a context while a call of the program may end that
 * context.  So a context counts its visits, and cl_context_close() waits until there are none.
 *
 * The caller of a function that ends in _locked holds cl_exports_lock.  Fork: cl_visit_forget().
 */
#ifndef CL_VISIT_H
#define CL_VISIT_H

#include <stdbool.h>
#include "shim/driver/context.h"
#include "shim/driver/driver.h"

/*
 * A stay: a thread changes its current context, its capture mode or both, calls the driver, and changes
 * them back.  No other code of ours changes them.  begin() makes @ctx current; if that is NULL, or is
 * current already, the current context stays.  Returns the driver's result of that.  With
 * CL_STAY_RELAXED the driver calls do not invalidate a capture of the program.  With CL_STAY_AS_PROGRAM
 * they do to a capture what the program's own call would do, of which they are a part.
 */
enum cl_stay_as { CL_STAY_AS_PROGRAM, CL_STAY_RELAXED };
struct cl_stay {
	CUstreamCaptureMode mode;
	bool exchanged, pushed;
};
CUresult cl_stay_begin(struct cl_stay *stay, CUcontext ctx, enum cl_stay_as as);
void cl_stay_end(struct cl_stay *stay);

/*
 * Calls of ours in a thread of the program: calls of the driver that the program has not made, such as the unmap for a
 * close of a virtual handle.  They must change nothing that the program can see: a capture stays good, and the current
 * context stays as it was.  (CL_DOOR or CL_GUARD has switched off cancellation by then.)  CL_CALLS_OF_OURS is a
 * declaration at the top of a block; all calls of the driver up to the end of that block are ours, whichever way the
 * block is left.  Such blocks may nest.
 */
#define CL_CALLS_OF_OURS                                                          \
	__attribute__((cleanup(cl_stay_end), unused)) struct cl_stay cl_calls_of_ours = cl_stay_relaxed()
static inline struct cl_stay cl_stay_relaxed(void)
{
	struct cl_stay stay;

	cl_stay_begin(&stay, NULL, CL_STAY_RELAXED);
	return stay;
}

struct cl_visit {
	struct cl_visit *outer; /* the visit of this thread that this one is nested in, or NULL */
	struct cl_context *context;
	struct cl_stay stay;
	bool is_there;	/* the context is the current one */
	/*
	 * The driver says that the context has ended, past our hooks, and with it all that belonged to it.  If neither
	 * this nor .is_there is true, the driver refused to make the context current for another reason.
	 */
	bool has_ended;
};
/*
 * begin() counts the visit and releases the lock; end() takes the lock again.  The caller has seen
 * under that lock that @context is not ending (cl_context_ends()); a build with CL_DEBUG checks that,
 * and aborts.  In between @context does not end by a call that the hooks see, and if .is_there it is the
 * thread's current context; for cl_context_unknown the current context stays as it was.  The thread's capture mode is relaxed
 * meanwhile, so that our frees do not invalidate a capture of the program.  No other lock of ours may
 * be held.
 */
void cl_visit_begin_locked(struct cl_visit *visit, struct cl_context *context);
void cl_visit_end_locked(struct cl_visit *visit);

/* mine() returns how many visits to @context this thread is in; any() returns true if some thread is in a visit. */
unsigned int cl_visits_of_mine(const struct cl_context *context);
bool cl_visits_any_locked(void);

/*
 * Returns our own stream of the visited context, to free on: a stream that waits for no other one.
 * Returns NULL if the driver makes none, or if the context is not there.  Called within @visit, without the lock.
 */
CUstream cl_visit_free_stream(const struct cl_visit *visit);

void cl_visit_forget(void); /* in a forked child */

#endif

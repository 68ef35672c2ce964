/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: one object for each that this process has something of.
 *
 * What must hold: a context that is made at the address of one that has ended is another
 * object, and what belongs to a context goes when that ends, and with no other.  The driver
 * gives an old address to a new context; a primary context that is released and retained
 * again always has the same.  So a context is found by its handle and its id (cuCtxGetId(),
 * CUDA 12.0).  An older driver has no ids: there an object is found by its handle while no call
 * of the program may be ending it.
 *
 * The objects change under cl_imports_lock and cl_exports_lock together, so either is enough to
 * find one, and to use it as long as the lock is held.  A block, a mapping and a fence
 * belong to their context until it has ended.  Functions that end in _locked want one of the
 * two locks held, or the one that they name.
 */
#ifndef CL_CONTEXT_H
#define CL_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/driver/driver.h"

struct cl_lock;

enum cl_context_state {
	CL_CONTEXT_LIVE,
	CL_CONTEXT_ENDING, /* a call of the program may be ending it just now */
	CL_CONTEXT_DEAD,   /* it has ended: nothing finds it, and what it has is being forgotten */
};

struct cl_context {
	struct cl_context *next; /* of all that are not dead; or of those that ended by one call */
	CUcontext handle;
	uint64_t id;	 /* as the driver says; 0: this one has no ids */
	uint64_t number; /* objects are counted as they are made */
	CUdevice device;
	bool primary;
	enum cl_context_state state;
	unsigned int ending;	     /* threads whose calls may be ending it */
	unsigned int visitors;	     /* visits (visit.h) in it; under cl_exports_lock */
	bool forgotten;		     /* dead, and all that it had is forgotten; under cl_exports_lock */
	CUstream free_stream;	     /* of our own, to free on; NULL: none yet; under cl_exports_lock */
	struct cl_belongs *blocks;   /* under cl_exports_lock */
	struct cl_belongs *fences;   /* under cl_exports_lock */
	struct cl_belongs *mappings; /* under cl_imports_lock */
};

/* What belongs to no context that is known: handle NULL, always live, and never found. */
extern struct cl_context cl_context_unknown;
/* All others that are not dead. */
extern struct cl_context *cl_contexts;

/* In a block, a mapping, a fence: which context it belongs to.  All zeros: to none (any more). */
struct cl_belongs {
	struct cl_context *context;
	struct cl_belongs *next, **at;
};
/* @list: of @context, for its kind. */
static inline void cl_belongs_to(struct cl_belongs *thing, struct cl_context *context, struct cl_belongs **list)
{
	thing->context = context;
	thing->at = list;
	thing->next = *list;
	if (*list)
		(*list)->at = &thing->next;
	*list = thing;
}
static inline void cl_belongs_to_none(struct cl_belongs *thing)
{
	if (!thing->context)
		return;
	*thing->at = thing->next;
	if (thing->next)
		thing->next->at = thing->at;
	thing->context = NULL;
}

/*
 * Whether the end of @context may be under way, or what it had is not forgotten yet: what
 * belongs to it is left alone.  NULL: there is no context that could end.
 */
static inline bool cl_context_ends(const struct cl_context *context)
{
	return context && context->state != CL_CONTEXT_LIVE;
}

/* A context as the driver names it just now.  Handle NULL: none, or it is not known which. */
struct cl_context_name {
	CUcontext handle; /* of a green context that of the primary one that it is a part of */
	uint64_t id;
	CUdevice device; /* -1: not known; then it is the current context */
	bool primary;	 /* it is known to be */
};
/* Of this thread's current context; no lock of ours may be held. */
struct cl_context_name cl_context_name_current(void);
/* Of @handle of @device; no lock of ours may be held. */
struct cl_context_name cl_context_name_of(CUcontext handle, CUdevice device);

/* NULL: there is no object of it (yet, or any more). */
static inline struct cl_context *cl_context_find_locked(const struct cl_context_name *name)
{
	struct cl_context *context = name->handle ? cl_contexts : NULL;

	while (context && (context->handle != name->handle || context->id != name->id ||
			   (!name->id && context->state != CL_CONTEXT_LIVE)))
		context = context->next;
	return context;
}
/*
 * The same, and where there is none it is made: then @lock, which is held, is let go of and
 * taken again, and the driver is asked.  NULL: it is not known what @name is, or has ended
 * meanwhile, or there is no memory.  On a driver without ids this waits as long as a call may
 * be ending the context, a second at most.
 */
struct cl_context *cl_context_meet_locked(const struct cl_context_name *name, struct cl_lock *lock);
static inline struct cl_context *cl_context_get_locked(const struct cl_context_name *name, struct cl_lock *lock)
{
	struct cl_context *context = cl_context_find_locked(name);

	return __builtin_expect(context || !name->handle, 1) ? context : cl_context_meet_locked(name, lock);
}

/*
 * Around the program's call that may end the context @handle (NULL: the primary context of
 * @device), in one thread.  close() returns when no other thread of ours is inside with it.
 * open() comes after the call.  It returns, through .next, those that have ended if @gone:
 * for each the caller has forgotten what belongs to it before it calls cl_context_free_locked().
 * What comes to the same handle after close() is none of it.
 */
struct cl_context_end {
	CUcontext handle;
	CUdevice device;
	uint64_t last; /* the number of the newest object that it can be of */
	bool closed;
};
struct cl_context_end cl_context_close(CUcontext handle, CUdevice device);
struct cl_context *cl_context_open(const struct cl_context_end *end, bool gone);
void cl_context_free_locked(struct cl_context *context); /* with cl_exports_lock; the last visit does it, if there are any */

/*
 * Told of an end that went past our hooks, or that our giving back the last reference to a
 * primary context was: no lock is held.  Set by who begins to share.
 */
extern void (*cl_context_lost)(const struct cl_context_end *end);

/*
 * What the driver says now to a call with a pointer that it does not know: that, or what it
 * looks at first (there is no context, or it has ended, or failed).  By a question that it answers
 * likewise, and that does nothing.
 */
CUresult cl_context_refusal(void);

void cl_contexts_forget(void); /* in a forked child */

#endif

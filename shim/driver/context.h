/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: one object for each context in which this process has a block, a mapping or a fence.
 *
 * What must hold: a context that the driver makes at the address of an ended one gets an
 * object of its own, and what belongs to a context is forgotten when that context ends, and with
 * no other.  The driver gives an old address to a new context, and a primary context that is
 * released and retained again always gets its old address.  So an object is found by its handle
 * and its id (cuCtxGetId(), CUDA 12.0).  An older driver has no ids: there an object is found by
 * its handle alone, while no call of the program may be ending the context.
 *
 * Locks: whoever changes the list of objects or a state holds both cl_imports_lock and
 * cl_exports_lock.  So one of them is enough to find an object, and to use it while the lock is
 * held.  A block, a mapping and a fence belong to their context until it has ended.  The
 * caller of a function that ends in _locked holds one of the two locks, or the one that its
 * comment names.  Fork: a child forgets all objects, cl_contexts_forget().
 */
#ifndef CL_CONTEXT_H
#define CL_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/base/list.h"
#include "shim/driver/driver.h"

struct cl_lock;

enum cl_context_state {
	CL_CONTEXT_LIVE,
	CL_CONTEXT_ENDING, /* a call of the program that may end the context is under way */
	CL_CONTEXT_DEAD,   /* it has ended: no lookup finds the object, its lists are being emptied */
};

struct cl_context {
	struct cl_node node; /* in cl_contexts; once dead, in the list that open() fills */
	CUcontext handle;
	uint64_t id;	 /* from the driver; 0: this driver has no ids */
	uint64_t number; /* the first object has number 1, the next one 2 */
	CUdevice device;
	uint16_t index;	 /* in cl_context_at */
	bool primary;
	enum cl_context_state state;
	unsigned int ending;	     /* how many threads are in a call that may end the context */
	unsigned int visitors;	     /* visits (visit.h) to the context; under cl_exports_lock */
	bool forgotten;		     /* the last visit frees this object; under cl_exports_lock */
	CUstream free_stream;	     /* our own stream for frees, NULL if none yet; under cl_exports_lock */
	struct cl_list blocks;	     /* under cl_exports_lock */
	struct cl_list fences;	     /* under cl_exports_lock */
	struct cl_list mappings;     /* under cl_imports_lock */
	struct cl_list pool_opens;   /* blocks of pools that handles opened in it; under cl_imports_lock */
};

/* Owns what belongs to no known context: its handle is NULL, always LIVE, and no lookup finds it. */
extern struct cl_context cl_context_unknown;
/* All other objects that are not DEAD. */
extern struct cl_list cl_contexts;
/*
 * All objects that blocks belong to: a block, of which there may be millions, has an index of 2 bytes
 * instead of a pointer.  An index is used again when its object is freed.  Under the same locks as the
 * list of objects.
 */
enum {
	CL_CONTEXTS = 1024,    /* of more contexts at a time no object is made: what they have belongs to cl_context_unknown */
	CL_CONTEXT_NONE = 0,   /* its entry is NULL */
	CL_CONTEXT_UNKNOWN = 1,
};
extern struct cl_context *cl_context_at[CL_CONTEXTS];

/* Part of a mapping or a fence: the context that it belongs to.  All zeros: it belongs to none. */
struct cl_belongs {
	struct cl_context *context;
	struct cl_node node;
	struct cl_list *list; /* of .context, that the node is on */
};
/* Adds @thing to @list, the list of @context for things of this kind. */
static inline void cl_belongs_to(struct cl_belongs *thing, struct cl_context *context, struct cl_list *list)
{
	thing->context = context;
	thing->list = list;
	cl_list_add_front(list, &thing->node);
}
static inline void cl_belongs_to_none(struct cl_belongs *thing)
{
	if (!thing->context)
		return;
	cl_list_remove(thing->list, &thing->node);
	thing->context = NULL;
}

/*
 * Returns true if @context is ENDING, or DEAD with lists that are not emptied yet: then the caller
 * must not use what belongs to it.  Returns false if @context is LIVE, or NULL: no owner.
 */
static inline bool cl_context_ends(const struct cl_context *context)
{
	return context && context->state != CL_CONTEXT_LIVE;
}

/* Returns true if @context is DEAD: the driver may have given its addresses to other blocks. */
static inline bool cl_context_is_dead(const struct cl_context *context)
{
	return context && context->state == CL_CONTEXT_DEAD;
}

/* What the driver says of a context just now.  A NULL handle: there is none, or it is not known which. */
struct cl_context_name {
	CUcontext handle; /* for a green context: the primary one that it is part of */
	uint64_t id;	  /* 0: this driver has no ids */
	CUdevice device;  /* -1: not known; then the context must be the current one */
	bool primary;	  /* true: it is known to be primary; false: not known */
};
/* Names this thread's current context.  No lock of ours may be held. */
struct cl_context_name cl_context_name_current(void);
/* Names @handle on @device, -1: it is the current context.  No lock of ours may be held. */
struct cl_context_name cl_context_name_of(CUcontext handle, CUdevice device);

/* Returns the object of the context @name, or NULL if there is none (yet, or any more). */
static inline struct cl_context *cl_context_find_locked(const struct cl_context_name *name)
{
	struct cl_context *context;

	if (!name->handle)
		return NULL;
	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
		if (context->handle == name->handle && context->id == name->id &&
		    (name->id || context->state == CL_CONTEXT_LIVE))
			return context;
	return NULL;
}
/*
 * get() is find(), but makes an object if there is none; meet() is the part of get() that does so.
 * The caller holds @lock.  To make an object, the function releases @lock, asks the driver, and
 * takes @lock again.  Returns NULL if the driver does not say which context @name is, if that
 * context has ended meanwhile, or if there is no memory or no index.  On a driver without ids it waits
 * while a call may be ending the context, a second at most.
 */
struct cl_context *cl_context_make_locked(const struct cl_context_name *name, struct cl_lock *lock);
static inline struct cl_context *cl_context_get_locked(const struct cl_context_name *name, struct cl_lock *lock)
{
	struct cl_context *context = cl_context_find_locked(name);

	return __builtin_expect(context || !name->handle, 1) ? context : cl_context_make_locked(name, lock);
}

/*
 * A thread calls close() before and open() after a call of the program that may end the context
 * @handle, or the primary context of @device if @handle is NULL.  close() sets the object ENDING
 * and returns when no other thread is in a visit to that context or borrows it.
 * open(gone = false) sets the object LIVE again.  open(gone = true) sets it DEAD and adds all dead
 * objects to the list @dead.  The caller empties the lists of each and then calls
 * cl_context_free_locked().  An object that is made after close() is not affected: it is another context.
 * Both take cl_imports_lock and cl_exports_lock.
 */
struct cl_context_end {
	CUcontext handle;
	CUdevice device;
	uint64_t last; /* no object with a higher number is affected */
	int cancel_state; /* the thread's before begin(), for done(): see context_end.h */
	bool closed; /* made by close(); false: the context has ended without it */
};
struct cl_context_end cl_context_close(CUcontext handle, CUdevice device);
void cl_context_open(const struct cl_context_end *end, bool gone, struct cl_list *dead);
/* Returns the number of the newest object, 0: none was made yet.  No lock is needed. */
uint64_t cl_context_last(void);
/* Frees a dead @context, or has its last visit free it.  cl_exports_lock is held. */
void cl_context_free_locked(struct cl_context *context);

/*
 * Called, without a lock of ours, for a context that has ended without close() and open(): past our
 * hooks, or because our own release of a primary context was the last.  life.c sets it when the
 * process begins to share.
 */
extern void (*cl_context_on_lost)(const struct cl_context_end *end);

/*
 * Returns the error that the driver would give now to a call with an unknown pointer:
 * CUDA_ERROR_INVALID_VALUE, or what it checks first (no context, an ended or a failed one).
 * Finds out by a harmless query that the driver checks in the same way.
 */
CUresult cl_context_refusal(void);
/*
 * Returns the error that the driver's cuMemFree() of a live block of a pool would give now, or
 * CUDA_SUCCESS; and does to captures what it would do.  Such a free needs no context and waits for
 * nothing (measured).
 */
CUresult cl_context_pool_free_refusal(void);

void cl_contexts_forget(void); /* in a forked child */

#endif

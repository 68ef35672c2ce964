/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fences: what a block that was freed in a stream's order waits for.
 *
 * A fence is an event behind all that was on the stream when the program freed the
 * block.  It stands on the list of its stream, in the order of the frees, so the first
 * of a list is the first that is reached, and only that one is asked about.  In and out
 * are O(1).
 *
 * What must hold: no two streams share a list, or a block would wait for a stream that
 * has nothing to do with it.  A list is found by context, stream and, for a per-thread
 * default stream, thread.  The stream is its id where the driver has cuStreamGetId()
 * (CUDA 12.0), which no later stream gets again.  Before that it is the handle: a new
 * stream that gets the handle of a destroyed one whose work goes on waits for that work.
 *
 * An event belongs to the context of its stream, which may be another one than the
 * block's.  It goes when that context ends, and to ask about it or to destroy it after
 * that is a crash.  So whoever is in the driver with a fence is there in its context.
 *
 * Functions that end in _locked want cl_exports_lock held; the others are called without it.
 */
#ifndef CL_FENCE_H
#define CL_FENCE_H

#include "shim/blocks/blocks.h"

/* Which stream it is.  The fields are compared exactly. */
struct cl_stream_name {
	CUcontext ctx; /* the current one when the fence was made */
	uint64_t stream; /* its id or its handle */
	uint64_t thread; /* 0: any; a number of its own for each; or that .stream is an id */
};

/* The fences of one stream, while there are any. */
struct cl_fence_list {
	struct cl_link link; /* of the table of lists; its key is a hash of the name */
	struct cl_stream_name name;
	struct cl_fence *home; /* the fence that this is in */
	struct cl_list fences;
	struct cl_node node; /* of those in which some block waits */
	uint64_t waiting;    /* fences whose block waits for nothing else */
	uint64_t round;	     /* when it was asked about, see cl_fences_take_locked() */
	bool asking;	     /* a thread is in the driver with its first fences */
};

struct cl_fence {
	struct cl_node node;	      /* of its stream, or of the detached ones */
	struct cl_fence_list *list;   /* of its stream; NULL: it is on none */
	struct cl_block *block;	      /* NULL: that is no more */
	CUevent event;		      /* NULL: it went with its context */
	struct cl_belongs of;	      /* whose the event is */
	bool waits; /* it is counted in .waiting */
	bool asked; /* a thread is in the driver with it */
	bool over;  /* only the list in it is in use */
	/*
	 * Room for the list of its stream: used where it is the first of one, so that a
	 * list never lacks memory.  Then the fence's memory stays as long as the list.
	 */
	struct cl_fence_list own;
};

/*
 * Makes a fence of what the program frees on @stream, or fails as the driver's free would.
 * On success *fence is NULL if @stream captures (*capturing), or if there is no memory for
 * it, no event, or it is not known of which context it is: then nobody can say when the
 * block may go.  @per_thread: the call was of the per-thread default stream's kind.
 */
CUresult cl_fence_make(CUstream stream, bool per_thread, struct cl_fence **fence, bool *capturing);

/*
 * Puts @fence on the list of its stream: @block, which has none, waits for it.  If the context of
 * @fence has ended meanwhile, there is nothing to wait for.
 */
void cl_fence_add_locked(struct cl_fence *fence, struct cl_block *block);
/* Whether the block of @fence waits for nothing else, so that its stream is to be asked about. */
void cl_fence_wait_locked(struct cl_fence *fence, bool waits);
/* @block is no more, its fence is not needed: it is detached, or its event went with its context. */
void cl_fence_detach_locked(struct cl_block *block);

/* Whether some block waits for a stream and nothing else: ... */
bool cl_fences_wait_locked(void);
bool cl_fences_may_ask_locked(void); /* ... for one whose context does not end */
bool cl_fences_blocked_locked(void); /* ... for one whose context ends */

/*
 * A round of asking: each list in which some block waits is taken at least once, by this
 * thread or by another.  *fences: how many there are.  take() gives up to @most fences of one stream and one context, in
 * order: the first alone, or more after all that were taken were reached.  0: the round
 * is over.  Their context is not to end until asked() was told of each of them, first to
 * last; the @events of those that were reached have been destroyed.  asked() returns the
 * block that waits for it no more, or NULL.
 */
uint64_t cl_fences_round_locked(uint64_t *fences);
unsigned int cl_fences_take_locked(uint64_t round, struct cl_fence **fences, CUevent *events,
				   unsigned int most);
struct cl_block *cl_fence_asked_locked(struct cl_fence *fence, bool reached);

/*
 * The context of @fence has ended, and its event with it: it belongs to no context any more.
 * Returns the block that waits for it no more, or NULL.
 */
struct cl_block *cl_fence_lost_locked(struct cl_fence *fence);
/* The fence that @of is in. */
static inline struct cl_fence *cl_fence_of(struct cl_belongs *of)
{
	return (struct cl_fence *)((char *)of - offsetof(struct cl_fence, of));
}

/*
 * Strays: fences whose event is to be destroyed, whether it is reached or not.  take()
 * takes one whose context does not end, or returns NULL; drop() frees its memory.
 */
bool cl_fences_any_detached_locked(void);
struct cl_fence *cl_fence_take_detached_locked(void);
void cl_fence_drop_locked(struct cl_fence *fence);

void cl_fences_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fences: a block that the program freed in a stream's order waits for its fence.
 *
 * A fence is an event behind all that was on the stream when the program freed the block.  It
 * is on the list of its stream, in the order of the frees.  So the stream reaches the first
 * fence of a list first, and the driver is asked about that one alone.  Adding and removing a
 * fence are O(1).  A fence is reached when the driver says that its event has happened.  It is
 * detached when its block no longer needs it: then its event only waits to be destroyed.
 *
 * What must hold: no two streams share a list, or a block would wait for a stream that has
 * nothing to do with it.  A list is found by context, stream and, for a per-thread default
 * stream, thread.  A stream is named by its id where the driver has cuStreamGetId() (CUDA
 * 12.0); no later stream gets that id.  Older drivers name it by its handle: there a block that
 * is freed on a new stream waits also for a destroyed stream with the same handle.
 *
 * An event belongs to the context of its stream, which may be another than the block's, and
 * ends with it.  To query or destroy it after that crashes.  So a thread that calls the driver
 * with the event of a fence that is on a list does so in a visit to the fence's context.
 *
 * Functions that end in _locked want cl_exports_lock held and make no CUDA call.  No lock of
 * ours may be held for cl_fence_make(), which makes some.
 */
#ifndef CL_FENCE_H
#define CL_FENCE_H

#include "shim/blocks/blocks.h"

struct cl_exporter;

/* Names a stream.  Two names are of one stream if all fields are equal. */
struct cl_stream_name {
	CUcontext ctx; /* the current one when the fence was made */
	uint64_t stream; /* its id or its handle */
	uint64_t thread; /* whose default stream it is, a number; 0: anyone's; UINT64_MAX: .stream is an id */
};

/* The fences of one stream.  It exists as long as there are any. */
struct cl_fence_list {
	struct cl_link link; /* in the table of lists; its key is a hash of the name */
	struct cl_stream_name name;
	struct cl_fence *home; /* the fence whose .own this is */
	struct cl_list fences;
	struct cl_node node; /* among the lists with .waiting above 0 */
	uint64_t waiting;    /* fences whose block waits for nothing else */
	uint64_t round;	     /* the round that last asked about it, or 0, see cl_fences_take_locked() */
	bool asking;	     /* a thread is in the driver with its first fences */
};

/* Something that is no block of ours and waits for a fence: an import, see pool_imports.c. */
struct cl_fence_wait {
	struct cl_node node; /* once the fence is reached: on `passed` */
	struct cl_fence *fence; /* NULL: it is reached, or its context has ended */
};

struct cl_fence {
	struct cl_node node;	      /* on the list of its stream, or of the detached ones */
	struct cl_fence_list *list;   /* of its stream; NULL: it is not on that */
	struct cl_block *block;	      /* the block that waits for it; NULL: none any more */
	struct cl_fence_wait *wait;   /* another thing that waits for it; NULL: none */
	CUevent event;		      /* NULL: its context has ended, or it was reached and destroyed */
	struct cl_belongs of;	      /* the context of the event */
	bool waits; /* it is counted in .list->waiting */
	bool asked; /* a thread is in the driver with it */
	bool over;  /* the fence is done; only .own may still be in use */
	/*
	 * The list of its stream if it was the first fence there, so that making a list needs no
	 * memory.  Then the fence's memory stays as long as the list.
	 */
	struct cl_fence_list own;
};

/*
 * When the driver is asked about the fences: CL_FENCE_FIRST after the newest one began to wait or one was
 * reached, and then each time the wait since that moment has doubled, CL_FENCE_LAST later at most.  So a
 * stream that reaches its fence soon is noticed soon, and one that never does costs next to nothing.
 */
#define CL_FENCE_FIRST 1000000ull /* ns */
#define CL_FENCE_LAST 4000000ull

/* The fences of one exporter; all under cl_exports_lock. */
struct cl_fences {
	struct cl_table lists;	/* all lists, by name */
	struct cl_list waiting; /* lists in which some block waits, that asked about longest ago first */
	uint64_t n, rounds;
	uint64_t since; /* when the newest began to wait, or one was reached; 0: since the last look at the clock */
	struct cl_list detached;
	struct cl_list passed; /* of struct cl_fence_wait: their fences are reached, or lost with their context */
};

/*
 * Makes a fence behind what is on @stream now, on which the driver does not refuse frees.  On
 * success *fence is NULL if @stream captures (*capturing), or if the fence lacks memory, an
 * event or a known context: then nobody can say when the block may go.  @per_thread: the
 * program called the form whose stream 0 is the thread's own.
 */
CUresult cl_fence_make(CUstream stream, bool per_thread, struct cl_fence **fence, bool *capturing);

/*
 * Puts @fence on the list of its stream: from now on @block, which has no fence, waits for it.
 * If the context of @fence has ended since it was made, @fence is freed and @block gets none.
 */
void cl_fence_add_locked(struct cl_exporter *ex, struct cl_fence *fence, struct cl_block *block);
/*
 * The same for @wait, which is put on `passed` once @fence is reached; at once if the context of
 * @fence has ended.  A round asks about it as long as it waits.
 */
void cl_fence_add_wait_locked(struct cl_exporter *ex, struct cl_fence *fence, struct cl_fence_wait *wait);
/* Discards @fence, which was made and is on no list. */
void cl_fence_discard_locked(struct cl_exporter *ex, struct cl_fence *fence);
/* Says whether the block of @fence @waits for that fence alone: then rounds ask about its stream. */
void cl_fence_wait_locked(struct cl_exporter *ex, struct cl_fence *fence, bool waits);
/* Detaches the fence of @block, if any; a thread that is asking about it does that when it is back. */
void cl_fence_detach_locked(struct cl_exporter *ex, struct cl_block *block);

/* Returns true if some block waits for its fence alone. */
bool cl_fences_wait_locked(struct cl_exporter *ex);
/* Returns true if some block waits for its fence alone, and the fence's context is not ending. */
bool cl_fences_may_ask_locked(struct cl_exporter *ex);
/* Returns true if some block waits for its fence alone, and the fence's context is ending. */
bool cl_fences_blocked_locked(struct cl_exporter *ex);
/* Returns when to ask about the fences next, where @now is the time; UINT64_MAX if no fence may be asked about. */
uint64_t cl_fences_ask_at_locked(struct cl_exporter *ex, uint64_t now);

/*
 * A round asks the driver about each stream for which some block waits.  round() begins one,
 * returns its number and sets *fences to the number of all fences.  take() returns how many
 * fences of one stream and one context it has put into @fences, in order, and 0 when the round
 * is over.  It takes the first fence alone until the driver has said that it is reached, then up
 * to @most.  A stream that another thread asks about in the round counts as asked.
 *
 * The caller queries @events in a visit to their context, which it begins before it lets go of
 * the lock, and destroys those that are reached.  Then it calls asked() for each fence, first to
 * last, which returns the block that no longer waits for it, or NULL.
 */
uint64_t cl_fences_round_locked(struct cl_exporter *ex, uint64_t *fences);
unsigned int cl_fences_take_locked(struct cl_exporter *ex, uint64_t round, struct cl_fence **fences,
				   CUevent *events, unsigned int most);
struct cl_block *cl_fence_asked_locked(struct cl_exporter *ex, struct cl_fence *fence,
				       bool reached);

/*
 * Forgets the context and the event of @fence, because the context has ended.  Returns the block
 * that no longer waits for @fence, or NULL.
 */
struct cl_block *cl_fence_lost_locked(struct cl_exporter *ex, struct cl_fence *fence);

/*
 * Detached fences.  take() removes one whose context is not ending, or returns NULL.  The caller
 * destroys its event, reached or not, and then calls drop(), which frees the fence.
 */
bool cl_fences_any_detached_locked(struct cl_exporter *ex);
struct cl_fence *cl_fence_take_detached_locked(struct cl_exporter *ex);
void cl_fence_drop_locked(struct cl_fence *fence);

#endif

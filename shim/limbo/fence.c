/* SPDX-License-Identifier: Apache-2.0 */
/* Fences: see fence.h. */
#include <stdatomic.h>
#include <stdlib.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/inside.h"
#include "shim/driver/green.h"
#include "shim/driver/visit.h"
#include "shim/self/self.h"

/* ------------------------------------------------------------------- the names */
/* Values of .thread in struct cl_stream_name. */
enum { ANY_THREAD = 0 };
#define BY_ID UINT64_MAX

/* Returns this thread's number.  No other ever gets it, unlike a pthread_t or a thread id. */
static uint64_t thread_number(void)
{
	static _Atomic uint64_t last;
	static __thread uint64_t number __attribute__((tls_model("initial-exec")));

	if (!number)
		number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
	return number;
}

static struct cl_stream_name name_of(CUcontext current, CUstream stream, bool per_thread)
{
	struct cl_stream_name name = { .ctx = current, .thread = ANY_THREAD };
	unsigned long long id;

	if (!stream)
		stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	name.stream = (uintptr_t)stream;
	if (stream == CU_STREAM_PER_THREAD) {
		name.thread = thread_number();
	} else if (stream != CU_STREAM_LEGACY && cl_driver.cuStreamGetId &&
		   cl_driver.cuStreamGetId(stream, &id) == CUDA_SUCCESS) {
		name.stream = id;
		name.thread = BY_ID;
	}
	return name;
}

static uint64_t key_of(const struct cl_stream_name *name)
{
	uint64_t key = cl_hash_word((uint64_t)(uintptr_t)name->ctx);

	key = cl_hash_word((key ^ key >> 32) + name->stream);
	return (key ^ key >> 32) + name->thread;
}

static bool is_same(const struct cl_stream_name *a, const struct cl_stream_name *b)
{
	return a->ctx == b->ctx && a->stream == b->stream && a->thread == b->thread;
}

/* ------------------------------------------------------------------- the lists */
static struct cl_fence_list *find(struct cl_exporter *ex, const struct cl_stream_name *name,
				  uint64_t key)
{
	struct cl_link *link = cl_table_find(&ex->fences.lists, key);

	/* all lists of one key are in one chain */
	for (; link; link = link->next)
		if (link->key == key && is_same(&((struct cl_fence_list *)link)->name, name))
			return (struct cl_fence_list *)link;
	return NULL;
}

static void waiting_remove(struct cl_exporter *ex, struct cl_fence_list *list)
{
	cl_list_remove(&ex->fences.waiting, &list->node);
}

/* Adds @list at the end, as one that has just been asked about. */
static void waiting_add(struct cl_exporter *ex, struct cl_fence_list *list)
{
	list->round = ex->fences.rounds;
	cl_list_add(&ex->fences.waiting, &list->node);
}

/* Adds @list at the front, as one that no round has asked about. */
static void waiting_add_front(struct cl_exporter *ex, struct cl_fence_list *list)
{
	list->round = 0;
	cl_list_add_front(&ex->fences.waiting, &list->node);
}

static struct cl_fence *first_of(const struct cl_fence_list *list)
{
	return CL_LIST_FIRST(&list->fences, struct cl_fence, node);
}

void cl_fence_wait_locked(struct cl_exporter *ex, struct cl_fence *fence, bool waits)
{
	struct cl_fence_list *list = fence->list;

	if (fence->waits == waits || !list)
		return;
	fence->waits = waits;
	list->waiting += waits ? 1 : UINT64_MAX;
	if (waits)
		ex->fences.since = 0;
	if (waits && list->waiting == 1)
		waiting_add(ex, list);
	else if (!waits && !list->waiting)
		waiting_remove(ex, list);
}

static void free_if_unused(struct cl_fence *fence)
{
	if (fence->over && !fence->own.fences.n)
		free(fence);
}

void cl_fence_drop_locked(struct cl_fence *fence)
{
	fence->over = true;
	cl_belongs_to_none(&fence->of);
	free_if_unused(fence);
}

/* Takes @fence off the list of its stream; an empty list goes. */
static void take_out(struct cl_exporter *ex, struct cl_fence *fence)
{
	struct cl_fence_list *list = fence->list;

	cl_fence_wait_locked(ex, fence, false);
	cl_list_remove(&list->fences, &fence->node);
	fence->list = NULL;
	ex->fences.n--;
	if (list->fences.n)
		return;
	cl_table_remove(&ex->fences.lists, &list->link);
	free_if_unused(list->home);
}

/* Puts @fence on the list of its stream. */
static void put_in(struct cl_exporter *ex, struct cl_fence *fence)
{
	uint64_t key = key_of(&fence->own.name);
	struct cl_fence_list *list = find(ex, &fence->own.name, key);

	if (!list) {
		list = &fence->own;
		list->home = fence;
		list->link.key = key;
		cl_table_add(&ex->fences.lists, &list->link);
	}
	fence->list = list;
	cl_list_add(&list->fences, &fence->node);
	ex->fences.n++;
}

void cl_fence_add_locked(struct cl_exporter *ex, struct cl_fence *fence, struct cl_block *block)
{
	if (!fence->of.context) { /* it has ended, and all work on its streams with it */
		cl_fence_drop_locked(fence);
		return;
	}
	put_in(ex, fence);
	fence->block = block;
	block->fence = fence;
}

void cl_fence_add_wait_locked(struct cl_exporter *ex, struct cl_fence *fence, struct cl_fence_wait *wait)
{
	cl_limbo_not_quiet(ex);
	if (!fence->of.context) {
		cl_list_add(&ex->fences.passed, &wait->node);
		cl_fence_drop_locked(fence);
		return;
	}
	put_in(ex, fence);
	fence->wait = wait;
	wait->fence = fence;
	cl_fence_wait_locked(ex, fence, true);
}

void cl_fence_discard_locked(struct cl_exporter *ex, struct cl_fence *fence)
{
	cl_limbo_not_quiet(ex);
	if (fence->event)
		cl_list_add_front(&ex->fences.detached, &fence->node);
	else
		cl_fence_drop_locked(fence);
}

/* Parts @fence from its block.  Returns the block, or NULL if it has none. */
static struct cl_block *part(struct cl_fence *fence)
{
	struct cl_block *block = fence->block;

	fence->block = NULL;
	if (block)
		block->fence = NULL;
	return block;
}

/* Detaches @fence, or frees it if it has no event.  It has no block, and no thread asks about it. */
static void done_with(struct cl_exporter *ex, struct cl_fence *fence)
{
	take_out(ex, fence);
	if (fence->wait) {
		cl_limbo_not_quiet(ex);
		cl_list_add(&ex->fences.passed, &fence->wait->node);
		fence->wait->fence = NULL;
		fence->wait = NULL;
	}
	if (fence->event)
		cl_list_add_front(&ex->fences.detached, &fence->node);
	else
		cl_fence_drop_locked(fence);
}

void cl_fence_detach_locked(struct cl_exporter *ex, struct cl_block *block)
{
	struct cl_fence *fence = block->fence;

	if (!fence)
		return;
	part(fence);
	if (!fence->asked)
		done_with(ex, fence);
}

/* ---------------------------------------------------------------------- asking */
bool cl_fences_wait_locked(struct cl_exporter *ex)
{
	return ex->fences.waiting.n != 0;
}

static bool any_waits(struct cl_exporter *ex, bool ends)
{
	const struct cl_fence_list *list;

	CL_LIST_EACH (list, &ex->fences.waiting, const struct cl_fence_list, node)
		if (cl_context_ends(first_of(list)->of.context) == ends)
			return true;
	return false;
}

bool cl_fences_may_ask_locked(struct cl_exporter *ex)
{
	return any_waits(ex, false);
}

bool cl_fences_blocked_locked(struct cl_exporter *ex)
{
	return any_waits(ex, true);
}

uint64_t cl_fences_ask_at_locked(struct cl_exporter *ex, uint64_t now)
{
	uint64_t ago;

	if (!cl_fences_may_ask_locked(ex))
		return UINT64_MAX;
	if (!ex->fences.since || ex->fences.since > now)
		ex->fences.since = now;
	ago = now - ex->fences.since;
	return now + (ago < CL_FENCE_FIRST ? CL_FENCE_FIRST : ago > CL_FENCE_LAST ? CL_FENCE_LAST : ago);
}

uint64_t cl_fences_round_locked(struct cl_exporter *ex, uint64_t *fences)
{
	*fences = ex->fences.n;
	return ++ex->fences.rounds;
}

unsigned int cl_fences_take_locked(struct cl_exporter *ex, uint64_t round, struct cl_fence **fences,
				   CUevent *events, unsigned int most)
{
	struct cl_fence_list *list;
	struct cl_fence *fence;
	unsigned int n = 0;

	/* The lists are in the order of their rounds: every thread adds at the end, with the newest round. */
	while ((list = CL_LIST_FIRST(&ex->fences.waiting, struct cl_fence_list, node)) != NULL &&
	       list->round < round) {
		if (list->round)
			most = 1;
		waiting_remove(ex, list);
		waiting_add(ex, list);
		if (list->asking || cl_context_ends(first_of(list)->of.context))
			continue;
		list->asking = true;
		CL_LIST_EACH (fence, &list->fences, struct cl_fence, node) {
			if (n == most || fence->of.context != first_of(list)->of.context)
				break;
			fence->asked = true;
			events[n] = fence->event;
			fences[n++] = fence;
		}
		return n;
	}
	return 0;
}

struct cl_block *cl_fence_asked_locked(struct cl_exporter *ex, struct cl_fence *fence, bool reached)
{
	struct cl_fence_list *list = fence->list;
	struct cl_block *block = NULL;

	fence->asked = list->asking = false;
	if (reached) {
		ex->fences.since = 0;
		/* the next fence may be reached as well, so ask again in this round */
		if (list->waiting) {
			waiting_remove(ex, list);
			waiting_add_front(ex, list);
		}
		block = part(fence);
		fence->event = NULL;
		done_with(ex, fence);
	} else {
		if (list->waiting) {
			waiting_remove(ex, list);
			waiting_add(ex, list);
		}
		/* its block was deleted or its context ended while the driver was asked */
		if (!fence->block && (!fence->wait || !fence->of.context))
			done_with(ex, fence);
	}
	return block;
}

/* ------------------------------------------------------- contexts that end, detached fences */
struct cl_block *cl_fence_lost_locked(struct cl_exporter *ex, struct cl_fence *fence)
{
	struct cl_block *block = part(fence);

	cl_belongs_to_none(&fence->of);
	fence->event = NULL;
	if (fence->list && !fence->asked) {
		done_with(ex, fence);
	} else if (!fence->list && cl_list_has(&ex->fences.detached, &fence->node)) {
		cl_list_remove(&ex->fences.detached, &fence->node);
		cl_fence_drop_locked(fence);
	}
	return block;
}

CL_HOT_SHARING bool cl_fences_any_detached_locked(struct cl_exporter *ex)
{
	return ex->fences.detached.n != 0;
}

struct cl_fence *cl_fence_take_detached_locked(struct cl_exporter *ex)
{
	struct cl_fence *fence;

	CL_LIST_EACH (fence, &ex->fences.detached, struct cl_fence, node)
		if (!cl_context_ends(fence->of.context)) {
			cl_list_remove(&ex->fences.detached, &fence->node);
			return fence;
		}
	return NULL;
}

/* ------------------------------------------------------------------ creation */
/* Makes a fence that belongs to @current, without its event.  NULL: no memory, or @current is not known. */
static struct cl_fence *fence_new(CUcontext current)
{
	struct cl_context_name name = cl_context_name_of(current, -1);
	struct cl_fence *fence = malloc(sizeof *fence);
	struct cl_context *context;

	if (!fence)
		return NULL;
	*fence = (struct cl_fence){ .event = NULL };
	cl_lock(&cl_exports_lock);
	context = cl_context_get_locked(&name, &cl_exports_lock);
	if (context)
		cl_belongs_to(&fence->of, context, &context->fences);
	cl_unlock(&cl_exports_lock);
	if (context)
		return fence;
	free(fence); /* nobody could tell when its event goes */
	return NULL;
}

/* Gives @fence its @event.  Returns false if its context, and the event with it, has ended meanwhile. */
static bool give_event(struct cl_fence *fence, CUevent event)
{
	bool lives;

	cl_lock(&cl_exports_lock);
	lives = fence->of.context;
	fence->event = lives ? event : NULL;
	cl_unlock(&cl_exports_lock);
	return lives;
}

static void fence_free(struct cl_fence *fence)
{
	cl_lock(&cl_exports_lock);
	cl_fence_drop_locked(fence);
	cl_unlock(&cl_exports_lock);
}

/* As cl_fence_make(), when the context of @stream, @current, is current and @stream does not capture. */
static CUresult make_in(CUcontext current, CUstream stream, bool per_thread, struct cl_fence **made)
{
	CUresult (*record)(CUevent, CUstream) =
		per_thread ? cl_driver.cuEventRecord_ptsz : cl_driver.cuEventRecord;
	CUresult (*wait)(CUstream, CUevent, unsigned int) =
		per_thread ? cl_driver.cuStreamWaitEvent_ptsz : cl_driver.cuStreamWaitEvent;
	struct cl_fence *fence = fence_new(current);
	CUevent event = NULL;
	CUresult result;
	bool is_there = cl_driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;

	/* A free that lacks an event succeeds. */
	result = is_there ? record(event, stream) : CUDA_SUCCESS;
	/*
	 * A stream that waits for the legacy stream with an event alone counts as idle, and with a free it does not
	 * (measured): a wait for its own event, which changes no order, counts as the free would.
	 */
	if (is_there && result == CUDA_SUCCESS && wait)
		wait(stream, event, 0);
	if (fence && is_there && result == CUDA_SUCCESS) {
		fence->own.name = name_of(current, stream, per_thread);
		give_event(fence, event);
		*made = fence;
		return result;
	}
	if (is_there && (!fence || give_event(fence, NULL)))
		cl_driver.cuEventDestroy_v2(event);
	if (fence)
		fence_free(fence);
	return result;
}

CUresult cl_fence_make(CUstream stream, bool per_thread,
		       struct cl_fence **fence, bool *capturing)
{
	CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *) =
		per_thread ? cl_driver.cuStreamIsCapturing_ptsz : cl_driver.cuStreamIsCapturing;
	CUresult (*get_ctx)(CUstream, CUcontext *) =
		per_thread ? cl_driver.cuStreamGetCtx_ptsz : cl_driver.cuStreamGetCtx;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUcontext ctx = NULL, current = NULL;
	CUcontext other = NULL; /* the context of @stream, if that must become the current one */
	struct cl_stay stay;
	CUresult result;

	*fence = NULL;
	*capturing = false;
	if (is_capturing) {
		result = is_capturing(stream, &status);
		if (result != CUDA_SUCCESS)
			return result;
		/* The stream records instead of running, so the free goes to the driver. */
		*capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
		if (*capturing)
			return CUDA_SUCCESS;
	}
	/*
	 * The driver makes an event in the current context, and we need it in that of @stream;
	 * for a green context the primary one will do.  A default stream is of the current
	 * context: nothing is pushed for it, or it would name another stream.
	 */
	cl_driver.cuCtxGetCurrent(&current);
	if (get_ctx && get_ctx(stream, &ctx) == CUDA_SUCCESS && ctx && ctx != current &&
	    (!cl_green_resolve(&ctx) || (ctx && ctx != current)))
		other = ctx;
	cl_stay_begin(&stay, other, CL_STAY_AS_PROGRAM);
	result = make_in(stay.pushed ? other : current, stream, per_thread, fence);
	cl_stay_end(&stay);
	return result;
}

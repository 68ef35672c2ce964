/* SPDX-License-Identifier: Apache-2.0 */
/* The limbo: see limbo.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "shim/driver/devices.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/limbo.h"
#include "shim/base/list.h"
#include "shim/base/log.h"
#include "shim/diag/notes.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"
#include "shim/shm/slot.h"

enum {
	DEVICES = 64,
	BATCH = 64,	     /* blocks that one thread takes to the driver at a time */
};
#define MILLISECOND 1000000ull
#define POLL_DRAIN (2 * MILLISECOND)

/* Contexts that are in the driver's hands: those we are there with, and those that end. */
struct context_use {
	struct context_use *next;
	CUcontext ctx; /* NULL: the primary one of @device */
	CUdevice device;
	pthread_t thread;
};

static struct {
	struct cl_list held, due, kept, kept_small, blocked;
	uint64_t held_bytes[DEVICES]; /* of `held`, by device */
	unsigned int forcing; /* likewise with an event that is none of `events` any more */
	uint64_t gone; /* blocks in CL_PLACE_GONE */
	_Atomic uint64_t blocks; /* (atomic for cl_limbo_is_empty() alone) */
	uint64_t bytes, events;
	struct context_use *in_driver; /* our threads that give blocks back */
	struct context_use *ending;    /* the program's threads that end contexts */
	uint32_t asks[CL_ASKED_DEVICES]; /* our threads that ask which context is primary, see cl_limbo_ask_begin() */
	bool warned;
	/* as the header's `device` says to others, who can damage it */
	struct of_device {
		uint64_t entered, returned, waits;
	} of[CL_DEVICE_LIMBOS];
	uint64_t pressed_until[CL_DEVICE_LIMBOS], pressed_last; /* see cl_limbo_press() */
	/*
	 * The answer of a collection that found nothing to do but by the ready map, while
	 * it holds: taken back by whatever changes a place.  Written under the lock.
	 */
	_Atomic uint8_t quiet;
} limbo;
enum { QUIET_NOT, QUIET_EMPTY, QUIET_HELD };
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* Events of the limbo that the driver still has, oldest first. */
static struct cl_event_block *oldest_event, *newest_event;

/* --------------------------------------------------------------- the places */
static struct cl_list *list_of(struct cl_block *block)
{
	switch ((enum cl_place)block->place) {
	case CL_PLACE_HELD:
		return &limbo.held;
	case CL_PLACE_DUE:
		return &limbo.due;
	case CL_PLACE_KEPT: /* the large may go as a last resort */
		return block->kind == CL_MEMORY && block->size >= 2u << 20 && !block->unfenced ?
			       &limbo.kept :
			       &limbo.kept_small;
	default:
		return NULL;
	}
}

static void not_quiet(void)
{
	/* relaxed: who is to see it by now has synchronised (by the lock, or by the collector's `wake`) */
	atomic_store_explicit(&limbo.quiet, QUIET_NOT, memory_order_relaxed);
}

/* A device beyond the last that is counted alone is counted with it. */
static uint64_t *held_bytes_of(const struct cl_block *block)
{
	return &limbo.held_bytes[block->device < DEVICES ? block->device : DEVICES - 1];
}

static bool is_too_much_held(const struct cl_block *block)
{
	uint64_t limit = cl_options.held_bytes.number;

	return limit && *held_bytes_of(block) > limit;
}

static void warn_if_many_held(void)
{
	if (limbo.warned || !cl_options.warn_blocks.number ||
	    limbo.held.n <= cl_options.warn_blocks.number)
		return;
	limbo.warned = true;
	cl_log(CL_LOG_WARN,
	       "%llu freed blocks wait for processes that still map them: some importer does not close "
	       "what it opens. The report at exit names it (CULIMBO_WARN_BLOCKS sets this limit)",
	       (unsigned long long)limbo.held.n);
}

/* ---------------------------------------------------------- what others see of it */
static unsigned int device_of(const struct cl_block *block)
{
	return block->kind == CL_MEMORY ? cl_device_entry[block->device] : CL_ANY_DEVICE;
}

/* Of the device, at most: a small block shares its page, and keeps it. */
static uint64_t device_bytes(const struct cl_block *block)
{
	const uint64_t page = 2u << 20;

	return block->kind == CL_MEMORY ? (block->size + page - 1) & ~(page - 1) : 0;
}

/* Where nobody's asking makes a block of the limbo go just now. */
#define WAITS (1u << CL_PLACE_HELD | 1u << CL_PLACE_DRAIN)

static __attribute__((noinline)) void note_waits_changed(const struct cl_block *block, bool waits)
{
	unsigned int device = device_of(block);
	uint64_t bytes = device_bytes(block);

	limbo.of[device].waits += waits ? bytes : -bytes;
	atomic_store_explicit(&cl_own.header->device[device].waits, limbo.of[device].waits,
			      memory_order_release);
}
static inline void note_waits(const struct cl_block *block, enum cl_place from, enum cl_place to)
{
	if ((WAITS >> from ^ WAITS >> to) & 1)
		note_waits_changed(block, WAITS >> to & 1);
}

/* Whether @block may be of @device, an entry of the header's. */
static bool may_be_of(const struct cl_block *block, unsigned int device)
{
	return block->kind == CL_MEMORY && (device == CL_ANY_DEVICE || device_of(block) == device ||
					    device_of(block) == CL_ANY_DEVICE);
}

static __attribute__((noinline)) bool is_pressed_now(const struct cl_block *block, uint64_t now)
{
	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
		if (limbo.pressed_until[i] > now && may_be_of(block, i))
			return true;
	return false;
}
static bool is_pressed(const struct cl_block *block, uint64_t now)
{
	return __builtin_expect(limbo.pressed_last > now, 0) && is_pressed_now(block, now);
}

static void move(struct cl_block *block, enum cl_place place)
{
	struct cl_list *from = list_of(block), *to;

	not_quiet();
	if (from) {
		cl_list_remove(from, block);
		if (block->place == CL_PLACE_HELD)
			*held_bytes_of(block) -= block->size;
	} else if (block->place == CL_PLACE_GRACE) {
		cl_grace_remove_locked(block);
	} else if (block->fence) {
		cl_fence_wait_locked(block->fence, false);
	}
	note_waits(block, block->place, place);
	block->place = (uint8_t)place;
	if (place == CL_PLACE_HELD || place == CL_PLACE_DUE)
		cl_trace_block(place == CL_PLACE_HELD ? CL_TRACE_HELD : CL_TRACE_READY, block);
	to = list_of(block);
	if (to) {
		cl_list_add(to, block);
		if (place == CL_PLACE_HELD) {
			*held_bytes_of(block) += block->size;
			warn_if_many_held();
		}
	} else if (place == CL_PLACE_DRAIN) {
		cl_fence_wait_locked(block->fence, true);
	}
}

static bool is_held(const struct cl_block *block)
{
	return block->own_opens || cl_record_held(&cl_own, block->record);
}

/* What @block of the limbo waits for when its grace is over. */
static enum cl_place place_after_grace(const struct cl_block *block)
{
	if (is_held(block))
		return CL_PLACE_HELD;
	return block->fence ? CL_PLACE_DRAIN : CL_PLACE_DUE;
}

/* Puts a block of the limbo where it belongs by what is known of it now. */
static void settle_place(struct cl_block *block, uint64_t now, bool end_grace)
{
	if (!end_grace && cl_grace_is_due_locked(block, now)) {
		move(block, CL_PLACE_BUSY);
		cl_grace_add_locked(block, now);
		block->place = CL_PLACE_GRACE;
	} else {
		move(block, place_after_grace(block));
	}
}

static inline void account_device(struct of_device *of, struct cl_device_limbo *said,
				  const struct cl_block *block, int sign)
{
	if (sign > 0) {
		of->entered += device_bytes(block);
		atomic_store_explicit(&said->entered, of->entered, memory_order_release);
	} else {
		of->returned += device_bytes(block);
		atomic_store_explicit(&said->returned, of->returned, memory_order_release);
	}
}

static void account(const struct cl_block *block, int sign)
{
	struct cl_header *h = cl_own.header;
	uint64_t blocks = atomic_load_explicit(&limbo.blocks, memory_order_relaxed) +
			  (uint64_t)(int64_t)sign;

	atomic_store_explicit(&limbo.blocks, blocks, memory_order_relaxed);
	limbo.bytes += (uint64_t)((int64_t)sign * (int64_t)block->size);
	atomic_store_explicit(&h->limbo_blocks, blocks, memory_order_relaxed);
	atomic_store_explicit(&h->limbo_bytes, limbo.bytes, memory_order_relaxed);
	if (sign > 0)
		atomic_fetch_sub_explicit(&h->live_blocks, 1, memory_order_relaxed);
	account_device(&limbo.of[device_of(block)], &h->device[device_of(block)], block, sign);
}

/* ------------------------------------------------- contexts that end meanwhile */
static bool is_context(const struct context_use *use, CUcontext ctx, CUdevice device, bool primary)
{
	return use->ctx ? use->ctx == ctx : primary && use->device == device;
}
static bool same_context(const struct context_use *use, const struct cl_block *block)
{
	return is_context(use, block->ctx, block->device, block->primary);
}

static bool fence_ends(const struct cl_fence *fence)
{
	for (const struct context_use *use = limbo.ending; use; use = use->next)
		if (is_context(use, fence->ctx, fence->device, fence->primary))
			return true;
	return false;
}

static bool context_ends(const struct cl_block *block)
{
	for (const struct context_use *use = limbo.ending; use; use = use->next)
		if (same_context(use, block))
			return true;
	return false;
}

bool cl_limbo_context_ends_locked(CUcontext ctx, CUdevice device, bool primary)
{
	const struct cl_block block = { .ctx = ctx, .device = (uint8_t)device, .primary = primary };

	return context_ends(&block);
}

bool cl_limbo_is_busy_locked(const struct cl_block *block)
{
	return block->place == CL_PLACE_BUSY || context_ends(block);
}

static void unlink_use(struct context_use **list, struct context_use *use)
{
	while (*list != use)
		list = &(*list)->next;
	*list = use->next;
}

/* ------------------------------------------------------------ entering */
static void note_event(struct cl_block *block)
{
	struct cl_event_block *event = (struct cl_event_block *)block;

	event->older = newest_event;
	event->newer = NULL;
	*(newest_event ? &newest_event->newer : &oldest_event) = event;
	newest_event = event;
	limbo.events++;
}

static void forget_event(struct cl_block *block)
{
	struct cl_event_block *event = (struct cl_event_block *)block;

	if (!event->older && !event->newer && oldest_event != event)
		return; /* it was not in the limbo, or was forced out of it */
	*(event->older ? &event->older->newer : &oldest_event) = event->newer;
	*(event->newer ? &event->newer->older : &newest_event) = event->older;
	event->older = event->newer = NULL;
	limbo.events--;
}

/* Whether another file has the name of ours. */
static bool file_is_replaced(void)
{
	char path[4096];
	struct stat st;
	size_t n;

	cl_self_dir_path(path, sizeof path - 24);
	n = strlen(path);
	path[n++] = '/';
	cl_region_name(path + n, cl_own.file_id);
	/* the number alone: the device is not always the one that fstat() says */
	return fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino != cl_own.ino;
}

/*
 * Somebody has removed our file (logind does, at a user's last logout), or put
 * another in its place: importers that come now open as without us and hold
 * nothing, so what we would give back may be mapped by them.  (Of one that was
 * only moved, they are refused.)
 */
static bool file_is_lost(void)
{
	struct stat st;
	bool lost;

	/* a destructor after our end: who comes now is refused, see cl_region_end() */
	if (cl_self.file_ended)
		return false;
	lost = cl_region_fd_intact(&cl_own) && fstat(cl_own.fd, &st) == 0 &&
	       (st.st_nlink == 0 || file_is_replaced());
	if (lost)
		cl_log_once(CL_LOG_ERROR,
			    "this process's exporter file was removed or replaced while it runs (logind's "
			    "RemoveIPC does that at logout): who opens its blocks from now on is not seen, so "
			    "those that it frees are kept to its end");
	return lost;
}

/*
 * What takes more than the budget goes early, since @entered has come.  Whether anything did.
 * One free ends a few graces at most: where those are not enough it is @entered that does not
 * wait, or a large block would take the grace, and its free the time, of thousands of small ones.
 */
static bool end_graces_locked(struct cl_block *entered, uint64_t now)
{
	struct cl_block *block;
	unsigned int n = 0;

	for (; (block = cl_grace_over_locked(entered->device)) != NULL; n++) {
		if (n >= BATCH && entered->place == CL_PLACE_GRACE)
			block = entered;
		cl_count(graces_cut);
		cl_count_add(graces_cut_bytes, block->size);
		settle_place(block, now, true);
	}
	return n != 0;
}

uint64_t cl_limbo_enter_locked(struct cl_block *block, uint64_t now, bool *over)
{
	if (block->record == CL_NO_RECORD) {
		move(block, CL_PLACE_KEPT);
		cl_trace_block(CL_TRACE_KEPT, block);
		return UINT64_MAX;
	}
	cl_record_to_limbo(&cl_own, block->record, now);
	cl_count(limbo_entered);
	account(block, 1);
	cl_trace_block(CL_TRACE_LIMBO, block, .value = limbo.bytes);
	if (block->kind == CL_EVENT)
		note_event(block);
	settle_place(block, now, is_pressed(block, now));
	*over = (block->place == CL_PLACE_GRACE && end_graces_locked(block, now)) ||
		is_too_much_held(block);
	if (block->place == CL_PLACE_GRACE && limbo.events <= cl_options.max_events.number)
		return cl_grace_end(block) + cl_grace_tick();
	return block->place == CL_PLACE_HELD ? now + CL_REAP_EVERY : now;
}

void cl_limbo_look_again_locked(struct cl_block *block)
{
	if (block->place == CL_PLACE_HELD)
		move(block, block->fence ? CL_PLACE_DRAIN : CL_PLACE_DUE);
}

/* ------------------------------------------------------------- in the driver */
/*
 * From here to leave_driver() without any lock of ours.  The thread's capture
 * mode is relaxed meanwhile: our frees are not part of what some thread of the
 * program is capturing, and must not spoil it.
 */
struct driver_visit {
	CUstreamCaptureMode mode;
	bool exchanged, pushed;
};
static struct driver_visit enter_driver(CUcontext ctx)
{
	struct driver_visit visit = { .mode = CU_STREAM_CAPTURE_MODE_RELAXED };
	CUcontext current = NULL;

	if (cl_driver.cuThreadExchangeStreamCaptureMode)
		visit.exchanged = cl_driver.cuThreadExchangeStreamCaptureMode(&visit.mode) ==
				  CUDA_SUCCESS;
	if (ctx && !(cl_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == ctx))
		visit.pushed = cl_driver.cuCtxPushCurrent_v2(ctx) == CUDA_SUCCESS;
	return visit;
}
static void leave_driver(struct driver_visit *visit)
{
	CUcontext popped;

	if (visit->pushed)
		cl_driver.cuCtxPopCurrent_v2(&popped);
	if (visit->exchanged)
		cl_driver.cuThreadExchangeStreamCaptureMode(&visit->mode);
}

/* Streams of our own, one a context, to free on. */
enum { STREAMS = 32 };
static struct {
	CUcontext ctx;
	CUstream stream;
} free_streams[STREAMS];

/* The stream of @ctx, which is current; NULL if it can't be had. */
static CUstream free_stream(CUcontext ctx)
{
	CUstream stream = NULL;
	unsigned int at;

	pthread_mutex_lock(&cl_exports_lock);
	for (at = 0; at < STREAMS && free_streams[at].ctx; at++)
		if (free_streams[at].ctx == ctx)
			stream = free_streams[at].stream;
	pthread_mutex_unlock(&cl_exports_lock);
	if (stream || at == STREAMS || !cl_driver.cuMemFreeAsync || !cl_driver.cuStreamCreate ||
	    cl_driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
		return stream;
	pthread_mutex_lock(&cl_exports_lock);
	for (at = 0; at < STREAMS && free_streams[at].ctx; at++)
		;
	/* another thread may have been faster: two of a context do no harm */
	if (at < STREAMS) {
		free_streams[at].ctx = ctx;
		free_streams[at].stream = stream;
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return stream;
}

static void forget_free_stream_locked(CUcontext ctx)
{
	unsigned int kept = 0;

	for (unsigned int at = 0; at < STREAMS && free_streams[at].ctx; at++)
		if (free_streams[at].ctx != ctx)
			free_streams[kept++] = free_streams[at];
	for (; kept < STREAMS && free_streams[kept].ctx; kept++)
		free_streams[kept].ctx = NULL;
}

/* Relaxed: who waits for one asks the driver next. */
static _Atomic uint64_t events_back;

uint64_t cl_limbo_events_back(void)
{
	return atomic_load_explicit(&events_back, memory_order_relaxed);
}

void cl_limbo_event_went(void)
{
	atomic_fetch_add_explicit(&events_back, 1, memory_order_relaxed);
}

/* @stream: of our own and the block's context, or NULL.  *wait: it must be waited for. */
static CUresult give_back(struct cl_block *block, CUstream stream, bool *wait)
{
	if (block->kind == CL_EVENT) {
		CUresult result = cl_driver.cuEventDestroy_v2((CUevent)(uintptr_t)block->link.key);

		cl_limbo_event_went();
		return result;
	}
	/* a device without memory pools refuses */
	if (stream && cl_driver.cuMemFreeAsync((CUdeviceptr)block->link.key, stream) == CUDA_SUCCESS) {
		*wait = true;
		return CUDA_SUCCESS;
	}
	return cl_driver.cuMemFree_v2((CUdeviceptr)block->link.key);
}

/* A batch: blocks of one context that this thread is in the driver with. */
struct batch {
	struct context_use use;
	struct cl_block *block[BATCH];
	CUresult result[BATCH];
	unsigned int n, seen; /* seen: how many were looked at to find these */
};

static void use_context(struct context_use *use, CUcontext ctx, CUdevice device)
{
	*use = (struct context_use){ limbo.in_driver, ctx, device, pthread_self() };
	limbo.in_driver = use;
}

static void batch_begin_locked(struct batch *batch)
{
	use_context(&batch->use, batch->block[0]->ctx, batch->block[0]->device);
	pthread_mutex_unlock(&cl_exports_lock);
}
static void batch_end_locked(struct batch *batch)
{
	pthread_mutex_lock(&cl_exports_lock);
	unlink_use(&limbo.in_driver, &batch->use);
	pthread_cond_broadcast(&changed);
}

/* Fences whose events nobody needs. */
static void destroy_strays_locked(void)
{
	struct cl_fence *fence;
	struct context_use use;

	while ((fence = cl_fence_take_stray_locked(fence_ends)) != NULL) {
		use_context(&use, fence->ctx, fence->device);
		pthread_mutex_unlock(&cl_exports_lock);
		cl_driver.cuEventDestroy_v2(fence->event);
		pthread_mutex_lock(&cl_exports_lock);
		unlink_use(&limbo.in_driver, &use);
		pthread_cond_broadcast(&changed);
		cl_fence_drop_locked(fence);
	}
}

/* Takes the batch's blocks, whose records are released, out of this world. */
static void batch_release_locked(struct batch *batch, struct cl_collected *sum)
{
	CUcontext ctx = batch->block[0]->ctx;
	struct driver_visit visit;
	CUstream stream = NULL;
	bool wait = false;

	batch_begin_locked(batch);
	visit = enter_driver(ctx);
	for (unsigned int i = 0; ctx && i < batch->n; i++)
		if (batch->block[i]->kind == CL_MEMORY) {
			stream = free_stream(ctx);
			break;
		}
	for (unsigned int i = 0; i < batch->n; i++)
		batch->result[i] = batch->block[i]->destroyed ?
					   CUDA_SUCCESS :
					   give_back(batch->block[i], stream, &wait);
	/* only then the memory is back (measured); nothing but our frees is on it */
	if (wait)
		cl_driver.cuStreamSynchronize(stream);
	leave_driver(&visit);
	batch_end_locked(batch);
	for (unsigned int i = 0; i < batch->n; i++) {
		struct cl_block *block = batch->block[i];

		if (batch->result[i] != CUDA_SUCCESS)
			cl_log_once(CL_LOG_WARN,
				    "the driver refused to take block %#llx back (CUDA error %d): its "
				    "memory is lost to this process until it ends",
				    (unsigned long long)block->link.key, (int)batch->result[i]);
		sum->blocks++;
		sum->bytes += block->size;
		cl_count(limbo_released);
		cl_count_add(limbo_bytes_released, block->size);
		account(block, -1);
		cl_trace_block(CL_TRACE_RELEASED, block, .value = limbo.bytes);
		if (block->kind == CL_EVENT)
			forget_event(block);
		cl_block_delete(block);
	}
}

/* Up to BATCH blocks of one context that are due. */
static void batch_take_locked(struct batch *batch)
{
	struct cl_block *block = limbo.due.first, *next;

	batch->n = batch->seen = 0;
	for (; block && batch->n < BATCH; block = next) {
		next = block->next;
		if (context_ends(block)) {
			move(block, CL_PLACE_BUSY); /* on no list that list_of() knows */
			cl_list_add(&limbo.blocked, block);
			batch->seen++;
			continue;
		}
		if (batch->n && block->ctx != batch->block[0]->ctx)
			break;
		batch->seen++;
		if (block->own_opens || !cl_record_try_release(&cl_own, block->record)) {
			move(block, CL_PLACE_HELD);
			continue;
		}
		move(block, CL_PLACE_BUSY);
		batch->block[batch->n++] = block;
	}
}

/*
 * Asks each stream for which some block waits whether it has got to its fences, the oldest
 * first and no further than the first that it has not: what waits costs nothing.
 */
static void ask_streams_locked(void)
{
	struct cl_fence *fence[BATCH];
	CUevent event[BATCH];
	/* What other threads free meanwhile is another collection's: this one comes to an end. */
	uint64_t most, round = cl_fences_round_locked(&most);
	unsigned int n, reached;

	for (uint64_t sum = 0; sum <= most; sum += reached) {
		struct context_use use;
		struct driver_visit visit;

		n = cl_fences_take_locked(round, fence_ends, fence, event, BATCH);
		if (!n)
			return;
		use_context(&use, fence[0]->ctx, fence[0]->device);
		pthread_mutex_unlock(&cl_exports_lock);
		visit = enter_driver(use.ctx);
		/* an error is not "not yet": then the driver's free has to cope */
		for (reached = 0; reached < n; reached++) {
			if (cl_driver.cuEventQuery(event[reached]) == CUDA_ERROR_NOT_READY)
				break;
			cl_driver.cuEventDestroy_v2(event[reached]);
		}
		leave_driver(&visit);
		pthread_mutex_lock(&cl_exports_lock);
		unlink_use(&limbo.in_driver, &use);
		for (unsigned int i = 0; i < n; i++) {
			struct cl_block *block = cl_fence_asked_locked(fence[i], i < reached);

			if (block && block->place == CL_PLACE_DRAIN)
				move(block, CL_PLACE_DUE);
		}
		pthread_cond_broadcast(&changed);
	}
}

bool cl_limbo_can_skip_locked(struct cl_block *block, uint64_t now)
{
	bool early, refused;

	/* an untracked event need not wait: opening it after its destroy works (measured) */
	if (block->record == CL_NO_RECORD)
		return block->kind == CL_EVENT;
	refused = cl_grace_is_refused_locked(block, now, &early);
	if (block->own_opens || (!refused && !is_pressed(block, now)) || is_held(block) ||
	    file_is_lost() || !cl_record_release_begin(&cl_own, block->record, &block->before))
		return false;
	/* One that goes for somebody's need has not gone for the budget. */
	block->early = refused && early;
	return true;
}

/* --------------------------------------------------------------- collecting */
static void take_ready_locked(uint64_t now)
{
	/*
	 * No more than there can be: an importer that makes records ready over and over
	 * must not keep this thread.  What is left is seen at the next collection.
	 */
	uint64_t most = limbo.blocks + limbo.gone + CL_CHUNK;
	uint32_t ready[BATCH * 4];
	unsigned int n;

	for (uint64_t taken = 0; taken < most; taken += n) {
		n = cl_record_take_ready(&cl_own, ready, BATCH * 4);
		if (!n)
			break;
		for (unsigned int i = 0; i < n; i++) {
			struct cl_block *block = cl_block_of_record(ready[i]);

			if (!block)
				continue;
			if (block->place == CL_PLACE_HELD)
				settle_place(block, now, true);
			else if (block->place == CL_PLACE_GONE &&
				 cl_record_try_release(&cl_own, block->record)) {
				limbo.gone--;
				cl_block_delete(block);
			}
		}
	}
}

static void add_moved(struct cl_limbo_moved *moved, const struct of_device *of)
{
	moved->entered += of->entered;
	moved->returned += of->returned;
	moved->could_go += of->entered - of->returned - of->waits;
}

struct cl_limbo_moved cl_limbo_moved(int device)
{
	struct cl_limbo_moved moved = { .device = CL_ANY_DEVICE };

	pthread_mutex_lock(&cl_exports_lock);
	if (cl_own.header) {
		moved.device = cl_device_limbo_locked(device);
		for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
			if (i == CL_ANY_DEVICE || i == moved.device || moved.device == CL_ANY_DEVICE)
				add_moved(&moved, &limbo.of[i]);
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return moved;
}

static void end_grace_if_pressed(struct cl_block *block, void *device)
{
	if (may_be_of(block, *(const unsigned int *)device))
		move(block, place_after_grace(block));
}

void cl_limbo_press(unsigned int device, uint64_t until)
{
	uint64_t now = cl_now();

	if (until < now + CL_PRESSED_LEAST)
		until = now + CL_PRESSED_LEAST;
	if (until > now + CL_PRESSED_MOST)
		until = now + CL_PRESSED_MOST;
	pthread_mutex_lock(&cl_exports_lock);
	if (limbo.pressed_until[device] < until)
		limbo.pressed_until[device] = until;
	if (limbo.pressed_last < until)
		limbo.pressed_last = until;
	cl_grace_each_locked(end_grace_if_pressed, &device);
	pthread_mutex_unlock(&cl_exports_lock);
}

void cl_limbo_press_over(unsigned int device)
{
	pthread_mutex_lock(&cl_exports_lock);
	limbo.pressed_until[device] = 0;
	pthread_mutex_unlock(&cl_exports_lock);
}

/* Nobody can say who has what is due: it is held for good. */
static void keep_due_locked(void)
{
	for (const struct cl_block *block = limbo.due.first; block; block = block->next)
		atomic_store_explicit(&cl_own.record[block->record].pinned, 1, memory_order_relaxed);
}

static uint64_t next_due_locked(void)
{
	if (limbo.due.n)
		return 0;
	if (cl_fences_may_ask_locked(fence_ends))
		return cl_now() + POLL_DRAIN;
	return cl_grace_next_locked();
}

static void note_forced_out_locked(const struct cl_block *block)
{
	const struct cl_record *r = &cl_own.record[block->record];
	struct cl_finding finding = {
		.kind = CL_FOUND_EVENT_FORCED_OUT,
		.key = block->link.key,
		.other_stack = r->free_stack,
		.other_when = atomic_load_explicit(&r->freed, memory_order_relaxed),
		.file_id = cl_own.file_id,
		.record = block->record,
		.generation = cl_life_generation(cl_record_life(&cl_own, block->record)),
		.block_kind = CL_EVENT,
		.device = block->device,
	};

	cl_notes_finding_locked(&finding);
}

/* Who holds the record of @block: a slot, or CL_SLOTS where that is not known. */
static unsigned int a_holder_of(const struct cl_block *block)
{
	uint16_t slot;

	return cl_record_holders(&cl_own, block->record, &slot, 1) ? slot : CL_SLOTS;
}

/* @slot: of who holds it; CL_SLOTS: that is not known. */
static void note_held_forced_out_locked(const struct cl_block *block, unsigned int slot)
{
	const struct cl_record *r = &cl_own.record[block->record];
	struct cl_finding finding = {
		.kind = CL_FOUND_HELD_FORCED_OUT,
		.key = block->link.key,
		.size = block->size,
		.other_stack = r->free_stack,
		.other_when = atomic_load_explicit(&r->freed, memory_order_relaxed),
		.file_id = cl_own.file_id,
		.record = block->record,
		.generation = cl_life_generation(cl_record_life(&cl_own, block->record)),
		.block_kind = CL_MEMORY,
		.device = block->device,
	};
	char who[64] = "a process that is not known may map it";

	if (slot < CL_SLOTS) {
		finding.pid = cl_own.slot[slot].who.pid;
		memcpy(finding.name, cl_own.slot[slot].name, sizeof finding.name);
		snprintf(who, sizeof who, "process %u (%.16s) maps it", finding.pid, finding.name);
	}
	cl_notes_finding_locked(&finding);
	cl_log(CL_LOG_WARN,
	       "block %#llx of %llu bytes is given back although %s: freed blocks that others map take "
	       "more than CULIMBO_HELD_BYTES, %llu",
	       (unsigned long long)block->link.key, (unsigned long long)block->size, who,
	       (unsigned long long)cl_options.held_bytes.number);
}

/*
 * The oldest block that other processes hold, of a device on which they hold too much; NULL: none.
 * (Of one that is kept unfenced nobody knows whether its stream has got to its free.)
 */
static struct cl_block *oldest_too_much_locked(void)
{
	struct cl_block *block = limbo.held.first;

	while (block && (!is_too_much_held(block) || !block->size || block->own_opens ||
			 block->fence || block->unfenced || context_ends(block)))
		block = block->next;
	return block;
}

/*
 * Gives back the oldest of what others hold, as far as it is more than
 * CULIMBO_HELD_BYTES.  Its record waits for its holders, as after the end of its
 * context: no handle of it opens any more, and they can close it.
 */
static void force_held_out_locked(struct cl_collected *sum)
{
	struct cl_block *block;

	while ((block = oldest_too_much_locked()) != NULL) {
		struct batch batch = { .n = 1, .block = { block } };
		unsigned int slot = a_holder_of(block);
		struct driver_visit visit;
		CUstream stream;
		bool released, wait = false;

		move(block, CL_PLACE_BUSY);
		released = cl_record_gone(&cl_own, block->record);
		/* Its last holder may have left just now: then nothing is taken from anybody. */
		if (!released) {
			note_held_forced_out_locked(block, slot);
			cl_count(held_forced_out);
		}
		batch_begin_locked(&batch);
		visit = enter_driver(block->ctx);
		stream = block->ctx ? free_stream(block->ctx) : NULL;
		give_back(block, stream, &wait);
		if (wait)
			cl_driver.cuStreamSynchronize(stream);
		leave_driver(&visit);
		batch_end_locked(&batch);
		sum->blocks++;
		sum->bytes += block->size;
		cl_count(limbo_released);
		cl_count_add(limbo_bytes_released, block->size);
		account(block, -1);
		cl_trace_block(CL_TRACE_RELEASED, block, .value = limbo.bytes);
		/* a holder that left meanwhile made it ready while it was on no list */
		if (released || cl_record_try_release(&cl_own, block->record)) {
			cl_block_delete(block);
			continue;
		}
		cl_block_unhash(block);
		block->place = CL_PLACE_GONE;
		limbo.gone++;
		not_quiet();
	}
}

/* False: it is @until. */
static bool wait_until_locked(uint64_t until)
{
	struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };

	return pthread_cond_clockwait(&changed, &cl_exports_lock, CLOCK_MONOTONIC, &t) == 0;
}

/* The oldest event that no other thread is at. */
static struct cl_block *oldest_free_event_locked(void)
{
	struct cl_event_block *event = oldest_event;

	while (event && cl_limbo_is_busy_locked(&event->block))
		event = event->newer;
	return event ? &event->block : NULL;
}

/*
 * Events beyond @keep go, oldest first; their records wait for the importers.  @any: also where
 * another thread is at older ones (which count, but are about to go by themselves).
 */
static unsigned int force_events_out_locked(uint64_t keep, bool any)
{
	uint64_t most = limbo.events > keep ? limbo.events - keep : 0;
	struct cl_block *block;
	unsigned int n = 0;

	for (; n < most && limbo.events > keep && (block = oldest_free_event_locked()) != NULL; n++) {
		struct batch batch = { .n = 1, .block = { block } };
		struct driver_visit visit;
		bool wait;

		if (!any && block != &oldest_event->block)
			break;
		forget_event(block);
		move(block, CL_PLACE_BUSY);
		cl_count(events_forced_out);
		note_forced_out_locked(block);
		limbo.forcing++;
		batch_begin_locked(&batch);
		visit = enter_driver(block->ctx);
		give_back(block, NULL, &wait);
		leave_driver(&visit);
		batch_end_locked(&batch);
		limbo.forcing--;
		/* from here on as after a destroy without us: opening it still works */
		block->destroyed = true;
		cl_block_leave_context(block);
		cl_block_unhash(block);
		settle_place(block, cl_now(), false);
		cl_log_once(CL_LOG_INFO,
			    "too many destroyed events wait for their importers: the oldest go now "
			    "(CULIMBO_MAX_EVENTS is %llu)",
			    (unsigned long long)cl_options.max_events.number);
	}
	return n;
}

void cl_limbo_force_events_out(uint64_t until)
{
	uint64_t before = cl_limbo_events_back();

	pthread_mutex_lock(&cl_exports_lock);
	/* (those that others are at are counted among the limbo's) */
	while (!force_events_out_locked(limbo.events > BATCH ? limbo.events - BATCH : 0, true) &&
	       (limbo.events || limbo.forcing) && cl_limbo_events_back() == before &&
	       wait_until_locked(until))
		;
	pthread_mutex_unlock(&cl_exports_lock);
}

bool cl_limbo_has_events(void)
{
	bool has;

	pthread_mutex_lock(&cl_exports_lock);
	has = limbo.events || limbo.forcing;
	pthread_mutex_unlock(&cl_exports_lock);
	return has;
}

static __attribute__((noinline)) struct cl_collected collect(bool end_grace)
{
	struct cl_collected sum = { .next = UINT64_MAX };
	struct batch batch;
	uint64_t most;

	pthread_mutex_lock(&cl_exports_lock);
	if (!cl_own.header)
		goto out;
	/* before the ready map is taken: nobody is to think it empty who should wait for us */
	not_quiet();
	if (cl_record_any_ready(&cl_own))
		take_ready_locked(cl_now());
	if (cl_grace_n_locked())
		cl_grace_turn_locked(cl_now(), end_grace, settle_place);
	if (cl_fences_any_stray_locked())
		destroy_strays_locked();
	if (limbo.events > cl_options.max_events.number)
		force_events_out_locked(cl_options.max_events.number, false);
	if (cl_fences_may_ask_locked(fence_ends))
		ask_streams_locked();
	/* As there, what comes meanwhile is another collection's. */
	most = limbo.due.n;
	for (uint64_t seen = 0; limbo.due.n && seen < most; seen += batch.seen) {
		/* asked here and not when each is freed: it is three system calls */
		if (file_is_lost())
			keep_due_locked();
		batch_take_locked(&batch);
		if (batch.n)
			batch_release_locked(&batch, &sum);
	}
	if (cl_options.held_bytes.number)
		force_held_out_locked(&sum);
	sum.next = next_due_locked();
	sum.held = limbo.held.n || limbo.gone;
	/* release: with our file, which who sees it looks into */
	if (!limbo.due.n && !cl_fences_wait_locked() && !cl_grace_n_locked() &&
	    !cl_fences_any_stray_locked() && limbo.events <= cl_options.max_events.number)
		atomic_store_explicit(&limbo.quiet, sum.held ? QUIET_HELD : QUIET_EMPTY,
				      memory_order_release);
out:
	pthread_mutex_unlock(&cl_exports_lock);
	return sum;
}

struct cl_collected cl_limbo_collect(bool end_grace)
{
	/* acquire: our file is there; and once more, for another may just have taken what was ready */
	if (atomic_load_explicit(&limbo.quiet, memory_order_acquire) != QUIET_NOT &&
	    !cl_record_any_ready(&cl_own)) {
		uint8_t quiet = atomic_load_explicit(&limbo.quiet, memory_order_acquire);

		if (quiet != QUIET_NOT)
			return (struct cl_collected){ .next = UINT64_MAX, .held = quiet == QUIET_HELD };
	}
	return collect(end_grace);
}

/* Gives back @block of CL_PLACE_KEPT, whose context does not end. */
static void release_kept_locked(struct cl_block *block)
{
	struct batch batch = { .n = 1, .block = { block } };
	struct driver_visit visit;
	CUstream stream;
	bool wait = false;

	move(block, CL_PLACE_BUSY);
	batch_begin_locked(&batch);
	visit = enter_driver(block->ctx);
	stream = block->ctx ? free_stream(block->ctx) : NULL;
	give_back(block, stream, &wait);
	if (wait)
		cl_driver.cuStreamSynchronize(stream);
	leave_driver(&visit);
	batch_end_locked(&batch);
}

/* Asks the streams for which blocks of CL_PLACE_KEPT wait; else nobody does. */
static void ask_for_kept_locked(void)
{
	struct cl_block *block;

	for (block = limbo.kept.first; block; block = block->next)
		if (block->fence)
			cl_fence_wait_locked(block->fence, true);
	if (cl_fences_may_ask_locked(fence_ends))
		ask_streams_locked();
	for (block = limbo.kept.first; block; block = block->next)
		if (block->fence)
			cl_fence_wait_locked(block->fence, false);
}

bool cl_limbo_has_kept(void)
{
	bool has;

	pthread_mutex_lock(&cl_exports_lock);
	has = limbo.kept.n != 0;
	pthread_mutex_unlock(&cl_exports_lock);
	return has;
}

struct cl_collected cl_limbo_release_kept(void)
{
	struct cl_collected sum = { .next = UINT64_MAX };
	struct cl_block *block;
	uint64_t n;

	pthread_mutex_lock(&cl_exports_lock);
	ask_for_kept_locked();
	n = limbo.kept.n;
	while (n-- && (block = limbo.kept.first) != NULL) {
		if (block->fence || context_ends(block)) {
			/* to the end of the list: it is looked at once */
			move(block, CL_PLACE_BUSY);
			move(block, CL_PLACE_KEPT);
			continue;
		}
		release_kept_locked(block);
		sum.blocks++;
		sum.bytes += block->size;
		cl_trace_block(CL_TRACE_RELEASED, block, .flags = CL_TRACE_AT_ONCE);
		cl_block_delete(block);
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return sum;
}

/* ------------------------------------------------------------------- the dead */
static struct cl_slot_watch watch[CL_SLOTS];
static pthread_mutex_t reap_lock = PTHREAD_MUTEX_INITIALIZER;

struct cl_reclaimed cl_reclaimed[CL_RECLAIMED];
unsigned int cl_reclaimed_n;

/* @data: whether cl_exports_lock is held. */
static void tell_reaped(void *data, unsigned int slot, uint32_t record)
{
	const struct cl_slot *s = &cl_own.slot[slot];
	const struct cl_record *of = &cl_own.record[record];
	struct cl_finding finding = {
		.kind = CL_FOUND_HOLD_RECLAIMED,
		.pid = s->who.pid,
		.key = of->base,
		.size = of->size,
		.other_stack = of->free_stack,
		.other_when = atomic_load_explicit(&of->freed, memory_order_relaxed),
		.file_id = cl_own.file_id,
		.record = record,
		.generation = cl_life_generation(cl_record_life(&cl_own, record)),
		.block_kind = of->kind,
		.device = of->device,
	};

	memcpy(finding.name, s->name, sizeof finding.name);
	if (*(const bool *)data)
		cl_notes_finding_locked(&finding);
	else
		cl_notes_finding(&finding);
	cl_trace(CL_TRACE_RECLAIMED, .kind = cl_own.record[record].kind, .key = cl_own.record[record].base,
		 .size = cl_own.record[record].size, .file_id = cl_own.file_id, .record = record,
		 .pid = s->who.pid);
	if (cl_reclaimed_n < CL_RECLAIMED) { /* under reap_lock */
		struct cl_reclaimed *r = &cl_reclaimed[cl_reclaimed_n++];

		r->pid = s->who.pid;
		memcpy(r->name, s->name, sizeof r->name);
		r->base = cl_own.record[record].base;
		r->size = cl_own.record[record].size;
		r->kind = cl_own.record[record].kind;
	}
	cl_log(CL_LOG_DEBUG, "process %u (%.16s) died holding block %#llx of %llu bytes",
	       s->who.pid, s->name, (unsigned long long)cl_own.record[record].base,
	       (unsigned long long)cl_own.record[record].size);
}

/* The caller has reap_lock. */
static unsigned int reap(bool locked)
{
	struct cl_reaped sum = cl_holder_reap(&cl_own, watch, cl_now(), cl_options.settle.number,
					      tell_reaped, &locked);

	if (sum.holds)
		cl_log(CL_LOG_INFO, "took back %u holds of %u dead processes", sum.holds, sum.slots);
	cl_count_add(dead_holders, sum.slots);
	cl_count_add(dead_holds, sum.holds);
	return sum.settling;
}

unsigned int cl_limbo_reap(void)
{
	unsigned int settling = 0;
	bool ours;

	pthread_mutex_lock(&reap_lock);
	pthread_mutex_lock(&cl_exports_lock);
	ours = cl_own.header && cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
	pthread_mutex_unlock(&cl_exports_lock);
	if (ours)
		settling = reap(false);
	pthread_mutex_unlock(&reap_lock);
	return settling;
}

void cl_limbo_reap_at_end_locked(void)
{
	if (!cl_own.header || pthread_mutex_trylock(&reap_lock))
		return;
	if (cl_region_fd_intact(&cl_own))
		reap(true);
	pthread_mutex_unlock(&reap_lock);
}

/* ------------------------------------------------------------------- contexts */
void cl_limbo_context_hold_off(CUcontext ctx, CUdevice device)
{
	struct context_use *use = calloc(1, sizeof *use);
	bool busy = true;

	pthread_mutex_lock(&cl_exports_lock);
	if (use) {
		*use = (struct context_use){ limbo.ending, ctx, device, pthread_self() };
		limbo.ending = use;
	}
	while (busy) {
		busy = false;
		for (const struct context_use *in = limbo.in_driver; in; in = in->next)
			/* a context of the device we are not sure of counts as the primary one */
			if (!pthread_equal(in->thread, pthread_self()) &&
			    (ctx ? in->ctx == ctx : in->device == device))
				busy = true;
		if (!ctx && device >= 0 && device < CL_ASKED_DEVICES && limbo.asks[device])
			busy = true;
		if (busy)
			pthread_cond_wait(&changed, &cl_exports_lock);
	}
	pthread_mutex_unlock(&cl_exports_lock);
}

void cl_limbo_ask_begin(CUdevice device)
{
	struct timespec until = cl_after(5 * CL_END_WAIT);

	pthread_mutex_lock(&cl_exports_lock);
	while (cl_limbo_context_ends_locked(NULL, device, true) &&
	       pthread_cond_clockwait(&changed, &cl_exports_lock, CLOCK_MONOTONIC, &until) == 0)
		;
	limbo.asks[device]++;
	pthread_mutex_unlock(&cl_exports_lock);
}

void cl_limbo_ask_end(CUdevice device)
{
	pthread_mutex_lock(&cl_exports_lock);
	limbo.asks[device]--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&cl_exports_lock);
}

/* The driver has dropped what @block names. */
static bool forget_block(struct cl_block *block)
{
	bool limbo_has_it = block->place != CL_PLACE_PROGRAM && block->place != CL_PLACE_KEPT;

	move(block, CL_PLACE_BUSY);
	cl_fence_detach_locked(block);
	block->own_opens = 0;
	if (block->record == CL_NO_RECORD) {
		cl_block_delete(block);
		return false;
	}
	if (limbo_has_it)
		account(block, -1);
	else
		atomic_fetch_sub_explicit(&cl_own.header->live_blocks, 1, memory_order_relaxed);
	if (block->kind == CL_EVENT) {
		forget_event(block);
		cl_limbo_event_went(); /* (its place with it, measured) */
	}
	return cl_limbo_gone_locked(block);
}

bool cl_limbo_gone_locked(struct cl_block *block)
{
	cl_trace_block(CL_TRACE_GONE, block, .value = limbo.bytes);
	cl_block_unhash(block);
	if (cl_record_gone(&cl_own, block->record)) {
		cl_block_delete(block);
		return false;
	}
	block->place = CL_PLACE_GONE;
	limbo.gone++;
	not_quiet();
	return true;
}

bool cl_limbo_forget_block_locked(struct cl_block *block)
{
	return forget_block(block);
}

static void forget_with_context(struct cl_block *block, void *ended)
{
	if (!same_context(ended, block))
		return;
	if (block->place == CL_PLACE_BUSY) /* a thread of the program is freeing it just now */
		block->orphan = true;
	else
		forget_block(block);
}

/*
 * Destroying an event after its context is a crash (measured).  Where we don't
 * know which context it was made in, any that ends may be it.
 */
static void forget_unknown_event(struct cl_block *block, void *data)
{
	(void)data;
	if (!block->ctx && block->place != CL_PLACE_PROGRAM && block->place != CL_PLACE_BUSY)
		forget_block(block);
}

static bool fence_has_ended(const struct cl_fence *fence, const void *ended)
{
	return is_context(ended, fence->ctx, fence->device, fence->primary);
}
/* Its stream is no more, so nothing is on it that could come to @block. */
static void stream_is_gone(struct cl_block *block)
{
	if (block->place == CL_PLACE_DRAIN)
		move(block, CL_PLACE_DUE);
}

bool cl_limbo_context_go_on(CUcontext ctx, CUdevice device, bool gone)
{
	struct context_use **at, *use = NULL, ended = { .ctx = ctx, .device = device };
	struct cl_block *block;
	bool waited;

	pthread_mutex_lock(&cl_exports_lock);
	/* events beyond the limit and fences are passed over while their context may be ending */
	waited = limbo.blocked.n || cl_fences_wait_locked() || cl_fences_any_stray_locked() ||
		 limbo.events > cl_options.max_events.number;
	/* so is what others hold beyond the limit; and a collection may have found nothing else to do */
	if (cl_options.held_bytes.number && limbo.held.n) {
		waited = true;
		not_quiet();
	}
	for (at = &limbo.ending; *at; at = &(*at)->next)
		if ((*at)->ctx == ctx && (*at)->device == device &&
		    pthread_equal((*at)->thread, pthread_self())) {
			use = *at;
			*at = use->next;
			break;
		}
	while ((block = limbo.blocked.first) != NULL) {
		cl_list_remove(&limbo.blocked, block);
		settle_place(block, cl_now(), true);
	}
	/* its streams went with it; of a primary one we don't know the handle here */
	if (gone && ctx)
		forget_free_stream_locked(ctx);
	else if (gone)
		memset(free_streams, 0, sizeof free_streams);
	if (gone) {
		cl_unnoted_context_gone();
		if (cl_fences_any_locked())
			cl_fences_ended_locked(fence_has_ended, &ended, stream_is_gone);
		if (cl_context_has_any(&cl_block_tally, ctx, device)) {
			cl_block_each(CL_MEMORY, forget_with_context, &ended);
			cl_block_each(CL_EVENT, forget_with_context, &ended);
		}
		if (cl_context_any_unknown(&cl_block_tally))
			cl_block_each(CL_EVENT, forget_unknown_event, NULL);
	}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&cl_exports_lock);
	free(use);
	return waited || gone;
}

/* ---------------------------------------------------------------------- rest */
struct cl_limbo_sum cl_limbo_sum_locked(void)
{
	struct cl_limbo_sum sum = { .blocks = limbo.blocks,
				    .bytes = limbo.bytes,
				    .events = limbo.events,
				    .kept = limbo.kept.n + limbo.kept_small.n };

	return sum;
}

bool cl_limbo_is_empty(void)
{
	return !atomic_load_explicit(&limbo.blocks, memory_order_relaxed);
}

void cl_limbo_wait_locked(void)
{
	pthread_cond_wait(&changed, &cl_exports_lock);
}

bool cl_limbo_wait_for_others(uint64_t until, uint64_t (*back)(void), uint64_t had)
{
	bool ends, blocked = false, in_time = true;

	pthread_mutex_lock(&cl_exports_lock);
	for (;;) {
		ends = (limbo.blocked.n || cl_fences_blocked_locked(fence_ends)) &&
		       back() == had;
		if (!in_time || (!limbo.in_driver && !ends))
			break;
		blocked |= ends;
		in_time = wait_until_locked(until);
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return blocked && in_time && back() == had;
}

void cl_limbo_changed_locked(void)
{
	pthread_cond_broadcast(&changed);
}

void cl_limbo_forget(void)
{
	memset(&limbo, 0, sizeof limbo);
	cl_grace_forget();
	memset(free_streams, 0, sizeof free_streams);
	oldest_event = newest_event = NULL;
	cl_fences_forget();
	memset(watch, 0, sizeof watch);
	cl_reclaimed_n = 0;
	changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	reap_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

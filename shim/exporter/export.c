/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports: what this process shares, and what becomes of it when it is freed.
 *
 * A block is known to us from its first export on, by its base address.  From
 * then on freeing it means: wait as the driver's free would, put it into the
 * limbo, and give it back to the driver when nobody can have it any more.
 */
#include <stdlib.h>
#include <string.h>

#include "shim/blocks/blocks.h"
#include "shim/limbo/collector.h"
#include "shim/driver/context.h"
#include "shim/driver/devices.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/grace.h"
#include "shim/driver/green.h"
#include "shim/importer/mappings.h"
#include "shim/limbo/limbo.h"
#include "shim/base/log.h"
#include "shim/diag/notes.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"

/* --------------------------------------------------------- whose an event is */
/*
 * The context that each interprocess event was made in: an event must not be
 * destroyed after its context (a crash, measured), and no call tells it.
 */
struct event_note {
	UT_hash_handle hh;
	uint64_t event;
	CUcontext ctx;
	CUdevice device;
	bool primary, asked; /* asked: whether it is */
};
static struct event_note *event_notes; /* under cl_exports_lock */

static struct event_note *event_note_locked(CUevent event)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct event_note *note;

	HASH_FIND(hh, event_notes, &key, sizeof key, note);
	return note;
}

void cl_event_created(CUevent event)
{
	CL_UNCANCELLED;
	CUcontext ctx = NULL;
	CUdevice device = 0;
	struct event_note *note;
	bool primary = false, asks = cl_sharing();

	if (!(asks ? cl_context_current(&ctx, &device, &primary) :
		     cl_context_current_unasked(&ctx, &device, &primary)))
		return;
	pthread_mutex_lock(&cl_exports_lock);
	note = event_note_locked(event);
	if (!note && (note = calloc(1, sizeof *note)) != NULL) {
		note->event = (uint64_t)(uintptr_t)event;
		HASH_ADD(hh, event_notes, event, sizeof note->event, note);
		if (!note->hh.tbl) {
			free(note);
			note = NULL;
		}
	}
	if (note) {
		note->ctx = ctx;
		note->device = device;
		note->primary = primary;
		note->asked = asks || primary;
	}
	pthread_mutex_unlock(&cl_exports_lock);
}

/* Of one that was made before this process shared. */
static void ask_whose(CUevent event)
{
	const struct event_note *found;
	struct event_note as = { .asked = true }, *note;

	pthread_mutex_lock(&cl_exports_lock);
	found = event_note_locked(event);
	if (found)
		as = *found;
	pthread_mutex_unlock(&cl_exports_lock);
	if (as.asked)
		return;
	as.primary = cl_context_is_primary(as.ctx, as.device);
	pthread_mutex_lock(&cl_exports_lock);
	note = event_note_locked(event);
	if (note && !note->asked && note->ctx == as.ctx && note->device == as.device) {
		note->primary = as.primary;
		note->asked = true;
	}
	pthread_mutex_unlock(&cl_exports_lock);
}

static void event_note_drop(CUevent event)
{
	struct event_note *note;

	pthread_mutex_lock(&cl_exports_lock);
	note = event_note_locked(event);
	if (note)
		HASH_DELETE(hh, event_notes, note);
	pthread_mutex_unlock(&cl_exports_lock);
	free(note);
}

/* (also those that have gone with their context) */
uint64_t cl_events_alive(void)
{
	uint64_t n;

	pthread_mutex_lock(&cl_exports_lock);
	n = HASH_COUNT(event_notes);
	pthread_mutex_unlock(&cl_exports_lock);
	return n;
}

void cl_events_forget(void)
{
	event_notes = NULL; /* their memory is left, see cl_blocks_forget() */
}

/* ------------------------------------------------------------------ exporting */
static bool in_limbo(const struct cl_block *block)
{
	return block && block->place != CL_PLACE_PROGRAM;
}

/* -------------------------------------------------------------------- findings */
/* @key, which is in the limbo (@block) or was freed unnoted (NULL), is misused: what there is to say. */
static struct cl_finding about_locked(enum cl_finding_kind kind, enum cl_kind block_kind, uint64_t key,
				      const struct cl_block *block)
{
	struct cl_finding finding = { .kind = kind, .key = key, .block_kind = (uint8_t)block_kind };

	if (block) {
		finding.size = block->size;
		finding.device = block->device;
	}
	if (block && block->record != CL_NO_RECORD) {
		const struct cl_record *r = &cl_own.record[block->record];

		finding.record = block->record;
		finding.file_id = cl_own.file_id;
		finding.generation = cl_life_generation(cl_record_life(&cl_own, block->record));
		finding.other_stack = r->free_stack;
		finding.other_when = atomic_load_explicit(&r->freed, memory_order_relaxed);
	}
	return finding;
}

static void found(struct cl_finding *finding)
{
	finding->stack = cl_notes_stack(false);
	cl_notes_finding(finding);
}

/* The block at @key, once no other thread is in the driver with it. */
static struct cl_block *find_settled_locked(enum cl_kind kind, uint64_t key)
{
	struct cl_block *block;

	/*
	 * One that is on its way to the driver: whether the program may free that
	 * address again is known when the driver has had it.
	 */
	while ((block = cl_block_find(kind, key)) != NULL && cl_limbo_is_busy_locked(block))
		cl_limbo_wait_locked();
	return block;
}

static void stamp(void *handle, uint32_t record, uint32_t generation)
{
	uint64_t tail = cl_region_stamp(&cl_own, record, generation);

	memcpy((char *)handle + 56, &tail, sizeof tail);
}

static bool has_room_for_stamp(const void *handle)
{
	uint64_t tail;

	memcpy(&tail, (const char *)handle + 56, sizeof tail);
	return !tail;
}

/* No room for a stamp: importers find the record by the whole handle.  False: they can't. */
static bool index_by_handle_locked(struct cl_block *block, const void *handle)
{
	int err;

	cl_log_once(CL_LOG_WARN,
		    "this driver uses all 64 bytes of an IPC handle: blocks are found by the whole of it, so "
		    "a stale handle that is equal to a live one cannot be told from it");
	if (block->indexed)
		return true;
	cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
	err = cl_region_need_by_handle(&cl_own);
	if (err) {
		cl_log_once(CL_LOG_ERROR,
			    "no room to find blocks by their handles (%s): importers cannot say what they hold, "
			    "so what is exported is kept to the end once freed",
			    strerror(-err));
		return false;
	}
	cl_own_go_by_handle_locked();
	cl_record_index(&cl_own, block->record, handle);
	block->indexed = true;
	return true;
}

/*
 * What @block was has gone behind our back (the driver made another handle for
 * its address): its holders keep the record (true: there are some), the address is a
 * new block's.
 */
static bool disown_locked(struct cl_block *block)
{
	atomic_fetch_sub_explicit(&cl_own.header->live_blocks, 1, memory_order_relaxed);
	return cl_limbo_gone_locked(block);
}

/* Without the lock, after what is @gone of which holders keep the record. */
static void watch_holders(bool gone)
{
	if (gone)
		cl_collector_wake_by(cl_now() + CL_REAP_EVERY);
}

/* Who opens @block is not seen: it is never given back. */
static void pin_locked(const struct cl_block *block)
{
	cl_count(unmanaged_exports);
	if (block->record != CL_NO_RECORD)
		atomic_store_explicit(&cl_own.record[block->record].pinned, 1, memory_order_relaxed);
}

/* An export of which nothing can be noted. */
static void keep_unnoted_locked(enum cl_kind kind, uint64_t base)
{
	cl_count(unmanaged_exports);
	if (kind == CL_MEMORY)
		cl_unnoted_keep(base);
	cl_log_once(CL_LOG_WARN, "no memory to note an export: its block is kept to the end once freed, for "
				 "nobody can say who has it (an event is not protected, as without culimbo)");
}

/* Exported: gives @handle the stamp that leads to @block's record, or what leads there instead. */
static void mark_locked(void *handle, struct cl_block *block, uint32_t generation)
{
	cl_count_locked(exports);
	cl_trace_block(CL_TRACE_EXPORTED, block, .generation = generation);
	if (block->record == CL_NO_RECORD)
		return;
	if (has_room_for_stamp(handle))
		stamp(handle, block->record, generation);
	else if (!index_by_handle_locked(block, handle))
		pin_locked(block);
}

/*
 * What is there (@block, with no thread in the driver) once more, at @now, by @handle, which
 * gets its stamp.  False: nothing, or not the same any more.
 */
static bool export_again_locked(void *handle, struct cl_block *block, uint64_t now)
{
	uint32_t generation = 0;

	if (!block || in_limbo(block) ||
	    (block->record != CL_NO_RECORD && !cl_block_has_handle(block, handle)))
		return false;
	if (block->record != CL_NO_RECORD)
		generation = cl_record_export_again(&cl_own, block->record, now);
	mark_locked(handle, block, generation);
	return true;
}

/*
 * The block @what, known or not.  *misuse: what is to be noted, without the lock;
 * *gone: for watch_holders().
 */
static CUresult publish_locked(void *handle, const struct cl_export *what, CUcontext ctx, bool primary,
			       uint32_t stack, struct cl_finding *misuse, bool *gone)
{
	struct cl_block *block;
	uint32_t generation = 0;

	/* one that has the address of a context whose end is not noted yet: it would go with that */
	while (cl_limbo_context_ends_locked(ctx, what->device, primary))
		cl_limbo_wait_locked();
	block = find_settled_locked(what->kind, what->base);
	if (export_again_locked(handle, block, what->now))
		return CUDA_SUCCESS;
	if (in_limbo(block)) {
		cl_count(exported_after_free);
		*misuse = about_locked(CL_FOUND_EXPORTED_AFTER_FREE, what->kind, what->base, block);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (block)
		*gone = disown_locked(block);
	block = cl_block_new(what, ctx, primary, stack, &generation);
	if (block)
		mark_locked(handle, block, generation);
	else
		keep_unnoted_locked(what->kind, what->base);
	/* a handle of it is under way that leads nowhere */
	if (block && what->kind == CL_MEMORY && cl_unnoted_kept(what->base))
		pin_locked(block);
	return CUDA_SUCCESS;
}

/* What the driver says of the block that @dptr lies in. */
static bool describe(CUdeviceptr dptr, struct cl_export *what, CUcontext *ctx, bool *primary)
{
	CUdeviceptr base = dptr;
	uint8_t uuid[CL_UUID];
	size_t size = 0;

	/* an interior pointer gives the handle of its block */
	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS)
		return false;
	what->base = base;
	what->size = size;
	cl_driver.cuPointerGetAttribute(ctx, CU_POINTER_ATTRIBUTE_CONTEXT, base);
	cl_driver.cuPointerGetAttribute(&what->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base);
	cl_grace_know_device(what->device);
	*primary = cl_context_resolve(ctx, what->device);
	/* asked here, without a lock, for when it is in the limbo */
	cl_device_uuid(what->device, uuid);
	return true;
}

static bool is_in_limbo(CUdeviceptr dptr)
{
	bool is;

	pthread_mutex_lock(&cl_exports_lock);
	is = in_limbo(cl_block_find(CL_MEMORY, dptr));
	pthread_mutex_unlock(&cl_exports_lock);
	return is;
}

enum export_as {
	EXPORT_DONE,	   /* exported again, or refused */
	EXPORT_NEW,	   /* the driver has given the handle of what is not known by @dptr */
	EXPORT_NOT_SIMPLY, /* nothing has been done */
};

/*
 * Of a block that was exported before and is the same still, all there is to do is
 * to ask the driver and to look at what we know: one lock (two where the limbo has
 * any), and nothing is waited for under it, so that no thread is cancelled there.
 */
static enum export_as export_simply(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	enum export_as as = EXPORT_NOT_SIMPLY;
	struct cl_block *block;

	/* (the driver is not asked for what the program has freed) */
	if ((!cl_limbo_is_empty() && is_in_limbo(dptr)) ||
	    cl_driver.cuIpcGetMemHandle(handle, dptr) != CUDA_SUCCESS)
		return as;
	pthread_mutex_lock(&cl_exports_lock);
	block = cl_block_find(CL_MEMORY, dptr);
	if (cl_unnoted_freed(dptr, false)) {
		/* it is to be refused */
	} else if (!block) {
		as = EXPORT_NEW;
	} else if (!in_limbo(block) && !cl_limbo_is_busy_locked(block) &&
		   block->record != CL_NO_RECORD && has_room_for_stamp(handle->reserved) &&
		   cl_block_has_handle(block, handle->reserved)) {
		/* (the clock under the lock, so that a later time is never overwritten by an earlier one) */
		stamp(handle->reserved, block->record,
		      cl_record_export_again(&cl_own, block->record, cl_now()));
		cl_count_locked(exports);
		as = EXPORT_DONE;
	}
	pthread_mutex_unlock(&cl_exports_lock);
	/* without its stamp it would lead past us, should the export be refused */
	if (as == EXPORT_NOT_SIMPLY)
		memset(handle, 0, sizeof *handle);
	return as;
}

/* EXPORT_NEW.  (Apart, for its registers and its stack.) */
static __attribute__((noinline)) CUresult export_new(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	CL_UNCANCELLED;
	struct cl_export what = { .kind = CL_MEMORY,
				  .base = dptr,
				  .handle = (const uint8_t *)handle->reserved };
	struct cl_finding misuse = { .kind = CL_FOUND_NOTHING };
	CUcontext ctx = NULL;
	CUresult result = CUDA_SUCCESS;
	bool primary = false, gone = false, described = describe(dptr, &what, &ctx, &primary);
	uint32_t stack;

	/* a pointer into what was in the limbo, and has just gone from it: the driver says so, asked again */
	if (!described) {
		result = cl_driver.cuIpcGetMemHandle(handle, dptr);
		if (result != CUDA_SUCCESS)
			return result;
		described = describe(dptr, &what, &ctx, &primary);
	}
	stack = described ? cl_notes_stack(false) : 0;
	pthread_mutex_lock(&cl_exports_lock);
	what.now = cl_now();
	if (described)
		result = publish_locked(handle->reserved, &what, ctx, primary, stack, &misuse,
					&gone);
	else
		keep_unnoted_locked(CL_MEMORY, dptr);
	pthread_mutex_unlock(&cl_exports_lock);
	watch_holders(gone);
	if (misuse.kind)
		found(&misuse);
	return result;
}

/* EXPORT_NOT_SIMPLY.  EXPORT_DONE with *result, or EXPORT_NEW.  (Apart likewise.) */
static __attribute__((noinline)) enum export_as export_carefully(CUipcMemHandle *handle, CUdeviceptr dptr,
								  CUresult *result)
{
	CL_UNCANCELLED;
	struct cl_finding misuse = { .kind = CL_FOUND_NOTHING };
	struct cl_block *block;
	bool known, freed;

	if (!cl_self_start()) {
		*result = cl_driver.cuIpcGetMemHandle(handle, dptr);
		return EXPORT_DONE;
	}
	pthread_mutex_lock(&cl_exports_lock);
	block = find_settled_locked(CL_MEMORY, dptr);
	freed = in_limbo(block) || cl_unnoted_freed(dptr, false);
	known = block && !freed;
	if (freed)
		misuse = about_locked(CL_FOUND_EXPORTED_AFTER_FREE, CL_MEMORY, dptr, block);
	pthread_mutex_unlock(&cl_exports_lock);
	if (freed) {
		cl_count(exported_after_free);
		found(&misuse);
		*result = cl_context_refusal();
		return EXPORT_DONE;
	}
	cl_collector_called();
	*result = cl_driver.cuIpcGetMemHandle(handle, dptr);
	if (*result != CUDA_SUCCESS)
		return EXPORT_DONE;
	pthread_mutex_lock(&cl_exports_lock);
	block = known ? find_settled_locked(CL_MEMORY, dptr) : NULL;
	known = export_again_locked(handle->reserved, block, cl_now());
	pthread_mutex_unlock(&cl_exports_lock);
	return known ? EXPORT_DONE : EXPORT_NEW;
}

CUresult cl_memory_export(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	/* (also between the driver's answer and what is noted of it) */
	CL_CANCELLED_LATER;
	enum export_as as = EXPORT_NOT_SIMPLY;
	CUresult result;

	/* (the long way begins to share, traces, and does the collector's work where no thread does) */
	if (cl_watched() == CL_SHARES && !cl_self_is_copy() && !cl_collector_is_inline())
		as = export_simply(handle, dptr);
	if (as == EXPORT_DONE)
		return CUDA_SUCCESS;
	if (as == EXPORT_NOT_SIMPLY && export_carefully(handle, dptr, &result) == EXPORT_DONE)
		return result;
	return export_new(handle, dptr);
}

CUresult cl_event_export(CUipcEventHandle *handle, CUevent event)
{
	CL_UNCANCELLED;
	struct cl_export what = { .kind = CL_EVENT, .base = (uint64_t)(uintptr_t)event };
	struct cl_finding misuse = { .kind = CL_FOUND_NOTHING };
	const struct event_note *note;
	struct cl_block *block;
	CUresult result;
	bool known, freed, gone = false;
	uint32_t stack;

	if (!cl_self_start())
		return cl_driver.cuIpcGetEventHandle(handle, event);
	pthread_mutex_lock(&cl_exports_lock);
	block = find_settled_locked(CL_EVENT, what.base);
	freed = in_limbo(block);
	known = block && !freed;
	if (freed)
		misuse = about_locked(CL_FOUND_EXPORTED_AFTER_FREE, CL_EVENT, what.base, block);
	pthread_mutex_unlock(&cl_exports_lock);
	if (freed) { /* bare, the driver crashes on it (measured) */
		cl_count(exported_after_free);
		found(&misuse);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	result = cl_driver.cuIpcGetEventHandle(handle, event);
	/* at the driver's limit of shared events, creating or exporting one fails (measured) */
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		struct cl_retry retry;

		cl_retry_begin(&retry, CL_RETRY_EVENT, (struct cl_short){ 0 });
		while (result == CUDA_ERROR_OUT_OF_MEMORY && cl_retry_again(&retry))
			result = cl_driver.cuIpcGetEventHandle(handle, event);
		cl_retry_end(&retry);
	}
	if (result != CUDA_SUCCESS)
		return result;
	cl_event_is_new(event); /* whoever made it: the driver has just said that it lives */
	what.handle = (const uint8_t *)handle->reserved;
	if (!known)
		ask_whose(event);
	stack = known ? 0 : cl_notes_stack(false);
	pthread_mutex_lock(&cl_exports_lock);
	what.now = cl_now();
	note = event_note_locked(event);
	if (note)
		what.device = note->device;
	result = publish_locked(handle->reserved, &what, note ? note->ctx : NULL,
				note && note->primary, stack, &misuse, &gone);
	pthread_mutex_unlock(&cl_exports_lock);
	watch_holders(gone);
	if (misuse.kind)
		found(&misuse);
	return result;
}

/* -------------------------------------------------------------------- freeing */
/* What is to be done with a pointer that the program frees. */
enum free_as {
	FREE_NOT_OURS, /* the driver's matter alone */
	FREE_AGAIN,    /* it is in the limbo already */
	FREE_NOW,      /* nobody has it or can get it: the driver's, and ours to forget */
	FREE_DEFERRED, /* into the limbo, when all has been waited for */
	FREE_UNNOTED,  /* exported without a note of it: never the driver's */
};

/*
 * Decides, and takes the block for this thread (CL_PLACE_BUSY), so that a
 * second free of it waits and then finds it freed: then *again says of what.
 */
static enum free_as take_for_free(enum cl_kind kind, uint64_t key, struct cl_block **taken,
				  struct cl_finding *again)
{
	struct cl_block *block;
	enum free_as as = FREE_NOT_OURS;

	pthread_mutex_lock(&cl_exports_lock);
	block = find_settled_locked(kind, key);
	if (in_limbo(block)) {
		as = FREE_AGAIN;
		*again = about_locked(kind == CL_EVENT ? CL_FOUND_EVENT_DESTROYED_TWICE :
							 CL_FOUND_FREED_TWICE,
				      kind, key, block);
	} else if (block) {
		as = cl_limbo_can_skip_locked(block, cl_now()) ? FREE_NOW : FREE_DEFERRED;
		block->place = CL_PLACE_BUSY;
		*taken = block;
	} else if (kind == CL_MEMORY && cl_unnoted_kept(key)) {
		as = cl_unnoted_freed(key, false) ? FREE_AGAIN : FREE_UNNOTED;
		*again = about_locked(CL_FOUND_FREED_TWICE, kind, key, NULL);
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return as;
}

/* FREE_NOW: the driver has freed @block, or has refused to, and it is as before. */
static CUresult freed_now(struct cl_block *block, CUresult result)
{
	bool freed = result == CUDA_SUCCESS, gone = false;

	pthread_mutex_lock(&cl_exports_lock);
	block->place = CL_PLACE_PROGRAM;
	if (block->record != CL_NO_RECORD)
		cl_record_release_end(&cl_own, block->record, block->before, freed);
	if (freed) {
		if (block->early) {
			cl_count(graces_cut);
			cl_count_add(graces_cut_bytes, block->size);
		}
		cl_trace_block(CL_TRACE_RELEASED, block, .flags = CL_TRACE_AT_ONCE);
		if (block->kind == CL_EVENT)
			cl_limbo_event_went();
		if (block->record != CL_NO_RECORD)
			atomic_fetch_sub_explicit(&cl_own.header->live_blocks, 1,
						  memory_order_relaxed);
		cl_block_delete(block);
	} else if (block->orphan) {
		gone = cl_limbo_forget_block_locked(block);
	}
	cl_limbo_changed_locked();
	pthread_mutex_unlock(&cl_exports_lock);
	watch_holders(gone);
	return result;
}

static void free_failed(struct cl_block *block)
{
	bool gone = false;

	pthread_mutex_lock(&cl_exports_lock);
	block->place = CL_PLACE_PROGRAM;
	if (block->orphan)
		gone = cl_limbo_forget_block_locked(block);
	cl_limbo_changed_locked();
	pthread_mutex_unlock(&cl_exports_lock);
	watch_holders(gone);
}

/*
 * The program has freed @block, and all that the driver's free waits for has been waited for,
 * or @fence (or NULL) says when it has been.
 */
static CUresult into_limbo(struct cl_block *block, struct cl_fence *fence)
{
	uint32_t stack = block->record == CL_NO_RECORD ? 0 : cl_notes_stack(false);
	uint64_t look = UINT64_MAX;
	bool gone = false, over = false, stray;

	pthread_mutex_lock(&cl_exports_lock);
	block->place = CL_PLACE_PROGRAM;
	if (block->record != CL_NO_RECORD)
		cl_own.record[block->record].free_stack = stack;
	if (fence)
		cl_fence_add_locked(fence, block);
	if (block->orphan)
		gone = cl_limbo_forget_block_locked(block);
	else
		look = cl_limbo_enter_locked(block, cl_now(), &over);
	stray = cl_fences_any_stray_locked();
	cl_limbo_changed_locked();
	pthread_mutex_unlock(&cl_exports_lock);
	/* in this thread: who frees fast must not be faster than the memory comes back (measured) */
	if (over)
		cl_limbo_collect(false);
	if (look != UINT64_MAX)
		cl_collector_wake_by(look);
	if (stray)
		cl_collector_wake();
	watch_holders(gone);
	return CUDA_SUCCESS;
}

/*
 * Waits for what the driver's free of a block of @ctx would wait for, and fails as
 * it would: by freeing something else of that context.  cuCtxSynchronize() is not
 * the same: where a stream captures in relaxed mode it fails and spoils the
 * capture, and a free does neither (measured, doc/measurements.md).
 */
static CUresult wait_as_a_free(CUcontext ctx)
{
	CUcontext current = NULL, popped;
	CUdeviceptr stand_in;
	bool pushed = false;
	CUresult result;

	cl_driver.cuCtxGetCurrent(&current);
	if (ctx && current != ctx) {
		result = cl_driver.cuCtxPushCurrent_v2(ctx);
		if (result != CUDA_SUCCESS)
			return result;
		pushed = true;
	}
	result = cl_driver.cuMemAlloc_v2(&stand_in, 1);
	if (result == CUDA_SUCCESS)
		result = cl_driver.cuMemFree_v2(stand_in);
	else if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = cl_driver.cuCtxSynchronize();
	if (pushed)
		cl_driver.cuCtxPopCurrent_v2(&popped);
	return result;
}

static CUresult freed_again(CUdeviceptr dptr, struct cl_finding *again)
{
	cl_count(freed_twice);
	found(again);
	cl_log(CL_LOG_INFO, "block %#llx was freed twice", (unsigned long long)dptr);
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult not_ours(CUdeviceptr dptr, CUresult result)
{
	CL_UNCANCELLED;
	struct cl_import import;

	if (result == CUDA_ERROR_INVALID_VALUE && dptr && cl_import_find(dptr, &import)) {
		struct cl_finding misuse = { .kind = CL_FOUND_IMPORT_FREED,
					     .pid = import.exporter_pid,
					     .key = import.key,
					     .size = import.size,
					     .other_stack = import.stack,
					     .other_when = import.since,
					     .file_id = import.file_id,
					     .record = import.record,
					     .generation = import.generation,
					     .block_kind = CL_MEMORY,
					     .device = import.device };

		cl_count(freed_import);
		misuse.stack = cl_notes_stack(true);
		cl_notes_finding(&misuse);
		cl_log(CL_LOG_INFO, "import %#llx was freed instead of closed; it stays mapped",
		       (unsigned long long)dptr);
	}
	return result;
}

/*
 * The program frees what we have no note of; @wait: not in stream order.  False:
 * the driver knows no such block, and has to say so.
 */
static bool free_unnoted(CUdeviceptr dptr, bool wait, CUresult *result)
{
	CUdeviceptr base = 0;
	CUcontext ctx = NULL;
	size_t size;

	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS || base != dptr)
		return false;
	cl_driver.cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, dptr);
	cl_green_resolve(&ctx);
	*result = wait ? wait_as_a_free(ctx) : CUDA_SUCCESS;
	if (*result != CUDA_SUCCESS)
		return true;
	pthread_mutex_lock(&cl_exports_lock);
	if (cl_unnoted_freed(dptr, true)) /* by another thread meanwhile */
		*result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&cl_exports_lock);
	return true;
}

/*
 * Never exported, as most that is freed: no lock, no look at any block.  Without
 * a collector's thread the long way does its work.
 */
static bool is_none_of_ours(CUdeviceptr dptr)
{
	return __builtin_expect(!cl_block_may_be(dptr), 1) && !cl_collector_is_inline();
}

static CUresult free_what_may_be_ours(CUdeviceptr dptr)
{
	CL_UNCANCELLED;
	struct cl_block *block = NULL;
	struct cl_finding again;
	CUresult result;

	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return cl_driver.cuMemFree_v2(dptr);
	}
	switch (take_for_free(CL_MEMORY, dptr, &block, &again)) {
	case FREE_NOT_OURS:
		cl_collector_called();
		return not_ours(dptr, cl_driver.cuMemFree_v2(dptr));
	case FREE_AGAIN:
		return freed_again(dptr, &again);
	case FREE_NOW:
		return freed_now(block, cl_driver.cuMemFree_v2(dptr));
	case FREE_UNNOTED:
		return free_unnoted(dptr, true, &result) ? result : cl_driver.cuMemFree_v2(dptr);
	case FREE_DEFERRED:
		break;
	}
	result = wait_as_a_free(block->ctx);
	if (result == CUDA_SUCCESS)
		return into_limbo(block, NULL);
	free_failed(block);
	return result;
}

CUresult cl_memory_free(CUdeviceptr dptr)
{
	CUresult result;

	if (!is_none_of_ours(dptr))
		return free_what_may_be_ours(dptr);
	result = cl_driver.cuMemFree_v2(dptr);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : not_ours(dptr, result);
}

/* Nobody can say when its stream has got to the free. */
static void keep_unfenced(struct cl_block *block)
{
	pthread_mutex_lock(&cl_exports_lock);
	if (block->record != CL_NO_RECORD)
		atomic_store_explicit(&cl_own.record[block->record].pinned, 1, memory_order_relaxed);
	block->unfenced = true;
	pthread_mutex_unlock(&cl_exports_lock);
	cl_log_once(CL_LOG_WARN, "no memory to note in which stream's order a block is freed, or it is not known: "
				 "it is kept to the end");
}

static CUresult free_async_what_may_be_ours(CUdeviceptr dptr, CUstream stream, bool per_thread,
					    CUresult (*bare)(CUdeviceptr, CUstream))
{
	CL_UNCANCELLED;
	struct cl_block *block = NULL;
	struct cl_finding again;
	struct cl_fence *fence;
	CUresult result;
	bool capturing;

	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return bare(dptr, stream);
	}
	switch (take_for_free(CL_MEMORY, dptr, &block, &again)) {
	case FREE_NOT_OURS:
		cl_collector_called();
		return not_ours(dptr, bare(dptr, stream));
	case FREE_AGAIN: /* (unlike cuMemFree(), it needs a context) */
		freed_again(dptr, &again);
		return cl_context_refusal();
	case FREE_NOW:
		return freed_now(block, bare(dptr, stream));
	case FREE_UNNOTED:
		return free_unnoted(dptr, false, &result) ? result : bare(dptr, stream);
	case FREE_DEFERRED:
		break;
	}
	result = cl_fence_make(block, stream, per_thread, &fence, &capturing);
	if (result == CUDA_SUCCESS && capturing)
		result = bare(dptr, stream);
	if (result != CUDA_SUCCESS || capturing) {
		free_failed(block);
		return result;
	}
	if (!fence)
		keep_unfenced(block);
	return into_limbo(block, fence);
}

CUresult cl_memory_free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	CUresult (*bare)(CUdeviceptr, CUstream) =
		per_thread ? cl_driver.cuMemFreeAsync_ptsz : cl_driver.cuMemFreeAsync;
	CUresult result;

	if (!is_none_of_ours(dptr))
		return free_async_what_may_be_ours(dptr, stream, per_thread, bare);
	result = bare(dptr, stream);
	return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : not_ours(dptr, result);
}

CUresult cl_event_destroy(CUevent event, CUresult (*destroy)(CUevent))
{
	CL_UNCANCELLED;
	struct cl_block *block = NULL;
	struct cl_finding again;
	CUresult result;

	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return destroy(event);
	}
	if (cl_import_event_destroy(event, destroy, &result))
		return result;
	event_note_drop(event);
	switch (take_for_free(CL_EVENT, (uint64_t)(uintptr_t)event, &block, &again)) {
	case FREE_NOT_OURS:
	case FREE_UNNOTED: /* (memory alone) */
		if (cl_import_event_destroyed_again(event)) /* the same crash */
			return CUDA_ERROR_INVALID_HANDLE;
		break;
	case FREE_AGAIN: /* bare, the driver crashes on it (measured) */
		cl_count(events_destroyed_twice);
		found(&again);
		cl_log(CL_LOG_INFO, "event %p was destroyed twice", (void *)event);
		return CUDA_ERROR_INVALID_HANDLE;
	case FREE_NOW:
		return freed_now(block, destroy(event));
	case FREE_DEFERRED:
		return into_limbo(block, NULL);
	}
	return destroy(event);
}

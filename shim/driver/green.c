/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: see green.h. */
#include <pthread.h>
#include <stdlib.h>

#include "shim/base/list.h"
#include "shim/driver/green.h"
#include "shim/self/self.h"

/* One for each handle that the program has got; there are few of them. */
struct note {
	struct cl_node node;
	CUgreenCtx green;
	CUcontext ctx;	 /* NULL: not known, it was not got as one yet */
	CUcontext whole; /* the primary context; NULL: not known */
	CUdevice device; /* -1: not known */
	uint64_t number; /* of its creation */
};
static struct cl_list notes; /* the last one first */
static uint64_t made;
/* The last of our locks: no other is taken while it is held, and no CUDA call is made. */
static struct cl_lock lock = CL_LOCK_INIT(CL_RANK_GREEN);

_Atomic uint32_t cl_green_notes;

static struct note *note_new_locked(const struct note *as)
{
	struct note *note = malloc(sizeof *note);

	if (!note) {
		atomic_fetch_or_explicit(&cl_green_notes, CL_GREEN_UNNOTED, memory_order_relaxed);
		return NULL;
	}
	*note = *as;
	cl_list_add_front(&notes, &note->node);
	atomic_fetch_add_explicit(&cl_green_notes, 1, memory_order_relaxed);
	return note;
}

/* Takes away those of @green and of @number (0: of any), or those of @ctx. */
static void drop_locked(CUgreenCtx green, uint64_t number, CUcontext ctx)
{
	struct note *note, *next;

	CL_LIST_EACH_REMOVING (note, next, &notes, struct note, node) {
		if (ctx ? note->ctx != ctx :
			  note->green != green || (number && note->number != number))
			continue;
		cl_list_remove(&notes, &note->node);
		free(note);
		atomic_fetch_sub_explicit(&cl_green_notes, 1, memory_order_relaxed);
	}
}

/*
 * The handle of the primary context of @device, which a green context of ours keeps: so
 * giving it back here is never the last that does, whoever shares or not.
 */
static CUcontext whole_of(CUdevice device)
{
	CUcontext primary = NULL;

	if (!cl_driver.cuDevicePrimaryCtxRetain || !cl_driver.cuDevicePrimaryCtxRelease_v2 ||
	    cl_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
		return NULL;
	cl_driver.cuDevicePrimaryCtxRelease_v2(device);
	return primary;
}

void cl_green_created(CUgreenCtx green, CUdevice device)
{
	CL_UNCANCELLED;
	struct note note = { .green = green, .device = device, .whole = whole_of(device) };

	/* asked here, for the program may get it otherwise, too: from a stream of it, by cuStreamGetCtx() */
	if (!cl_driver.cuCtxFromGreenCtx ||
	    cl_driver.cuCtxFromGreenCtx(&note.ctx, green) != CUDA_SUCCESS)
		note.ctx = NULL;
	cl_lock(&lock);
	note.number = ++made;
	/* (one that had its handle and whose end was not seen) */
	drop_locked(green, 0, NULL);
	if (note.ctx)
		drop_locked(NULL, 0, note.ctx);
	note_new_locked(&note);
	cl_unlock(&lock);
}

void cl_green_converted(CUcontext ctx, CUgreenCtx green)
{
	CL_UNCANCELLED;
	struct note as = { .green = green, .device = -1 }, *note;
	bool known;

	cl_lock(&lock);
	CL_LIST_EACH (note, &notes, struct note, node)
		if (note->green == green)
			break;
	if (note)
		as = *note;
	else
		as.number = ++made;
	known = note && note->ctx == ctx;
	if (note && !note->ctx) {
		drop_locked(NULL, 0, ctx);
		note->ctx = ctx;
	} else if (!known) {
		drop_locked(NULL, 0, ctx);
		as.ctx = ctx;
		note_new_locked(&as);
	}
	cl_unlock(&lock);
}

bool cl_green_find(CUcontext *ctx)
{
	const struct note *note;

	if (!*ctx) /* (as in a note of one that was not got yet) */
		return false;
	cl_lock(&lock);
	CL_LIST_EACH (note, &notes, const struct note, node)
		if (note->ctx == *ctx)
			break;
	if (note)
		*ctx = note->whole;
	cl_unlock(&lock);
	return note != NULL;
}

struct cl_green_end cl_green_end_begin(CUgreenCtx green)
{
	CL_UNCANCELLED;
	struct cl_green_end end = { .device = -1, .green = green };
	const struct note *note;
	struct timespec until;

	if (!atomic_load_explicit(&cl_green_notes, memory_order_relaxed))
		return end;
	/*
	 * The one call that comes here without the driver's word that it is right: also in a
	 * child of a process that does not share, which may have been forked amid the lock.
	 */
	until = cl_after(CL_END_WAIT);
	if (!cl_lock_until(&lock, &until))
		return end;
	CL_LIST_EACH (note, &notes, const struct note, node)
		if (note->green == green) {
			end.device = note->device;
			end.number = note->number;
			break;
		}
	cl_unlock(&lock);
	return end;
}

void cl_green_end_done(const struct cl_green_end *end, bool gone)
{
	CL_UNCANCELLED;

	if (!gone || !end->number)
		return;
	cl_lock(&lock);
	drop_locked(end->green, end->number, NULL);
	cl_unlock(&lock);
}

void cl_green_forget(void)
{
	notes = (struct cl_list){ 0 }; /* their memory is left, see cl_blocks_forget() */
	atomic_store_explicit(&cl_green_notes, 0, memory_order_relaxed);
	cl_lock_reset(&lock);
}

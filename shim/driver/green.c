/* SPDX-License-Identifier: Apache-2.0 */
/* The green contexts that the program has: see green.h. */
#include <pthread.h>
#include <stdlib.h>

#include "shim/base/hot.h"
#include "shim/base/list.h"
#include "shim/driver/green.h"
#include "shim/self/self.h"

/* An entry for each handle that the program has got.  There are few. */
struct green {
	struct cl_node node;
	CUgreenCtx green;
	CUcontext ctx;	 /* the green context as a CUcontext; NULL: not known */
	CUcontext whole; /* the primary context that it is part of; NULL: not known */
	CUdevice device; /* -1: not known */
	uint64_t number; /* tells two greens of the same handle apart */
};
static struct cl_list greens; /* the newest first */
static uint64_t made;
/* No other lock is taken, and no CUDA call is made, while this lock is held. */
static struct cl_lock lock = CL_LOCK_INIT(CL_RANK_GREEN);

CL_HOT_DATA _Atomic uint32_t cl_green_known;

static struct green *green_new_locked(const struct green *as)
{
	struct green *entry = malloc(sizeof *entry);

	if (!entry) {
		atomic_fetch_or_explicit(&cl_green_known, CL_GREEN_INCOMPLETE, memory_order_relaxed);
		return NULL;
	}
	*entry = *as;
	cl_list_add_front(&greens, &entry->node);
	atomic_fetch_add_explicit(&cl_green_known, 1, memory_order_relaxed);
	return entry;
}

/* Drops the entries with @ctx or, if that is NULL, those of @green with @number (0: with any number). */
static void drop_locked(CUgreenCtx green, uint64_t number, CUcontext ctx)
{
	struct green *entry, *next;

	CL_LIST_EACH_REMOVING (entry, next, &greens, struct green, node) {
		if (ctx ? entry->ctx != ctx :
			  entry->green != green || (number && entry->number != number))
			continue;
		cl_list_remove(&greens, &entry->node);
		free(entry);
		atomic_fetch_sub_explicit(&cl_green_known, 1, memory_order_relaxed);
	}
}

/*
 * Returns the primary context of @device, or NULL if the driver does not say it.  A green context
 * of @device was just created and keeps a reference, so the release here is never the last one.
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
	CL_GUARD(ours);
	struct green entry = { .green = green, .device = device, .whole = whole_of(device) };

	/* asked now: the program may also get it without a hook, by cuStreamGetCtx() */
	if (!cl_driver.cuCtxFromGreenCtx ||
	    cl_driver.cuCtxFromGreenCtx(&entry.ctx, green) != CUDA_SUCCESS)
		entry.ctx = NULL;
	cl_lock(&lock);
	entry.number = ++made;
	/* drop an older context that had these handles and whose end we did not see */
	drop_locked(green, 0, NULL);
	if (entry.ctx)
		drop_locked(NULL, 0, entry.ctx);
	green_new_locked(&entry);
	cl_unlock(&lock);
}

void cl_green_converted(CUcontext ctx, CUgreenCtx green)
{
	CL_GUARD(ours);
	struct green as = { .green = green, .device = -1 }, *entry;
	bool known;

	cl_lock(&lock);
	CL_LIST_EACH (entry, &greens, struct green, node)
		if (entry->green == green)
			break;
	if (entry)
		as = *entry;
	else
		as.number = ++made;
	known = entry && entry->ctx == ctx;
	if (entry && !entry->ctx) {
		drop_locked(NULL, 0, ctx);
		entry->ctx = ctx;
	} else if (!known) {
		drop_locked(NULL, 0, ctx);
		as.ctx = ctx;
		green_new_locked(&as);
	}
	cl_unlock(&lock);
}

bool cl_green_find(CUcontext *ctx)
{
	const struct green *entry;

	if (!*ctx) /* would match an entry whose .ctx is not known */
		return false;
	cl_lock(&lock);
	CL_LIST_EACH (entry, &greens, const struct green, node)
		if (entry->ctx == *ctx)
			break;
	if (entry)
		*ctx = entry->whole;
	cl_unlock(&lock);
	return entry != NULL;
}

struct cl_green_end cl_green_end_begin(CUgreenCtx green)
{
	CL_GUARD(ours);
	struct cl_green_end end = { .device = -1, .green = green };
	const struct green *entry;
	struct timespec until;

	if (!atomic_load_explicit(&cl_green_known, memory_order_relaxed))
		return end;
	/*
	 * This is the one function here that runs before the driver has accepted the call.  So it may
	 * run in a forked child, whose parent may have held the lock: don't wait for ever.
	 */
	until = cl_after(CL_END_WAIT);
	if (!cl_lock_until(&lock, &until))
		return end;
	CL_LIST_EACH (entry, &greens, const struct green, node)
		if (entry->green == green) {
			end.device = entry->device;
			end.number = entry->number;
			break;
		}
	cl_unlock(&lock);
	return end;
}

void cl_green_end_done(const struct cl_green_end *end, bool gone)
{
	CL_GUARD(ours);

	if (!gone || !end->number)
		return;
	cl_lock(&lock);
	drop_locked(end->green, end->number, NULL);
	cl_unlock(&lock);
}

void cl_green_forget(void)
{
	greens = (struct cl_list){ 0 }; /* their memory is leaked: see cl_exporter_begin() */
	atomic_store_explicit(&cl_green_known, 0, memory_order_relaxed);
	cl_lock_reset(&lock);
}

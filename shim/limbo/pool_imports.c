/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports of pools' blocks: see pool_imports.h.
 *
 * The phases of an import, and the steps from one to another:
 *
 *   from       to        when
 *   NEW        OPEN      it is added to the mappings
 *   OPEN       OPEN      it is imported again, or freed once of several times
 *              FREED     it is freed for the last time, while an earlier free waits for its stream
 *              GOING     it is freed for the last time: the driver unmaps it now
 *              COVERED   a block of this process was exported at its address
 *   FREED      OPEN      it is imported again: its last free is only counted
 *              GOING     the streams have reached its frees: the driver unmaps it now
 *              COVERED   as above
 *   GOING      OPEN      the driver has refused the free
 *              (freed)   the driver has unmapped it, or has refused to unmap one whose last free was only counted
 *   COVERED    OPEN      it is imported again: what came before is gone
 *
 * While an import is GOING, the driver may map another block at its address, for another thread, before
 * this one knows that it is unmapped.  So a new import there never joins one that is GOING, but gets a
 * mapping of its own, and a free there is of the newer one.  Only set_phase_locked() changes a phase, under
 * cl_imports_lock.  The thread that has the turn of an import makes it GOING, and keeps the turn meanwhile.
 */
#include <stdlib.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/happened.h"
#include "shim/diag/recent_closes.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/driver/gate.h"
#include "shim/driver/visit.h"
#include "shim/importer/mappings.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/pool_imports.h"
#include "shim/limbo/release.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"

/*
 * The rest of a free: what is done once the stream has reached the free.  A member that is NULL, or whose
 * file_id is 0, stands for nothing to do.
 */
struct rest {
	struct cl_fence_wait wait;
	struct cl_pool_import *import; /* one that is not unmapped before this is done; its .rests counts this */
	uint64_t key;		       /* of the turn of .import */
	struct cl_hold *hold;	       /* to be given up; its .pending counts this */
	struct cl_stamp own;	       /* of a block of this process: to be closed by cl_pool_own_close() */
};

/* -------------------------------------------------------------------- the phases */
#ifdef CL_DEBUG
#define BIT(phase) (1u << CL_IMPORT_##phase)
/* The table above. */
static const uint8_t steps[CL_IMPORT_PHASES] = {
	[CL_IMPORT_NEW] = BIT(OPEN),
	[CL_IMPORT_OPEN] = BIT(OPEN) | BIT(FREED) | BIT(GOING) | BIT(COVERED),
	[CL_IMPORT_FREED] = BIT(OPEN) | BIT(GOING) | BIT(COVERED),
	[CL_IMPORT_GOING] = BIT(OPEN),
	[CL_IMPORT_COVERED] = BIT(OPEN),
};
#endif

static inline void set_phase_locked(struct cl_pool_import *import, enum cl_pool_import_phase to)
{
#ifdef CL_DEBUG
	if (!(steps[import->phase] >> to & 1))
		abort(); /* in a debug build alone */
#endif
	import->phase = (uint8_t)to;
}

/* --------------------------------------------------------------------- importing */
/* Counts one open of @import less.  At least one is left. */
static void one_less_locked(struct cl_pool_import *import)
{
	struct cl_mapping *mapping = &import->mapping;

	cl_import_log_opens(mapping->log_entry, --mapping->opens);
	if (mapping->hold)
		mapping->hold->opens--;
}

/* Counts only the last open of @import: the driver, which counts none, has unmapped the older ones. */
static __attribute__((noinline)) void close_older_locked(struct cl_pool_import *import)
{
	while (import->mapping.opens > 1)
		one_less_locked(import);
	import->by_handle = 0;
}

/* The program has freed one import of @import; another is left. */
static inline void close_counted_locked(struct cl_pool_import *import)
{
	cl_trace_mapping(CL_TRACE_CLOSED, CL_POOL, import->mapping.link.key, import->mapping.hold);
	one_less_locked(import);
	cl_count_close_locked();
}

static inline void count_locked(struct cl_exporter *ex, int by)
{
	uint64_t n = atomic_load_explicit(&ex->pool_imports.n, memory_order_relaxed);

	atomic_store_explicit(&ex->pool_imports.n, n + (uint64_t)by, memory_order_relaxed);
}

static inline void list_locked(struct cl_exporter *ex, struct cl_pool_import *import)
{
	cl_address_filter_add(&ex->pool_imports.filter, cl_mappings, 1u << CL_POOL, import->mapping.link.key);
	count_locked(ex, 1);
}

void cl_pool_import_added_locked(struct cl_mapping *mapping, void *data)
{
	struct cl_pool_import *import = (struct cl_pool_import *)mapping;
	struct cl_pool_importing *importing = data;

	if (!import) {
		/* no memory for its mapping: its hold and its open of our block stay until this process ends */
		importing->own.file_id = 0;
	} else {
		if (import->phase == CL_IMPORT_NEW)
			list_locked(importing->ex, import);
		else if (import->phase == CL_IMPORT_FREED) /* this import undoes its last free */
			close_counted_locked(import);
		else if (import->phase == CL_IMPORT_COVERED)
			close_older_locked(import);
		set_phase_locked(import, CL_IMPORT_OPEN);
		import->pool = importing->pool;
		import->turn = importing->turn.key;
		import->came = ++importing->ex->pool_imports.came;
		if (importing->own.file_id && !import->own.file_id) {
			import->own = importing->own;
			importing->own.file_id = 0;
		}
	}
	importing->added = true;
	cl_turn_end_locked(&importing->turn);
}

/* Returns true if the driver has @mapping mapped, so far as we know. */
static bool is_mapped_locked(const struct cl_mapping *mapping)
{
	const struct cl_pool_import *import = (const struct cl_pool_import *)mapping;

	return import->phase == CL_IMPORT_OPEN || import->phase == CL_IMPORT_FREED;
}

/* @import, for which the end of its pool waits, is unmapped.  If it was the last of these, the pool may go. */
static __attribute__((noinline)) void left_locked(struct cl_exporter *ex, struct cl_pool_import *import)
{
	import->awaited = false;
	cl_lock(&cl_exports_lock);
	cl_own_pool_left_imported(&ex->blocks.own_pools, (uint64_t)(uintptr_t)import->pool);
	cl_unlock(&cl_exports_lock);
}

CL_HOT_SHARING void cl_pool_import_cover(struct cl_exporter *ex, CUdeviceptr address)
{
	struct cl_mapping *mapping;

	if (!cl_pool_imports_any(ex))
		return;
	cl_lock(&cl_imports_lock);
	CL_CHAIN_EACH (mapping, cl_mapping_find_locked(CL_POOL, address), struct cl_mapping, node)
		if (is_mapped_locked(mapping)) {
			struct cl_pool_import *import = (struct cl_pool_import *)mapping;

			set_phase_locked(import, CL_IMPORT_COVERED);
			if (import->awaited)
				left_locked(ex, import);
		}
	cl_unlock(&cl_imports_lock);
}

bool cl_pool_import_is_open(CUdeviceptr address)
{
	const struct cl_mapping *mapping;

	cl_lock(&cl_imports_lock);
	CL_CHAIN_EACH (mapping, cl_mapping_find_locked(CL_POOL, address), const struct cl_mapping, node)
		if (is_mapped_locked(mapping))
			break;
	cl_unlock(&cl_imports_lock);
	return mapping != NULL;
}

/* ----------------------------------------------------------------------- freeing */
/* If several imports are known at one address, all but the newest were unmapped past our hooks, or are GOING. */
struct cl_pool_import *cl_pool_import_find_locked(CUdeviceptr dptr)
{
	struct cl_pool_import *newest = NULL;
	struct cl_mapping *mapping;

	CL_CHAIN_EACH (mapping, cl_mapping_find_locked(CL_POOL, dptr), struct cl_mapping, node) {
		struct cl_pool_import *import = (struct cl_pool_import *)mapping;

		if (import->phase != CL_IMPORT_COVERED && (!newest || import->came > newest->came))
			newest = import;
	}
	return newest;
}

/* Returns true if no free of @import waits for its stream. */
static inline bool none_waits(const struct cl_pool_import *import)
{
	return !import->rests;
}

/*
 * Returns the import at @dptr, in its turn, or NULL.  *@phase is GOING if this free is to go to the driver, and else the
 * import's: an export of a block at this address makes it COVERED at any time.
 */
static inline __attribute__((always_inline)) struct cl_pool_import *begin_free(CUdeviceptr dptr, struct cl_turn *turn,
									       enum cl_pool_import_phase *phase)
{
	struct cl_pool_import *import;

	cl_lock(&cl_imports_lock);
	/* another thread may have unmapped the import while this one waited for the turn: so it is looked up again */
	while ((import = cl_pool_import_find_locked(dptr)) != NULL && __builtin_expect(!cl_turn_try_locked(turn, import->turn), 0))
		cl_turn_wait_locked();
	if (import && ((import->phase == CL_IMPORT_OPEN && import->mapping.opens == 1 && none_waits(import)) ||
		       cl_observes()))
		set_phase_locked(import, CL_IMPORT_GOING);
	if (import)
		*phase = (enum cl_pool_import_phase)import->phase;
	cl_unlock(&cl_imports_lock);
	return import;
}

/* The driver has not unmapped @import: makes it OPEN again if it is GOING.  Ends its @turn, unless that is over. */
static void end_free(struct cl_pool_import *import, struct cl_turn *turn)
{
	if (!turn->key)
		return;
	cl_lock(&cl_imports_lock);
	if (import->phase == CL_IMPORT_GOING)
		set_phase_locked(import, CL_IMPORT_OPEN);
	cl_turn_end_locked(turn);
	cl_unlock(&cl_imports_lock);
}

/*
 * The driver has unmapped @import, which is GOING and was freed at @stack: removes it, and ends @turn.  @rest, if not
 * NULL, takes over its hold and its open of a block of ours, since a stream has yet to reach the free.  Returns true
 * if the collector must run.
 */
static inline __attribute__((always_inline)) bool
unmapped_inline(struct cl_exporter *ex, struct cl_pool_import *import, struct rest *rest, struct cl_turn *turn,
		uint32_t stack)
{
	struct cl_mapping *mapping = &import->mapping;
	struct cl_stamp own = import->own;

	cl_lock(&cl_imports_lock);
	count_locked(ex, -1);
	if (__builtin_expect(import->awaited, 0))
		left_locked(ex, import);
	if (__builtin_expect(mapping->opens > 1, 0)) /* under CULIMBO_MODE=observe alone, where each free unmaps */
		close_older_locked(import);
	if (rest && mapping->hold) {
		rest->hold = mapping->hold;
		rest->hold->pending++;
	}
	if (rest)
		rest->own = own;
	mapping->closing++;
	cl_mapping_closed_locked(CL_POOL, mapping, true, stack);
	cl_turn_end_locked(turn);
	cl_unlock(&cl_imports_lock);
	return !rest && own.file_id && cl_pool_own_close(ex, own);
}

static __attribute__((noinline)) bool unmapped(struct cl_exporter *ex, struct cl_pool_import *import,
					       struct rest *rest, struct cl_turn *turn, uint32_t stack)
{
	return unmapped_inline(ex, import, rest, turn, stack);
}

/* A free of an import, and what was made for it. */
struct freeing {
	struct cl_turn *turn; /* that of the import */
	struct cl_fence *fence;
	struct rest *rest;
	bool unfenced; /* the free needs a fence, and none could be made: see .unfenced of struct cl_block */
};

/* Makes the fence and the rest of a free by @bare.  Returns the driver's refusal, or what cl_fence_make() returns. */
static CUresult make_fence(struct freeing *f, CUstream stream, bool per_thread,
			   CUresult (*bare)(CUdeviceptr, CUstream), bool *capturing)
{
	CUresult result = bare(CL_NO_MEMORY, stream);

	/* the driver refuses frees on this stream: the program gets that error */
	if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_SUCCESS)
		return result;
	f->rest = calloc(1, sizeof *f->rest);
	result = cl_fence_make(stream, per_thread, &f->fence, capturing);
	if (result != CUDA_SUCCESS || *capturing)
		return result;
	f->unfenced = !f->fence || !f->rest;
	if (f->unfenced)
		cl_log_once(CL_LOG_WARN,
			    "no host memory for the fence of a stream-ordered free of an imported block, or the "
			    "stream's context is not known: culimbo cannot tell when the stream reaches the free, so "
			    "its exporter keeps such blocks until this process ends");
	return result;
}

/*
 * The free of @f is done, or (@used is false) was refused.  Hangs its rest on its fence, to be done when the fence is
 * reached, or discards both.  Returns true if the collector must run.
 */
static __attribute__((noinline)) bool finish_stream_ordered(struct cl_exporter *ex, struct freeing *f, bool used)
{
	bool wake = f->fence != NULL;

	cl_lock(&cl_exports_lock);
	if (f->fence && f->rest && used) {
		if (f->rest->import)
			f->rest->import->rests++;
		atomic_fetch_add(&ex->pool_imports.rests, 1);
		cl_fence_add_wait_locked(ex, f->fence, &f->rest->wait);
	} else if (f->fence) {
		cl_fence_discard_locked(ex, f->fence);
	}
	cl_unlock(&cl_exports_lock);
	/* without a fence the rest is dropped: nobody learns when the stream reaches the free, so the hold stays */
	if (!(f->fence && used))
		free(f->rest);
	return wake;
}

static inline bool finish(struct cl_exporter *ex, struct freeing *f, bool used)
{
	return (f->fence || f->rest) && finish_stream_ordered(ex, f, used);
}

void cl_pool_import_freed_again(CUdeviceptr dptr)
{
	struct cl_about before = { .key = dptr, .kind = CL_POOL };

	if (cl_recent_closes_find(CL_POOL, dptr, &before))
		cl_happened(CL_FINDING_CLOSED_TWICE, &before, cl_stack_write(true));
}

/*
 * Counts a free that does not go to the driver now, because another import is open or some stream has not reached an
 * earlier free.
 */
static void counted(struct cl_pool_import *import, struct freeing *f)
{
	uint32_t stack = import->mapping.opens > 1 ? 0 : cl_stack_write(true);

	cl_lock(&cl_imports_lock);
	if (import->mapping.opens > 1) {
		close_counted_locked(import);
	} else if (import->phase == CL_IMPORT_OPEN) { /* a block may have been exported there meanwhile */
		set_phase_locked(import, CL_IMPORT_FREED);
		import->freed_at = stack;
	}
	import->rests += f->unfenced; /* counts a rest that is never done, so that @import stays mapped */
	if (!f->fence) /* then finish() does not use @import */
		cl_turn_end_locked(f->turn);
	cl_unlock(&cl_imports_lock);
	if (f->rest && f->fence) {
		f->rest->import = import;
		f->rest->key = import->turn;
	}
}

/* Does cl_pool_import_free() for @import, which began in @phase.  @f holds the turn of @import. */
static CUresult free_import(struct cl_exporter *ex, struct cl_pool_import *import, enum cl_pool_import_phase phase,
			    struct freeing *f, CUstream stream, bool per_thread, CUresult (*bare)(CUdeviceptr, CUstream), bool *wake)
{
	CUdeviceptr dptr = (CUdeviceptr)import->mapping.link.key;
	bool is_counted, kept, capturing = false, done;
	CUresult result;

	if (phase == CL_IMPORT_FREED) {
		cl_pool_import_freed_again(dptr);
		result = bare ? bare(CL_NO_MEMORY, stream) : cl_driver.cuMemFree_v2(CL_NO_MEMORY);
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	}
	is_counted = phase != CL_IMPORT_GOING;
	/* a hold, an open of our block, or the mapping itself must stay until the stream has reached the free */
	kept = import->mapping.hold || import->own.file_id || is_counted;
	if (bare && kept && !cl_observes()) {
		result = make_fence(f, stream, per_thread, bare, &capturing);
		if (result != CUDA_SUCCESS || capturing) {
			free(f->rest);
			return result != CUDA_SUCCESS ? result : bare(dptr, stream);
		}
	} else if (is_counted) {
		result = cl_context_pool_free_refusal();
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (is_counted) {
		counted(import, f);
		*wake |= finish(ex, f, true);
		return CUDA_SUCCESS;
	}
	result = bare ? bare(dptr, stream) : cl_driver.cuMemFree_v2(dptr);
	done = result == CUDA_SUCCESS;
	if (done && f->unfenced && !f->rest) {
		/* no memory for a rest: the hold and the open of our block stay until this process ends */
		cl_lock(&cl_imports_lock);
		if (import->mapping.hold)
			import->mapping.hold->pending++;
		cl_unlock(&cl_imports_lock);
		import->own.file_id = 0;
	}
	if (done)
		*wake |= unmapped(ex, import, f->rest, f->turn, cl_stack_write(true));
	*wake |= finish(ex, f, done);
	return result;
}

/* Frees @import once, in its @turn, which it ends. */
static __attribute__((noinline)) CUresult free_carefully(struct cl_exporter *ex, struct cl_pool_import *import,
							 enum cl_pool_import_phase phase, struct cl_turn *turn,
							 CUstream stream, bool per_thread, CUresult (*bare)(CUdeviceptr, CUstream), bool *wake)
{
	struct freeing f = { .turn = turn };
	CUresult result = free_import(ex, import, phase, &f, stream, per_thread, bare, wake);

	end_free(import, turn);
	return result;
}

bool cl_pool_import_free(struct cl_exporter *ex, CUdeviceptr dptr, CUresult *result, bool *wake)
{
	enum cl_pool_import_phase phase;
	struct cl_turn turn;
	struct cl_pool_import *import = begin_free(dptr, &turn, &phase);

	if (!import)
		return false;
	/* the two cases of most programs: the only free of an import, and one of several; then all others */
	if (phase == CL_IMPORT_GOING) {
		*result = cl_driver.cuMemFree_v2(dptr);
		if (*result != CUDA_SUCCESS)
			end_free(import, &turn);
		else if (unmapped_inline(ex, import, NULL, &turn, cl_stack_write(true)))
			*wake = true;
	} else if (phase == CL_IMPORT_OPEN && none_waits(import)) {
		*result = cl_context_pool_free_refusal();
		cl_lock(&cl_imports_lock);
		if (*result == CUDA_SUCCESS)
			close_counted_locked(import);
		cl_turn_end_locked(&turn);
		cl_unlock(&cl_imports_lock);
	} else {
		*result = free_carefully(ex, import, phase, &turn, NULL, false, NULL, wake);
	}
	return true;
}

bool cl_pool_import_free_async(struct cl_exporter *ex, CUdeviceptr dptr, CUstream stream, bool per_thread,
			       CUresult (*bare)(CUdeviceptr, CUstream), CUresult *result, bool *wake)
{
	enum cl_pool_import_phase phase;
	struct cl_turn turn;
	struct cl_pool_import *import = begin_free(dptr, &turn, &phase);

	if (import)
		*result = free_carefully(ex, import, phase, &turn, stream, per_thread, bare, wake);
	return import != NULL;
}

/* ------------------------------------------------------------- reached, and unmapped */
/*
 * Has the driver unmap @import, which is GOING and was freed before.  Removes it, also if the driver refuses.  Ends
 * its @turn.  Returns true if the collector must run.
 */
static bool unmap(struct cl_exporter *ex, struct cl_pool_import *import, struct cl_turn *turn)
{
	CUdeviceptr dptr = (CUdeviceptr)import->mapping.link.key;
	struct cl_visit visit;
	CUresult result;

	cl_lock(&cl_exports_lock);
	cl_visit_begin_locked(&visit, &cl_context_unknown);
	result = cl_driver.cuMemFree_v2(dptr);
	cl_visit_end_locked(&visit);
	cl_unlock(&cl_exports_lock);
	if (cl_driver_refuses(result))
		cl_log_once(CL_LOG_WARN,
			    "the driver refused to unmap an imported block at %#llx (CUDA error %d): it stays mapped "
			    "until this process ends",
			    (unsigned long long)dptr, (int)result);
	return unmapped(ex, import, NULL, turn, import->freed_at);
}

/*
 * The fence of @rest is reached: counts one rest of its import less.  If that was the last one of an import that is
 * FREED, has the driver unmap it.  Returns true if the collector must run once more.
 */
static bool rest_less(struct cl_exporter *ex, const struct rest *rest)
{
	struct cl_pool_import *import = rest->import;
	struct cl_turn turn;
	bool last, more = false;

	cl_turn_begin(&turn, rest->key);
	cl_lock(&cl_imports_lock);
	cl_lock(&cl_exports_lock);
	import->rests--;
	last = import->phase == CL_IMPORT_FREED && none_waits(import);
	if (last)
		set_phase_locked(import, CL_IMPORT_GOING);
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
	if (last)
		more = unmap(ex, import, &turn);
	cl_turn_end(&turn);
	return more;
}

/* The fence of @rest is reached: does the rest.  Returns true if the collector must run once more. */
static bool passed(struct cl_exporter *ex, const struct rest *rest)
{
	bool more = false;

	if (rest->import)
		more |= rest_less(ex, rest);
	if (rest->hold) {
		cl_lock(&cl_imports_lock);
		rest->hold->pending--;
		cl_hold_put_locked(rest->hold);
		cl_unlock(&cl_imports_lock);
	}
	if (rest->own.file_id)
		more |= cl_pool_own_close(ex, rest->own);
	return more;
}

/* Takes a rest whose fence is reached, or returns NULL. */
static struct rest *take_passed(struct cl_exporter *ex)
{
	struct cl_fence_wait *wait;

	cl_lock(&cl_exports_lock);
	wait = CL_LIST_FIRST(&ex->fences.passed, struct cl_fence_wait, node);
	if (wait)
		cl_list_remove(&ex->fences.passed, &wait->node);
	cl_unlock(&cl_exports_lock);
	return (struct rest *)wait;
}

bool cl_pool_imports_passed(struct cl_exporter *ex)
{
	struct rest *rest;
	bool more = false, some = false;

	/* without a collector's thread hooked calls collect: one that is amid a free with a turn leaves that */
	if (cl_turn_is_held())
		return false;
	while ((rest = take_passed(ex)) != NULL) {
		more |= passed(ex, rest);
		some = true;
		free(rest);
		atomic_fetch_sub(&ex->pool_imports.rests, 1);
	}
	if (some) {
		cl_lock(&cl_exports_lock);
		cl_release_pools_locked(ex);
		cl_unlock(&cl_exports_lock);
	}
	return more;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Gives blocks back to the driver: see release.h. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/base/clock.h"
#include "shim/base/log.h"
#include "shim/diag/trace.h"
#include "shim/driver/visit.h"
#include "shim/importer/pool_uses.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/release.h"
#include "shim/self/self.h"

enum { NAME_EVERY = 100000000 }; /* ns */

/* ------------------------------------------------------ which blocks may go */
/* What the name of our exporter file leads to. */
enum name { NAME_OURS, NAME_NOTHING, NAME_ANOTHER };

static __attribute__((noinline)) enum name look_at_name(struct cl_exporter *ex)
{
	char path[4096];
	struct stat st;
	size_t n;

	cl_self_dir_path(path, sizeof path - 24);
	n = strlen(path);
	path[n++] = '/';
	cl_region_name(path + n, ex->blocks.region->file_id);
	if (fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW))
		return NAME_NOTHING;
	/* compares the inode alone: the device number is not always the one that fstat() gives */
	return st.st_ino == ex->blocks.region->ino ? NAME_OURS : NAME_ANOTHER;
}

static inline bool is_before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/*
 * Returns true if the name of the file that @st is of still leads to it, as when it was last looked at.  A rename changes
 * the file's time of change on most file systems.  That of a folder above it does not, nor does a mount over it: so the
 * name is looked at every NAME_EVERY.
 */
static bool name_stands(const struct cl_file_name *name, const struct stat *st, uint64_t now)
{
	return st->st_nlink && now - name->looked < NAME_EVERY && name->changed.tv_sec == st->st_ctim.tv_sec &&
	       name->changed.tv_nsec == st->st_ctim.tv_nsec;
}

/*
 * Returns true if somebody has removed our file, as logind does at a user's last logout, or has
 * put another in its place.  Importers that come after that take no hold, so they may map a
 * block that we would give back.  After a mere move of the file they are refused.
 *
 * Each free of a block that goes at once asks this.  Mostly that is one system call.
 */
CL_HOT_SHARING static bool file_is_lost_locked(struct cl_exporter *ex, uint64_t now)
{
	struct timespec tick;
	struct stat st;
	enum name name;

	/* a destructor runs after our end: importers that come now are refused, see cl_region_end() */
	if (cl_self.file_ended || !cl_region_stat(ex->blocks.region, &st) || name_stands(&ex->limbo.name, &st, now))
		return false;
	/* a time of change may be as coarse as this clock: two changes of the tick that has begun now can look alike */
	clock_gettime(CLOCK_REALTIME_COARSE, &tick);
	name = look_at_name(ex);
	if (st.st_nlink && name == NAME_OURS && is_before(&st.st_ctim, &tick))
		ex->limbo.name = (struct cl_file_name){ .changed = st.st_ctim, .looked = now };
	if (st.st_nlink && name != NAME_ANOTHER)
		return false;
	cl_log_once(CL_LOG_ERROR,
		    "this process's exporter file was removed or replaced while it runs (logind's "
		    "RemoveIPC does that at logout): culimbo cannot see processes that open its blocks "
		    "from now on, so blocks that it frees stay allocated until it ends");
	return true;
}

CL_HOT_SHARING bool cl_limbo_can_skip_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now,
					     uint64_t *before)
{
	bool early, refused;

	/* no importer could say that it holds a block without a record: to keep more than must be takes memory from others */
	if (block->record == CL_NO_RECORD)
		return cl_block_outlasts_its_free(block);
	refused = cl_grace_is_refused_locked(ex, block, now, &early);
	if (block->own_opens || (!refused && !cl_limbo_is_pressed(ex, block, now)) ||
	    cl_limbo_is_held(ex, block) || file_is_lost_locked(ex, now) ||
	    !cl_record_release_begin(ex->blocks.region, block->record, before))
		return false;
	/* a block that goes because its memory is needed is not counted as one that the budget took */
	block->early = refused && early;
	return true;
}

void cl_release_take_ready_locked(struct cl_exporter *ex, uint64_t now)
{
	/*
	 * Takes no more records than can be ready: an importer that makes some ready over and
	 * over must not keep this thread here.  The next collection sees the rest.
	 */
	uint64_t most = ex->limbo.blocks + ex->limbo.orphaned + CL_CHUNK;
	uint32_t ready[CL_BATCH * 4];
	unsigned int n;

	for (uint64_t taken = 0; taken < most; taken += n) {
		n = cl_record_take_ready(ex->blocks.region, ready, CL_BATCH * 4);
		if (!n)
			break;
		for (unsigned int i = 0; i < n; i++) {
			struct cl_block *block = cl_block_of_record(&ex->blocks, ready[i]);

			if (ex->still_mapped.entries.n)
				cl_still_left_locked(ex, ready[i]);
			if (!block)
				continue;
			cl_still_count_kept(ex->blocks.region, block);
			if (block->state == CL_BLOCK_HELD)
				cl_limbo_settle(ex, block, now, true);
			else if (block->state == CL_BLOCK_ORPHANED &&
				 cl_record_try_release(ex->blocks.region, block->record))
				cl_limbo_delete_locked(ex, block);
		}
	}
}

/* Pins all READY blocks: nobody can say who holds them, so they never go. */
static void pin_ready_locked(struct cl_exporter *ex)
{
	const struct cl_block *block;

	CL_LIST_EACH (block, &ex->limbo.ready, const struct cl_block, node)
		atomic_store_explicit(&ex->blocks.region->record[block->record].pinned, 1,
				      memory_order_relaxed);
}

/* --------------------------------------------------- back to the driver */
/*
 * Gives @block back, in @visit to its context.  *wait becomes true if the caller must wait for @stream, our own there.
 * With a context that has ended went all that it had: the address may be another block's by now, and a destroy of the
 * event would crash.
 */
static CUresult give_back(struct cl_exporter *ex, const struct cl_visit *visit, struct cl_block *block, CUstream stream,
			  bool *wait)
{
	CUresult result = CUDA_SUCCESS;

	if (block->kind == CL_EVENT) {
		if (!visit->has_ended)
			result = cl_driver.cuEventDestroy_v2((CUevent)(uintptr_t)block->link.key);
		cl_limbo_event_went(ex);
		return result;
	}
	if (visit->has_ended)
		return CUDA_SUCCESS;
	/* cuMemFree() of memory waits for all work of its context (measured); a device without memory pools refuses */
	if (stream && block->kind == CL_MEMORY && cl_driver.cuMemFreeAsync((CUdeviceptr)block->link.key, stream) == CUDA_SUCCESS) {
		*wait = true;
		return CUDA_SUCCESS;
	}
	return cl_driver.cuMemFree_v2((CUdeviceptr)block->link.key);
}

enum { TRIES = 4 }; /* contexts in which a pool's block is tried: one may have failed, or have ended past our hooks */

/*
 * Returns a context in which a pool's block of @device can go back, but none of the @n in @tried: one of that device, else
 * any, since a block can be freed in any stream (measured).  NULL: there is none.
 */
static struct cl_context *context_of_pools_locked(CUdevice device, struct cl_context *const *tried, unsigned int n)
{
	struct cl_context *context, *other = NULL;

	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node) {
		bool was_tried = false;

		for (unsigned int i = 0; i < n; i++)
			was_tried |= tried[i] == context;
		if (was_tried || cl_context_ends(context))
			continue;
		if (context->device == device)
			return context;
		other = context;
	}
	return other;
}

/* Blocks of one device, of which those of pools go back. */
struct pool_batch {
	struct cl_block *const *block;
	unsigned int n;
	bool left[CL_BATCH]; /* of a pool, and the driver has not got it */
	bool live[CL_BATCH]; /* of a pool that the program had not destroyed when this batch was taken */
	bool in_stream;	     /* this time only the live ones, in our own stream */
	CUresult *result;    /* what the driver says of each that is not left */
};

/* Gives back what is left in @batch, in the visited context.  Returns true if none is left that goes this way. */
static bool give_pools_back_in(const struct cl_visit *visit, struct pool_batch *batch)
{
	CUstream stream = batch->in_stream ? cl_visit_free_stream(visit) : NULL;
	bool wait = false, some_left = false;

	if (batch->in_stream && !stream)
		return false;
	for (unsigned int i = 0; i < batch->n; i++) {
		CUdeviceptr at = (CUdeviceptr)batch->block[i]->link.key;
		CUresult result;

		if (!batch->left[i] || (stream && !batch->live[i]))
			continue;
		result = stream ? cl_driver.cuMemFreeAsync(at, stream) : cl_driver.cuMemFree_v2(at);
		/* what cuMemFree() does not know, it would know in no context: another block may be there by then */
		batch->left[i] = stream ? result != CUDA_SUCCESS :
					  cl_driver_refuses(result) && result != CUDA_ERROR_INVALID_VALUE;
		if (!batch->left[i])
			batch->result[i] = result;
		wait |= stream && !batch->left[i];
		some_left |= batch->left[i];
	}
	/* a pool that must not use memory again across streams uses it only after this (measured) */
	if (wait)
		cl_driver.cuStreamSynchronize(stream);
	return !some_left;
}

static void try_contexts_locked(struct pool_batch *batch)
{
	struct cl_context *context, *tried[TRIES];
	bool done = false;

	for (unsigned int k = 0;
	     !done && k < TRIES && (context = context_of_pools_locked(batch->block[0]->device, tried, k)); k++) {
		struct cl_visit visit;

		tried[k] = context;
		cl_visit_begin_locked(&visit, context);
		done = visit.is_there && give_pools_back_in(&visit, batch);
		cl_visit_end_locked(&visit);
	}
}

/*
 * Gives the blocks of pools among @n blocks of one device back: first in the order of our own stream, then by cuMemFree().
 * A context is visited for either, because the thread's own one may have ended.  Sets @given and @result of each that the
 * driver has got.  What no context takes is left to the caller.
 *
 * cuMemFree() leaves a block in its pool's USED_MEM_CURRENT for good (measured).  Nobody reads that of a pool that the
 * program has destroyed, and its blocks must be back before the driver is asked to destroy it.  Which pools live is read
 * before the visits, which give the lock up: a pool that the program destroys meanwhile waits for these blocks either way.
 */
static void give_pools_back_locked(struct cl_block *const *block, unsigned int n, bool *given, CUresult *result)
{
	struct pool_batch batch = { .block = block, .n = n, .result = result };
	bool left = false;

	for (unsigned int i = 0; i < n; i++) {
		batch.left[i] = block[i]->kind == CL_POOL;
		batch.live[i] = batch.left[i] && block[i]->pool && block[i]->pool->phase == CL_OWN_POOL_LIVE;
		batch.in_stream |= batch.live[i];
	}
	if (batch.in_stream)
		try_contexts_locked(&batch);
	batch.in_stream = false;
	for (unsigned int i = 0; i < n; i++)
		left |= batch.left[i];
	if (left)
		try_contexts_locked(&batch);
	for (unsigned int i = 0; i < n; i++)
		given[i] = block[i]->kind == CL_POOL && !batch.left[i];
}

static void say_if_refused(const struct cl_block *block, CUresult result)
{
	if (cl_driver_refuses(result))
		cl_log_once(CL_LOG_WARN,
			    "the driver refused to take block %#llx back (CUDA error %d): its "
			    "memory is lost to this process until it ends",
			    (unsigned long long)block->link.key, (int)result);
}

/* Returns the context to visit for @block.  One that belongs to none has no context that could end. */
static struct cl_context *context_of(const struct cl_block *block)
{
	struct cl_context *context = cl_block_context(block);

	return context ? context : &cl_context_unknown;
}

CL_HOT_SHARING void cl_release_account_locked(struct cl_exporter *ex, const struct cl_block *block, struct cl_collected *sum)
{
	sum->blocks++;
	sum->bytes += block->size;
	cl_count(limbo_released);
	cl_count_add(limbo_bytes_released, block->size);
	cl_limbo_account(ex, block, -1);
	cl_trace_block(CL_TRACE_RELEASED, block, .value = ex->limbo.bytes);
}

/* Gives @n blocks of one context and one device back.  @result: what the driver says of each. */
static void give_all_back_locked(struct cl_exporter *ex, struct cl_block *const *block, unsigned int n, CUresult *result)
{
	bool given[CL_BATCH], rest = false, memory = false, wait = false;
	CUstream stream = NULL;
	struct cl_visit visit;

	give_pools_back_locked(block, n, given, result);
	for (unsigned int i = 0; i < n; i++) {
		rest |= !given[i];
		memory |= block[i]->kind == CL_MEMORY;
	}
	if (rest)
		cl_visit_begin_locked(&visit, context_of(block[0]));
	if (memory)
		stream = cl_visit_free_stream(&visit);
	for (unsigned int i = 0; i < n; i++)
		if (!given[i])
			result[i] = block[i]->forced_out ? CUDA_SUCCESS : give_back(ex, &visit, block[i], stream, &wait);
	/* the memory is back only after this (measured); the stream has nothing but our frees */
	if (wait)
		cl_driver.cuStreamSynchronize(stream);
	if (rest)
		cl_visit_end_locked(&visit);
	for (unsigned int i = 0; i < n; i++)
		cl_block_waits_for_pool(&ex->blocks, block[i], false);
}

void cl_give_back_alone_locked(struct cl_exporter *ex, struct cl_block *block)
{
	CUresult result;

	give_all_back_locked(ex, &block, 1, &result);
	say_if_refused(block, result);
}

void cl_release_pools_locked(struct cl_exporter *ex)
{
	struct cl_visit visit;
	CUresult result;
	uint64_t pool;

	while ((pool = cl_own_pool_take_ready(&ex->blocks.own_pools)) != 0) {
		cl_visit_begin_locked(&visit, &cl_context_unknown);
		result = cl_pool_use_destroy_postponed((CUmemoryPool)(uintptr_t)pool);
		cl_visit_end_locked(&visit);
		if (cl_driver_refuses(result))
			cl_log_once(CL_LOG_WARN,
				    "the driver refused to destroy memory pool %#llx, which the program destroyed while "
				    "frees of its blocks were kept back (CUDA error %d): its memory is lost to this process "
				    "until it ends",
				    (unsigned long long)pool, (int)result);
	}
}

void cl_release_detached_locked(struct cl_exporter *ex)
{
	struct cl_fence *fence;
	struct cl_visit visit;

	while ((fence = cl_fence_take_detached_locked(ex)) != NULL) {
		CUevent event = fence->event; /* which the end of its context takes from the fence */

		cl_visit_begin_locked(&visit, fence->of.context);
		if (!visit.has_ended)
			cl_driver.cuEventDestroy_v2(event);
		cl_visit_end_locked(&visit);
		cl_fence_drop_locked(fence);
	}
}

/* Blocks of one context and one device, which this thread gives back together. */
struct cl_batch {
	struct cl_block *block[CL_BATCH];
	CUresult result[CL_BATCH];
	unsigned int n, seen; /* seen: how many blocks are READY no more */
};

/* Gives the blocks of @batch back, deletes them, and adds them to @sum. */
static void give_batch_back_locked(struct cl_exporter *ex, struct cl_batch *batch,
				   struct cl_collected *sum)
{
	give_all_back_locked(ex, batch->block, batch->n, batch->result);
	/* before the blocks count as given back: a thread that waits for that count then has the pool's memory, too */
	if (ex->blocks.own_pools.ready.n)
		cl_release_pools_locked(ex);
	for (unsigned int i = 0; i < batch->n; i++) {
		struct cl_block *block = batch->block[i];

		say_if_refused(block, batch->result[i]);
		cl_release_account_locked(ex, block, sum);
		if (block->kind == CL_EVENT)
			cl_limbo_event_forget(ex, block);
		cl_limbo_delete_locked(ex, block);
	}
}

/*
 * Takes up to CL_BATCH READY blocks of one context and one device into @batch, and releases their records.  Passes over
 * up to CL_BATCH other blocks on the way.  If it stopped at the first of these, a program that frees blocks of two contexts
 * in turn would get batches of one block, each with a wait of its own.
 */
static void take_batch_locked(struct cl_exporter *ex, struct cl_batch *batch)
{
	struct cl_block *block, *next;
	unsigned int passed = 0;

	batch->n = batch->seen = 0;
	CL_LIST_EACH_REMOVING (block, next, &ex->limbo.ready, struct cl_block, node) {
		if (batch->n == CL_BATCH || passed == CL_BATCH)
			break;
		if (cl_limbo_context_ends(block)) {
			cl_block_set_state(ex, block, CL_BLOCK_BLOCKED);
			batch->seen++;
			continue;
		}
		if (batch->n && (block->context != batch->block[0]->context || block->device != batch->block[0]->device)) {
			passed++;
			continue;
		}
		batch->seen++;
		if (block->own_opens || !cl_record_try_release(ex->blocks.region, block->record)) {
			cl_block_set_state(ex, block, CL_BLOCK_HELD);
			continue;
		}
		cl_block_set_state(ex, block, CL_BLOCK_RELEASING);
		batch->block[batch->n++] = block;
	}
}

void cl_release_ready_locked(struct cl_exporter *ex, struct cl_collected *sum)
{
	struct cl_batch batch;
	/* blocks that become READY meanwhile are left to a later collection, so that this one ends */
	uint64_t most = ex->limbo.ready.n;

	for (uint64_t seen = 0; ex->limbo.ready.n && seen < most; seen += batch.seen) {
		if (file_is_lost_locked(ex, cl_now()))
			pin_ready_locked(ex);
		take_batch_locked(ex, &batch);
		if (batch.n)
			give_batch_back_locked(ex, &batch, sum);
	}
}

void cl_release_ask_streams_locked(struct cl_exporter *ex)
{
	struct cl_fence *fence[CL_BATCH];
	CUevent event[CL_BATCH];
	/* Fences that other threads add meanwhile are left to a later round, so that this one ends. */
	uint64_t most, round = cl_fences_round_locked(ex, &most);
	unsigned int n, reached;

	for (uint64_t sum = 0; sum <= most; sum += reached) {
		struct cl_visit visit;

		n = cl_fences_take_locked(ex, round, fence, event, CL_BATCH);
		if (!n)
			return;
		cl_visit_begin_locked(&visit, fence[0]->of.context);
		/* any other error counts as reached: the driver's free then has to deal with it */
		for (reached = visit.has_ended ? n : 0; reached < n; reached++) {
			if (cl_driver.cuEventQuery(event[reached]) == CUDA_ERROR_NOT_READY)
				break;
			cl_driver.cuEventDestroy_v2(event[reached]);
		}
		cl_visit_end_locked(&visit);
		for (unsigned int i = 0; i < n; i++) {
			struct cl_block *block = cl_fence_asked_locked(ex, fence[i], i < reached);

			if (block && block->state == CL_BLOCK_FENCED)
				cl_block_set_state(ex, block, CL_BLOCK_READY);
		}
		cl_gate_changed_locked();
	}
}

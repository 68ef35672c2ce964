/* SPDX-License-Identifier: Apache-2.0 */
/* A collection: see collect.h. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/limbo/collect.h"
#include "shim/limbo/forced.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/reap.h"
#include "shim/limbo/release.h"
#include "shim/self/self.h"

#define MILLISECOND 1000000ull
#define POLL_FENCES (2 * MILLISECOND)

/* Returns true if the name of our file now leads to another file. */
static bool file_is_replaced(struct cl_exporter *ex)
{
	char path[4096];
	struct stat st;
	size_t n;

	cl_self_dir_path(path, sizeof path - 24);
	n = strlen(path);
	path[n++] = '/';
	cl_region_name(path + n, ex->blocks.region->file_id);
	/* compares the inode alone: the device number is not always the one that fstat() gives */
	return fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino != ex->blocks.region->ino;
}

/*
 * Returns true if somebody has removed our file, as logind does at a user's last logout, or has
 * put another in its place.  Importers that come after that take no hold, so they may map a
 * block that we would give back.  After a mere move of the file they are refused.
 */
static bool file_is_lost(struct cl_exporter *ex)
{
	struct stat st;
	bool lost;

	/* a destructor runs after our end: importers that come now are refused, see cl_region_end() */
	if (cl_self.file_ended)
		return false;
	lost = cl_region_fd_intact(ex->blocks.region) && fstat(ex->blocks.region->fd, &st) == 0 &&
	       (st.st_nlink == 0 || file_is_replaced(ex));
	if (lost)
		cl_log_once(CL_LOG_ERROR,
			    "this process's exporter file was removed or replaced while it runs (logind's "
			    "RemoveIPC does that at logout): culimbo cannot see processes that open its blocks "
			    "from now on, so blocks that it frees stay allocated until it ends");
	return lost;
}

bool cl_limbo_can_skip_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now)
{
	bool early, refused;

	/* an event without a record need not wait: its handle opens after its destroy, too (measured) */
	if (block->record == CL_NO_RECORD)
		return block->kind == CL_EVENT;
	refused = cl_grace_is_refused_locked(ex, block, now, &early);
	if (block->own_opens || (!refused && !cl_limbo_is_pressed(ex, block, now)) ||
	    cl_limbo_is_held(ex, block) || file_is_lost(ex) ||
	    !cl_record_release_begin(ex->blocks.region, block->record, &block->before))
		return false;
	/* a block that goes because its memory is needed is not counted as one that the budget took */
	block->early = refused && early;
	return true;
}

/* --------------------------------------------------------------- collecting */
static void take_ready_locked(struct cl_exporter *ex, uint64_t now)
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

			if (!block)
				continue;
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

static uint64_t next_due_locked(struct cl_exporter *ex)
{
	if (ex->limbo.ready.n)
		return 0;
	if (cl_fences_may_ask_locked(ex))
		return cl_now() + POLL_FENCES;
	return cl_grace_next_locked(ex);
}

static __attribute__((noinline)) struct cl_collected collect(struct cl_exporter *ex, bool end_grace)
{
	struct cl_collected sum = { .next = UINT64_MAX };
	struct cl_batch batch;
	uint64_t most;

	cl_lock(&cl_exports_lock);
	if (!ex->blocks.region->file_id) /* so nothing is in the limbo */
		goto out;
	/* before the ready map is emptied: a thread that then finds it empty must wait for us */
	cl_limbo_not_quiet(ex);
	if (cl_record_any_ready(ex->blocks.region))
		take_ready_locked(ex, cl_now());
	if (cl_grace_n_locked(ex))
		cl_grace_turn_locked(ex, cl_now(), end_grace, cl_limbo_settle);
	if (cl_fences_any_detached_locked(ex))
		cl_release_detached_locked(ex);
	if (ex->limbo.events.n > cl_options.max_events.number)
		cl_forced_events_out_locked(ex, cl_options.max_events.number, false);
	if (cl_fences_may_ask_locked(ex))
		cl_release_ask_streams_locked(ex);
	/* blocks that become READY meanwhile are left to a later collection, so that this one ends */
	most = ex->limbo.ready.n;
	for (uint64_t seen = 0; ex->limbo.ready.n && seen < most; seen += batch.seen) {
		/* asked once a batch, not at each free: it takes three system calls */
		if (file_is_lost(ex))
			pin_ready_locked(ex);
		cl_batch_take_locked(ex, &batch);
		if (batch.n)
			cl_batch_release_locked(ex, &batch, &sum);
	}
	if (cl_options.held_bytes.number)
		cl_forced_held_out_locked(ex, &sum);
	sum.next = next_due_locked(ex);
	sum.held = ex->limbo.held.n || ex->limbo.orphaned;
	/* release: a thread that reads `quiet` then reads our file */
	if (!ex->limbo.ready.n && !cl_fences_wait_locked(ex) && !cl_grace_n_locked(ex) &&
	    !cl_fences_any_detached_locked(ex) && ex->limbo.events.n <= cl_options.max_events.number)
		atomic_store_explicit(&ex->limbo.quiet, sum.held ? CL_QUIET_HELD : CL_QUIET_EMPTY,
				      memory_order_release);
out:
	cl_unlock(&cl_exports_lock);
	return sum;
}

struct cl_collected cl_limbo_collect(struct cl_exporter *ex, bool end_grace)
{
	/*
	 * acquire: our file is there.  `quiet` is read once more after the ready map, since another
	 * thread may just have emptied that.
	 */
	if (atomic_load_explicit(&ex->limbo.quiet, memory_order_acquire) != CL_QUIET_NOT &&
	    !cl_record_any_ready(ex->blocks.region)) {
		uint8_t quiet = atomic_load_explicit(&ex->limbo.quiet, memory_order_acquire);

		if (quiet != CL_QUIET_NOT)
			return (struct cl_collected){ .next = UINT64_MAX, .held = quiet == CL_QUIET_HELD };
	}
	return collect(ex, end_grace);
}

void cl_limbo_collect_from_dying(struct cl_exporter *ex, bool end_grace, uint64_t until,
				 const _Atomic bool *stop)
{
	struct timespec moment = { 0, 2 * MILLISECOND };

	while (cl_limbo_collect(ex, end_grace).held && cl_limbo_reap(ex) && cl_now() < until &&
	       !(stop && atomic_load_explicit(stop, memory_order_relaxed)))
		nanosleep(&moment, NULL);
}

bool cl_limbo_wait_for_others(struct cl_exporter *ex, uint64_t until,
			      uint64_t (*back)(const struct cl_exporter *ex), uint64_t had)
{
	bool ends, blocked = false, in_time = true;

	cl_lock(&cl_exports_lock);
	for (;;) {
		ends = (ex->limbo.blocked.n || cl_fences_blocked_locked(ex)) &&
		       back(ex) == had;
		if (!in_time || (!cl_visits_any_locked() && !ends))
			break;
		blocked |= ends;
		in_time = cl_gate_wait_until_locked(until);
	}
	cl_unlock(&cl_exports_lock);
	return blocked && in_time && back(ex) == had;
}

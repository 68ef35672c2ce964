/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that are killed: see world.h for the state they begin in. */
#include "shim/gc.h"
#include "shim/options.h"
#include "tests/kill/world.h"

const uint8_t handle[64] = { 'd', 'r', 'i', 'v', 'e', 'r' };
static const uint8_t other_handle[64] = { 'o' };

static void run_nothing(struct world *w, struct cl_region *r)
{
}
static void run_create(struct world *w, struct cl_region *r)
{
	cl_region_create(r, w->dir, &w->self);
}
static void run_grow(struct world *w, struct cl_region *r)
{
	cl_region_grow(r);
}
static void run_need_word(struct world *w, struct cl_region *r)
{
	cl_region_need_word(r, 1, R_EXPORTED);
}
static void run_publish(struct world *w, struct cl_region *r)
{
	struct cl_export what = { CL_MEMORY, 0x7000, 4096, 0, handle, 1 };

	cl_record_publish(r, R_FREE, &what);
}
static void run_export_again(struct world *w, struct cl_region *r)
{
	cl_record_export_again(r, R_EXPORTED, 2);
}
static void run_to_limbo(struct world *w, struct cl_region *r)
{
	cl_record_to_limbo(r, R_SHARED, 2);
}
static void run_release(struct world *w, struct cl_region *r)
{
	cl_record_try_release(r, R_DUE);
}
static void run_release_held(struct world *w, struct cl_region *r)
{
	cl_record_try_release(r, R_HELD);
}
static void run_free_refused(struct world *w, struct cl_region *r)
{
	uint64_t before;

	if (cl_record_release_begin(r, R_EXPORTED, &before))
		cl_record_release_end(r, R_EXPORTED, before, false);
}
static void run_gone(struct world *w, struct cl_region *r)
{
	cl_record_gone(r, R_EXPORTED);
}
static void run_gone_held(struct world *w, struct cl_region *r)
{
	cl_record_gone(r, R_SHARED);
}
static void run_collect(struct world *w, struct cl_region *r)
{
	uint32_t ready[256];
	unsigned int n = cl_record_take_ready(r, ready, 256);

	for (unsigned int i = 0; i < n; i++)
		cl_record_try_release(r, ready[i]);
}
static void run_index(struct world *w, struct cl_region *r)
{
	if (cl_region_need_by_handle(r) == 0) {
		cl_record_index(r, R_EXPORTED);
		cl_record_index(r, R_SHARED);
		cl_record_unindex(r, R_EXPORTED);
	}
}
static void run_exit(struct world *w, struct cl_region *r)
{
	cl_region_end(r, w->dir);
}
static void run_reap(struct world *w, struct cl_region *r)
{
	static struct cl_slot_watch watch[CL_SLOTS];

	cl_holder_reap(r, watch, cl_now(), 0, NULL, NULL);
}
static void run_claim(struct world *w, struct cl_region *r)
{
	static struct cl_slot_watch watch[CL_SLOTS];

	cl_holder_claim(r, &w->self, watch, cl_now(), 0);
}
static void run_claim_after_exec(struct world *w, struct cl_region *r)
{
	/* the slot that it has is the one of its former image: reaped, then another is claimed */
	run_claim(w, r);
}
static void run_open(struct world *w, struct cl_region *r)
{
	cl_record_hold(r, SLOT_VICTIM, R_EXPORTED, 0, handle);
}
static void run_open_limbo(struct world *w, struct cl_region *r)
{
	cl_record_hold(r, SLOT_VICTIM, R_HELD, 0, handle);
}
static void run_open_stale(struct world *w, struct cl_region *r)
{
	cl_record_hold(r, SLOT_VICTIM, R_EXPORTED, 7, handle);
}
static void run_open_free(struct world *w, struct cl_region *r)
{
	cl_record_hold(r, SLOT_VICTIM, R_FREE, 0, handle);
}
static void run_open_other(struct world *w, struct cl_region *r)
{
	cl_record_hold(r, SLOT_VICTIM, R_HELD, 0, other_handle);
}
static void run_pin(struct world *w, struct cl_region *r)
{
	cl_record_pin(r, R_EXPORTED, 0, handle);
}
static void run_close_last(struct world *w, struct cl_region *r)
{
	cl_record_unhold(r, SLOT_VICTIM, R_LAST);
}
static void run_close_one(struct world *w, struct cl_region *r)
{
	cl_record_unhold(r, SLOT_VICTIM, R_BOTH);
}
static void run_close_exported(struct world *w, struct cl_region *r)
{
	cl_record_unhold(r, SLOT_VICTIM, R_OPENED);
}
static void run_leave(struct world *w, struct cl_region *r)
{
	cl_record_clear_slot(r, SLOT_VICTIM, NULL, NULL);
	cl_holder_release(r, SLOT_VICTIM);
}
static void run_open_file(struct world *w, struct cl_region *r)
{
	struct cl_region again;

	cl_region_open(&again, w->dir, w->file_id, NULL);
}
static void run_gc_file(struct world *w, struct cl_region *r)
{
	cl_gc_file(r, w->dir);
}
static void run_gc_directory(struct world *w, struct cl_region *r)
{
	cl_gc_directory(w->dir, NULL);
}

const struct op ops[] = {
	/* the first one: what marking the beginning and the end costs */
	{ "nothing", IMPORTER, run_nothing, -1, false, 0 },
	{ "create", MAKER, run_create, -1, true, 0 },
	{ "grow", EXPORTER, run_grow, -1, false, 0 },
	{ "grow a holder word", EXPORTER, run_need_word, -1, false, 0 },
	{ "export", EXPORTER, run_publish, -1, false, 0 },
	{ "export again", EXPORTER, run_export_again, R_EXPORTED, false, 0 },
	{ "free into the limbo", EXPORTER, run_to_limbo, R_SHARED, false, 0 },
	{ "release", EXPORTER, run_release, R_DUE, false, 0 },
	{ "release of a held one", EXPORTER, run_release_held, R_HELD, false, 0 },
	{ "a free that the driver refuses", EXPORTER, run_free_refused, R_EXPORTED, false, 0 },
	{ "context gone", EXPORTER, run_gone, R_EXPORTED, false, 0 },
	{ "context gone under a holder", EXPORTER, run_gone_held, R_SHARED, false, 0 },
	{ "collect", EXPORTER, run_collect, R_READY, false, 0 },
	{ "index by handle", EXPORTER, run_index, -1, false, 0 },
	{ "reap by the exporter", EXPORTER, run_reap, R_DEAD, false, 0 },
	{ "reap by the exporter of 8,192 records", EXPORTER, run_reap, R_DEAD, false, 16 },
	{ "exit", EXPORTER, run_exit, -1, false, 0 },
	{ "claim", IMPORTER, run_claim, R_EXPORTED, true, 0 },
	{ "claim after exec", IMPORTER, run_claim_after_exec, R_LAST, false, 0 },
	{ "open", IMPORTER, run_open, R_EXPORTED, false, 0 },
	{ "open of one in limbo", IMPORTER, run_open_limbo, R_HELD, false, 0 },
	{ "open of a stale one", IMPORTER, run_open_stale, R_EXPORTED, false, 0 },
	{ "open of a free one", IMPORTER, run_open_free, -1, false, 0 },
	{ "open with another's handle", IMPORTER, run_open_other, R_HELD, false, 0 },
	{ "pin", IMPORTER, run_pin, R_EXPORTED, false, 0 },
	{ "close of the last", IMPORTER, run_close_last, R_LAST, false, 0 },
	{ "close of one of two", IMPORTER, run_close_one, R_BOTH, false, 0 },
	{ "close of an exported one", IMPORTER, run_close_exported, R_OPENED, false, 0 },
	{ "leave", IMPORTER, run_leave, R_BOTH, false, 0 },
	{ "reap by an importer", IMPORTER, run_reap, R_DEAD, true, 0 },
	{ "leave a file of 4,096 records", IMPORTER, run_leave, R_LAST, false, 8 },
	{ "reap in a file of 8,192 records", IMPORTER, run_reap, R_FAR, true, 16 },
	{ "opening the file", IMPORTER, run_open_file, -1, true, 0 },
	{ "takeover of a dead exporter's file", SWEEPER, run_gc_file, -1, true, 0 },
	{ "gc", SWEEPER, run_gc_directory, -1, true, 0 },
};
const unsigned int op_count = sizeof ops / sizeof *ops;

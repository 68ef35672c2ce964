/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that are killed: world.h has the state in which they begin. */
#include <stdlib.h>
#include <string.h>

#include "shim/blocks/blocks.h"
#include "shim/shm/gc.h"
#include "shim/diag/report_data.h"
#include "shim/base/options.h"
#include "shim/self/self.h"
#include "shim/shm/view.h"
#include "shim/shm/virtual_handle.h"
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
	struct cl_export what = { .kind = CL_MEMORY, .base = 0x7000, .size = 4096, .handle = handle, .now = 1 };

	cl_record_publish(r, R_FREE, &what);
}
/* The handle is the export data of a pool's block; its last 8 bytes are the stamp. */
static const uint8_t pool_handle[64] = { [8] = 'd', [32] = 1, [40] = 16 };
static void run_publish_pool(struct world *w, struct cl_region *r)
{
	struct cl_export what = { .kind = CL_POOL, .base = 0x7000, .size = 4096, .handle = pool_handle, .now = 1 };

	cl_record_publish(r, R_FREE, &what);
}
/* The handle is ours: the first 8 bytes are where its pointer lies. */
static const struct cl_virtual_handle virtual_handle = { .offset = 4096, .pid = 7, .reservation = 1,
							 .mark = CL_VIRTUAL_MARK, .size = 1 << 21 };
static void run_publish_virtual(struct world *w, struct cl_region *r)
{
	struct cl_export what = { .kind = CL_VIRTUAL, .base = 0x7000, .size = 4096,
				  .handle = (const uint8_t *)&virtual_handle, .now = 1 };

	cl_record_publish(r, R_FREE, &what);
}
/* Its unmap ends the generation, as the end of a context does: "context gone under a holder" has the rest. */
static void run_publish_and_unmap(struct world *w, struct cl_region *r)
{
	run_publish_virtual(w, r);
	cl_record_orphan(r, R_FREE);
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
	cl_record_orphan(r, R_EXPORTED);
}
static void run_gone_held(struct world *w, struct cl_region *r)
{
	cl_record_orphan(r, R_SHARED);
}
static void run_collect(struct world *w, struct cl_region *r)
{
	uint32_t ready[256];
	unsigned int n = cl_record_take_ready(r, ready, 256);

	for (unsigned int i = 0; i < n; i++)
		cl_record_try_release(r, ready[i]);
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
	cl_holder_claim(r, &w->self, cl_now(), 0);
}
static void run_claim_after_exec(struct world *w, struct cl_region *r)
{
	/* its slot belongs to its image before exec: that is reaped, then another is claimed */
	run_claim(w, r);
}
static int is_outlived(const struct cl_identity *who)
{
	(void)who;
	return 1;
}
static void run_claim_beside_a_child(struct world *w, struct cl_region *r)
{
	/* a child of its image before exec lives: that image's slot stays, and is marked */
	r->is_outlived = is_outlived;
	w->self.image++;
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
/* A handle of another block in one allocation of a pool: only the offset differs. */
static void run_open_other_offset(struct world *w, struct cl_region *r)
{
	uint8_t offset[64];

	memcpy(offset, handle, sizeof offset);
	offset[32]++;
	cl_record_hold(r, SLOT_VICTIM, R_HELD, 0, offset);
}
/* What lies side by side with what a handle names is held by the handle that its own record has (importer/virtual.c). */
static void run_open_beside(struct world *w, struct cl_region *r)
{
	uint8_t its[64];

	cl_record_handle(r, R_SHARED, its);
	cl_record_hold(r, SLOT_VICTIM, R_SHARED, 0, its);
}
/* A process's own open of virtual memory, and another open of what an importer holds. */
static void run_count_open(struct world *w, struct cl_region *r)
{
	cl_record_opened(r, R_OPENED);
}
/* A count that is at its end stays there. */
static void run_count_many(struct world *w, struct cl_region *r)
{
	atomic_store(&r->record[R_EXPORTED].opens, CL_MANY - 1);
	cl_record_opened(r, R_EXPORTED);
	cl_record_opened(r, R_EXPORTED);
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
/* Virtual memory that its exporter unmaps under the importer, which then closes it. */
static void run_close_unmapped(struct world *w, struct cl_region *r)
{
	cl_record_orphan(r, R_OPENED);
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

/* ---------------------------------------------------------------------- report data */
/* As report_data.c counts them: this many fill a page. */
enum { IMPORTS_A_PAGE = 64, FINDINGS_A_PAGE = 32, WORDS_A_PAGE = 512, LONG = 10, SHORT = 2 };

struct cl_import_entry import_entry(uint32_t serial)
{
	return (struct cl_import_entry){
		.key = 0x5000000 + 4096ull * serial, .size = 4096ull + serial, .since = 1000 + serial,
		.file_id = serial + 1, .record = serial, .generation = serial + 2, .stack = serial + 3,
		.exporter_pid = serial + 4, .kind = CL_MEMORY, .device = serial % 8,
	};
}

struct cl_finding finding_entry(uint32_t serial)
{
	return (struct cl_finding){
		.kind = CL_FINDING_CLOSED_TWICE, .pid = serial + 1, .key = 0x9000000 + 4096ull * serial,
		.size = 4096ull + serial, .stack = serial + 2, .other_stack = serial + 3,
		.file_id = serial + 4, .record = serial, .generation = serial + 5,
		.block_kind = CL_MEMORY, .device = serial % 8, .other_when = serial + 6, .name = "other",
	};
}

static void write_import(uint32_t serial)
{
	struct cl_import_entry entry = import_entry(serial);

	cl_import_log_add(&entry);
}
static void write_finding(uint32_t serial)
{
	struct cl_finding finding = finding_entry(serial);

	cl_lock(&cl_exports_lock);
	cl_finding_add_locked(&finding);
	cl_unlock(&cl_exports_lock);
}

/* A stack of @frames frames; each @way has another path through the last of them. */
__attribute__((noinline)) static uint32_t write_stack(unsigned int way, unsigned int depth, unsigned int frames)
{
	uint32_t stack;

	if (!depth) {
		cl_options.stack.number = frames;
		stack = cl_stack_write(false);
		__asm__ volatile("" ::: "memory");
	} else if (way & 1) {
		stack = write_stack(way >> 1, depth - 1, frames);
		__asm__ volatile("# one return address" ::: "memory");
	} else {
		stack = write_stack(way >> 1, depth - 1, frames);
		__asm__ volatile("# another" ::: "memory");
	}
	return stack;
}

/* The file is its process's own. */
static void prepare_none(struct cl_region *region)
{
	cl_own = *region;
}
/* So that the next stack needs another page. */
static void prepare_stacks(struct cl_region *region)
{
	cl_own = *region;
	for (unsigned int way = 0; WORDS_A_PAGE - (int)region->header->stack_words > LONG + 1; way++)
		write_stack(way, LONG, LONG);
	while (WORDS_A_PAGE - (int)region->header->stack_words > SHORT)
		write_stack(0, 1, (unsigned int)(WORDS_A_PAGE - region->header->stack_words) - 2);
}
static void prepare_stack(struct cl_region *region)
{
	cl_own = *region;
	if (write_stack(0, 1, SHORT) != 1)
		abort();
}
/* A stack without Python frames; the next time it has them. */
static void prepare_python(struct cl_region *region)
{
	prepare_stack(region);
	play_python();
}
/* And the texts need another page. */
static void prepare_python_at_end(struct cl_region *region)
{
	prepare_stack(region);
	prepare_stacks(region);
	play_python();
}
static uint32_t python_stack;
static void prepare_python_noted(struct cl_region *region)
{
	prepare_python(region);
	python_stack = write_stack(0, 1, SHORT);
	if (python_stack == 1)
		abort();
}
static void prepare_imports(struct cl_region *region)
{
	cl_own = *region;
	for (uint32_t serial = 0; serial < IMPORTS_A_PAGE; serial++)
		write_import(serial);
}
static void prepare_import_closed(struct cl_region *region)
{
	prepare_imports(region);
	cl_import_log_opens(3, 0);
}
static void prepare_findings(struct cl_region *region)
{
	cl_own = *region;
	for (uint32_t serial = 0; serial < FINDINGS_A_PAGE; serial++)
		write_finding(serial);
}
/* What was written before there was a file. */
static struct cl_region memory;
static void prepare_memory(struct cl_region *region)
{
	enum { FEW = 3 };
	static struct cl_header header;

	cl_own = *region;
	cl_region_in_memory(&memory, &header, &region->header->exporter);
	if (cl_region_get(&memory, CL_AT_FINDINGS, CL_PAGE))
		abort();
	for (uint32_t serial = 0; serial < FEW; serial++) {
		struct cl_finding *to = cl_region_at(&memory, CL_AT_FINDINGS + serial * sizeof *to);

		*to = finding_entry(serial);
		to->when = 1000 + serial;
		header.finding_counts[to->kind]++;
	}
	header.findings = FEW;
}
static const struct writing first_write = { prepare_none, 0 }, after_stacks = { prepare_stacks, 0 },
			   after_a_stack = { prepare_stack, 0 },
			   before_python_at_end = { prepare_python_at_end, 0 },
			   after_python = { prepare_python_noted, 0 },
			   after_imports = { prepare_imports, IMPORTS_A_PAGE - 1 },
			   after_a_close = { prepare_import_closed, IMPORTS_A_PAGE - 1 },
			   after_findings = { prepare_findings, 0 },
			   before_the_file = { prepare_memory, 0 };

static void run_write_stack(struct world *w, struct cl_region *r)
{
	write_stack(1, 1, SHORT);
}
static void run_write_python(struct world *w, struct cl_region *r)
{
	write_stack(0, 1, SHORT);
}
static void run_write_others_python(struct world *w, struct cl_region *r)
{
	struct cl_view view = { .region = *r };

	cl_lock(&cl_exports_lock);
	cl_stack_copy_locked(&view, python_stack);
	cl_unlock(&cl_exports_lock);
}
static void run_write_others_stack(struct world *w, struct cl_region *r)
{
	struct cl_view view = { .region = *r };

	cl_options.stack.number = SHORT;
	cl_lock(&cl_exports_lock);
	cl_stack_copy_locked(&view, 1);
	cl_unlock(&cl_exports_lock);
}
static void run_publish_with_stack(struct world *w, struct cl_region *r)
{
	r->record[R_FREE].export_stack = write_stack(1, 1, SHORT);
	run_publish(w, r);
}
static void run_write_import(struct world *w, struct cl_region *r)
{
	write_import(IMPORTS_A_PAGE);
}
static void run_write_import_again(struct world *w, struct cl_region *r)
{
	cl_import_log_opens(5, 2);
	cl_import_log_opens(5, 1);
}
static void run_write_import_closed(struct world *w, struct cl_region *r)
{
	cl_import_log_opens(7, 0);
}
static void run_write_finding(struct world *w, struct cl_region *r)
{
	write_finding(FINDINGS_A_PAGE);
}

static void run_write_from_memory(struct world *w, struct cl_region *r)
{
	cl_region_move_from_memory(r, &memory);
}

void write_each(struct cl_region *region)
{
	cl_report_data_forget(); /* what another process has recorded */
	prepare_none(region);
	write_stack(0, 1, SHORT);
	write_import(1);
	write_finding(1);
	cl_own = (struct cl_region){ .fd = -1 };
	cl_report_data_forget();
}

const struct op ops[] = {
	/* the first operation: the cost of marking the beginning and the end */
	{ "nothing", IMPORTER, run_nothing, -1, false, 0, NULL },
	{ "create", MAKER, run_create, -1, true, 0, NULL },
	{ "grow", EXPORTER, run_grow, -1, false, 0, NULL },
	{ "grow a holder word", EXPORTER, run_need_word, -1, false, 0, NULL },
	{ "export", EXPORTER, run_publish, -1, false, 0, NULL },
	{ "export of a pool's block", EXPORTER, run_publish_pool, -1, false, 0, NULL },
	{ "export of virtual memory", EXPORTER, run_publish_virtual, -1, false, 0, NULL },
	{ "export and unmap of virtual memory", EXPORTER, run_publish_and_unmap, -1, false, 0, NULL },
	{ "export again", EXPORTER, run_export_again, R_EXPORTED, false, 0, NULL },
	{ "free into the limbo", EXPORTER, run_to_limbo, R_SHARED, false, 0, NULL },
	{ "release", EXPORTER, run_release, R_DUE, false, 0, NULL },
	{ "release of a held one", EXPORTER, run_release_held, R_HELD, false, 0, NULL },
	{ "a free that the driver refuses", EXPORTER, run_free_refused, R_EXPORTED, false, 0, NULL },
	{ "context gone", EXPORTER, run_gone, R_EXPORTED, false, 0, NULL },
	{ "context gone under a holder", EXPORTER, run_gone_held, R_SHARED, false, 0, NULL },
	{ "collect", EXPORTER, run_collect, R_READY, false, 0, NULL },
	{ "write of a stack, the first", EXPORTER, run_write_stack, -1, false, 0, &first_write },
	{ "write of a stack at a page's end", EXPORTER, run_write_stack, -1, false, 0, &after_stacks },
	{ "write of another's stack", EXPORTER, run_write_others_stack, -1, false, 0, &after_a_stack },
	{ "write of Python's frames at a page's end", EXPORTER, run_write_python, -1, false, 0, &before_python_at_end },
	{ "write of another's Python frames", EXPORTER, run_write_others_python, -1, false, 0, &after_python },
	{ "export with its stack", EXPORTER, run_publish_with_stack, -1, false, 0, &after_a_stack },
	{ "write of an import, the first", EXPORTER, run_write_import, -1, false, 0, &first_write },
	{ "write of an import at a page's end", EXPORTER, run_write_import, -1, false, 0, &after_imports },
	{ "write of an import in a closed one's place", EXPORTER, run_write_import, -1, false, 0, &after_a_close },
	{ "write of an open again and a close", EXPORTER, run_write_import_again, -1, false, 0, &after_imports },
	{ "write of a last close", EXPORTER, run_write_import_closed, -1, false, 0, &after_imports },
	{ "write of a finding, the first", EXPORTER, run_write_finding, -1, false, 0, &first_write },
	{ "write of a finding at a page's end", EXPORTER, run_write_finding, -1, false, 0, &after_findings },
	{ "writes of before the file", EXPORTER, run_write_from_memory, -1, false, 0, &before_the_file },
	{ "reap by the exporter", EXPORTER, run_reap, R_DEAD, false, 0, NULL },
	{ "reap by the exporter of 8,192 records", EXPORTER, run_reap, R_DEAD, false, 16, NULL },
	{ "exit", EXPORTER, run_exit, -1, false, 0, NULL },
	{ "claim", IMPORTER, run_claim, R_EXPORTED, true, 0, NULL },
	{ "claim after exec", IMPORTER, run_claim_after_exec, R_LAST, false, 0, NULL },
	{ "claim after exec while a child lives", IMPORTER, run_claim_beside_a_child, R_LAST, false, 0, NULL },
	{ "open", IMPORTER, run_open, R_EXPORTED, false, 0, NULL },
	{ "open of one in limbo", IMPORTER, run_open_limbo, R_HELD, false, 0, NULL },
	{ "open of a stale one", IMPORTER, run_open_stale, R_EXPORTED, false, 0, NULL },
	{ "open of a free one", IMPORTER, run_open_free, -1, false, 0, NULL },
	{ "open with another's handle", IMPORTER, run_open_other, R_HELD, false, 0, NULL },
	{ "open with data that differ in the offset", IMPORTER, run_open_other_offset, -1, false, 0, NULL },
	{ "open of what lies beside virtual memory", IMPORTER, run_open_beside, -1, false, 0, NULL },
	{ "count of another open", IMPORTER, run_count_open, -1, false, 0, NULL },
	{ "count of an open by its exporter", EXPORTER, run_count_open, -1, false, 0, NULL },
	{ "count of more opens than it can count", IMPORTER, run_count_many, -1, false, 0, NULL },
	{ "pin", IMPORTER, run_pin, R_EXPORTED, false, 0, NULL },
	{ "close of the last", IMPORTER, run_close_last, R_LAST, false, 0, NULL },
	{ "close of one of two", IMPORTER, run_close_one, R_BOTH, false, 0, NULL },
	{ "close of an exported one", IMPORTER, run_close_exported, R_OPENED, false, 0, NULL },
	{ "close of what was unmapped", IMPORTER, run_close_unmapped, R_OPENED, false, 0, NULL },
	{ "leave", IMPORTER, run_leave, R_BOTH, false, 0, NULL },
	{ "reap by an importer", IMPORTER, run_reap, R_DEAD, true, 0, NULL },
	{ "leave a file of 4,096 records", IMPORTER, run_leave, R_LAST, false, 8, NULL },
	{ "reap in a file of 8,192 records", IMPORTER, run_reap, R_FAR, true, 16, NULL },
	{ "opening the file", IMPORTER, run_open_file, -1, true, 0, NULL },
	{ "takeover of a dead exporter's file", SWEEPER, run_gc_file, -1, true, 0, NULL },
	{ "gc", SWEEPER, run_gc_directory, -1, true, 0, NULL },
};
const unsigned int op_count = sizeof ops / sizeof *ops;

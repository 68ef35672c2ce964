/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks that this process exported: see blocks.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/backoff.h"
#include "shim/blocks/blocks.h"
#include "shim/driver/devices.h"
#include "shim/base/log.h"
#include "shim/self/self.h"

struct cl_region cl_own = { .fd = -1 };
bool cl_own_by_handle;
_Atomic uint32_t cl_own_id;

static struct cl_block **by_record[CL_CHUNKS];
static struct {
	uint32_t *free; /* records that were released, the last one first */
	uint32_t free_n, free_size;
	uint32_t fresh; /* records from this one on were never used */
	uint32_t chunks; /* of the file: those below it are there */
} records;

/* The file could not be made. */
struct no_file {
	struct cl_backoff backoff;
	bool said;
};
static struct {
	struct no_file exporter, importer; /* who wanted it */
} no_file;

/* -------------------------------------------------------------- found by key */
struct cl_table cl_block_tables[] = {
	CL_TABLE_BEGIN(cl_block_tables[0]),
	CL_TABLE_BEGIN(cl_block_tables[CL_MEMORY]),
	CL_TABLE_BEGIN(cl_block_tables[CL_EVENT]),
};

struct cl_context_tally cl_block_tally;

static void tally(const struct cl_block *block, int by)
{
	cl_context_tally(&cl_block_tally, block->ctx, block->device, block->primary, by);
}

void cl_block_leave_context(struct cl_block *block)
{
	tally(block, -1);
	block->ctx = NULL;
	tally(block, 1);
}

void cl_block_unhash(struct cl_block *block)
{
	if (!block->hashed)
		return;
	cl_table_remove(&cl_block_tables[block->kind], &block->link);
	block->hashed = false;
}

void cl_block_each(enum cl_kind kind, void (*each)(struct cl_block *block, void *data), void *data)
{
	struct cl_link *link, *next;

	CL_TABLE_EACH (&cl_block_tables[kind], link, next)
		each((struct cl_block *)link, data);
}

/* -------------------------------------------------------------------- handles */
__extension__ typedef unsigned __int128 product;

static inline product mixed(const uint8_t *words, uint64_t a, uint64_t b)
{
	uint64_t x, y;

	/* (a word at a time: in one piece they would go over the stack) */
	memcpy(&x, words, sizeof x);
	memcpy(&y, words + 8, sizeof y);
	return (product)(x + a) * (y + b);
}

/*
 * Of 64 bytes that the driver makes, so of nobody who would look for two alike.  (NH, of
 * UMAC: one multiplication for two words, all of whose bits are in the sum.)
 */
static inline uint64_t print_of(const uint8_t *handle)
{
	/* (digits of pi) */
	product sum = mixed(handle, 0x243f6a8885a308d3u, 0x13198a2e03707344u) +
		      mixed(handle + 16, 0xa4093822299f31d0u, 0x082efa98ec4e6c89u) +
		      mixed(handle + 32, 0x452821e638d01377u, 0xbe5466cf34e90c6cu) +
		      mixed(handle + 48, 0xc0ac29b7c97c50ddu, 0x3f84d5b5b5470917u);

	return (uint64_t)sum ^ (uint64_t)(sum >> 64);
}

bool cl_block_has_handle(const struct cl_block *block, const void *handle)
{
	return block->handle == print_of(handle);
}

/* ---------------------------------------------------- addresses that are none */
/*
 * Most of what a process that shares frees was never exported.  The hash tells
 * that too, but with a lock and the first line of some blocks on the way, each
 * a miss of the cache.  Here it is one bit, of 16 to 32 a block: clear, and nothing at
 * such an address was exported since the bits were last made anew.
 *
 * Written under cl_exports_lock; read without, so `seq` is odd while what is made
 * anew takes the place of what was, and a reader that finds it odd or changed takes
 * the long way.  It is made anew a few words with each block that comes, out of the
 * table: its bits, too, are the first ones of a hash.
 * Memory is touched as far as there are bits in use; all is zeros at first.
 */
enum { FEWEST_BITS = 12, MOST_BITS = 24, BITS_A_BLOCK = 16, STEPS = 2 }; /* the first two: logarithms */
static struct {
	_Atomic uint32_t seq;
	_Atomic uint32_t use; /* twice (the logarithm of bits in use less FEWEST_BITS), and which */
	uint32_t set;
	uint32_t new_set, step, steps; /* of what is made anew; step equal to steps: nothing is */
	unsigned int new_log;
	bool all; /* something that may be ours is not in the hash: `seq` is odd for good */
	_Atomic uint64_t bits[2][(1u << MOST_BITS) / 64];
} exported;

static unsigned int log_of(uint32_t use)
{
	return FEWEST_BITS + use / 2;
}

static uint32_t exported_use(void)
{
	return atomic_load_explicit(&exported.use, memory_order_relaxed);
}

bool cl_block_may_be(uint64_t address)
{
	/* acquire, and the fence: what is read between is of one making */
	uint32_t seq = atomic_load_explicit(&exported.seq, memory_order_acquire);
	uint32_t use = exported_use();
	uint64_t bit = cl_hash_word(address) >> (64 - log_of(use));
	uint64_t word = atomic_load_explicit(&exported.bits[use % 2][bit / 64], memory_order_relaxed);

	atomic_thread_fence(memory_order_acquire);
	return (word >> bit % 64 & 1) || seq % 2 ||
	       atomic_load_explicit(&exported.seq, memory_order_relaxed) != seq;
}

/* (only one thread writes at a time)  Returns how many are set by it. */
static uint32_t exported_set(unsigned int which, uint64_t bit)
{
	uint64_t before = atomic_load_explicit(&exported.bits[which][bit / 64], memory_order_relaxed);

	if (before >> bit % 64 & 1)
		return 0;
	atomic_store_explicit(&exported.bits[which][bit / 64], before | 1ull << bit % 64,
			      memory_order_relaxed);
	return 1;
}

static void exported_take(uint32_t use, uint32_t set)
{
	uint32_t seq = atomic_load_explicit(&exported.seq, memory_order_relaxed) | 1;

	atomic_store_explicit(&exported.seq, seq, memory_order_relaxed);
	/* release: who reads any of what is written from here on finds `seq` odd, or changed */
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&exported.use, use, memory_order_relaxed);
	exported.set = set;
	atomic_store_explicit(&exported.seq, seq + !exported.all, memory_order_release);
}

/* One word of what is made anew, from the buckets whose elements may lead to it. */
static void exported_step(void)
{
	const struct cl_table *table = &cl_block_tables[CL_MEMORY];
	unsigned int which = !(exported_use() % 2), log = exported.new_log - 6;
	uint64_t n = table->log > log ? 1ull << (table->log - log) : 1;
	uint64_t first = table->log > log ? exported.step * n : exported.step >> (log - table->log);

	atomic_store_explicit(&exported.bits[which][exported.step], 0, memory_order_relaxed);
	for (uint64_t i = first; i < first + n; i++) {
		/* (an undivided one stands for two) */
		const struct cl_link *link = i / 2 < table->divided ? table->bucket[i] : table->old[i / 2];

		for (; link; link = link->next) {
			uint64_t bit = cl_hash_word(link->key) >> (64 - exported.new_log);

			if (bit / 64 == exported.step)
				exported.new_set += exported_set(which, bit);
		}
	}
	if (++exported.step == exported.steps)
		exported_take((exported.new_log - FEWEST_BITS) * 2 + which, exported.new_set);
}

/* Of a block that is in the table. */
static void exported_add(uint64_t address)
{
	uint32_t use = exported_use();
	unsigned int log = log_of(use);
	uint64_t bit = cl_hash_word(address) >> (64 - log);

	exported.set += exported_set(use % 2, bit);
	if (exported.step < exported.steps) {
		/* the words that are still to come are made from the table */
		bit = cl_hash_word(address) >> (64 - exported.new_log);
		if (bit / 64 < exported.step)
			exported.new_set += exported_set(!(use % 2), bit);
	} else if ((uint64_t)exported.set * BITS_A_BLOCK > 1ull << log &&
		   /* where it cannot grow, it is made anew for what has gone */
		   (log < MOST_BITS || exported.set > 2 * cl_block_tables[CL_MEMORY].n)) {
		for (log = FEWEST_BITS; log < MOST_BITS &&
					1ull << log < cl_block_tables[CL_MEMORY].n * BITS_A_BLOCK * 2;)
			log++;
		exported.new_log = log;
		exported.new_set = exported.step = 0;
		exported.steps = 1u << (log - 6);
	}
	for (unsigned int i = 0; i < STEPS && exported.step < exported.steps; i++)
		exported_step();
}

struct cl_block *cl_block_of_record(uint32_t record)
{
	struct cl_block **chunk = record < CL_RECORDS ? by_record[record / CL_CHUNK] : NULL;

	return chunk ? chunk[record % CL_CHUNK] : NULL;
}

/* ------------------------------------------------------------------- records */
/* With the one descriptor that was kept for this; apart, for its stack. */
static __attribute__((noinline)) int create_by_path(void)
{
	char path[4096];
	int err;

	cl_self_dir_path(path, sizeof path);
	err = cl_self_check_dir(path);
	return err ? err : cl_region_create_by_path(&cl_own, path, cl_self_place(-1), &cl_self.witness);
}

static int create_own_file(bool importer)
{
	int err = -ENOENT;

	/* the last process to leave takes the directory away: it may go between the two */
	for (int tries = 0; tries < 16 && err == -ENOENT; tries++) {
		int dirfd = cl_self_open_dir(true);

		err = dirfd;
		if (dirfd < 0)
			continue;
		err = cl_region_create_in(&cl_own, dirfd, cl_self_place(dirfd), &cl_self.witness);
		close(dirfd);
	}
	/* an importer does without: it keeps that descriptor for the files of exporters */
	if ((err == -EMFILE || err == -ENFILE) && !importer && cl_self_spare_release()) {
		err = create_by_path();
		cl_self_spare_restore();
	}
	return err;
}

static void say_no_file(bool importer, int err)
{
	char path[256];

	cl_self_dir_path(path, sizeof path);
	if (importer)
		cl_log(CL_LOG_INFO,
		       "cannot make this process's exporter file in %s: %s; `culimbo report` cannot tell what "
		       "it imports, which is as safe as with one",
		       path, strerror(-err));
	else
		cl_log(CL_LOG_ERROR,
		       "cannot make this process's exporter file in %s: %s; its blocks stay usable, but once "
		       "exported and freed, those under 2 MiB are kept to the end and larger ones until memory "
		       "runs short. Make room there, or set CULIMBO_DIR to a directory on a tmpfs",
		       path, strerror(-err));
}

static void make_own_file(bool importer)
{
	struct no_file *before = importer ? &no_file.importer : &no_file.exporter;
	uint64_t now = cl_now();
	int err;

	if (!cl_backoff_is_over(&before->backoff, now))
		return;
	err = create_own_file(importer);
	if (err) {
		cl_backoff_failed(&before->backoff, now);
		if (!before->said)
			say_no_file(importer, err);
		before->said = true;
		return;
	}
	cl_own.header->grace = cl_options.grace.number;
	/* who gets a handle of ours in whatever way has seen this, too */
	atomic_store_explicit(&cl_own_id, cl_own.file_id, memory_order_release);
	records.chunks = 1; /* it comes with one */
	if (no_file.exporter.said)
		cl_log(CL_LOG_WARN, "this process's exporter file could be made now: what is exported from "
				    "here on is tracked, and goes back once freed");
}

void cl_own_go_by_handle_locked(void)
{
	cl_own_by_handle = true;
	atomic_store_explicit(&cl_own_id, CL_OWN_ANY, memory_order_release);
}

bool cl_own_need_locked(bool importer)
{
	/* nobody would take away a file that an importer makes when its process has ended */
	if (!cl_own.header && !(importer && cl_self.ended))
		make_own_file(importer);
	return cl_own.header != NULL;
}

static uint32_t record_get(void)
{
	uint32_t record = records.fresh;
	int err;

	if (!cl_own_need_locked(false))
		return CL_NO_RECORD;
	if (records.free_n)
		return records.free[--records.free_n];
	/* (what the header says of chunks is for others, and theirs to damage) */
	if (record >= CL_RECORDS || record / CL_CHUNK >= records.chunks) {
		cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
		err = cl_region_grow(&cl_own);
		if (!err)
			err = cl_region_need_word(&cl_own, 0, record);
		if (err) {
			cl_log_once(CL_LOG_ERROR,
				    "no room for one more export (%u now): %s; blocks exported from here on "
				    "are not tracked: once freed, those under 2 MiB are kept to the end and "
				    "larger ones until memory runs short",
				    record, strerror(-err));
			return CL_NO_RECORD;
		}
		records.chunks = record / CL_CHUNK + 1;
	}
	if (!by_record[record / CL_CHUNK])
		by_record[record / CL_CHUNK] = calloc(CL_CHUNK, sizeof(struct cl_block *));
	if (!by_record[record / CL_CHUNK]) {
		cl_log_once(CL_LOG_WARN, "no memory to track an export: its block is kept once freed");
		return CL_NO_RECORD;
	}
	records.fresh++;
	return record;
}

static void record_put(uint32_t record, bool indexed)
{
	if (indexed)
		cl_record_unindex(&cl_own, record);
	by_record[record / CL_CHUNK][record % CL_CHUNK] = NULL;
	/* its stamps are used up: one more use could make an old handle right again */
	if (!cl_record_reusable(&cl_own, record))
		return;
	if (records.free_n == records.free_size) {
		uint32_t size = records.free_size ? records.free_size * 2 : 256;
		uint32_t *more = realloc(records.free, size * sizeof *more);

		if (!more)
			return; /* that record is not used again: 112 bytes */
		records.free = more;
		records.free_size = size;
	}
	records.free[records.free_n++] = record;
}

/* ------------------------------------------------------- what could not be noted */
/* Two bits an address, of filters that are pages of zeros until something is. */
enum { FILTER_BITS = 1 << 18 };
struct filter {
	uint64_t word[FILTER_BITS / 64];
	bool any;
};
static struct filter unnoted, unnoted_freed;

static bool filter_has(struct filter *filter, uint64_t address, bool add)
{
	uint64_t hash = (address >> 8) * 0x9e3779b97f4a7c15u;
	bool has = true;

	if (!add && !filter->any)
		return false;
	for (unsigned int shift = 46; shift >= 28; shift -= 18) {
		uint64_t bit = hash >> shift & (FILTER_BITS - 1);

		has = has && filter->word[bit / 64] >> bit % 64 & 1;
		if (add)
			filter->word[bit / 64] |= 1ull << bit % 64;
	}
	filter->any |= add;
	return has;
}

static void filter_clear(struct filter *filter)
{
	if (filter->any)
		memset(filter, 0, sizeof *filter);
}

void cl_unnoted_keep(uint64_t address)
{
	filter_has(&unnoted, address, true);
	exported.all = true;
	atomic_fetch_or_explicit(&exported.seq, 1, memory_order_relaxed);
}

bool cl_unnoted_kept(uint64_t address)
{
	return filter_has(&unnoted, address, false);
}

bool cl_unnoted_freed(uint64_t address, bool now)
{
	/* (asked at each export) */
	return (now || unnoted_freed.any) && filter_has(&unnoted_freed, address, now);
}

void cl_unnoted_context_gone(void)
{
	/* (of another context's, a second free is then no error; keeping goes on) */
	filter_clear(&unnoted_freed);
}

/* -------------------------------------------------------------------- blocks */
struct cl_block *cl_block_new(const struct cl_export *what, CUcontext ctx, bool primary,
			      uint32_t stack, uint32_t *generation)
{
	struct cl_block *block = calloc(1, what->kind == CL_EVENT ? sizeof(struct cl_event_block) :
								    sizeof *block);

	if (!block)
		return NULL;
	block->link.key = what->base;
	block->handle = print_of(what->handle);
	block->size = what->kind == CL_MEMORY ? what->size : 0;
	block->kind = (uint8_t)what->kind;
	block->device = (uint8_t)what->device;
	block->ctx = ctx;
	block->primary = primary;
	block->place = CL_PLACE_PROGRAM;
	tally(block, 1);
	cl_table_add(&cl_block_tables[block->kind], &block->link);
	block->hashed = true;
	if (what->kind == CL_MEMORY)
		exported_add(block->link.key);
	block->record = record_get();
	if (block->record != CL_NO_RECORD) {
		if (what->kind == CL_MEMORY) /* for when it is in the limbo */
			cl_device_limbo_locked(what->device);
		/* (the record is free: nobody reads them yet) */
		cl_own.record[block->record].export_stack = stack;
		cl_own.record[block->record].free_stack = 0;
		*generation = cl_record_publish(&cl_own, block->record, what);
		by_record[block->record / CL_CHUNK][block->record % CL_CHUNK] = block;
		atomic_fetch_add_explicit(&cl_own.header->live_blocks, 1, memory_order_relaxed);
	}
	return block;
}

void cl_block_delete(struct cl_block *block)
{
	cl_block_unhash(block);
	tally(block, -1);
	if (block->record != CL_NO_RECORD)
		record_put(block->record, block->indexed);
	free(block);
}

void cl_block_each_record(void (*each)(struct cl_block *block, void *data), void *data)
{
	for (uint32_t record = 0; record < records.fresh; record++) {
		struct cl_block *block = cl_block_of_record(record);

		if (block)
			each(block, data);
	}
}

void cl_blocks_forget(void)
{
	/* their memory is left: another thread of the parent may have been in the middle of it */
	for (unsigned int kind = 0; kind <= CL_EVENT; kind++)
		cl_block_tables[kind] = (struct cl_table)CL_TABLE_BEGIN(cl_block_tables[kind]);
	memset(&cl_block_tally, 0, sizeof cl_block_tally);
	memset(by_record, 0, sizeof by_record);
	memset(&records, 0, sizeof records);
	memset(&no_file, 0, sizeof no_file);
	/* the mapping is not there in a child, and closing the file here unlocks nothing of the parent's */
	if (cl_own.fd >= 0 && cl_region_fd_intact(&cl_own))
		close(cl_own.fd);
	cl_own = (struct cl_region){ .fd = -1 };
	cl_own_by_handle = false;
	atomic_store_explicit(&cl_own_id, 0, memory_order_relaxed);
	cl_devices_forget();
	filter_clear(&unnoted);
	filter_clear(&unnoted_freed);
	exported.all = false;
	exported.step = exported.steps = 0;
	for (unsigned int i = 0; i < (1u << FEWEST_BITS) / 64; i++)
		atomic_store_explicit(&exported.bits[0][i], 0, memory_order_relaxed);
	exported_take(0, 0);
}

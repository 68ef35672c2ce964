/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open against free, at full speed.  A process that was told that it holds a block has the block until
 * it closes it.  A block that no process holds can be released without a search.
 *
 * Promises 1 and 2, and from 3 that no notification is lost.  Threads act as processes: one exporter
 * publishes, frees and releases a few records; importers take and drop holds with right and with
 * stale handles; one dies with holds and is reaped, by a reaper that is sometimes killed
 * itself.
 *
 * The checker is separate: the exporter overwrites a block's contents when it was told that it may free
 * the block, and an importer checks the contents as long as it holds it.
 *
 * This file is built several times: unchanged, where no fault may be found; and with a CL_PLANT_ fault
 * in shim/, which the checker must find (a checker that cannot fail proves nothing).
 */
#include "tests/unit/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include "shim/shm/slot.h"

#if defined(CL_PLANT_MISSING_FENCE) || defined(CL_PLANT_TWO_STEP_RELEASE) || \
	defined(CL_PLANT_SLOT_BEFORE_BITS)
#define PLANTED 1
#else
#define PLANTED 0
#endif

enum {
	RECORDS = PLANTED ? 2 : 3, /* fewer where the fault needs everything in one place */
	IMPORTERS = 3,
	FREED = -1, /* the contents of a block after the driver freed it */
	ROUNDS = 4, /* and more until the two sides have met; at the end of each, all is to come free */
	MET_SECONDS = 60, /* by then, even when other processes use the processors most of the time */
	ROUND_MS = 500,
	PLANTED_SECONDS = 120, /* a planted fault must be found within this time */
	STUCK_MS = PLANTED ? 1000 : 5000,
};

static char folder[64];
static struct cl_region region;
static uint8_t handle[64] = { 1, 2, 3 }; /* the driver gives out the same handles repeatedly */
static atomic_bool stop;

/* The checker's state; nothing of it is in the shared memory. */
static struct {
	_Alignas(64) _Atomic int64_t contents; /* the generation that lives there, or FREED */
	_Atomic uint32_t exported;	       /* the handle that the program passes on */
	atomic_bool freed;		       /* the time of its free; after it only a few late handles arrive */
} block[RECORDS];
static _Atomic(const char *) fault;
static _Atomic uint64_t holds_taken, refused, released, kept_by_holders, deaths;

static void found(const char *what)
{
	const char *none = NULL;

	atomic_compare_exchange_strong(&fault, &none, what);
	atomic_store(&stop, true);
}

/* ----------------------------------------------- locks of the simulated processes */
static _Thread_local uint32_t playing;
static _Atomic uint32_t lock_owner[CL_SLOTS + 1];

static int played_try_lock(struct cl_region *r, off_t byte)
{
	uint32_t nobody = 0;

	return atomic_compare_exchange_strong(&lock_owner[byte], &nobody, playing) ||
			       nobody == playing ?
		       0 :
		       -EAGAIN;
}
static int played_unlock(struct cl_region *r, off_t byte)
{
	uint32_t mine = playing;

	atomic_compare_exchange_strong(&lock_owner[byte], &mine, 0);
	return 0;
}
static int played_is_locked(struct cl_region *r, off_t byte)
{
	uint32_t owner = atomic_load(&lock_owner[byte]);

	return owner && owner != playing;
}
static const struct cl_lock_ops played_locks = { played_try_lock, played_unlock, played_is_locked };

/* ------------------------------------------------------------------- importer */
static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 8;
}

/* As long as this process holds @generation of @record, its block is that block. */
static void check_held(uint32_t record, uint32_t generation)
{
	if (atomic_load(&block[record].contents) != generation)
		found("a held block was freed in the driver");
	if (cl_life_generation(cl_record_life(&region, record)) != generation)
		found("a held record started its next generation");
}

static uint32_t pick_generation(uint32_t record, uint64_t dice)
{
	uint32_t generation = atomic_load(&block[record].exported);

	/* one handle in eight is of a block that never existed; after a free, most threads know about it */
	return dice % 8 && (!atomic_load(&block[record].freed) || (dice >> 3) % 4 == 0) ? generation : generation - 1 + (uint32_t)(dice >> 5) % 3;
}

static void one_hold(unsigned int slot, uint64_t *random)
{
	uint64_t dice = next_random(random);
	uint32_t record = (uint32_t)(dice % RECORDS);
	uint32_t generation = pick_generation(record, dice >> 8);
	int err;

	while ((err = cl_record_hold(&region, slot, record, generation, handle)) == -EAGAIN)
		if (atomic_load_explicit(&stop, memory_order_relaxed))
			return;
	if (err == -ESTALE) {
		atomic_fetch_add_explicit(&refused, 1, memory_order_relaxed);
		return;
	}
	if (err) {
		found("a hold ended with an error other than stale");
		return;
	}
	atomic_fetch_add_explicit(&holds_taken, 1, memory_order_relaxed);
	/* most are short, so that many begin and end; some are long enough to be reaped wrongly */
	for (uint64_t looks = dice >> 24 & 31 ? dice >> 20 & 15 : 2000; looks; looks--)
		check_held(record, generation);
	check_held(record, generation);
	cl_record_unhold(&region, slot, record);
}

static unsigned int claim(uint32_t process)
{
	struct cl_identity self = { .pid = process, .pid_ns = 1, .start_time = process };
	int slot;

	playing = process;
	/* importers may die faster than a reaper without processor time removes them */
	if (!COMES_TRUE((slot = cl_holder_claim(&region, &self, cl_now(), 1)) >= 0, STUCK_MS)) {
		found("no slot was free");
		return 0;
	}
	return (unsigned int)slot;
}

static void *importer_main(void *number)
{
	uint32_t process = (uint32_t)(uintptr_t)number;
	uint64_t random = 0x9e3779b97f4a7c15u * process + test_now();
	unsigned int slot = claim(process);

	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		one_hold(slot, &random);
	cl_holder_release(&region, slot);
	return NULL;
}

/* Takes some holds, is killed, and starts again as another process. */
static void *mortal_main(void *unused)
{
	static uint32_t process = 1000;
	uint64_t random = test_now();

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		unsigned int slot = claim(process);

		for (uint64_t lives = next_random(&random) % 64; lives; lives--)
			one_hold(slot, &random);
		for (uint32_t record = 0; record < RECORDS; record++)
			cl_record_hold(&region, slot, record, atomic_load(&block[record].exported), handle);
		/* only now is it dead to others, which may take its holds back */
		played_unlock(&region, CL_LOCK_SLOT(slot));
		atomic_fetch_add_explicit(&deaths, 1, memory_order_relaxed);
		process += IMPORTERS + 2; /* another pid, the same lock */
		sched_yield();
	}
	return NULL;
}

/* ------------------------------------------------------------------- exporter */
enum where { FREE, PROGRAM, WAITS }; /* WAITS: until the ready map names it */
static enum where where[RECORDS];

static void try_release(uint32_t record)
{
	if (!cl_record_try_release(&region, record)) {
		where[record] = WAITS;
		atomic_fetch_add_explicit(&kept_by_holders, 1, memory_order_relaxed);
		return;
	}
	/* here the driver frees it, and may give it to any process */
	atomic_store(&block[record].contents, FREED);
	where[record] = FREE;
	atomic_fetch_add_explicit(&released, 1, memory_order_relaxed);
}

static void publish(uint32_t record)
{
	struct cl_export what = { .kind = CL_MEMORY, .base = record, .size = 1, .handle = handle };
	uint32_t generation = cl_life_generation(cl_record_life(&region, record));

	atomic_store(&block[record].contents, generation);
	if (cl_record_publish(&region, record, &what) != generation)
		found("a record was published as another generation");
	atomic_store(&block[record].exported, generation);
	atomic_store(&block[record].freed, false);
	where[record] = PROGRAM;
}

static void collect(void)
{
	uint32_t ready[64];
	unsigned int n = cl_record_take_ready(&region, ready, 64);

	for (unsigned int i = 0; i < n; i++)
		if (where[ready[i]] == WAITS)
			try_release(ready[i]);
}

static struct cl_slot_watch reap_watch[CL_SLOTS];
static jmp_buf killed;
static _Atomic uint64_t killed_n;

static void reaping(void *unlikely, unsigned int slot, uint32_t record)
{
	static uint64_t random = 17;

	if ((atomic_load(&region.slot[slot].claim) & 0xff) != CL_SLOT_CLAIMED)
		found("a slot was free before its holds were gone");
	if (unlikely && next_random(&random) % 16 == 0) {
		played_unlock(&region, CL_LOCK_SLOT(slot));
		atomic_fetch_add_explicit(&killed_n, 1, memory_order_relaxed);
		longjmp(killed, 1);
	}
}

static void reap(bool may_be_killed)
{
	if (setjmp(killed) == 0)
		cl_holder_reap(&region, reap_watch, cl_now(), 1, reaping,
			       may_be_killed ? &region : NULL);
}

static bool all_free(void)
{
	for (uint32_t record = 0; record < RECORDS; record++)
		if (where[record] != FREE)
			return false;
	return true;
}

static void exporter_until(uint64_t until)
{
	static uint64_t random = 4711;
	unsigned int rounds = 0;

	playing = 999;
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		uint32_t record = (uint32_t)(next_random(&random) % RECORDS);

		if (where[record] == FREE) {
			publish(record);
		} else if (where[record] == PROGRAM) {
			atomic_store(&block[record].freed, true);
			cl_record_to_limbo(&region, record, 1);
			try_release(record);
		}
		if (cl_record_any_ready(&region))
			collect();
		if (++rounds % 256 == 0) {
			reap(true);
			if (test_now() > until)
				atomic_store(&stop, true);
		}
	}
}

/* The importers have ended or died: with what the ready map names, everything becomes free. */
static void all_comes_free(void)
{
	for (uint32_t record = 0; record < RECORDS; record++)
		if (where[record] == PROGRAM) {
			cl_record_to_limbo(&region, record, 1);
			try_release(record);
		}
	if (!COMES_TRUE((reap(false), collect(), all_free()), STUCK_MS))
		found("a block that no process holds was not made ready");
}

static void one_round(void)
{
	pthread_t thread[IMPORTERS];

	atomic_store(&stop, false);
	for (unsigned int i = 0; i < IMPORTERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL,
						i ? importer_main : mortal_main,
						(void *)(uintptr_t)(i + 1)), 0);
	exporter_until(test_now() + ROUND_MS * 1000000ull);
	for (unsigned int i = 0; i < IMPORTERS; i++)
		pthread_join(thread[i], NULL);
	if (!atomic_load(&fault))
		all_comes_free();
}

#if PLANTED
static void the_checker_finds_the_planted_fault(void **state)
{
	uint64_t begun = test_now();
#ifdef CL_PLANT_MISSING_FENCE
	cpu_set_t cpus;

	/* without a memory fence, the two sides fail only when they run at the same time */
	if (sched_getaffinity(0, sizeof cpus, &cpus) || CPU_COUNT(&cpus) < 2)
		skip();
#endif
	while (!atomic_load(&fault) && test_now() < begun + PLANTED_SECONDS * 1000000000ull)
		one_round();
	print_message("# after %.2f s, %llu holds and %llu releases: %s\n",
		      (double)(test_now() - begun) / 1e9, (unsigned long long)holds_taken,
		      (unsigned long long)released, fault ? fault : "nothing found");
	assert_non_null(atomic_load(&fault));
}
#else
/* Otherwise the run proves nothing.  Its duration depends on the scheduler. */
static bool have_met(void)
{
	return holds_taken > 1000 && refused > 100 && released > 1000 && kept_by_holders > 100 &&
	       deaths > 10 && killed_n > 0;
}

static void what_is_held_is_never_freed_and_what_is_not_held_comes_free(void **state)
{
	uint64_t until = test_now() + MET_SECONDS * 1000000000ull;

	for (int i = 0; (i < ROUNDS || (!have_met() && test_now() < until)) && !atomic_load(&fault); i++)
		one_round();
	print_message("# %llu holds, %llu refused as stale, %llu releases, %llu times kept by a "
		      "holder, %llu deaths, %llu reapers killed\n",
		      (unsigned long long)holds_taken, (unsigned long long)refused,
		      (unsigned long long)released, (unsigned long long)kept_by_holders,
		      (unsigned long long)deaths, (unsigned long long)killed_n);
	if (fault)
		fail_msg("%s", fault);
	assert_true(have_met());
	for (uint32_t record = 0; record < RECORDS; record++)
		assert_int_equal(cl_record_holders(&region, record, NULL, 0), 0);
}
#endif

static int make_region(void **state)
{
	struct cl_identity self;
	int dir;

	if (make_folder_at(folder))
		return -1;
	dir = open(folder, O_RDONLY | O_DIRECTORY);
	cl_identity_self(&self);
	if (cl_region_create(&region, dir, &self))
		return -1;
	cl_region_unlink(&region, dir);
	close(dir);
	region.locks = &played_locks;
	for (uint32_t record = 0; record < RECORDS; record++)
		atomic_store(&block[record].contents, FREED);
	return 0;
}
static int drop_region(void **state)
{
	cl_region_close(&region);
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#if PLANTED
		cmocka_unit_test(the_checker_finds_the_planted_fault),
#else
		cmocka_unit_test(what_is_held_is_never_freed_and_what_is_not_held_comes_free),
#endif
	};

	return cmocka_run_group_tests(tests, make_region, drop_region);
}

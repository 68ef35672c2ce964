/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of pools that are shared by pointer (16): several holders, the ends of either side in all the
 * ways that scene_death.c has for other memory, how soon a block is back after the last free, the
 * per-thread form of a free, and the two sides by different doors.
 */
#include "scene_pool.h"

#include <signal.h>
#include <stdlib.h>

static const struct entry both = { .env = POOL_GRACE };
#define BACK_MS 1000 /* README promises this limit */
#define LEGACY 0
#define PER_THREAD 2

/* ---------------------------------------------------------------- several holders */
void pool_two_holders(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = POOL_GRACE };
		struct pair pair = pool_pair(entry, entry);
		struct actor *d = enter("D", entry);
		uint64_t taken = pool_taken_by(&pair, d);
		uint64_t block = pool_alloc(&pair, SMALL), at_c, at_d;
		struct handle data = pool_export(pair.p, block);
		bool got;

		at_c = pool_import(pair.c, pair.taken, &data);
		at_d = pool_import(d, taken, &data);
		free_block(pair.p, block);
		free_block(pair.c, at_c);
		got = pool_claim(&pair, block, SMALL);
		if (bare) {
			ok(got && reads(d, at_d, SMALL, NEXT, NULL),
			   "control: bare, pool: two have imported, one has freed: the other reads the next block's bytes");
			leave_by(d, END_EXIT, 0);
			pool_curtain(&pair);
			continue;
		}
		for (double deadline = now_ms() + 600; !got && watch_until(deadline);)
			got = pool_claim(&pair, block, SMALL);
		ok(!got && reads(d, at_d, SMALL, OWN, NULL),
		   "16 two have imported, one has freed: the other reads its own bytes, also after the grace");
		free_block(d, at_d);
		ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 and when both have freed P gets the address again");
		leave(d);
		pool_curtain(&pair);
	}
}

static void one_of_two_dies(bool bare)
{
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	struct actor *d = enter("D", entry);
	uint64_t taken = pool_taken_by(&pair, d);
	uint64_t block = pool_alloc(&pair, SMALL), at_d;
	struct handle data = pool_export(pair.p, block);
	bool held = true;

	pool_import(pair.c, pair.taken, &data);
	at_d = pool_import(d, taken, &data);
	free_block(pair.p, block);
	kill_actor(pair.c);
	if (bare) {
		ok(pool_claim(&pair, block, SMALL) && reads(d, at_d, SMALL, NEXT, NULL),
		   "control: bare, pool: C is killed while D also has it imported: D reads the next block's bytes");
		leave_by(d, END_EXIT, 0);
		leave(pair.p);
		return;
	}
	for (double deadline = now_ms() + BACK_MS; held && watch_until(deadline);)
		held = !pool_claim(&pair, block, SMALL) && reads(d, at_d, SMALL, OWN, NULL);
	ok(held, "16 C is killed while D also has it imported: for a second more D reads its own bytes");
	free_block(d, at_d);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 and after D's free P gets the address again");
	leave(d);
	leave(pair.p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

void pool_one_of_two_dies(void)
{
	one_of_two_dies(true);
	one_of_two_dies(false);
}

/* ------------------------------------------------------------- an importer's end */
static const char *const deaths[] = { "is killed", "exits without a free", "_exits without a free" };

static void end_by(struct actor *actor, int how)
{
	if (!how)
		kill_actor(actor);
	else
		leave_by(actor, how == 1 ? END_EXIT : END__EXIT, 0);
}

/* Bare nothing waits for C: its end changes nothing. */
static void importer_dies_bare(void)
{
	struct entry entry = { .bare = true };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), import;
	struct handle data = pool_export(pair.p, block);
	bool got;

	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	got = pool_claim(&pair, block, SMALL);
	ok(got && reads(pair.c, import, SMALL, NEXT, NULL),
	   "control: bare, pool: P frees while C has it imported: P gets the address before C's end, and C the next block's bytes");
	kill_actor(pair.c);
	leave(pair.p);
}

void pool_importer_dies(void)
{
	importer_dies_bare();
	for (int how = 0; how < 3; how++)
		for (int before = 0; before < 2; before++) {
			struct pair pair = pool_pair(both, both);
			uint64_t block = pool_alloc(&pair, SMALL), import;
			struct handle data = pool_export(pair.p, block);
			double start, exported = now_ms();
			bool held = true, got;

			import = pool_import(pair.c, pair.taken, &data);
			if (!before) {
				free_block(pair.p, block);
				while (held && watch_until(exported + 400))
					held = !pool_claim(&pair, block, SMALL) && reads(pair.c, import, SMALL, OWN, NULL);
			}
			end_by(pair.c, how);
			start = now_ms();
			if (before)
				free_block(pair.p, block);
			got = pool_claim_within(&pair, block, SMALL, BACK_MS);
			note("back %.1f ms after C's end", now_ms() - start);
			ok(held && got, "16 C %s, %s P frees: P gets the address again within 1 s", deaths[how],
			   before ? "and then" : "after");
			leave(pair.p);
			ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
		}
}

/* C is killed while its kernel writes into what it has imported. */
void pool_killed_writing(void)
{
	enum { C_WRITES = 0x37, ROUNDS = 3 };

	/* the simulated driver lets a killed process's kernel write for some milliseconds, as a GPU does */
	setenv("CULIMBO_SIM_KERNELS", "linger", 1);
	for (int round = 0; round < ROUNDS; round++) {
		bool bare = round == 0;
		struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=20ms" };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL), import;
		struct handle data = pool_export(pair.p, block);
		double deadline = now_ms() + SOON_MS;
		unsigned int foreign = 0;
		bool got, untouched = true;

		import = pool_import(pair.c, pair.taken, &data);
		ASK(pair.c, fill_kernel, import, SMALL / 4, 0x01010101u * C_WRITES, 20 * UINT64_C(1000000000));
		while (!reads(pair.p, block, SMALL, C_WRITES, NULL))
			if (!watch_until(deadline))
				break_off("C's kernel writes nothing");
		free_block(pair.p, block);
		got = pool_claim(&pair, block, SMALL);
		if (bare) {
			for (deadline = now_ms() + 1000; got && untouched && watch_until(deadline);)
				untouched = reads(pair.p, block, SMALL, NEXT, &foreign);
			ok(got && !untouched && foreign == C_WRITES,
			   "control: bare, pool: C's kernel writes into the next owner's block");
			kill_actor(pair.c);
			leave_by(pair.p, END_EXIT, 0);
			continue;
		}
		ok(!got, "16 while C's kernel writes, the address is not given out");
		kill(pair.c->pid, SIGKILL);
		got = pool_claim_within(&pair, block, SMALL, BACK_MS);
		ok(got, "16 C is killed while its kernel writes: P gets the address again within 1 s");
		for (deadline = now_ms() + 300; untouched && watch_until(deadline);)
			untouched = reads(pair.p, block, SMALL, NEXT, &foreign);
		ok(got && untouched, "16 and no byte of the next owner is touched");
		kill_actor(pair.c);
		leave(pair.p);
		ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	}
}

/* ------------------------------------------------------------ an exporter's end */
/* P ends with a block in its limbo that C has imported, and one that it has not freed. */
static void exporter_dies(bool bare)
{
	const char *who = bare ? "control: bare, pool:" : "16";

	for (int how = 0; how < 3; how++) {
		struct entry entry = { .bare = bare, .env = POOL_GRACE };
		struct pair pair = pool_pair(entry, entry);
		struct actor *q = enter("Q", entry);
		uint64_t freed = pool_alloc(&pair, SMALL), big = pool_alloc(&pair, BIG), at_freed, at_big, other;
		struct handle data = pool_export(pair.p, freed), of_big = pool_export(pair.p, big);

		at_freed = pool_import(pair.c, pair.taken, &data);
		at_big = pool_import(pair.c, pair.taken, &of_big);
		free_block(pair.p, freed);
		end_by(pair.p, how);
		/* another process overwrites what the driver gives out */
		other = alloc_filled(q, 4 * BIG, NEXT);
		ok(reads(pair.c, at_freed, SMALL, OWN, NULL) && reads(pair.c, at_big, BIG, OWN, NULL),
		   "%s P %s, with a block that it has freed and one that lives: C reads its own bytes of both", who, deaths[how]);
		ok(!try_free(pair.c, at_freed) && !try_free(pair.c, at_big), "%s and frees both", who);
		free_block(q, other);
		leave_by(pair.c, END_EXIT, 0);
		leave(q);
	}
}

void pool_exporter_dies(void)
{
	exporter_dies(true);
	exporter_dies(false);
}

/* ------------------------------------------------------------ back, while P sleeps */
static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A pool block's data, and the process that looks whether they can still be imported. */
struct look {
	const struct pair *pair;
	const struct handle *data;
	int result; /* of the last look */
};

static bool still_imports(void *data)
{
	struct look *look = data;
	uint64_t import;

	look->result = try_pool_import(look->pair->c, look->pair->taken, look->data, &import);
	if (!look->result)
		free_block(look->pair->c, import);
	return !look->result;
}

/*
 * P's calls do none of the work: it sleeps from its free on.  The data are refused as soon as the block has
 * gone back to its pool.  @in_stream: by cuMemFreeAsync.  A round that is late only because this machine
 * itself has stopped its processes is played again.
 */
static void back_soon_once(uint64_t bytes, bool in_stream)
{
	enum { ROUNDS = 7, AGAIN = 7, LIMIT_MS = 100, WOKEN_MS = 20 };
	struct entry entry = { .env = "CULIMBO_GRACE=100ms" };
	struct pair pair = pool_pair(entry, entry);
	const char *size = bytes == SMALL ? "small" : "64 MiB";
	double took[ROUNDS];
	bool all = true, held = true;
	int paused = 0;

	pauses_begin();
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t block = pool_alloc(&pair, bytes), import, again;
		struct handle data = pool_export(pair.p, block);
		double exported = now_ms();
		struct look look = { &pair, &data, 0 };

		import = pool_import(pair.c, pair.taken, &data);
		free_block(pair.p, block);
		while (watch_until(exported + 150))
			;
		held = held && !try_pool_import(pair.c, pair.taken, &data, &again) && !try_free(pair.c, again);
		pauses_reset();
		if (in_stream)
			free_in_sure(pair.c, import, LEGACY);
		else
			free_block(pair.c, import);
		took[i] = gone_after(still_imports, &look, LIMIT_MS);
		all = all && (look.result == INVALID_VALUE || took[i] >= LIMIT_MS);
		if (took[i] >= LIMIT_MS && took[i] - pauses_most() < LIMIT_MS && paused < AGAIN) {
			note("%.2f ms, but the machine stopped for %.2f ms meanwhile: again", took[i], pauses_most());
			paused++;
			i--;
		}
	}
	pauses_end();
	qsort(took, ROUNDS, sizeof(took[0]), compare_doubles);
	note("%s, by %s: back in the pool after the last free, P asleep: %.2f / %.2f / %.2f ms (least, median, most of %d)", size,
	     in_stream ? "cuMemFreeAsync" : "cuMemFree", took[0], took[ROUNDS / 2], took[ROUNDS - 1], ROUNDS);
	ok(held, "16 %s: past the grace what C has imported can be imported again", size);
	ok(all && took[ROUNDS - 1] < LIMIT_MS, "16 %s, by %s: it is back in the pool within 100 ms of the last free, P asleep", size,
	   in_stream ? "cuMemFreeAsync" : "cuMemFree");
	/* without the wake of the free P's collector looks after up to 100 ms, as it does for holders that have died */
	ok(took[ROUNDS / 2] < WOKEN_MS, "16 %s, by %s: mostly within 20 ms: the free itself wakes P's collector", size,
	   in_stream ? "cuMemFreeAsync" : "cuMemFree");
	leave_by(pair.c, END_EXIT, 0);
	leave_by(pair.p, END_EXIT, 0);
}

void pool_back_soon(void)
{
	back_soon_once(SMALL, false);
	back_soon_once(SMALL, true);
	back_soon_once(BIG, false);
}

/* ------------------------------------------------ the per-thread form of a free */
/* A thread's own default stream waits neither for the program's other streams nor does a free in it. */
static void per_thread_once(const char *door)
{
	struct pair pair = pool_pair(both, (struct entry){ .env = POOL_GRACE, .door = door });
	uint64_t block = pool_alloc(&pair, SMALL), import, other;
	struct handle data = pool_export(pair.p, block);
	bool got;

	other = ASK(pair.c, stream_create, 0)->v[0]; /* the legacy stream waits for it */
	ASK(pair.c, stream_spin, PER_THREAD, MS); /* the first launch loads the kernels */
	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ASK(pair.c, stream_spin, PER_THREAD, 500 * MS);
	if (ASK(pair.c, stream_free, import, LEGACY, 1)->result)
		break_off("cuMemFreeAsync_ptsz failed with %d", pair.c->reply.result);
	/* the grace is over before the stream's work is */
	for (double deadline = now_ms() + 400; !(got = pool_claim(&pair, block, SMALL)) && watch_until(deadline);)
		;
	ok(!got || ASK(pair.c, stream_query, PER_THREAD)->result == 0,
	   "16 %s: C's free by cuMemFreeAsync_ptsz waits for its thread's own stream", door);
	ok(got || pool_claim_within(&pair, block, SMALL, SOON_MS), "16 %s: then P gets the address again", door);

	data = pool_export(pair.p, block);
	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ASK(pair.c, stream_spin, other, 3000 * MS);
	if (ASK(pair.c, stream_free, import, LEGACY, 1)->result)
		break_off("cuMemFreeAsync_ptsz failed with %d", pair.c->reply.result);
	got = pool_claim_within(&pair, block, SMALL, 2000);
	ok(got && ASK(pair.c, stream_query, other)->result == NOT_READY,
	   "16 %s: and not for other streams, unlike on the legacy stream", door);
	pool_curtain(&pair);
}

void pool_per_thread(void)
{
	per_thread_once("dlsym");
	per_thread_once("getproc");
}

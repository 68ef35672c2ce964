/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random run: producers and consumers share, free, close, exit and are killed in any order.
 * Whatever a consumer has open must have its own bytes.
 *
 * The order depends only on the seed (E2E_SEED, printed), so a failure can be repeated.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stage.h"

#define NOISE 251 /* the contents of blocks that are not shared */

enum { PRODUCERS = 2, CONSUMERS = 3, BLOCKS = 48, STEPS = 1500, REPLACED_MAX = 12 };

struct block {
	bool used, freed, orphan; /* orphan: its producer has ended */
	unsigned char value;
	int producer;
	uint64_t address, bytes, import[CONSUMERS];
	int opens[CONSUMERS];
	double freed_at, exported_at;
	struct handle handle;
};

struct run {
	bool bare;
	struct actor *producer[PRODUCERS], *consumer[CONSUMERS];
	struct block block[BLOCKS];
	uint64_t noise[PRODUCERS][8];
	int opened, refused, killed, left;
	const char *wrong; /* the assertion that failed, or NULL */
	int foreign;
};

static uint64_t seed;

static unsigned int dice(unsigned int sides)
{
	/* xorshift64*, the same on every machine */
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return (unsigned int)((seed * UINT64_C(0x2545F4914F6CDD1D)) >> 33) % sides;
}

static struct block *any_block(struct run *run)
{
	struct block *block = &run->block[dice(BLOCKS)];

	return block->used ? block : NULL;
}

/* Forgets a block that no process has any more. */
static void settle(struct block *block)
{
	for (int c = 0; c < CONSUMERS; c++)
		if (block->opens[c])
			return;
	if (block->freed || block->orphan)
		block->used = false;
}

static void step_share(struct run *run)
{
	struct block *block = &run->block[dice(BLOCKS)];

	if (block->used)
		return;
	memset(block, 0, sizeof(*block));
	block->producer = (int)dice(PRODUCERS);
	block->bytes = dice(4) ? SMALL : dice(4) ? 64 * KIB : 2 * MIB;
	block->value = (unsigned char)(1 + dice(NOISE - 1));
	block->address = alloc_filled(run->producer[block->producer], block->bytes, block->value);
	block->handle = export_block(run->producer[block->producer], block->address);
	block->exported_at = now_ms();
	block->used = true;
}

static void step_open(struct run *run)
{
	struct block *block = any_block(run);
	int c = (int)dice(CONSUMERS), result;
	uint64_t import;

	if (!block || block->orphan)
		return;
	/* With culimbo, a block that was just exported and freed must still open (the grace period is 2 s from the export). */
	if (block->freed && (run->bare || now_ms() - block->exported_at > 1000))
		return;
	result = try_open(run->consumer[c], &block->handle, &import);
	if (result) {
		run->refused++;
		note("an open gave %d: %llu bytes of P%d, freed %lld ms ago", result, (unsigned long long)block->bytes,
		     block->producer, block->freed ? (long long)(now_ms() - block->freed_at) : -1LL);
		run->wrong = block->freed ? "a block that was exported less than 1 s ago opens, freed or not" : "a living block opens";
		return;
	}
	block->import[c] = import;
	block->opens[c]++;
	run->opened++;
}

static void step_close(struct run *run)
{
	struct block *block = any_block(run);
	int c = (int)dice(CONSUMERS);

	if (!block || !block->opens[c])
		return;
	close_block(run->consumer[c], block->import[c]);
	block->opens[c]--;
	settle(block);
}

static void step_free(struct run *run)
{
	struct block *block = any_block(run);
	struct actor *producer;

	if (!block || block->freed || block->orphan)
		return;
	producer = run->producer[block->producer];
	if (dice(3))
		free_block(producer, block->address);
	else if (ASK(producer, free_async, block->address, 1)->result)
		break_off("cuMemFreeAsync failed with %d", producer->reply.result);
	block->freed = true;
	block->freed_at = now_ms();
	/* keeps the entry for a while, so that the handle may be opened late */
	if (dice(2))
		settle(block);
}

/* Allocates, overwrites and frees blocks that are not shared. */
static void step_noise(struct run *run)
{
	int p = (int)dice(PRODUCERS), i = (int)dice(8);

	if (run->noise[p][i])
		free_block(run->producer[p], run->noise[p][i]);
	run->noise[p][i] = alloc_filled(run->producer[p], SMALL, NOISE);
}

static struct actor *enter_role(const struct run *run, const char *name, unsigned int number)
{
	static const char *const doors[] = { "dlsym", "getproc", "linked" };

	return ENTER(name, .bare = run->bare, .door = doors[number % 3]);
}

static void step_kill(struct run *run)
{
	int c = (int)dice(CONSUMERS);

	if (run->killed == REPLACED_MAX)
		return;
	run->killed++;
	if (dice(2))
		kill_actor(run->consumer[c]);
	else
		leave_by(run->consumer[c], dice(2) ? END_EXIT : END__EXIT, 0);
	for (int b = 0; b < BLOCKS; b++) {
		run->block[b].opens[c] = 0;
		settle(&run->block[b]);
	}
	run->consumer[c] = enter_role(run, "C", dice(3));
}

static void step_leave(struct run *run)
{
	int p = (int)dice(PRODUCERS);

	if (run->left == REPLACED_MAX)
		return;
	run->left++;
	if (dice(2))
		kill_actor(run->producer[p]);
	else
		leave_by(run->producer[p], END_EXIT, 0);
	for (int b = 0; b < BLOCKS; b++)
		if (run->block[b].producer == p) {
			run->block[b].orphan = true;
			settle(&run->block[b]);
		}
	memset(run->noise[p], 0, sizeof(run->noise[p]));
	run->producer[p] = enter_role(run, "P", dice(3));
}

/* True when every consumer reads the block's own bytes in all that it has open. */
static bool all_right(struct run *run, bool all)
{
	for (int b = 0; b < BLOCKS; b++) {
		struct block *block = &run->block[b];

		for (int c = 0; c < CONSUMERS; c++) {
			unsigned int foreign = 0;

			if (!block->used || !block->opens[c] || (!all && dice(4)))
				continue;
			if (reads(run->consumer[c], block->import[c], block->bytes, block->value, &foreign))
				continue;
			run->foreign = (int)foreign;
			run->wrong = "what is open has its own bytes";
			return false;
		}
	}
	return true;
}

/* Returns the number of steps before the first failure. */
static int play(struct run *run)
{
	int step;

	for (int p = 0; p < PRODUCERS; p++)
		run->producer[p] = enter_role(run, "P", (unsigned int)p);
	for (int c = 0; c < CONSUMERS; c++)
		run->consumer[c] = enter_role(run, "C", (unsigned int)c);
	for (step = 0; step < STEPS && !run->wrong; step++) {
		unsigned int what = dice(1000);

		if (what < 200)
			step_share(run);
		else if (what < 550)
			step_open(run);
		else if (what < 650)
			step_close(run);
		else if (what < 770)
			step_free(run);
		else if (what < 980)
			step_noise(run);
		else if (what < 994)
			step_kill(run);
		else
			step_leave(run);
		if (!run->wrong && !all_right(run, step % 50 == 0))
			break;
	}
	return step;
}

static void random_run(void)
{
	const char *given = getenv("E2E_SEED");
	uint64_t first = given ? strtoull(given, NULL, 0) : 20240611;
	static struct run bare = { .bare = true }, run;
	int step;

	note("E2E_SEED=%llu", (unsigned long long)first);
	seed = first * 2 + 1;
	step = play(&bare);
	ok(bare.wrong && bare.foreign, "control: bare, the random run reads foreign bytes (%d, at step %d)",
	   bare.foreign, step);
	for (int p = 0; p < PRODUCERS; p++)
		kill_actor(bare.producer[p]);
	for (int c = 0; c < CONSUMERS; c++)
		kill_actor(bare.consumer[c]);

	seed = first * 2 + 1;
	step = play(&run);
	note("%d steps: %d opens, %d refused, %d consumers and %d producers replaced", step, run.opened,
	     run.refused, run.killed, run.left);
	ok(!run.wrong, "1 a random run of %d steps: %s%s", STEPS,
	   run.wrong ? run.wrong : "every open block has its own bytes",
	   run.wrong ? " (it did not)" : "");
	if (run.wrong)
		return;
	ok(all_right(&run, true), "1 the same holds at the end");
	for (int c = 0; c < CONSUMERS; c++)
		leave_by(run.consumer[c], END_EXIT, 0);
	for (int p = 0; p < PRODUCERS; p++)
		leave_by(run.producer[p], END_EXIT, 0);
	/* the next process that shares removes the files of killed ones */
	run.producer[0] = ENTER("Q");
	export_block(run.producer[0], alloc(run.producer[0], SMALL));
	leave(run.producer[0]);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

const struct scene random_scenes[] = {
	{ "random-run", random_run, 0 },
	{ .name = NULL },
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of scarce memory (8): a block in the limbo is released when its memory is needed.
 *
 * A process without culimbo, the hog, takes the device's memory until too little is left.
 * The allocation that follows can only succeed with memory from the limbo.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "stage.h"

#define LONG_GRACE "CULIMBO_GRACE=1m" /* no block is released only because its grace period ended */
#define WANTED (128 * MIB)
#define LEFT (48 * MIB)
#define PIECE (4 * MIB)

static const char *const kind_names[] = { "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocAsync",
					  "cuMemCreate" };

/* Puts three big blocks into the limbo: one was opened and closed again, two were never opened. */
static void fill_limbo(struct actor *p, struct actor *c, struct handle handles[3])
{
	uint64_t blocks[3], import;

	for (int i = 0; i < 3; i++) {
		blocks[i] = alloc_filled(p, BIG, OWN);
		handles[i] = export_block(p, blocks[i]);
	}
	import = open_block(c, &handles[0]);
	close_block(c, import);
	for (int i = 0; i < 3; i++)
		free_block(p, blocks[i]);
}

static int try_kind(struct actor *actor, enum alloc_kind kind, uint64_t bytes, uint64_t *what)
{
	const struct wire_reply *reply = ASK(actor, alloc_kind, kind, bytes);

	*what = reply->v[0];
	return reply->result;
}

static void own_limbo_of(const char *env, const char *collector)
{
	struct actor *h = ENTER("H", .bare = true);
	struct actor *c = ENTER("C", .env = env);
	struct actor *p = ENTER("P", .env = env, .door = "getproc");
	struct handle handles[3], held_handle;
	uint64_t what, import, held, blocks[2], left;
	int result;

	fill_limbo(p, c, handles);
	left = ASK(h, hog, LEFT)->v[0];
	ok(left < WANTED, "control: %s: the driver has only %llu MiB to give", collector,
	   (unsigned long long)(left / MIB));
	result = try_alloc(p, WANTED, &what);
	note("the allocation took %.2f ms", (double)p->reply.ns * 1e-6);
	ok(!result, "8 %s: an allocation that only the limbo can serve succeeds (%d)", collector, result);
	if (result)
		return;
	fill(p, what, WANTED, NEXT);
	/* the allocation ended their grace period: a late open is refused */
	ok(refused(try_open(c, &handles[1], &import)) || refused(try_open(c, &handles[2], &import)),
	   "8 %s: a handle of a block that was released for it is refused", collector);
	ok(reads(p, what, WANTED, NEXT, NULL), "8 %s: and the new block has its own bytes", collector);
	free_block(p, what);

	for (int kind = ALLOC_PITCH; kind <= ALLOC_CREATE; kind++) {
		int order = kind == ALLOC_PITCH ? ALLOC_PITCH : /* last, because the pool of cuMemAllocAsync keeps the memory */
				    kind == ALLOC_ASYNC ? ALLOC_CREATE :
							  ALLOC_ASYNC;

		for (int i = 0; i < 2; i++) {
			blocks[i] = alloc(p, BIG);
			export_block(p, blocks[i]);
		}
		for (int i = 0; i < 2; i++)
			free_block(p, blocks[i]);
		left = free_memory(h);
		result = try_kind(p, (enum alloc_kind)order, WANTED, &what);
		ok(left < WANTED && !result, "8 %s: %s gets memory from the limbo (%d)", collector,
		   kind_names[order], result);
		if (!result)
			ASK(p, free_kind, (uint64_t)order, what);
	}

	/* a block that C holds must not be released */
	held = alloc_filled(p, BIG, OWN);
	held_handle = export_block(p, held);
	import = open_block(c, &held_handle);
	free_block(p, held);
	result = try_alloc(p, 4 * BIG, &what);
	ok(result == OUT_OF_MEMORY, "8 %s: a block that C holds is not released: out of memory, as bare (%d)",
	   collector, result);
	ok(reads(c, import, BIG, OWN, NULL), "8 %s: and C reads its own bytes", collector);
	close_block(c, import);
	leave(c);
	leave(p);
	leave(h);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void own_limbo(void)
{
	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	own_limbo_of(LONG_GRACE, "thread");
}

static void own_limbo_inline(void)
{
	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	own_limbo_of(LONG_GRACE " CULIMBO_COLLECTOR=inline", "inline");
}

/* A block was held and was then closed, and no collector thread noticed the close. */
static void own_limbo_released(void)
{
	const char *env = "CULIMBO_GRACE=0 CULIMBO_COLLECTOR=inline";
	struct actor *h, *c, *p;
	uint64_t blocks[3], imports[3], what;
	struct handle handle;
	int result;

	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	h = ENTER("H", .bare = true);
	c = ENTER("C", .env = env);
	p = ENTER("P", .env = env);
	for (int i = 0; i < 3; i++) {
		blocks[i] = alloc_filled(p, BIG, OWN);
		handle = export_block(p, blocks[i]);
		imports[i] = open_block(c, &handle);
	}
	for (int i = 0; i < 3; i++)
		free_block(p, blocks[i]);
	ASK(h, hog, LEFT);
	result = try_alloc(p, WANTED, &what);
	ok(result == OUT_OF_MEMORY, "8 inline: while C holds all: out of memory (%d)", result);
	for (int i = 0; i < 3; i++)
		close_block(c, imports[i]);
	result = try_alloc(p, WANTED, &what);
	ok(!result, "8 inline: after C's close, the allocation gets its memory (%d)", result);
	leave(c);
	leave(p);
	leave(h);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* The limbo is in P, which sleeps; Q needs memory. */
static void others_limbo(void)
{
	struct handle handles[3], handle;
	struct actor *h, *b, *c, *p, *q;
	uint64_t what, import;
	int result;

	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	for (int sharing = 1; sharing >= 0; sharing--) {
		const char *who = sharing ? "Q, which shares too" : "Q, which shares nothing";

		h = ENTER("H", .bare = true);
		b = ENTER("B", .bare = true);
		c = ENTER("C", .env = LONG_GRACE);
		p = ENTER("P", .env = LONG_GRACE);
		q = ENTER("Q", .env = LONG_GRACE, .door = "getproc");
		if (sharing) {
			what = alloc(c, SMALL);
			handle = export_block(c, what);
			import = open_block(q, &handle);
			close_block(q, import);
		}
		fill_limbo(p, c, handles);
		ASK(h, hog, LEFT);
		result = try_alloc(b, WANTED, &what);
		ok(result == OUT_OF_MEMORY, "control: a process without culimbo gets nothing (%d)", result);
		result = try_alloc(q, WANTED, &what);
		note("the allocation took %.2f ms", (double)q->reply.ns * 1e-6);
		ok(!result, "8 P's limbo, P asleep: the allocation of %s, succeeds (%d)", who, result);
		if (!result)
			free_block(q, what);
		leave(q);
		leave(c);
		leave(p);
		leave(b);
		leave(h);
		ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	}
}

/*
 * C holds a block that P has freed, and closes it.  Q needs memory at once, before P's collector
 * has noticed the close.  Bare, the driver has the memory when C's close returns.
 */
static void others_held(void)
{
	enum { TIMES = 20 };
	struct actor *h, *c, *p, *q;
	uint64_t block, import, what;
	unsigned int failed[2] = { 0, 0 }, too_much = 0;
	struct handle handle;

	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	for (int killed = 0; killed < 2; killed++) {
		h = ENTER("H", .bare = true);
		c = ENTER("C", .env = LONG_GRACE);
		p = ENTER("P", .env = LONG_GRACE);
		q = ENTER("Q", .env = LONG_GRACE);
		ASK(h, hog, WANTED + BIG + BIG / 2);
		/* one kill only: a second allocation would fit where the first dead process's context was */
		for (int i = 0; i < (killed ? 1 : TIMES); i++) {
			block = alloc(p, WANTED);
			handle = export_block(p, block);
			import = open_block(c, &handle);
			free_block(p, block);
			too_much += !try_alloc(q, WANTED + BIG, &what);
			if (killed)
				kill_actor(c);
			else
				close_block(c, import);
			if (try_alloc(q, WANTED + BIG, &what))
				failed[killed]++;
			else
				free_block(q, what);
		}
		leave(q);
		leave(p);
		if (!killed)
			leave(c);
		leave(h);
	}
	ok(!too_much, "control: while C holds P's block, Q gets nothing");
	ok(!failed[0], "8 C closes what P has freed: Q's allocation right after that succeeds (%u of %d failed)",
	   failed[0], TIMES);
	ok(!failed[1], "8 C is killed: the same (%u of 1 failed)", failed[1]);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A block keeps its grace period where its release would not help: it is on another device, or too small. */
static void others_device(void)
{
	struct actor *h0, *h1, *c, *p, *q0, *q1;
	struct handle handles[3];
	uint64_t what, import;
	int result;

	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	setenv("CULIMBO_SIM_DEVICES", "2", 1);
	h0 = ENTER("H0", .bare = true);
	h1 = ENTER("H1", .bare = true, .raw = true, .env = "CUDA_VISIBLE_DEVICES=1");
	if (!begins(h1)) {
		ok(true, "8 another device is short # SKIP this machine has one device");
		leave(h1);
		leave(h0);
		return;
	}
	c = ENTER("C", .env = LONG_GRACE);
	p = ENTER("P", .env = LONG_GRACE);
	q0 = ENTER("Q0", .env = LONG_GRACE " CUDA_VISIBLE_DEVICES=0,1");
	q1 = ENTER("Q1", .env = LONG_GRACE " CUDA_VISIBLE_DEVICES=1,0");
	fill_limbo(p, c, handles);
	ASK(h0, hog, LEFT);
	ASK(h1, hog, LEFT);
	result = try_alloc(q1, WANTED, &what);
	ok(result == OUT_OF_MEMORY, "8 another device is short: out of memory, as bare (%d)", result);
	result = try_alloc(q0, (uint64_t)1 << 60, &what);
	ok(result == OUT_OF_MEMORY, "8 nobody has 1 EiB: out of memory, as bare (%d)", result);
	/* a pool may already have memory, which culimbo cannot know; but no device has 1 TiB */
	result = try_kind(q0, ALLOC_ASYNC, (uint64_t)1 << 40, &what);
	ok(result == OUT_OF_MEMORY, "8 no pool has 1 TiB: out of memory, as bare (%d)", result);
	result = try_open(c, &handles[1], &import);
	ok(!result, "8 and no block lost its grace period: a handle that was not opened yet opens (%d)", result);
	if (!result)
		close_block(c, import);
	result = try_alloc(q0, WANTED, &what);
	ok(!result, "8 the same device is short: P's limbo serves the allocation (%d)", result);
	leave(q1);
	leave(q0);
	leave(c);
	leave(p);
	leave(h1);
	leave(h0);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* ------------------------------------------------ other calls that need memory */
static const char *const need_names[] = {
	[NEED_PRIMARY] = "cuDevicePrimaryCtxRetain",
	[NEED_CONTEXT] = "cuCtxCreate",
	[NEED_GREEN] = "cuGreenCtxCreate",
	[NEED_STACK] = "cuCtxSetLimit",
	[NEED_STREAM] = "cuStreamCreate",
	[NEED_PRIORITY] = "cuStreamCreateWithPriority",
	[NEED_MODULE] = "cuModuleLoadData",
	[NEED_MODULE_EX] = "cuModuleLoadDataEx",
	[NEED_INSTANTIATE] = "cuGraphInstantiate",
	[NEED_UPLOAD] = "cuGraphUpload",
	[NEED_LIBRARY] = "cuLibraryGetModule",
	[NEED_KERNEL] = "cuKernelGetFunction",
};

#define NEEDED (2 * MIB)
#define ENOUGH LONG_GRACE " CULIMBO_GRACE_BYTES=16MiB"

/*
 * Puts one block of P, @block, into the limbo with nothing else free.  After a shortage of memory a
 * freed block is released at once; then it tries again.
 */
static void only_limbo(struct actor *p, struct actor *h, uint64_t block)
{
	double deadline = now_ms() + 5000;

	for (;; block = alloc(p, NEEDED)) {
		export_block(p, block);
		ASK(h, hog, 0);
		free_block(p, block);
		if (free_memory(h) == 0)
			return;
		if (!watch_until(deadline))
			break_off("a freed block does not wait in the limbo");
	}
}

/* One process needs memory while only P's limbo has some; then while nothing is available. */
static void needed_by(struct actor *who, const char *whose, enum need need, struct actor *p, struct actor *h,
		      struct actor *b)
{
	uint64_t block = alloc(p, NEEDED);
	int bare, live, limbo;

	ASK(h, hog, 0);
	live = ASK(who, need, need)->result;
	only_limbo(p, h, block);
	bare = ASK(b, need, need)->result;
	limbo = ASK(who, need, need)->result;
	if (limbo == NOT_SUPPORTED) {
		note("%s: not here", need_names[need]);
		return;
	}
	ok(bare == OUT_OF_MEMORY && live == OUT_OF_MEMORY && !limbo,
	   "8 %s gets memory from %s limbo (%d), which a process without culimbo does not (%d), nor "
	   "who comes while nothing is freed (%d)",
	   need_names[need], whose, limbo, bare, live);
}

/* Calls that are not allocations. */
static void limbo_for_all(void)
{
	struct actor *h, *b, *fresh, *p, *q, *r;

	setenv("CULIMBO_SIM_MEMORY", "64MiB", 1);
	setenv("CULIMBO_SIM_NEEDED", "2MiB", 1);
	h = ENTER("H", .bare = true);
	b = ENTER("B", .bare = true);
	fresh = ENTER("F", .bare = true, .raw = true);
	p = ENTER("P", .env = ENOUGH, .door = "getproc");
	q = ENTER("Q", .env = ENOUGH, .door = "linked");
	r = ENTER("R", .env = ENOUGH, .raw = true);
	ASK(b, need_begin);
	ASK(p, need_begin);
	ASK(q, need_begin);
	for (int need = NEED_CONTEXT; need < NEEDS_N; need++) {
		needed_by(p, "its own", (enum need)need, p, h, b);
		needed_by(q, "another's", (enum need)need, p, h, b);
	}
	needed_by(r, "another's", NEED_PRIMARY, p, h, fresh);
	leave(r);
	leave(q);
	leave(p);
	leave(fresh);
	leave(b);
	leave(h);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void stop(const struct actor *actor)
{
	int status;

	if (kill(actor->pid, SIGSTOP) || waitpid(actor->pid, &status, WUNTRACED) != actor->pid || !WIFSTOPPED(status))
		break_off("%s does not stop", actor->name);
}

/*
 * Exporters share blocks that nobody opens, in a loop, and are stopped all at the same time, somewhere in it.  Returns
 * the most bytes that were gone from the device then, of some tries, and in *@seen how many of these told.
 */
static uint64_t withheld(struct actor *const exporters[], int n, struct actor *h, uint64_t all, unsigned int *seen)
{
	uint64_t most = 0;

	*seen = 0;
	for (int i = 0; i < 40; i++) {
		struct timespec moment = { 0, (long)(i + 1) * 7919 * 61 % 5000000 };
		struct pollfd answer = { .fd = h->fd, .events = POLLIN };
		const struct wire_reply *reply;
		bool told;

		for (int k = 0; k < n; k++)
			tell(exporters[k], OP_share_cycle, NULL, (const uint64_t[6]){ 60, PIECE });
		nanosleep(&moment, NULL);
		for (int k = 0; k < n; k++)
			stop(exporters[k]);
		tell(h, OP_meminfo, NULL, (const uint64_t[6]){ 0 });
		/* one that was stopped in the driver may have a lock of the driver's */
		told = poll(&answer, 1, 100) == 1;
		if (told) {
			reply = hear(h, 1000);
			*seen += 1;
			if (all - reply->v[0] > most)
				most = all - reply->v[0];
		}
		for (int k = 0; k < n; k++)
			kill(exporters[k]->pid, SIGCONT);
		if (!told)
			hear(h, 10000);
		for (int k = 0; k < n; k++)
			if (*hear(exporters[k], 10000)->complaint)
				break_off("%s cannot share: %s", exporters[k]->name, exporters[k]->reply.complaint);
	}
	return most;
}

/* Stopped, exporters answer nobody who needs memory: they keep what they have, their budgets at most. */
static void stopped_exporters(void)
{
	static const char *const env[] = { LONG_GRACE " CULIMBO_GRACE_BYTES=32MiB", LONG_GRACE " CULIMBO_GRACE_BYTES=96MiB" };
	enum { EXPORTERS = 3 };
	struct actor *exporters[EXPORTERS], *h;
	uint64_t all, most, budgets, what;
	unsigned int seen;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	for (int i = 0; i < 2; i++) {
		h = ENTER("H", .bare = true);
		for (int k = 0; k < EXPORTERS; k++)
			exporters[k] = ENTER("P", .env = env[i], .door = k ? "getproc" : "linked");
		all = free_memory(h);
		budgets = EXPORTERS * (i ? 96 : 32) * MIB;
		most = withheld(exporters, EXPORTERS, h, all, &seen);
		note("%u times of 40, at most %.0f MiB", seen, (double)most / (double)MIB);
		/*
		 * and each the block that it was just allocating or freeing, and the driver's page of the byte that
		 * waits as that free would
		 */
		ok(seen >= 5 && most <= budgets + EXPORTERS * (PIECE + 2 * MIB),
		   "8 %d stopped exporters withhold their budgets at most, %llu MiB in all: %llu MiB",
		   EXPORTERS, (unsigned long long)(budgets / MIB), (unsigned long long)(most / MIB));
		ok(most >= budgets / 2, "control: and that much they have");
		for (int k = 0; k < EXPORTERS; k++)
			stop(exporters[k]);
		ok(try_alloc(h, all - budgets, &what) == 0, "8 a bystander gets all but these budgets meanwhile");
		for (int k = 0; k < EXPORTERS; k++) {
			kill(exporters[k]->pid, SIGCONT);
			leave(exporters[k]);
		}
		leave(h);
	}
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * A process whose collector is inline makes no calls: nobody works for it, so it keeps at most its budget, as a stopped one
 * does.  With its next call it gives back what another process has asked for.
 */
static void idle_inline(void)
{
	const uint64_t budget = 32 * MIB;
	struct actor *h, *c, *p;
	uint64_t all, what;
	int result;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	h = ENTER("H", .bare = true);
	c = ENTER("C");
	p = ENTER("P", .env = LONG_GRACE " CULIMBO_GRACE_BYTES=32MiB CULIMBO_COLLECTOR=inline");
	all = free_memory(h);
	for (int i = 0; i < 60; i++) {
		uint64_t block = alloc(p, 2 * MIB);

		export_block(p, block);
		free_block(p, block);
	}
	ok(all - free_memory(h) <= budget && all - free_memory(h) >= budget / 2,
	   "8 P, inline and idle, keeps its budget at most (%llu of 32 MiB)", (unsigned long long)((all - free_memory(h)) / MIB));
	result = try_alloc(h, all - budget, &what);
	ok(!result, "8 a bystander gets all but that (%d)", result);
	free_block(h, what);
	result = try_alloc(c, all - 2 * MIB, &what);
	ok(result == OUT_OF_MEMORY, "control: more than that nobody gets while P makes no calls (%d)", result);
	free_block(p, alloc(p, 2 * MIB));
	result = try_alloc(c, all - 2 * MIB, &what);
	ok(!result, "8 after P's next call another process gets what it has asked for (%d)", result);
	leave(c);
	leave(p);
	leave(h);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * The driver has a page back with the last block on it.  So one small block that waits can keep a page of 2 MiB, and
 * blocks that share a page keep no more than that.
 */
static void small_blocks(void)
{
	enum { PAGES = 40, SIDE_BY_SIDE = 3000 };
	const uint64_t page = 2 * MIB, budget = 16 * MIB, small = 1024;
	struct actor *p, *h;
	uint64_t lone[PAGES], rest[PAGES], many[SIDE_BY_SIDE], all, kept;
	struct handle first;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	h = ENTER("H", .bare = true);
	p = ENTER("P", .env = ENOUGH);
	all = free_memory(h);
	for (int i = 0; i < PAGES; i++) {
		lone[i] = alloc(p, small);
		rest[i] = alloc(p, page - small);
		export_block(p, lone[i]);
	}
	ok(free_memory(h) == all - PAGES * page, "control: a small block and the rest of its page take a page");
	for (int i = 0; i < PAGES; i++) {
		free_block(p, rest[i]);
		free_block(p, lone[i]);
	}
	kept = all - free_memory(h);
	ok(kept == budget, "8 blocks of 1 KiB in %d pages wait: they keep %llu MiB, the budget, of bystanders", PAGES,
	   (unsigned long long)(kept / MIB));
	leave(p);

	p = ENTER("P", .env = ENOUGH);
	for (int i = 0; i < SIDE_BY_SIDE; i++) {
		many[i] = alloc(p, small);
		if (!i)
			first = export_block(p, many[i]);
		else
			export_block(p, many[i]);
	}
	for (int i = 0; i < SIDE_BY_SIDE; i++)
		free_block(p, many[i]);
	h = ENTER("Q");
	ok(open_block(h, &first) != 0, "7 %d blocks of 1 KiB in few pages are within the budget: the first handle opens",
	   SIDE_BY_SIDE);
}

const struct scene pressure_scenes[] = {
	{ "small-blocks", small_blocks, SCENE_ALONE | SCENE_SIMULATED },
	{ "stopped-exporters", stopped_exporters, SCENE_ALONE | SCENE_SIMULATED },
	{ "idle-inline", idle_inline, SCENE_ALONE | SCENE_SIMULATED },
	{ "own-limbo", own_limbo, SCENE_ALONE },
	{ "own-limbo-inline", own_limbo_inline, SCENE_ALONE },
	{ "own-limbo-released", own_limbo_released, SCENE_ALONE },
	{ "others-limbo", others_limbo, SCENE_ALONE },
	{ "others-held", others_held, SCENE_ALONE },
	{ "others-device", others_device, SCENE_ALONE },
	{ "limbo-for-all", limbo_for_all, SCENE_ALONE | SCENE_SIMULATED },
	{ .name = NULL },
};

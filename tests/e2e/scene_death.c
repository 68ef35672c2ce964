/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of processes that end: an importer that ends while it holds blocks (6), and an exporter
 * that ends while others hold its blocks (9).
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stage.h"

#define GRACE "CULIMBO_GRACE=100ms"
#define BACK_MS 1000 /* README promises this limit */
#define SOON_MS 5000

/* ---------------------------------------------------------- 6: C is no more */
enum death { KILLED, EXITED, EXITED_AT_ONCE };
static const char *const deaths[] = { "killed", "exited without closing", "_exited without closing" };

static void die(struct actor *c, enum death how)
{
	if (how == KILLED)
		kill_actor(c);
	else
		leave_by(c, how == EXITED ? END_EXIT : END__EXIT, 0);
}

static void importer_dies_small(void)
{
	struct actor *p = ENTER("P", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL);

	(void)neighbour;
	for (int how = KILLED; how <= EXITED_AT_ONCE; how++) {
		struct actor *c = ENTER("C", .env = GRACE, .door = "getproc");
		uint64_t block = alloc_filled(p, SMALL, OWN), import;
		struct handle handle = export_block(p, block);
		double took;
		bool held, back;

		double exported = now_ms();

		import = open_block(c, &handle);
		free_block(p, block);
		while (watch_until(exported + 150))
			;
		held = !claim(p, block, SMALL, NEXT) && reads(c, import, SMALL, OWN, NULL);
		ok(held, "6 small: before C is %s, C holds the block", deaths[how]);
		die(c, (enum death)how);
		back = claim_within(p, block, SMALL, NEXT, SOON_MS, &took);
		note("memory returned %.1f ms after C's end", took);
		ok(back && took < BACK_MS, "6 small: C %s: P gets the address again within 1 s", deaths[how]);
		if (back)
			free_block(p, block);
	}
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void importer_dies_big(void)
{
	struct actor *o = ENTER("O", .bare = true);
	struct actor *p = ENTER("P", .env = GRACE);

	for (int how = KILLED; how <= EXITED_AT_ONCE; how++) {
		struct actor *c = ENTER("C", .env = GRACE);
		uint64_t block = alloc_filled(p, BIG, OWN), held;
		struct handle handle = export_block(p, block);
		double took, exported = now_ms();
		bool back;

		open_block(c, &handle);
		free_block(p, block);
		while (watch_until(exported + 150))
			;
		held = free_memory(o);
		die(c, (enum death)how);
		/* P sleeps meanwhile */
		back = free_within(o, held + BIG - 2 * MIB, SOON_MS, &took);
		note("memory returned %.1f ms after C's end, P asleep", took);
		ok(back && took < BACK_MS, "6 big: C %s, P asleep: the memory returns within 1 s", deaths[how]);
	}
	leave(o);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* C dies before P frees: the free finds the hold of a dead process. */
static void importer_died_before(void)
{
	struct actor *p = ENTER("P", .env = GRACE);
	struct actor *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN);
	struct handle handle = export_block(p, block);
	double took;
	bool back;

	(void)neighbour;
	open_block(c, &handle);
	kill_actor(c);
	free_block(p, block);
	back = claim_within(p, block, SMALL, NEXT, SOON_MS, &took);
	note("memory returned %.1f ms after the free", took);
	ok(back && took < BACK_MS, "6 small: C is killed, then P frees: P gets the address again within 1 s");
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* One of two holders dies: the other still holds the block. */
static void one_of_two_dies(void)
{
	struct actor *p = ENTER("P", .env = GRACE);
	struct actor *c = ENTER("C", .env = GRACE);
	struct actor *d = ENTER("D", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN);
	struct handle handle = export_block(p, block);
	uint64_t import;
	double deadline;
	bool held = true;

	(void)neighbour;
	open_block(c, &handle);
	import = open_block(d, &handle);
	free_block(p, block);
	kill_actor(c);
	deadline = now_ms() + BACK_MS;
	do
		held = held && !claim(p, block, SMALL, NEXT) && reads(d, import, SMALL, OWN, NULL);
	while (held && watch_until(deadline));
	ok(held, "6 small: C is killed while D also holds the block: more than a second later D reads its own bytes");
	close_block(d, import);
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "6 small: after D's close P gets the address again");
	leave(d);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * C is killed while its kernel writes into the block.  P keeps asking for more memory than there
 * is, so that a block is released at the first moment at which it can be.
 */
static void killed_writing(void)
{
	static const char env[] = "CULIMBO_GRACE=20ms CULIMBO_PRESSURE_WAIT=0";
	enum { C_WRITES = 0x37, ROUNDS = 4 };

	/* the simulated driver lets a killed process's kernel write for some milliseconds, as a GPU does */
	setenv("CULIMBO_SIM_KERNELS", "linger", 1);
	for (int round = 0; round < ROUNDS; round++) {
		bool bare = round == 0;
		struct actor *p = ENTER("P", .bare = bare, .env = env);
		struct actor *c = ENTER("C", .bare = bare, .env = env);
		uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import, none;
		struct handle handle = export_block(p, block);
		double start, took, deadline = now_ms() + SOON_MS;
		unsigned int foreign = 0;
		bool got, untouched;

		(void)neighbour;
		import = open_block(c, &handle);
		ASK(c, fill_kernel, import, SMALL / 4, 0x01010101u * C_WRITES, 20 * UINT64_C(1000000000));
		while (!reads(p, block, SMALL, C_WRITES, NULL))
			if (!watch_until(deadline))
				break_off("C's kernel writes nothing");
		free_block(p, block);
		got = claim(p, block, SMALL, NEXT);
		if (bare) {
			deadline = now_ms() + 1000;
			while ((untouched = got && reads(p, block, SMALL, NEXT, &foreign)))
				if (!watch_until(deadline))
					break;
			ok(got && !untouched && foreign == C_WRITES,
			   "control: bare, C's kernel writes into the next owner's block");
			kill_actor(c);
			leave(p);
			continue;
		}
		ok(!got, "6 while C's kernel writes, the address is not given out");
		kill(c->pid, SIGKILL);
		start = now_ms();
		do {
			try_alloc(p, UINT64_C(1) << 50, &none);
			got = ASK(p, claim, block, SMALL, 8, NEXT)->v[0];
		} while (!got && watch_until(start + SOON_MS));
		took = now_ms() - start;
		note("memory returned %.1f ms after C was killed", took);
		ok(got && took < BACK_MS, "6 C is killed while its kernel writes: P gets the address again within 1 s");
		deadline = now_ms() + 300;
		while ((untouched = reads(p, block, SMALL, NEXT, &foreign)))
			if (!watch_until(deadline))
				break;
		ok(got && untouched, "6 and no byte of the next owner is touched");
		kill_actor(c);
		leave(p);
		ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	}
}

/* Reads the state and the parent of process @pid.  Returns false if it is gone, or a zombie. */
static bool runs(pid_t pid, pid_t *parent)
{
	char path[32], line[512], state = 'Z';
	const char *end = NULL;
	int of = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (file && fgets(line, sizeof(line), file))
		end = strrchr(line, ')');
	if (file)
		fclose(file);
	if (!end || sscanf(end, ") %c %d", &state, &of) != 2)
		return false;
	*parent = (pid_t)of;
	return state != 'Z' && state != 'X';
}

/* Returns the process that runs the kernels of @process on the simulated driver, which is no @child of the program; or 0. */
static pid_t engine_of(pid_t process, pid_t child)
{
	DIR *folder = opendir("/proc");
	const struct dirent *entry;
	pid_t engine = 0, pid, parent;

	while (folder && !engine && (entry = readdir(folder)))
		if ((pid = (pid_t)atoi(entry->d_name)) > 0 && pid != child && runs(pid, &parent) && parent == process)
			engine = pid;
	if (folder)
		closedir(folder);
	return engine;
}

/*
 * As before, but C has forked a process, which has the driver's descriptors: C's kernel writes until that one
 * ends, too.  @late: it is forked after the open, else before.
 */
static void killed_with_child_once(bool bare, bool late)
{
	static const char env[] = "CULIMBO_GRACE=20ms CULIMBO_PRESSURE_WAIT=0";
	enum { C_WRITES = 0x37 };
	struct actor *p = ENTER("P", .bare = bare, .env = env);
	struct actor *c = ENTER("C", .bare = bare, .env = env);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import;
	struct handle handle = export_block(p, block);
	const char *when = late ? "after" : "before";
	double took, deadline = now_ms() + SOON_MS;
	unsigned int foreign = 0;
	bool got, untouched;
	pid_t child = 0, engine, parent;

	(void)neighbour;
	if (!late)
		child = (pid_t)ASK(c, fork_outlives, 0)->v[0];
	import = open_block(c, &handle);
	if (late)
		child = (pid_t)ASK(c, fork_outlives, 0)->v[0];
	ASK(c, fill_kernel, import, SMALL / 4, 0x01010101u * C_WRITES, 20 * UINT64_C(1000000000));
	while (!reads(p, block, SMALL, C_WRITES, NULL))
		if (!watch_until(deadline))
			break_off("C's kernel writes nothing");
	free_block(p, block);
	engine = engine_of(c->pid, child);
	kill_actor(c);
	deadline = now_ms() + 400; /* longer than a killed process's kernel writes that has forked nobody */
	do
		got = claim(p, block, SMALL, NEXT);
	while (!got && watch_until(deadline));
	if (bare) {
		while (watch_until(deadline))
			;
		free_block(p, block);
		got = claim_within(p, block, SMALL, NEXT, SOON_MS, &took);
		deadline = now_ms() + SOON_MS;
		while ((untouched = reads(p, block, SMALL, NEXT, &foreign)))
			if (!watch_until(deadline))
				break;
		ok(got && !untouched && foreign == C_WRITES,
		   "control: bare, the killed C's kernel writes into the next owner's block while C's child lives");
		kill(child, SIGKILL);
		leave(p);
		return;
	}
	ok(!got, "6 C, which forked %s the open, is killed: while its child lives, the address is not given out", when);
	kill(child, SIGKILL);
	/* a GPU stops the kernel before the child's descriptors are gone; a process that plays it stops soon after */
	deadline = now_ms() + SOON_MS;
	while (engine && runs(engine, &parent) && watch_until(deadline))
		;
	got = claim_within(p, block, SMALL, NEXT, SOON_MS, &took);
	note("memory returned %.1f ms after the child was killed", took);
	ok(got && took < BACK_MS, "6 C's child is killed, too: P gets the address again within 1 s");
	deadline = now_ms() + 300;
	while ((untouched = reads(p, block, SMALL, NEXT, &foreign)))
		if (!watch_until(deadline))
			break;
	ok(got && untouched, "6 and no byte of the next owner is touched");
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}
static void killed_with_child(void)
{
	setenv("CULIMBO_SIM_KERNELS", "linger", 1);
	killed_with_child_once(true, true);
	killed_with_child_once(false, true);
	killed_with_child_once(false, false);
}

/* ---------------------------------------------------------- 9: P is no more */
enum { P_EXITS, P_EXITS_AT_ONCE, P_KILLED, P_WAYS };

/* @freed: the blocks are in P's limbo when P ends; otherwise they are still allocated. */
static void exporter_ends_once(int how, bool freed)
{
	static const char *const ways[] = { "exits", "_exits", "is killed" };
	struct actor *o = ENTER("O", .bare = true);
	struct actor *q = ENTER("Q", .env = GRACE);
	struct actor *c = ENTER("C", .env = GRACE, .door = "getproc");
	struct actor *p = ENTER("P", .env = GRACE);
	struct actor *d;
	uint64_t neighbour = alloc(p, SMALL), before = free_memory(o), other, late = 0;
	uint64_t small = alloc_filled(p, SMALL, OWN), big = alloc_filled(p, BIG, OWN + 1);
	struct handle small_handle = export_block(p, small), big_handle = export_block(p, big);
	struct handle others;
	uint64_t small_at_c = open_block(c, &small_handle), big_at_c = open_block(c, &big_handle);
	const char *when = freed ? "with both in limbo" : "having both";
	double took;
	int result;
	bool own;

	(void)neighbour;
	if (freed) {
		free_block(p, small);
		free_block(p, big);
	}
	if (how == P_KILLED)
		kill_actor(p);
	else
		leave_by(p, how == P_EXITS ? END_EXIT : END__EXIT, 0);
	/* another process allocates and overwrites what the driver gives out */
	other = alloc_filled(q, 4 * BIG, NEXT);
	own = reads(c, small_at_c, SMALL, OWN, NULL) && reads(c, big_at_c, BIG, OWN + 1, NULL);
	ok(own, "9 P %s %s: C still reads its own bytes", ways[how], when);
	free_block(q, other);

	d = ENTER("D", .env = GRACE);
	result = try_open(d, &small_handle, &late);
	ok(result != 0, "9 P %s %s: opening its handles fails (%d)", ways[how], when, result);
	leave(d);

	ok(!try_close(c, small_at_c) && !try_close(c, big_at_c), "9 P %s %s: C closes cleanly",
	   ways[how], when);
	ok(free_within(o, before - 4 * MIB, SOON_MS, &took), "9 P %s %s: then the memory returns",
	   ways[how], when);
	/* the next process that shares finds the dead process's file */
	other = alloc(q, SMALL);
	others = export_block(q, other);
	late = open_block(c, &others);
	close_block(c, late);
	free_block(q, other);
	ok(files_within(2, 1500), "9 P %s %s: its file is removed, only those of the live C and Q are left",
	   ways[how], when);
	leave(c);
	leave(q);
	leave(o);
	ok(no_file_is_left(), "9 P %s %s: no file is left in the end", ways[how], when);
}

static void exporter_exits(void)
{
	exporter_ends_once(P_EXITS, false);
	exporter_ends_once(P_EXITS, true);
	exporter_ends_once(P_EXITS_AT_ONCE, true);
}

static void exporter_killed(void)
{
	exporter_ends_once(P_KILLED, false);
	exporter_ends_once(P_KILLED, true);
}

const struct scene death_scenes[] = {
	{ "importer-dies-small", importer_dies_small, SCENE_ALONE },
	{ "importer-dies-big", importer_dies_big, SCENE_ALONE },
	{ "importer-died-before", importer_died_before, SCENE_ALONE },
	{ "one-of-two-dies", one_of_two_dies, 0 },
	{ "killed-writing", killed_writing, SCENE_ALONE },
	{ "killed-with-child", killed_with_child, SCENE_ALONE },
	{ "exporter-exits", exporter_exits, SCENE_ALONE },
	{ "exporter-killed", exporter_killed, SCENE_ALONE },
	{ .name = NULL },
};

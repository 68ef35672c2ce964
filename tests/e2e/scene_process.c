/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of what processes do besides sharing (12): contexts that end, fork, threads,
 * closed descriptors; frees that wait for kernels (15); and processes that share nothing (13).
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"

#define GRACE "CULIMBO_GRACE=200ms"
#define SOON_MS 5000
#define MS UINT64_C(1000000)

/* ----------------------------------------------------------------- contexts */
enum { RESET, RELEASED, DESTROYED, CONTEXT_ENDS };
static const char *const context_ends[] = { "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease",
					    "cuCtxDestroy" };

static void context_ends_once(int how, bool bare)
{
	const char *call = context_ends[how], *mode = bare ? "control: bare, " : "12 ";
	struct actor *p = ENTER("P", .bare = bare, .env = GRACE);
	struct actor *c = ENTER("C", .bare = bare, .env = GRACE, .door = "linked");
	uint64_t context = 0, waiting, shared, waiting_at_c, shared_at_c, graced, new[8], again;
	struct handle waiting_handle, shared_handle, handle;
	double deadline;
	bool whole;

	if (how == DESTROYED) {
		context = ASK(p, ctx_create)->v[0];
		if (p->reply.result)
			break_off("cuCtxCreate failed with %d", p->reply.result);
	}
	/* one block is in the limbo and held, one is held, one is in the limbo for its grace period */
	waiting = alloc_filled(p, BIG, OWN);
	shared = alloc_filled(p, BIG, OWN + 1);
	graced = alloc_filled(p, SMALL, OWN);
	waiting_handle = export_block(p, waiting);
	shared_handle = export_block(p, shared);
	export_block(p, graced);
	waiting_at_c = open_block(c, &waiting_handle);
	shared_at_c = open_block(c, &shared_handle);
	free_block(p, waiting);
	free_block(p, graced);
	if (how == DESTROYED)
		ASK(p, ctx_destroy, context);
	else if (how == RESET)
		ASK(p, ctx_reset);
	else
		ASK(p, ctx_release);
	ok(!p->reply.result, "%s%s, with blocks held by C and in the limbo: succeeds (%d)", mode, call,
	   p->reply.result);
	if (how != DESTROYED)
		ASK(p, ctx_again);
	/* new blocks, if possible at the addresses of the old ones */
	for (int i = 0; i < 8; i++)
		new[i] = alloc_filled(p, i < 3 ? BIG : SMALL, NEXT);
	ok(reads(c, waiting_at_c, BIG, OWN, NULL) && reads(c, shared_at_c, BIG, OWN + 1, NULL),
	   "%s%s: C still reads its own bytes", mode, call);
	ok(!try_close(c, waiting_at_c) && !try_close(c, shared_at_c), "%s%s: C closes cleanly", mode,
	   call);
	/* culimbo must not mistake P's new blocks for the old ones */
	deadline = now_ms() + (bare ? 0 : 500);
	do {
		whole = true;
		for (int i = 0; i < 8; i++)
			whole = whole && reads(p, new[i], i < 3 ? BIG : SMALL, NEXT, NULL);
	} while (whole && watch_until(deadline));
	again = alloc(p, BIG); /* a block that was freed by mistake would be given out again */
	for (int i = 0; i < 8; i++)
		whole = whole && new[i] != again;
	ok(whole, "%s%s: P's new blocks have their own bytes after C's closes", mode, call);
	handle = export_block(p, new[0]);
	waiting_at_c = open_block(c, &handle);
	ok(reads(c, waiting_at_c, BIG, NEXT, NULL), "%s%s: P continues to share in a new context", mode, call);
	close_block(c, waiting_at_c);
	for (int i = 0; i < 8; i++)
		whole = !try_free(p, new[i]) && whole;
	ok(whole && !try_free(p, again), "%s%s: and frees its blocks", mode, call);
	ok(leave_by(c, END_EXIT, 0) == 0 && leave_by(p, END_EXIT, 0) == 0, "%s%s: both end well", mode,
	   call);
	if (!bare)
		ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void context_ends_all(void)
{
	for (int how = 0; how < CONTEXT_ENDS; how++) {
		context_ends_once(how, true);
		context_ends_once(how, false);
	}
}

/* The end of an importer's context also ends its mappings. */
static void importer_resets(void)
{
	struct actor *p = ENTER("P", .env = GRACE);
	struct actor *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), other;
	struct handle handle = export_block(p, block);

	(void)neighbour;
	open_block(c, &handle);
	free_block(p, block);
	ok(!ASK(c, ctx_reset)->result, "12 C resets its device while it holds a block");
	ASK(c, ctx_again);
	ok(claim_within(p, block, SMALL, NEXT, 1000, NULL), "12 C has reset its device: its hold is gone");
	handle = export_block(p, block);
	other = open_block(c, &handle);
	ok(reads(c, other, SMALL, NEXT, NULL), "12 and it opens the next block");
	close_block(c, other);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* ----------------------------------------------------------------------- fork */
static void forks(void)
{
	static const struct {
		enum ending how;
		int status;
		const char *name;
	} children[] = {
		{ END__EXIT, 5, "_exits" },
		{ END_EXIT, 5, "exits" },
		{ END_QUICK_EXIT, 5, "quick_exits" },
		{ END_EXEC, 0, "execs" },
	};
	struct actor *p = ENTER("P", .env = GRACE, .door = "getproc");
	struct actor *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), held = alloc_filled(p, SMALL, OWN), held_at_c;
	struct handle held_handle = export_block(p, held);

	(void)neighbour;
	held_at_c = open_block(c, &held_handle);
	free_block(p, held);
	for (size_t i = 0; i < sizeof(children) / sizeof(children[0]); i++) {
		const char *name = children[i].name;
		uint64_t block, import;
		struct handle handle;
		int status;

		status = (int)ASK(p, fork, (uint64_t)children[i].how)->v[0];
		ok(WIFEXITED(status) && WEXITSTATUS(status) == children[i].status,
		   "12 P's child %s: with its own status (0x%x)", name, (unsigned int)status);
		/* It is not known whether a real driver's exit handlers survive that. */
		if (!on_real_driver()) {
			status = (int)ASK(p, fork, (uint64_t)children[i].how, 1)->v[0];
			ok(WIFEXITED(status) && WEXITSTATUS(status) == children[i].status,
			   "12 P's child by clone() %s: with its own status (0x%x)", name,
			   (unsigned int)status);
		}
		status = (int)ASK(c, fork, (uint64_t)children[i].how)->v[0];
		ok(WIFEXITED(status) && WEXITSTATUS(status) == children[i].status,
		   "12 C's child %s: with its own status (0x%x)", name, (unsigned int)status);
		ok(!*said(p) && !*said(c) && files() == 2,
		   "12 a child that %s prints nothing and removes no file", name);
		ok(!claim(p, held, SMALL, NEXT) && reads(c, held_at_c, SMALL, OWN, NULL),
		   "12 after a child that %s, C still holds its block", name);
		block = alloc_filled(p, SMALL, OWN);
		handle = export_block(p, block);
		import = open_block(c, &handle);
		free_block(p, block);
		ok(!claim(p, block, SMALL, NEXT) && reads(c, import, SMALL, OWN, NULL),
		   "12 after a child that %s, P continues to share", name);
		close_block(c, import);
		ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL),
		   "12 after a child that %s, blocks are released", name);
		free_block(p, block);
	}
	close_block(c, held_at_c);
	ok(claim_within(p, held, SMALL, NEXT, SOON_MS, NULL), "12 the block that was held all the time is released");
	leave(c);
	leave(p);
	ok(!*said(p) && !*said(c) && files() == 0, "nothing to report, no file left");
}

/* CUDA calls in the child of a process that uses CUDA: the driver refuses them, and so does culimbo. */
static void fork_calls(void)
{
	static const char *const calls[] = { "cuMemFree", "cuIpcGetMemHandle", "cuIpcCloseMemHandle",
					     "cuMemAlloc" };
	uint64_t said_to[2][4];

	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = ENTER("P", .bare = bare, .env = GRACE);
		struct actor *c = ENTER("C", .bare = bare, .env = GRACE);
		uint64_t mine = alloc(p, SMALL), theirs = alloc_filled(c, SMALL, OWN), import, at_c;
		struct handle handle = export_block(c, theirs);

		import = open_block(p, &handle);
		handle = export_block(p, mine);
		at_c = open_block(c, &handle);
		memcpy(said_to[bare], ASK(p, fork_calls, mine, import)->v, sizeof(said_to[bare]));
		ok(!try_close(p, import) && !try_close(c, at_c) && !try_free(p, mine) &&
			   !try_free(c, theirs),
		   "%sCUDA calls of a child do not affect the parent's blocks",
		   bare ? "control: bare, " : "12 ");
		leave(p);
		leave(c);
		if (!bare)
			ok(!*said(p) && !*said(c) && files() == 0, "nothing to report, no file left");
	}
	for (int i = 0; i < 4; i++)
		ok(said_to[0][i] == said_to[1][i], "12 %s in a child: as bare (%llu, bare %llu)", calls[i],
		   (unsigned long long)said_to[0][i], (unsigned long long)said_to[1][i]);
}

/* ------------------------------------------------------------ many threads */
static void threads_of(unsigned int producers, unsigned int rounds, uint64_t bytes)
{
	enum { CONSUMERS = 4 };
	struct actor *o = ENTER("O", .bare = true), *p, *c;
	const struct wire_reply *made, *got;
	uint64_t before;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		break_off("socketpair");
	p = ENTER("P", .partner = pair[0], .door = "getproc");
	c = ENTER("C", .partner = pair[1]);
	close(pair[0]);
	close(pair[1]);
	before = free_memory(o);
	tell(c, OP_consume, NULL, (const uint64_t[6]){ CONSUMERS });
	tell(p, OP_produce, NULL, (const uint64_t[6]){ producers, rounds, bytes, CONSUMERS });
	made = hear(p, 60000);
	got = hear(c, 60000);
	ok(!made->result && !got->result,
	   "12 %u threads allocate, export and free blocks of %llu KiB, %d open and close: no error (%d %s, %d %s)",
	   producers, (unsigned long long)(bytes / KIB), CONSUMERS, made->result, made->complaint,
	   got->result, got->complaint);
	note("%llu blocks were sent, %llu received", (unsigned long long)made->v[0],
	     (unsigned long long)got->v[0]);
	ok(got->v[0] == made->v[0] && got->v[1] == 0 && got->v[2] == 0,
	   "12 each block that was sent can be opened and has its own bytes (%llu refused, %llu foreign)",
	   (unsigned long long)got->v[1], (unsigned long long)got->v[2]);
	/* chunks of 2 MiB may stay allocated for the next small block */
	ok(free_within(o, before - 4 * MIB, SOON_MS, NULL), "12 then no block is left");
	leave(c);
	leave(p);
	ok(!*said(p) && !*said(c) && files() == 0, "12 nothing to report, no file left");
	leave(o);
}

static void threads_small(void)
{
	threads_of(16, 60, 64 * KIB);
}

static void threads_big(void)
{
	threads_of(16, 8, 2 * MIB);
}

/* ------------------------------------------------------- closed descriptors */
/* The simulated driver survives the loss of its descriptors; a real one does not. */
static void all_closed_bare(void)
{
	struct actor *p = ENTER("P", .bare = true), *c = ENTER("C", .bare = true);
	uint64_t first = alloc_filled(p, SMALL, OWN), block, import;
	struct handle handle = export_block(p, first);
	bool well;

	import = open_block(c, &handle);
	ASK(p, close_fds, CLOSE_ALL);
	ASK(c, close_fds, CLOSE_ALL);
	well = reads(c, import, SMALL, OWN, NULL) && !try_close(c, import) &&
	       !try_alloc(p, BIG, &block) && !try_export(p, block, &handle) &&
	       !try_open(c, &handle, &import) && !try_close(c, import) && !try_free(p, block) &&
	       !try_free(p, first);
	ok(well, "control: bare, all descriptors above 2 closed in P and C: they continue to share");
	leave(c);
	leave(p);
}

static void closed_once(enum close_which which)
{
	const char *what = which == CLOSE_ALL ? "all descriptors above 2" : "culimbo's descriptors";
	struct actor *p = ENTER("P", .env = GRACE), *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import;
	struct handle handle = export_block(p, block);
	double deadline;
	bool held = true;

	(void)neighbour;
	import = open_block(c, &handle);
	ok(ASK(p, close_fds, which)->v[0] > 0, "12 P closes %s (there are some)", what);
	free_block(p, block);
	ok(!claim(p, block, SMALL, NEXT) && reads(c, import, SMALL, OWN, NULL),
	   "12 and then frees: C reads its own bytes");
	close_block(c, import);
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "12 after C's close P gets the address again");
	handle = export_block(p, block);
	import = open_block(c, &handle);
	ok(reads(c, import, SMALL, NEXT, NULL), "12 P continues to share");
	ok(ASK(c, close_fds, which)->v[0] > 0, "12 C closes %s while it holds a block", what);
	free_block(p, block);
	/* waits longer than the settle time: no process may take C for dead */
	deadline = now_ms() + 1200;
	do
		held = held && !claim(p, block, SMALL, OWN) && reads(c, import, SMALL, NEXT, NULL);
	while (held && watch_until(deadline));
	ok(held, "12 more than a second later it reads its own bytes");
	close_block(c, import);
	ok(claim_within(p, block, SMALL, OWN, SOON_MS, NULL), "12 and after its close P gets the address again");
	handle = export_block(p, block);
	import = open_block(c, &handle);
	free_block(p, block);
	ok(!claim(p, block, SMALL, NEXT) && reads(c, import, SMALL, OWN, NULL),
	   "12 C opens and holds the next block");
	kill_actor(c);
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "12 C is killed: P gets the address again");
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* P has lost its lock but lives.  C's stale handle is of a block that P freed long ago. */
static void closed_and_stale(void)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_GRACE=0"), *c = ENTER("C", .env = GRACE);
	uint64_t kept = alloc(p, SMALL), block = alloc(p, SMALL), import;
	struct handle known = export_block(p, kept), stale = export_block(p, block);
	int result;

	open_block(c, &known);
	free_block(p, block);
	export_block(p, alloc(p, SMALL)); /* P's file no longer says when it freed the stale one */
	ASK(p, close_fds, CLOSE_CULIMBO);
	result = try_open(c, &stale, &import);
	ok(result == INVALID_VALUE, "12 P has closed its descriptors: C's stale handle is refused (%d)", result);
	leave_by(c, END_EXIT, 0);
	ok(strstr(said(c), "STALE: ") && !strstr(said(c), " had ended "),
	   "12 and C's report does not say that P, which lives, had ended");
	leave(p);
}

static void closed_descriptors(void)
{
	if (!on_real_driver()) {
		all_closed_bare();
		closed_once(CLOSE_ALL);
	}
	closed_once(CLOSE_CULIMBO);
	closed_and_stale();
}

/* ---------------------------------------------------- 15: frees and kernels */
static void free_waits(void)
{
	for (int bare = 1; bare >= 0; bare--)
		for (int big = 0; big < 2; big++) {
			const char *mode = bare ? "control: bare, " : "15 ";
			const char *size = big ? "big" : "small";
			uint64_t bytes = big ? BIG : SMALL, blocks[3];
			struct actor *p = ENTER("P", .bare = bare);
			struct actor *c = ENTER("C", .bare = bare);
			struct handle handle;
			int after;

			for (int i = 0; i < 3; i++) {
				blocks[i] = alloc(p, bytes);
				handle = export_block(p, blocks[i]);
				if (i == 0)
					open_block(c, &handle);
			}
			ASK(p, spin, 1 * MS); /* the first launch loads the kernel */
			ASK(p, kernel_wait);
			for (int i = 0; i < 2; i++) {
				ASK(p, spin, 200 * MS);
				free_block(p, blocks[i]);
				note("cuMemFree took %.1f ms behind a kernel of 200 ms",
				     (double)p->reply.ns * 1e-6);
				after = p->reply.ns > 150 * MS;
				ok(after && !ASK(p, kernel_query)->result,
				   "%s%s, %s: cuMemFree waits for the running kernel", mode, size,
				   i ? "exported" : "held by C");
			}
			ASK(p, spin, 200 * MS);
			ASK(p, free_async, blocks[2], 0);
			note("cuMemFreeAsync took %.1f ms", (double)p->reply.ns * 1e-6);
			if (p->reply.result)
				break_off("cuMemFreeAsync failed with %d", p->reply.result);
			ok(p->reply.ns < 100 * MS && ASK(p, kernel_query)->result == NOT_READY,
			   "%s%s: cuMemFreeAsync does not wait", mode, size);
			ASK(p, kernel_wait);
			leave_by(c, END_EXIT, 0);
			leave_by(p, END_EXIT, 0);
		}
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A stream-ordered free takes effect in the stream's order: not before its kernel has written. */
static void free_in_order(void)
{
	struct actor *o = ENTER("O", .bare = true);
	struct actor *p = ENTER("P", .env = "CULIMBO_GRACE=50ms");
	struct actor *c = ENTER("C", .env = "CULIMBO_GRACE=50ms");
	uint64_t before, block, import;
	struct handle handle;
	double start, took;
	bool back;

	ASK(p, spin, 1 * MS); /* the first launch loads the kernels */
	ASK(p, kernel_wait);
	before = free_memory(o);
	block = alloc_filled(p, BIG, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	start = now_ms();
	ASK(p, fill_kernel, block, SMALL / 4, 0x11111111, 600 * MS);
	if (ASK(p, free_async, block, 0)->result)
		break_off("cuMemFreeAsync failed with %d", p->reply.result);
	/* no process holds the block, and its grace period ends long before the kernel does; P sleeps */
	close_block(c, import);
	back = free_within(o, before - 2 * MIB, SOON_MS, NULL);
	took = now_ms() - start;
	ok(took > 550, "15 cuMemFreeAsync: the block is not released before the kernel ahead of it ends");
	ok(back && took < 1100, "15 cuMemFreeAsync: it is released after that, P asleep (%.0f ms)", took);
	ok(!ASK(p, kernel_query)->result, "15 and the kernel is done");
	leave(o);
	leave(c);
	leave(p);
	ok(!*said(p) && files() == 0, "nothing to report, no file left");
}

/* ------------------------------------------- 13: processes that share nothing */
static int entries(pid_t pid, const char *what)
{
	char path[64];
	struct dirent *entry;
	DIR *directory;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	directory = opendir(path);
	if (!directory)
		break_off("cannot read %s", path);
	while ((entry = readdir(directory)))
		n += *entry->d_name != '.';
	closedir(directory);
	return n;
}

static void shares_nothing(void)
{
	int tasks[2], fds[2];

	for (int bare = 0; bare < 2; bare++) {
		struct actor *p = ENTER("P", .bare = bare, .door = "getproc");
		uint64_t a = alloc_filled(p, SMALL, OWN), b = alloc_filled(p, BIG, OWN), e;

		free_block(p, a);
		free_block(p, b);
		a = alloc(p, SMALL);
		ASK(p, free_async, a, 1);
		e = ASK(p, event_create, 2)->v[0];
		ASK(p, event_destroy, e);
		try_alloc(p, UINT64_C(1) << 50, &a);
		tasks[bare] = entries(p->pid, "task");
		fds[bare] = entries(p->pid, "fd");
		if (!bare)
			ok(files() == 0 && access(limbo_folder(), F_OK),
			   "13 a CUDA program that shares nothing: no file, no folder");
		leave(p);
		if (!bare)
			ok(!*said(p), "13 and no message");
	}
	ok(tasks[0] == tasks[1], "13 no thread (%d, bare %d)", tasks[0], tasks[1]);
	ok(fds[0] == fds[1], "13 no descriptor (%d, bare %d)", fds[0], fds[1]);
}

const struct scene process_scenes[] = {
	{ "context-ends", context_ends_all, 0 },
	{ "importer-resets", importer_resets, 0 },
	{ "fork", forks, 0 },
	{ "fork-calls", fork_calls, 0 },
	{ "threads-small", threads_small, SCENE_ALONE },
	{ "threads-big", threads_big, SCENE_ALONE },
	{ "closed-descriptors", closed_descriptors, 0 },
	{ "free-waits", free_waits, SCENE_ALONE },
	{ "free-in-order", free_in_order, SCENE_ALONE },
	{ "shares-nothing", shares_nothing, 0 },
	{ .name = NULL },
};

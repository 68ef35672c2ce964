/* SPDX-License-Identifier: Apache-2.0 */
/* Scenes of processes that call exec (12): what the former program held or shared is gone, unless a child that it forked lives. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "stage.h"

#define GRACE "CULIMBO_GRACE=200ms"
#define SOON_MS 5000

/* After exec the process is another image: what it held or shared is gone. */
static void execs(void)
{
	struct actor *p = ENTER("P", .env = GRACE);
	struct actor *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import;
	struct handle handle = export_block(p, block);
	double took, settled;
	bool back;

	(void)neighbour;
	open_block(c, &handle);
	free_block(p, block);
	tell(c, OP_exec, NULL, (const uint64_t[6]){ 0 });
	back = claim_within(p, block, SMALL, NEXT, SOON_MS, &took);
	note("memory returned %.1f ms after C's exec", took);
	ok(back && took < 1500, "12 C execs while it holds a block: P gets the address again");
	ASK(c, begin);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	ok(reads(c, import, SMALL, NEXT, NULL), "12 and the new image opens the next block");
	free_block(p, block);
	ok(!claim(p, block, SMALL, OWN), "12 the new image holds that block");
	/* now P execs, and C still reads */
	tell(p, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ASK(p, begin);
	ok(reads(c, import, SMALL, NEXT, NULL), "12 P execs: C still reads its own bytes");
	close_block(c, import);
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	ok(reads(c, import, SMALL, OWN, NULL), "12 P's new image continues to share");
	close_block(c, import);
	free_block(p, block);
	leave(c);
	leave(p);
	/* the next process that shares removes the file of P's old image */
	settled = now_ms() + 500;
	while (watch_until(settled))
		;
	p = ENTER("Q");
	export_block(p, alloc(p, SMALL));
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * Has @c call exec and begin anew.  Returns false if cuInit() gives CUDA_ERROR_OPERATING_SYSTEM, as a GPU's driver does while
 * a child of the former program lives.
 */
static bool begins_after_exec(struct actor *c)
{
	const struct wire_reply *reply;

	tell(c, OP_exec, NULL, (const uint64_t[6]){ 0 });
	tell(c, OP_begin, NULL, (const uint64_t[6]){ 0 });
	reply = hear(c, 30000);
	if (*reply->complaint && !strstr(reply->complaint, "CUDA_ERROR_OPERATING_SYSTEM"))
		break_off("%s could not begin: %s", c->name, reply->complaint);
	return !*reply->complaint;
}

static bool begins_beside_a_child_bare(void)
{
	struct actor *c = ENTER("B", .bare = true);
	pid_t child = (pid_t)ASK(c, fork_outlives, 0)->v[0];
	bool begins = begins_after_exec(c);

	kill(child, SIGKILL);
	leave(c);
	return begins;
}

/*
 * The program that C becomes forks, too.  Its own child must not keep what the former one held, a child of the former
 * one must, although C maps P's file again.
 */
static void exec_forks(void)
{
	struct actor *p = ENTER("P", .env = GRACE " CULIMBO_SETTLE=2s"); /* C forks before that */
	struct actor *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), other;
	bool bare = begins_beside_a_child_bare(), begins, back;
	struct handle handle = export_block(p, block);
	double took, deadline;
	pid_t child;

	(void)neighbour;
	open_block(c, &handle);
	free_block(p, block);
	begins_after_exec(c);
	child = (pid_t)ASK(c, fork_outlives, 0)->v[0];
	back = claim_within(p, block, SMALL, NEXT, SOON_MS, &took);
	ok(back, "12 C execs while it holds a block, and forks: P gets the address again (after %.1f ms)", took);
	handle = export_block(p, block);
	open_block(c, &handle);
	free_block(p, block);
	begins = begins_after_exec(c);
	ok(begins == bare, "12 C execs while a child of the former program lives: it %s CUDA, as bare (%s)",
	   begins ? "begins" : "can't begin with", bare ? "begins" : "can't");
	if (begins) {
		other = alloc_filled(p, SMALL, OWN);
		handle = export_block(p, other);
		open_block(c, &handle);
	}
	ok(!claim_within(p, block, SMALL, NEXT, 1000, &took), "12 %s: P does not get the address for 1 s",
	   begins ? "and opens another block of P" : "and waits");
	kill(child, SIGKILL);
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, &took), "12 and gets it when that child has ended");
	deadline = now_ms() + SOON_MS;
	while (!begins && watch_until(deadline))
		begins = begins_after_exec(c);
	ok(begins, "12 and C has begun");
	leave(c);
	leave(p);
}

const struct scene exec_scenes[] = {
	{ "exec", execs, 0 },
	{ "exec-forks", exec_forks, 0 },
	{ .name = NULL },
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of blocks: when memory returns to the driver, how opens are counted, and pairs of
 * processes of which only one has culimbo.
 */
#include "scene_memory.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---------------------------------------------------- 5: back, while P sleeps */
static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void back_big(void)
{
	enum { ROUNDS = 7 };
	struct actor *o = ENTER("O", .bare = true);
	struct actor *p = ENTER("P", .env = "CULIMBO_GRACE=100ms");
	struct actor *c = ENTER("C", .env = "CULIMBO_GRACE=100ms");
	uint64_t block, import, before, held;
	double took[ROUNDS], exported;
	struct handle handle;
	bool all = true, kept = true;

	for (int i = 0; i < ROUNDS; i++) {
		before = free_memory(o);
		block = alloc_filled(p, BIG, OWN);
		handle = export_block(p, block);
		exported = now_ms();
		import = open_block(c, &handle);
		free_block(p, block);
		/* from here on P sleeps while the grace period ends */
		while (watch_until(exported + 150))
			;
		held = free_memory(o);
		kept = kept && held + BIG / 2 <= before;
		close_block(c, import);
		all = free_within(o, held + BIG - 2 * MIB, SOON_MS, &took[i]) && all;
	}
	ok(kept, "5 big: while C holds the block, its memory does not return to the driver");
	qsort(took, ROUNDS, sizeof(took[0]), compare_doubles);
	note("memory returned after the last close, P asleep: %.2f / %.2f / %.2f ms (least, median, most of %d)",
	     took[0], took[ROUNDS / 2], took[ROUNDS - 1], ROUNDS);
	/* a busy machine is late now and then; a library that is late is so each time */
	ok(all && took[ROUNDS / 2] < 100,
	   "5 big: the memory returns within 100 ms of the last close, P asleep");
	leave(o);
	curtain(p, c);
}

/* A handle, and the process that looks whether it still opens. */
struct look {
	struct actor *c;
	const struct handle *handle;
	int result; /* of the last look */
};

static bool still_opens(void *data)
{
	struct look *look = data;
	uint64_t import;

	look->result = try_open(look->c, look->handle, &import);
	if (!look->result)
		close_block(look->c, import);
	return !look->result;
}

void back_small(void)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_GRACE=100ms");
	struct actor *c = ENTER("C", .env = "CULIMBO_GRACE=100ms");
	uint64_t neighbour = alloc(p, SMALL);
	uint64_t block = alloc_filled(p, SMALL, OWN), import;
	struct handle handle = export_block(p, block);
	double exported = now_ms(), took;
	struct look look = { c, &handle, 0 };

	(void)neighbour;
	import = open_block(c, &handle);
	free_block(p, block);
	while (watch_until(exported + 150))
		;
	/* P sleeps; a refused open of the handle shows that the block was released */
	close_block(c, import);
	took = gone_after(still_opens, &look, 100);
	note("released after the last close, P asleep: %.2f ms", took);
	ok(refused(look.result) && took < 100,
	   "5 small: the block is released within 100 ms of the last close, P asleep");
	ok(claim(p, block, SMALL, NEXT), "5 small: the driver can give out its address again");
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A block that was closed within the grace period, or never opened, is released when the period ends. */
void back_after_grace(void)
{
	struct actor *o = ENTER("O", .bare = true);
	struct actor *p = ENTER("P", .env = "CULIMBO_GRACE=400ms");
	struct actor *c = ENTER("C", .env = "CULIMBO_GRACE=400ms");

	for (int opened = 0; opened < 2; opened++) {
		bool back = false, late = true;
		double took = 0;

		/* a busy machine is late now and then; a library that is late is so each time */
		for (int tries = 0; tries < 3 && late; tries++) {
			uint64_t before = free_memory(o);
			uint64_t block = alloc_filled(p, BIG, OWN), import;
			struct handle handle = export_block(p, block);
			double exported = now_ms();

			if (opened) {
				import = open_block(c, &handle);
				free_block(p, block);
				close_block(c, import);
			} else {
				free_block(p, block);
			}
			back = free_within(o, before - 2 * MIB, SOON_MS, NULL);
			took = now_ms() - exported;
			late = back && took >= 500;
			note("memory returned %.1f ms after the export, with a grace of 400 ms", took);
		}
		ok(back && !late, "5 big, %s: the memory returns within 100 ms of the end of the grace period, P asleep",
		   opened ? "closed within the grace" : "never opened");
		ok(took > 380, "5 big, %s: and not earlier", opened ? "closed within the grace" : "never opened");
	}
	leave(o);
	curtain(p, c);
}

/* Without a collector thread, calls of the program release the block. */
void back_inline(void)
{
	const char *env = "CULIMBO_GRACE=100ms CULIMBO_COLLECTOR=inline";
	struct actor *p = ENTER("P", .env = env);
	struct actor *c = ENTER("C", .env = env);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import, other, before;
	uint64_t after;
	struct handle handle = export_block(p, block);
	double deadline = now_ms() + SOON_MS;
	bool got;

	(void)neighbour;
	import = open_block(c, &handle);
	free_block(p, block);
	ok(!claim(p, block, SMALL, NEXT) && reads(c, import, SMALL, OWN, NULL),
	   "CULIMBO_COLLECTOR=inline: while C holds the block it reads its own bytes");
	close_block(c, import);
	do { /* a program that continues to share */
		other = alloc(p, SMALL);
		export_block(p, other);
		free_block(p, other);
		got = claim(p, block, SMALL, NEXT);
	} while (!got && watch_until(deadline));
	ok(got, "CULIMBO_COLLECTOR=inline: after the close, calls of the program release the block");

	/* the program need not share or free: an allocation first releases what is ready */
	block = alloc_filled(p, BIG, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	free_block(p, block);
	deadline = now_ms() + 150; /* the grace period */
	while (watch_until(deadline))
		;
	close_block(c, import);
	before = free_memory(p);
	alloc(p, SMALL);
	after = free_memory(p);
	ok(after >= before + BIG / 2,
	   "CULIMBO_COLLECTOR=inline: after the close, one allocation releases the block (%" PRIu64 " of 64 MiB)",
	   (after - before) / MIB);
	curtain(p, c);
}

/* ------------------------------------------------------------- 7: open counts */
void twice(void)
{
	struct actor *p = ENTER("P", .env = GRACE);
	struct actor *c = ENTER("C", .env = GRACE, .door = "getproc");
	uint64_t neighbour = alloc(p, SMALL);
	uint64_t block = alloc_filled(p, SMALL, OWN);
	struct handle handle = export_block(p, block);
	uint64_t first = open_block(c, &handle), second;
	bool got;

	(void)neighbour;
	second = open_block(c, &handle);
	ok(first == second, "7 the block is opened twice: the same pointer, as bare");
	/* the older form of the call counts no opens (measured on an H200) */
	ask(c, OP_open_v1, handle.bytes, (const uint64_t[6]){ 1 });
	ok(c->reply.result == ALREADY_MAPPED,
	   "7 opened once more by the call of CUDA 4.1: refused, as bare (%d)", c->reply.result);
	free_block(p, block);
	close_block(c, first);
	got = claim(p, block, SMALL, NEXT);
	ok(!got && reads(c, second, SMALL, OWN, NULL), "7 the block is opened twice and closed once: it is still held");
	close_block(c, second);
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "7 the block is closed twice: P gets the address again");
	free_block(p, block);
	curtain(p, c);
}

/* --------------------------------------------------- a handle of one's own */
void own_handle(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = ENTER("P", .bare = bare, .env = GRACE);
		uint64_t neighbour = alloc(p, SMALL);
		uint64_t block = alloc_filled(p, SMALL, OWN), first = 0, second = 0;
		struct handle handle = export_block(p, block);
		int result = try_open(p, &handle, &first);
		bool got;

		(void)neighbour;
		if (bare) {
			ok(result == INVALID_CONTEXT, "control: bare, opening a handle of one's own fails (%d)",
			   result);
			leave(p);
			continue;
		}
		ok(!result && first == block, "opening a handle of one's own gives the original pointer");
		ok(!try_open(p, &handle, &second) && second == block, "and again");
		free_block(p, block);
		close_block(p, first);
		got = claim(p, block, SMALL, NEXT);
		ok(!got && reads(p, second, SMALL, OWN, NULL), "the block is freed and closed once of twice: it is still there");
		close_block(p, second);
		ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "the block is closed twice: P gets the address again");
		leave(p);
		ok(!*said(p) && files() == 0, "nothing to report, no file left");
	}
}

/* ----------------------------------------------------- 10: only one of the two */
void one_sided(void)
{
	for (int side = 0; side < 2; side++) {
		const char *who = side ? "only C" : "only P";
		struct actor *p = ENTER("P", .bare = side, .env = GRACE);
		struct actor *c = ENTER("C", .bare = !side, .env = GRACE);
		uint64_t neighbour = alloc(p, SMALL), small, big, at_c, at_c_again, big_at_c;
		struct handle handle, big_handle, old;
		double took;

		(void)neighbour;
		small = alloc_filled(p, SMALL, OWN);
		big = alloc_filled(p, BIG, OWN);
		handle = export_block(p, small);
		big_handle = export_block(p, big);
		ok(!try_open(c, &handle, &at_c) && !try_open(c, &handle, &at_c_again) &&
			   at_c == at_c_again,
		   "10 %s has culimbo: C opens, twice the same pointer", who);
		big_at_c = open_block(c, &big_handle);
		ok(reads(c, at_c, SMALL, OWN, NULL) && reads(c, big_at_c, BIG, OWN, NULL),
		   "10 %s has culimbo: C reads what P wrote", who);
		fill(c, at_c, SMALL, 55);
		ok(reads(p, small, SMALL, 55, NULL), "10 %s has culimbo: P reads what C wrote", who);
		ok(!try_close(c, at_c) && !try_close(c, at_c) && !try_close(c, big_at_c) &&
			   try_close(c, at_c),
		   "10 %s has culimbo: C can close as often as it opened, and not once more", who);
		old = handle;
		ok(!try_free(p, small) && !try_free(p, big) && try_free(p, small),
		   "10 %s has culimbo: P frees, once", who);
		ok(claim_within(p, small, SMALL, NEXT, SOON_MS, &took),
		   "10 %s has culimbo: P gets the address again", who);
		handle = export_block(p, small);
		at_c = open_block(c, &handle);
		ok(reads(c, at_c, SMALL, NEXT, NULL), "10 %s has culimbo: a second block, the same way", who);
		close_block(c, at_c);
		ok(side ? is_unstamped(&handle) : !same_handle(&handle, &old),
		   side ? "10 only C has culimbo: P's handles are unchanged driver handles" :
			  "10 only P has culimbo: its handles differ for each block");
		leave(c);
		leave(p);
		ok(no_file_is_left(), "10 %s has culimbo: no file is left", who);
	}
}

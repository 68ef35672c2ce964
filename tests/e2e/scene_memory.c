/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of blocks: what a holder reads, what a stale handle gives, and which errors a program
 * sees.  The list of these scenes and of those in scene_back.c is here.
 */
#include "scene_memory.h"

#include <stdio.h>
#include <string.h>

static const char *size_name(uint64_t bytes)
{
	return bytes == SMALL ? "small" : "big";
}

/* Ends both actors and asserts what holds after every clean scene. */
void curtain(struct actor *p, struct actor *c)
{
	leave(c);
	leave(p);
	if (p->bare)
		return;
	ok(!*said(p) && !*said(c), "%s, %s: a clean run says nothing on stderr", p->name, c->name);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* ------------------------------------------------- 1: freed, and overwritten */
static void reuse_once(struct actor *p, struct actor *c, bool async)
{
	const char *how = async ? "cuMemFreeAsync" : "cuMemFree";
	uint64_t neighbour = alloc(p, SMALL);
	uint64_t block = alloc_filled(p, SMALL, OWN);
	struct handle handle = export_block(p, block);
	uint64_t import = open_block(c, &handle);
	unsigned int foreign = 0;
	double took;
	bool got, own;

	if (!reads(c, import, SMALL, OWN, NULL))
		break_off("C does not read what P wrote");
	if (async) {
		if (ASK(p, free_async, block, 1)->result)
			break_off("cuMemFreeAsync failed with %d", p->reply.result);
	} else {
		free_block(p, block);
	}
	got = claim(p, block, SMALL, NEXT);
	own = reads(c, import, SMALL, OWN, &foreign);
	if (p->bare) {
		ok(got && !own && foreign == NEXT,
		   "control: bare, %s, %s: C reads %u, the next block's byte, instead of %u",
		   p->door, how, foreign, OWN);
		close_block(c, import);
		if (got)
			free_block(p, block);
	} else {
		ok(!got, "1 %s, %s: while C holds the block, its address is not given out", p->door, how);
		ok(own, "1 %s, %s: P frees the block and overwrites what it gets; C reads its own bytes", p->door, how);
		close_block(c, import);
		got = claim_within(p, block, SMALL, NEXT, SOON_MS, &took);
		ok(got, "1 %s, %s: after C's close, P gets the address again", p->door, how);
		if (got)
			free_block(p, block);
	}
	free_block(p, neighbour);
}

static void reuse(const char *door, const char *env)
{
	char with[256];

	snprintf(with, sizeof(with), GRACE " %s", env);
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = ENTER("P", .bare = bare, .door = door, .env = with);
		struct actor *c = ENTER("C", .bare = bare, .door = door, .env = with);

		reuse_once(p, c, false);
		reuse_once(p, c, true);
		curtain(p, c);
	}
}

static void reuse_linked(void)
{
	reuse("linked", "");
}

static void reuse_dlsym(void)
{
	reuse("dlsym", "");
}

static void reuse_getproc(void)
{
	reuse("getproc", "");
}

/* A driver whose cuGetProcAddress gives other addresses than dlsym. */
static void reuse_thunk(void)
{
	reuse("getproc", "CULIMBO_SIM_PROC_ADDRESS=thunk");
}

/* P and C may use different doors. */
static void reuse_mixed(void)
{
	struct actor *p = ENTER("P", .door = "linked", .env = GRACE);
	struct actor *c = ENTER("C", .door = "getproc", .env = GRACE);

	reuse_once(p, c, false);
	curtain(p, c);
}

/* A block that is an allocation of its own: right bare, and right with culimbo. */
static void big_freed(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = ENTER("P", .bare = bare, .env = GRACE);
		struct actor *c = ENTER("C", .bare = bare, .env = GRACE);
		uint64_t block = alloc_filled(p, BIG, OWN);
		struct handle handle = export_block(p, block);
		uint64_t import = open_block(c, &handle), other;

		free_block(p, block);
		other = alloc_filled(p, BIG, NEXT);
		ok(reads(c, import, BIG, OWN, NULL), "%sbig: P frees the block and allocates again, C reads its own bytes",
		   bare ? "control: bare, " : "1 ");
		free_block(p, other);
		close_block(c, import);
		curtain(p, c);
	}
}

/* Two processes hold the block; both holds count. */
static void two_holders(void)
{
	struct actor *p = ENTER("P", .env = GRACE);
	struct actor *c = ENTER("C", .env = GRACE, .door = "getproc");
	struct actor *d = ENTER("D", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL);
	uint64_t block = alloc_filled(p, SMALL, OWN);
	struct handle handle = export_block(p, block);
	uint64_t at_c = open_block(c, &handle), at_d = open_block(d, &handle);
	bool got;

	(void)neighbour;
	free_block(p, block);
	close_block(c, at_c);
	got = claim(p, block, SMALL, NEXT);
	ok(!got && reads(d, at_d, SMALL, OWN, NULL),
	   "1 C and D hold the block, C closes it: D reads its own bytes");
	close_block(d, at_d);
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "1 D closes it too: P gets the address again");
	leave(d);
	curtain(p, c);
}

/* ------------------------------------------------------- 2: a handle too old */
static void stale_once(bool bare, uint64_t bytes)
{
	const char *size = size_name(bytes);
	struct actor *p = ENTER("P", .bare = bare, .env = GRACE, .door = "getproc");
	struct actor *c = ENTER("C", .bare = bare, .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL);
	uint64_t block = alloc_filled(p, bytes, OWN), import, other;
	struct handle old = export_block(p, block), new;
	int result;

	(void)neighbour;
	import = open_block(c, &old); /* the handle is valid here */
	close_block(c, import);
	free_block(p, block);
	if (!claim_within(p, block, bytes, NEXT, SOON_MS, NULL)) {
		if (!on_real_driver() || bytes != BIG) {
			ok(false, "2 %s: a freed block that nobody holds is released after the grace period", size);
			return;
		}
		/* A real driver need not give out a big address again; other scenes look at free memory. */
		note("the next 64 MiB have another address");
		block = alloc_filled(p, bytes, NEXT);
	}
	if (bare) {
		new = export_block(p, block);
		result = try_open(c, &old, &import);
		ok(!result && reads(c, import, bytes, NEXT, NULL) &&
			   (bytes != SMALL || same_handle(&old, &new)),
		   "control: bare, %s: a stale handle maps the next block%s", size,
		   bytes == SMALL ? " (and is equal to the new one, bit for bit)" : "");
		curtain(p, c);
		return;
	}
	result = try_open(c, &old, &import);
	ok(refused(result), "2 %s: a stale handle, its address allocated again: refused (%d)", size, result);
	new = export_block(p, block);
	ok(!same_handle(&old, &new), "2 %s: the new block has a different handle", size);
	result = try_open(c, &old, &import);
	ok(refused(result), "2 %s: a stale handle, its address exported again: refused (%d)", size, result);
	other = open_block(c, &new);
	ok(reads(c, other, bytes, NEXT, NULL), "2 %s: the new handle opens the new block", size);
	result = try_open(c, &old, &import);
	ok(refused(result), "2 %s: a stale handle, the new block open in C: refused (%d)", size, result);
	close_block(c, other);
	free_block(p, block);
	if (claim_within(p, block, bytes, NEXT, SOON_MS, NULL)) {
		free_block(p, block);
		result = try_open(c, &new, &import);
		ok(refused(result), "2 %s: the block is freed and released, its address not used again: refused (%d)", size, result);
	} else {
		ok(false, "2 %s: the second block is released as well", size);
	}
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	ok(strstr(said(c), "SUMMARY") != NULL, "2 %s: C's report says that it used stale handles", size);
}

static void stale_small(void)
{
	stale_once(true, SMALL);
	stale_once(false, SMALL);
}

static void stale_big(void)
{
	stale_once(true, BIG);
	stale_once(false, BIG);
}

/* ------------------------------------------------- 3: the handle is under way */
/*
 * Returns false when C opened the handle after the grace period (the default, 2 s) because the
 * machine was busy.  Then nothing is asserted, unless this is the @last attempt.
 */
static bool in_flight_once(bool bare, uint64_t bytes, bool last)
{
	const char *size = size_name(bytes);
	struct actor *p = ENTER("P", .bare = bare, .door = "linked");
	struct actor *c = ENTER("C", .bare = bare);
	uint64_t neighbour = alloc(p, SMALL);
	uint64_t block = alloc_filled(p, bytes, OWN), import;
	struct handle handle = export_block(p, block);
	uint64_t before;
	int result;
	double freed;
	bool got;

	(void)neighbour;
	free_block(p, block);
	freed = now_ms();
	got = claim(p, block, bytes, NEXT);
	result = try_open(c, &handle, &import);
	if (!bare && !last && now_ms() > freed + 2000) {
		curtain(p, c);
		return false;
	}
	if (bare) {
		ok(got && (result || !reads(c, import, bytes, OWN, NULL)),
		   "control: bare, %s: a block that is freed before its handle is opened is lost (%d)", size,
		   result);
		curtain(p, c);
		return true;
	}
	ok(!result, "3 %s: exported, freed at once, opened within the grace period: the open succeeds (%d)", size, result);
	if (result)
		return true;
	got = got || claim(p, block, bytes, NEXT);
	ok(!got && reads(c, import, bytes, OWN, NULL), "3 %s: and C reads its own bytes", size);
	before = free_memory(p);
	close_block(c, import);
	/* A real driver need not give out a big block's address again. */
	ok(bytes == BIG ? free_within(p, before + BIG - 2 * MIB, SOON_MS, NULL) :
			  claim_within(p, block, bytes, NEXT, SOON_MS, NULL),
	   "3 %s: after C's close the block is released", size);
	curtain(p, c);
	return true;
}

static void in_flight(void)
{
	in_flight_once(true, SMALL, true);
	in_flight_once(true, BIG, true);
	for (int i = 1; !in_flight_once(false, SMALL, i == 5); i++)
		;
	for (int i = 1; !in_flight_once(false, BIG, i == 5); i++)
		;
}

/*
 * Each of three blocks of 64 MiB is freed as soon as its handle is there, and all handles are opened 100 ms later.  P's
 * limbo has room for two of them, and a grace that does not end here by itself.
 */
static void late_once(bool bare)
{
	enum { BLOCKS = 3, ROOM = 2 };
	struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=1m CULIMBO_GRACE_BYTES=150MiB" };
	struct actor *p = enter("P", entry), *c = enter("C", entry);
	struct handle handle[BLOCKS];
	uint64_t block, import;
	double opening;
	int lost = 0;

	for (int i = 0; i < BLOCKS; i++) {
		block = alloc_filled(p, BIG, (unsigned char)(OWN + i));
		handle[i] = export_block(p, block);
		free_block(p, block);
	}
	for (opening = now_ms() + 100; watch_until(opening);)
		;
	for (int i = 0; i < BLOCKS; i++) {
		int result = try_open(c, &handle[i], &import);
		bool own = !result && reads(c, import, BIG, (unsigned char)(OWN + i), NULL);

		lost += !own;
		if (bare)
			note("bare, an open of freed block %d of %d: %d%s", i + 1, BLOCKS, result,
			     result ? "" : own ? ", its own bytes" : ", other bytes");
		else if (i < BLOCKS - ROOM)
			ok(refused(result), "3 over the budget, freed block %d of %d: opened 100 ms later it is refused as stale (%d)",
			   i + 1, BLOCKS, result);
		else
			ok(own, "3 within the budget, freed block %d of %d: opened 100 ms later C reads its own bytes (%d)", i + 1,
			   BLOCKS, result);
		if (!result)
			close_block(c, import);
	}
	if (bare)
		ok(lost, "control: bare, of %d blocks that are freed before their handles are opened %d are lost", BLOCKS, lost);
	leave(c);
	leave(p);
	if (!bare)
		ok(count_said(c, "STALE: ") == 1, "3 C's report says that it used stale handles");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void in_flight_late(void)
{
	late_once(true);
	late_once(false);
}

/* ------------------------------------------------------------------ 4: errors */
#define ERRORS_MAX 64
static struct {
	const char *what;
	int code[2]; /* with the library, bare */
} errors[ERRORS_MAX];
static int errors_n;

static void saw(bool bare, const char *what, int code)
{
	if (errors_n == ERRORS_MAX)
		break_off("too many errors to compare");
	errors[errors_n].what = what;
	errors[errors_n++].code[bare] = code;
}

static void errors_once(bool bare, uint64_t bytes)
{
	struct actor *p = ENTER("P", .bare = bare, .door = "getproc");
	struct actor *c = ENTER("C", .bare = bare);
	uint64_t neighbour = alloc(p, SMALL), unshared = alloc(p, SMALL);
	uint64_t first = alloc(p, bytes), second = alloc(p, bytes), third = alloc_filled(p, bytes, OWN);
	uint64_t own = alloc(c, SMALL), import, address;
	struct handle handle, again;

	(void)neighbour;
	errors_n = 0;
	saw(bare, "free NULL", try_free(p, 0));
	saw(bare, "free an unknown pointer", try_free(p, 0xdead0000));
	saw(bare, "free an interior pointer", try_free(p, unshared + 256));
	saw(bare, "free NULL in a stream", ASK(p, free_async, 0, 1)->result);
	saw(bare, "free an unknown pointer in a stream", ASK(p, free_async, 0xdead0000, 1)->result);
	saw(bare, "export NULL", try_export(p, 0, &handle));
	saw(bare, "export an unknown pointer", try_export(p, 0xdead0000, &handle));
	saw(bare, "close NULL", try_close(p, 0));
	saw(bare, "close an unknown pointer", try_close(p, 0xdead0000));
	saw(bare, "close a block of one's own", try_close(p, unshared));
	saw(bare, "allocate nothing", try_alloc(p, 0, &address));

	handle = export_block(p, first);
	saw(bare, "export an interior pointer", try_export(p, first + 256, &again));
	saw(bare, "... whose handle is the block's (1: yes)", same_handle(&handle, &again));
	saw(bare, "export again", try_export(p, first, &again));
	saw(bare, "... the same bytes (1: yes)", same_handle(&handle, &again));
	saw(bare, "free an interior pointer of an exported block", try_free(p, first + 256));
	saw(bare, "close a block that one exported", try_close(p, first));
	saw(bare, "free an exported block", try_free(p, first));
	saw(bare, "free it twice", try_free(p, first));
	saw(bare, "free it three times", try_free(p, first));
	saw(bare, "free it again in a stream", ASK(p, free_async, first, 1)->result);
	saw(bare, "free an interior pointer of it", try_free(p, first + 256));
	saw(bare, "export it after free", try_export(p, first, &again));
	saw(bare, "export an interior pointer of it after free", try_export(p, first + 256, &again));

	export_block(p, second);
	saw(bare, "free an exported block in a stream", ASK(p, free_async, second, 1)->result);
	saw(bare, "free it again in a stream", ASK(p, free_async, second, 1)->result);
	saw(bare, "free it again", try_free(p, second));
	saw(bare, "export it after free in a stream", try_export(p, second, &again));

	handle = export_block(p, third);
	again = handle;
	saw(bare, "open with no flag",
	    ask(c, OP_open, handle.bytes, (const uint64_t[6]){ 0 })->result);
	saw(bare, "open with a flag that is none",
	    ask(c, OP_open, handle.bytes, (const uint64_t[6]){ 0x10 })->result);
	saw(bare, "open", try_open(c, &handle, &import));
	saw(bare, "free an imported pointer", try_free(c, import));
	saw(bare, "free an imported pointer in a stream", ASK(c, free_async, import, 1)->result);
	saw(bare, "free an interior pointer of an import", try_free(c, import + 256));
	saw(bare, "... which stays mapped (1: yes)", reads(c, import, bytes, OWN, NULL));
	saw(bare, "export an imported pointer", try_export(c, import, &again));
	saw(bare, "close an interior pointer of an import", try_close(c, import + 256));
	saw(bare, "close a block of one's own, having imports", try_close(c, own));
	saw(bare, "free a block of one's own, having imports", try_free(c, own));
	saw(bare, "close", try_close(c, import));
	saw(bare, "close twice", try_close(c, import));
	saw(bare, "free a block that was never shared", try_free(p, unshared));
	saw(bare, "... and twice", try_free(p, unshared));
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
}

static void errors_of(uint64_t bytes)
{
	errors_once(true, bytes);
	errors_once(false, bytes);
	for (int i = 0; i < errors_n; i++) {
		int with = errors[i].code[0], bare = errors[i].code[1];

		if (with == bare)
			ok(true, "4 %s: %s: as bare (%d)", size_name(bytes), errors[i].what, bare);
		else
			ok(false, "4 %s: %s: as bare (%d), but it is %d", size_name(bytes),
			   errors[i].what, bare, with);
	}
}

static void errors_small(void)
{
	errors_of(SMALL);
}

static void errors_big(void)
{
	errors_of(BIG);
}

const struct scene memory_scenes[] = {
	{ "reuse-linked", reuse_linked, 0 },
	{ "reuse-dlsym", reuse_dlsym, 0 },
	{ "reuse-getproc", reuse_getproc, 0 },
	{ "reuse-thunk", reuse_thunk, SCENE_SIMULATED },
	{ "reuse-mixed", reuse_mixed, 0 },
	{ "big-freed", big_freed, 0 },
	{ "two-holders", two_holders, 0 },
	{ "stale-small", stale_small, 0 },
	{ "stale-big", stale_big, 0 },
	{ "in-flight-late", in_flight_late, 0 },
	{ "in-flight", in_flight, SCENE_ALONE },
	{ "errors-small", errors_small, 0 },
	{ "errors-big", errors_big, 0 },
	{ "back-big", back_big, SCENE_ALONE },
	{ "back-small", back_small, SCENE_ALONE },
	{ "back-after-grace", back_after_grace, SCENE_ALONE },
	{ "back-inline", back_inline, SCENE_ALONE },
	{ "twice", twice, 0 },
	{ "own-handle", own_handle, 0 },
	{ "one-sided", one_sided, 0 },
	{ .name = NULL },
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of the report at exit: it is silent when there is nothing to report; otherwise it names
 * processes and blocks.  Its words may change, but process ids, sizes and the SUMMARY line must be in it.  And what the log
 * says when an allocation fails (8).
 */
#include "scene_pool.h"
#include "scene_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool has_words(const char *text, const char *words)
{
	static const char fold[] = "\n        ";

	for (; *text; text++) {
		const char *at = text, *word = words;

		while (*word && *at == *word) {
			at++;
			word++;
			if (*word == ' ' && !strncmp(at, fold, sizeof(fold) - 1)) {
				at += sizeof(fold) - 1;
				word++;
			}
		}
		if (!*word)
			return true;
	}
	return false;
}

static bool names_pid(const char *text, pid_t pid)
{
	char number[16];
	const char *at = text;
	size_t n = (size_t)snprintf(number, sizeof(number), "%d", (int)pid);

	/* as a whole number, not as a part of a longer one */
	while ((at = strstr(at, number))) {
		bool before = at == text || at[-1] < '0' || at[-1] > '9';
		bool after = at[n] < '0' || at[n] > '9';

		if (before && after)
			return true;
		at += n;
	}
	return false;
}

/* 64 MiB in any notation. */
static bool names_big(const char *text)
{
	return strstr(text, "67108864") || strstr(text, "67,108,864") || strstr(text, "64 MiB") ||
	       strstr(text, "64MiB") || strstr(text, "64.0 MiB");
}

void show(const struct actor *actor)
{
	char *copy = strdup(said(actor)), *line, *rest;

	for (line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		note("  %s", line);
	free(copy);
}

static void leaks(void)
{
	static const struct {
		enum ending how;
		const char *name;
	} ways[] = {
		{ END_EXIT, "exit" },	{ END_RETURN, "return from main" },
		{ END__EXIT, "_exit" }, { END__Exit, "_Exit" },
		{ END_QUICK_EXIT, "quick_exit" },
	};
	struct actor *p = ENTER("P", .env = GRACE);

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct actor *c = ENTER("C", .env = GRACE, .door = i % 2 ? "getproc" : "dlsym");
		uint64_t block = alloc(p, BIG);
		struct handle handle = export_block(p, block);
		int status;

		open_block(c, &handle);
		status = leave_by(c, ways[i].how, 7);
		if (i == 0)
			show(c);
		ok(WIFEXITED(status) && WEXITSTATUS(status) == 7,
		   "C ends by %s without closing: its status is its own (0x%x)", ways[i].name,
		   (unsigned int)status);
		ok(count_said(c, "SUMMARY") == 1, "C ends by %s: one SUMMARY line (%d)", ways[i].name,
		   count_said(c, "SUMMARY"));
		ok(names_pid(said(c), p->pid) && names_big(said(c)),
		   "C ends by %s: its report names P and the block it never closed", ways[i].name);
		free_block(p, block);
	}
	leave_by(p, END_EXIT, 0);
}

static void exporter_leaves(void)
{
	struct actor *p = ENTER("P", .env = GRACE), *c = ENTER("C", .env = GRACE);
	uint64_t freed = alloc(p, BIG), having = alloc(p, SMALL);
	struct handle freed_handle = export_block(p, freed), having_handle = export_block(p, having);
	int status;

	open_block(c, &freed_handle);
	open_block(c, &having_handle);
	free_block(p, freed);
	status = leave_by(p, END_EXIT, 9);
	show(p);
	ok(status == 9 << 8, "P exits while C holds: its status is its own (0x%x)", (unsigned int)status);
	ok(count_said(p, "SUMMARY") == 1, "P exits while C holds: one SUMMARY line");
	ok(names_pid(said(p), c->pid) && names_big(said(p)),
	   "P exits while C holds: its report names C and the block");
	leave_by(c, END_EXIT, 0);
}

static void reclaimed(void)
{
	struct actor *p = ENTER("P", .env = GRACE), *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc(p, SMALL);
	struct handle handle = export_block(p, block);

	open_block(c, &handle);
	free_block(p, block);
	kill_actor(c);
	if (!claim_within(p, block, SMALL, NEXT, SOON_MS, NULL))
		break_off("P does not get the address again");
	free_block(p, block);
	free_block(p, neighbour);
	leave_by(p, END_EXIT, 0);
	show(p);
	ok(count_said(p, "SUMMARY") == 1, "P took a hold back from a dead process: one SUMMARY line");
	ok(strstr(said(p), "reclaimed=1 ") && names_pid(said(p), c->pid),
	   "which counts that, and the report names the dead process");
}

/* What an importer says of a block that it never closed depends on what has become of it at its exporter. */
static void importer_told(void)
{
	static const struct {
		const char *name, *env;
		bool frees, ends_context, dies;
		const char *says, *hints; /* NULL: it does not wait */
	} cases[] = {
		{ "freed", GRACE, true, false, false, "it waits for this process", "its exporter cannot reuse the memory before" },
		{ "given back", GRACE " CULIMBO_HELD_BYTES=1MiB", true, false, false, "given back there (CULIMBO_HELD_BYTES)",
		  "HINT: close it now" },
		{ "freed where nothing is kept", "CULIMBO_MODE=observe", true, false, false,
		  "given back there (CULIMBO_MODE=observe)", "HINT: close it now" },
		{ "gone with its context", GRACE, false, true, false, "its context has ended there", NULL },
		{ "of a dead exporter", GRACE, true, false, true, "(dead)", NULL },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct actor *p = ENTER("P", .env = cases[i].env), *c = ENTER("C", .env = GRACE);
		uint64_t block = alloc(p, BIG);
		struct handle handle = export_block(p, block);

		open_block(c, &handle);
		if (cases[i].frees)
			free_block(p, block);
		if (cases[i].ends_context)
			ASK(p, ctx_reset);
		if (strstr(cases[i].env, "HELD_BYTES")) {
			double until = now_ms() + SOON_MS;

			while (!count_said(p, "CULIMBO_HELD_BYTES") && watch_until(until))
				;
		}
		if (cases[i].dies)
			kill_actor(p);
		leave_by(c, END_EXIT, 0);
		ok(count_said(c, cases[i].says) == 1, "%s: C says \"%s\"", cases[i].name, cases[i].says);
		ok(!count_said(c, "waits for this process") == (i != 0) &&
			   !count_said(c, "cannot reuse the memory") == (i != 0) &&
			   (!cases[i].hints || count_said(c, cases[i].hints) == 1),
		   "%s: and waits and hints as that is", cases[i].name);
		if (!cases[i].dies)
			leave_by(p, END_EXIT, 0);
	}
}

static void misuse(void)
{
	struct actor *p = ENTER("P", .env = GRACE), *c = ENTER("C", .env = GRACE);
	uint64_t neighbour = alloc(p, SMALL), block = alloc(p, SMALL), import, again;
	struct handle handle = export_block(p, block);

	(void)neighbour;
	import = open_block(c, &handle);
	free_block(p, block);
	try_free(p, block);
	close_block(c, import);
	try_close(c, import);
	if (!claim_within(p, block, SMALL, NEXT, SOON_MS, NULL))
		break_off("P does not get the address again");
	try_open(c, &handle, &again);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	show(p);
	show(c);
	ok(count_said(p, "SUMMARY") == 1 && strstr(said(p), "free"), "freed twice: P's report says so");
	ok(count_said(c, "SUMMARY") == 1 && strstr(said(c), "clos") && strstr(said(c), "stale"),
	   "closed twice, and a stale handle: C's report says so");
}

/* Normal ends: nothing to report. */
static void quiet(void)
{
	static const char *const ends[] = { "freed a moment ago, opened by nobody", "never freed",
					    "freed a moment ago, opened and closed" };

	for (int i = 0; i < 3; i++) {
		struct actor *p = ENTER("P"), *c = ENTER("C");
		uint64_t block = alloc(p, SMALL), own = alloc(c, SMALL);
		struct handle handle = export_block(p, block), other = export_block(c, own);

		if (i == 2)
			close_block(c, open_block(c, &handle));
		close_block(p, open_block(p, &other));
		if (i != 1)
			free_block(p, block);
		leave(p);
		leave(c);
		ok(!*said(p) && !*said(c), "a block %s, at the end of P: nothing to report", ends[i]);
		if (*said(p))
			show(p);
	}
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void share_cleanly(struct actor *p, struct actor *c)
{
	uint64_t block = alloc(p, BIG), import;
	struct handle handle = export_block(p, block);

	import = open_block(c, &handle);
	close_block(c, import);
	free_block(p, block);
}

static void report_options(void)
{
	struct actor *p, *c;
	char env[600], path[600], text[4096];
	uint64_t block;
	struct handle handle;
	FILE *f;
	size_t n;

	p = ENTER("P", .env = "CULIMBO_REPORT=always " GRACE);
	c = ENTER("C", .env = GRACE);
	share_cleanly(p, c);
	leave(c);
	leave(p);
	ok(count_said(p, "SUMMARY") == 1 && !*said(c), "CULIMBO_REPORT=always: a SUMMARY of a clean run too");

	p = ENTER("P", .env = GRACE);
	c = ENTER("C", .env = "CULIMBO_REPORT=off " GRACE);
	block = alloc(p, BIG);
	handle = export_block(p, block);
	open_block(c, &handle);
	leave_by(c, END_EXIT, 0);
	ok(!*said(c), "CULIMBO_REPORT=off: no report of a leak");

	snprintf(env, sizeof(env), "CULIMBO_REPORT_FILE=%s.report.%%p", limbo_folder());
	c = ENTER("C", .env = env);
	open_block(c, &handle);
	leave_by(c, END_EXIT, 0);
	snprintf(path, sizeof(path), "%s.report.%d", limbo_folder(), (int)c->pid);
	f = fopen(path, "re");
	n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
	text[n] = 0;
	ok(strstr(text, "SUMMARY") && !*said(c), "CULIMBO_REPORT_FILE: the report goes there, and not to stderr");
	if (f)
		fclose(f);
	unlink(path);
	leave_by(p, END_EXIT, 0);
}

/* P frees blocks that C and D map, and then allocations fail: the log of each process that lacks memory says who maps what. */
static void keepers_told(void)
{
	enum { PIECES = 3 };
	struct actor *h, *c, *d, *p, *q;
	uint64_t block[PIECES], import[PIECES], what;
	struct handle handle;
	char expected[200];

	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	h = ENTER("H", .bare = true);
	c = ENTER("C", .env = "CULIMBO_GRACE=1m");
	d = ENTER("D", .env = "CULIMBO_GRACE=1m");
	p = ENTER("P", .env = "CULIMBO_GRACE=1m CULIMBO_LOG=info");
	q = ENTER("Q", .env = "CULIMBO_GRACE=1m CULIMBO_LOG=info");
	ASK(h, hog, PIECES * BIG + BIG / 2);
	for (int i = 0; i < PIECES; i++) {
		block[i] = alloc(p, BIG);
		handle = export_block(p, block[i]);
		import[i] = open_block(i ? c : d, &handle);
		free_block(p, block[i]);
	}
	ok(try_alloc(q, BIG, &what) && try_alloc(q, BIG, &what), "8 P's freed blocks fill the device: Q's allocation fails, twice");
	ok(try_alloc(p, BIG, &what), "8 and P's");
	ok(try_alloc(q, 64 * BIG, &what), "8 and one that fits no device");
	for (int i = 0; i < 2; i++) {
		struct actor *who = i ? p : q, *keeper[2] = { c, d };
		char whose[32] = "this process";

		if (who == q)
			snprintf(whose, sizeof whose, "process %d", p->pid);
		for (int k = 0; k < 2; k++) {
			snprintf(expected, sizeof expected,
				 "an allocation of %llu bytes failed while process %d (actor) maps %llu bytes that %s has freed, ",
				 (unsigned long long)BIG, keeper[k]->pid, (unsigned long long)((2 - k) * BIG), whose);
			ok(count_said(who, expected) == 1, "8 %s says once what %s maps, whose it was, and what to do", who->name, keeper[k]->name);
		}
		ok(count_said(who, "failed while process") == 2, "8 %s says nothing more", who->name);
	}
	close_block(c, import[1]);
	ok(!try_alloc(q, BIG, &what), "8 C closes one: Q gets its memory");
	leave(q);
	leave(p);
	leave(d);
	leave(c);
	leave(h);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* What P says of C, who maps @freed bytes of P that CUDA alone may use for the allocation of @asked that has failed. */
static bool warned(const struct actor *p, const struct actor *c, uint64_t asked, uint64_t freed)
{
	char expected[240];

	snprintf(expected, sizeof expected,
		 "]: warning: an allocation of %llu bytes failed, and culimbo keeps memory that it may need: process %d (actor) maps %llu "
		 "bytes that this process has freed and CUDA alone may use again, ",
		 (unsigned long long)asked, c->pid, (unsigned long long)freed);
	return count_said(p, expected) == 1 && count_said(p, " failed") == 1;
}

/*
 * C maps small blocks of P, which has freed them.  Blocks between them stay, so that the driver has no reason to give the
 * pieces away that they lie in.  The device is full.
 */
static void small_keepers(bool bare)
{
	enum { PIECES = 16, FREED = PIECES / 2, MOST = 16384 };
	const uint64_t size = MIB / 4;
	const struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=1m" };
	struct actor *p = enter("P", entry), *c = enter("C", entry), *h = enter("H", (struct entry){ .bare = true });
	uint64_t block[PIECES], what = 0, again = 0;
	struct handle handle;
	int result = 0, large;

	for (int i = 0; i < PIECES; i++)
		block[i] = alloc(p, size);
	for (int i = 0; i < PIECES; i += 2) {
		handle = export_block(p, block[i]);
		open_block(c, &handle);
		free_block(p, block[i]);
	}
	ASK(h, hog, 0);
	/* what is left of the device and of P's pieces goes first */
	do
		large = try_alloc(p, 2 * size, &what);
	while (!large);
	ok(large && !count_said(p, " failed"), "8 %s, one that is larger than each freed small block fails, and P says nothing (%d)",
	   bare ? "control, bare" : p->door, large);
	for (int i = 0; !result && i < MOST; i++) {
		result = try_alloc(p, size, &what);
		for (int k = 0; !result && k < PIECES; k += 2)
			again += what == block[k];
	}
	if (bare)
		ok(result && again > 0, "8 control: bare, those of their size get freed blocks that C maps (%llu, %d)",
		   (unsigned long long)again, result);
	else
		ok(result && !again && warned(p, c, size, FREED * size), "8 one of their size gets none that C maps, and P warns (%llu, %d)",
		   (unsigned long long)again, result);
	leave(h);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
}

/* A pool that may have no more than one block, which C maps.  It gives its memory away when P waits, or keeps it. */
static void pool_keepers(bool bare, bool keeps)
{
	const struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=1m" };
	struct actor *p = enter("P", entry), *c = enter("C", entry);
	uint64_t pool = ASK(p, pool_new, 0, 0, BIG, !keeps)->v[0], fd = p->reply.v[1], taken, block, other;
	const char *how = bare ? "control, bare" : p->door;
	struct handle data;
	int result;

	taken = ASK(c, pool_take, (uint64_t)p->pid, fd)->v[0];
	block = ASK(p, pool_alloc, pool, BIG)->v[0];
	if (p->reply.result || try_pool_export(p, block, &data))
		break_off("the pool gives no block that can be shared (%d)", p->reply.result);
	pool_import(c, taken, &data);
	free_block(p, block);
	other = ASK(p, pool_new, 0, 0, BIG)->v[0];
	result = ASK(p, pool_alloc, other, BIG)->result;
	if (result)
		break_off("a new pool gives nothing (%d)", result);
	result = ASK(p, pool_alloc, other, BIG)->result;
	ok(result && !count_said(p, " failed"), "8 %s, another pool is full: P says nothing of the block that C maps (%d)", how, result);
	result = ASK(p, pool_alloc, pool, 2 * BIG)->result;
	ok(result && !count_said(p, " failed"), "8 %s, nor if the pool cannot give as much (%d)", how, result);
	result = ASK(p, pool_alloc, pool, BIG)->result;
	if (!keeps)
		ok(result && !count_said(p, " failed"), "8 %s, nor if it would have given the block away (%d)", how, result);
	else if (bare)
		ok(!result && p->reply.v[0] == block, "8 control: bare, the pool is full of a freed block that C maps, and gives it again (%d)", result);
	else
		ok(result && warned(p, c, BIG, BIG), "8 the pool is full of a freed block that C maps: P warns (%d)", result);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
}

/* The same with the pool that the device allocates from, which the call does not name. */
static void keepers_current(void)
{
	const struct entry entry = { .env = "CULIMBO_GRACE=1m" };
	struct actor *p = enter("P", entry), *c = enter("C", entry);
	uint64_t pool = ASK(p, pool_new, 0, 0, BIG)->v[0], fd = p->reply.v[1], taken, block;
	struct handle data;
	int result;

	taken = ASK(c, pool_take, (uint64_t)p->pid, fd)->v[0];
	if (ASK(p, a_set_pool, 0, pool)->result)
		break_off("cuDeviceSetMemPool failed with %d", p->reply.result);
	block = ASK(p, a_alloc, BIG, 0)->v[0];
	if (p->reply.result || try_pool_export(p, block, &data))
		break_off("the pool gives no block that can be shared (%d)", p->reply.result);
	pool_import(c, taken, &data);
	free_block(p, block);
	result = ASK(p, a_alloc, BIG, 0)->result;
	ok(result && warned(p, c, BIG, BIG), "8 the pool that the device allocates from is full of a freed block that C maps: P warns (%d)", result);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * Of five processes that map what P's call lacks, the three that map most are named, once.  Of one of them no more than the
 * 256 oldest blocks count.
 */
static void keepers_many(void)
{
	enum { KEEPERS = 5, NAMED = 3, COUNTED = 256, MOST = 16384 };
	static const unsigned int maps[KEEPERS] = { 2, 300, 1, 4, 3 };
	const struct entry entry = { .env = "CULIMBO_GRACE=1m" };
	const uint64_t size = MIB / 16;
	struct actor *p = enter("P", entry), *keeper[KEEPERS], *h = enter("H", (struct entry){ .bare = true });
	static const char *const name[KEEPERS] = { "A", "B", "C", "D", "E" };
	uint64_t what;
	int result = 0;

	for (int i = 0; i < KEEPERS; i++)
		keeper[i] = enter(name[i], entry);
	/* who maps most comes last, so that its blocks alone pass the limit */
	for (unsigned int least = 1; least <= 300; least = least < 4 ? least + 1 : least < 300 ? 300 : 301)
		for (int i = 0; i < KEEPERS; i++)
			for (unsigned int n = 0; maps[i] == least && n < least; n++) {
				uint64_t block = alloc(p, size);
				struct handle handle = export_block(p, block);

				open_block(keeper[i], &handle);
				free_block(p, block);
			}
	ASK(h, hog, 0);
	for (int i = 0; !result && i < MOST; i++)
		result = try_alloc(p, size, &what);
	ok(result && try_alloc(p, size, &what), "8 two allocations fail that lack what five processes map (%d)", result);
	ok(count_said(p, "failed, and culimbo keeps") == NAMED, "8 P names three of them, once (%d)", count_said(p, "failed, and culimbo keeps"));
	for (int i = 0; i < KEEPERS; i++) {
		char expected[64];
		uint64_t counted = (maps[i] > COUNTED ? COUNTED - 10 : maps[i]) * size;

		snprintf(expected, sizeof expected, "process %d (actor) maps at least %llu bytes", keeper[i]->pid, (unsigned long long)counted);
		ok(count_said(p, expected) == (maps[i] > 2), "8 %s, who maps %u blocks, is %s", keeper[i]->name, maps[i],
		   maps[i] > 2 ? "named" : "not named");
	}
	leave(h);
	for (int i = 0; i < KEEPERS; i++)
		leave_by(keeper[i], END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* Without culimbo the allocation would have got what others map: that is said unasked, and nothing else is. */
static void keepers_warned(void)
{
	setenv("CULIMBO_SIM_MEMORY", "256MiB", 1);
	for (int bare = 1; bare >= 0; bare--) {
		small_keepers(bare);
		pool_keepers(bare, true);
	}
	pool_keepers(false, false);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

const struct scene report_scenes[] = {
	{ "quiet", quiet, 0 },
	{ "leaks", leaks, 0 },
	{ "exporter-leaves", exporter_leaves, 0 },
	{ "reclaimed", reclaimed, 0 },
	{ "importer-told", importer_told, 0 },
	{ "misuse", misuse, 0 },
	{ "report-options", report_options, 0 },
	{ "memory-findings", memory_findings, 0 },
	{ "misuse-findings", misuse_findings, 0 },
	{ "event-findings", event_findings, 0 },
	{ "early-findings", early_findings, 0 },
	{ "early-quiet", early_quiet, 0 },
	{ "keepers-told", keepers_told, SCENE_ALONE },
	{ "keepers-warned", keepers_warned, SCENE_ALONE },
	{ "keepers-current", keepers_current, SCENE_ALONE | SCENE_SIMULATED },
	{ "keepers-many", keepers_many, SCENE_ALONE | SCENE_SIMULATED },
	{ .name = NULL },
};

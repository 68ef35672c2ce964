/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of bad settings and unusual systems: culimbo prints one message and does nothing more,
 * and the program continues.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stage.h"

#define SOON_MS 5000

/* P shares a small block with C and frees it.  The results of the calls, and whether C still reads its own bytes. */
struct outcome {
	bool right;	/* every call succeeded, C read P's bytes before the free */
	bool corrupted; /* after the free, C read the next block's bytes */
	bool came_back;
	struct handle handle;
};

static struct outcome share(struct actor *p, struct actor *c)
{
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import = 0;
	struct outcome outcome = { .right = true };
	unsigned int foreign = 0;
	int result;

	(void)neighbour;
	result = try_export(p, block, &outcome.handle);
	if (!result)
		result = try_open(c, &outcome.handle, &import);
	if (result) {
		note("sharing failed with %d", result);
		outcome.right = false;
		return outcome;
	}
	outcome.right = reads(c, import, SMALL, OWN, NULL);
	outcome.right = !try_free(p, block) && outcome.right;
	outcome.came_back = claim(p, block, SMALL, NEXT);
	outcome.corrupted = !reads(c, import, SMALL, OWN, &foreign) && foreign == NEXT;
	outcome.right = !try_close(c, import) && outcome.right;
	return outcome;
}

static int lines(const struct actor *actor)
{
	return count_said(actor, "\n");
}

/* ------------------------------------------------------------------- options */
static void bad_option(void)
{
	const char *env = "CULIMBO_GRACE=banana";
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = env);
	struct outcome outcome = share(p, c);

	ok(outcome.right && !outcome.corrupted, "a bad option: the program works and is protected");
	leave(c);
	leave(p);
	ok(count_said(p, "CULIMBO_GRACE") == 1 && count_said(p, "banana") == 1,
	   "a bad option: one warning, with the value");
	p = ENTER("P", .env = "CULIMBO_GARCE=1s");
	c = ENTER("C");
	outcome = share(p, c);
	leave(c);
	leave(p);
	ok(outcome.right && count_said(p, "CULIMBO_GARCE") == 1 && count_said(p, "CULIMBO_GRACE") == 1,
	   "an unknown option: a warning, with the most similar valid name");
}

static void disabled(void)
{
	const char *env = "CULIMBO_DISABLE=1";
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = env);
	struct outcome outcome = share(p, c);

	ok(outcome.right && outcome.corrupted, "CULIMBO_DISABLE=1 is bare: C reads the next block's bytes");
	ok(is_unstamped(&outcome.handle), "CULIMBO_DISABLE=1 is bare: the handle is the unchanged driver handle");
	leave(c);
	leave(p);
	ok(!*said(p) && !*said(c) && access(limbo_folder(), F_OK), "CULIMBO_DISABLE=1: no message, no folder");
}

/* ------------------------------------------------------- an unknown driver */
static void unknown_tail(void)
{
	struct actor *p, *c;
	struct outcome outcome;
	uint64_t block, import;
	struct handle handle;

	setenv("CULIMBO_SIM_TAIL", "random", 1);
	p = ENTER("P", .env = "CULIMBO_GRACE=0 CULIMBO_REPORT=off");
	c = ENTER("C");
	outcome = share(p, c);
	ok(outcome.right, "a driver whose handles have no room for a stamp: the program works");
	ok(!outcome.corrupted, "and C reads its own bytes: P keeps the block");
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	ok(reads(c, import, SMALL, OWN, NULL), "and continues to share");
	close_block(c, import);
	free_block(p, block);
	ok(!claim(p, block, SMALL, NEXT),
	   "a shared block is kept when it is freed, though no process has it open");
	leave(c);
	leave(p);
	note("P said: %.200s", said(p));
	ok(lines(p) == 1 && count_said(p, "are kept until it ends") == 1, "and P prints that once (%d lines)", lines(p));
	ok(lines(c) == 0, "and C prints nothing (%d lines)", lines(c));
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* ---------------------------------------------------------- no place for files */
static void no_folder_once(const char *what, const char *folder)
{
	struct actor *p, *c;
	struct outcome outcome;
	char env[600];

	snprintf(env, sizeof(env), "CULIMBO_DIR=%s", folder);
	p = ENTER("P", .env = env);
	c = ENTER("C", .env = env);
	outcome = share(p, c);
	ok(outcome.right, "%s: the program works", what);
	note("%s: C %s", what, outcome.corrupted ? "reads the next block's bytes, as bare" :
						  "reads its own bytes (the block is kept)");
	outcome = share(p, c);
	ok(outcome.right, "%s: and continues to share", what);
	ok(lines(p) == 1, "%s: P prints that once (%d lines)", what, lines(p));
	note("P said: %.200s", said(p));
	ok(lines(c) <= 1, "%s: C prints at most one line (%d lines)", what, lines(c));
	ok(leave_by(c, END_EXIT, 3) == 3 << 8 && leave_by(p, END_EXIT, 4) == 4 << 8,
	   "%s: exit statuses are the program's own", what);
}

static void no_folder(void)
{
	char path[560], file[512];
	int fd;

	snprintf(path, sizeof(path), "%s/no/such/parent", limbo_folder());
	no_folder_once("CULIMBO_DIR under a parent that does not exist", path);
	snprintf(file, sizeof(file), "%s.file", limbo_folder());
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		break_off("cannot make %s", file);
	close(fd);
	no_folder_once("CULIMBO_DIR that is a file", file);
	snprintf(path, sizeof(path), "%s/limbo", file);
	no_folder_once("CULIMBO_DIR under a file", path);
	no_folder_once("CULIMBO_DIR in a file system without files", "/proc/culimbo");
	unlink(file);
}

/* ------------------------------------------------------- nothing but observation */
enum { ANSWERS = 8 };

/* Makes calls whose results culimbo would change, and records each answer. */
static void misuse(struct actor *p, struct actor *c, int answer[ANSWERS])
{
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import, big, before;
	struct handle handle = export_block(p, block);

	(void)neighbour;
	import = open_block(c, &handle);
	free_block(p, block);
	answer[0] = claim(p, block, SMALL, NEXT);
	answer[1] = reads(c, import, SMALL, NEXT, NULL); /* another block's bytes */
	close_block(c, import);
	answer[2] = try_open(c, &handle, &import); /* a stale handle */
	answer[3] = !answer[2] && reads(c, import, SMALL, NEXT, NULL);
	if (!answer[2])
		close_block(c, import);
	answer[4] = try_open(p, &handle, &import); /* a handle of its own */
	free_block(p, block);
	answer[5] = try_free(p, block);
	big = alloc_filled(p, BIG, OWN);
	handle = export_block(p, big);
	before = free_memory(p);
	free_block(p, big);
	answer[6] = free_memory(p) - before == BIG;
	answer[7] = try_open(c, &handle, &import);
}

static void observed(void)
{
	int bare[ANSWERS], seen[ANSWERS];
	struct actor *p = ENTER("P", .bare = true), *c = ENTER("C", .bare = true);

	misuse(p, c, bare);
	leave(c);
	leave(p);
	p = ENTER("P", .env = "CULIMBO_MODE=observe CULIMBO_REPORT=always");
	c = ENTER("C", .env = "CULIMBO_MODE=observe");
	misuse(p, c, seen);
	ok(!memcmp(bare, seen, sizeof bare), "CULIMBO_MODE=observe: each answer is as without culimbo");
	for (int i = 0; i < ANSWERS; i++)
		note("answer %d: %d, and under culimbo %d", i, bare[i], seen[i]);
	ok(bare[0] && bare[1], "and these are the errors that culimbo prevents");
	leave(c);
	leave(p);
	ok(count_said(c, "misuse=2") == 1, "C's report names the two stale handles that it tried to open");
	ok(count_said(p, "while process ") == 1, "P's report names the block that it freed while C mapped it");
	ok(count_said(p, "CULIMBO_MODE=observe") == 1, "and says that nothing was kept");
	ok(count_said(p, "culimbo kept") == 0, "and does not say that a block was kept alive");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A block that was freed while it was held, and is still held at the end. */
static void observed_to_the_end(void)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_MODE=observe CULIMBO_REPORT=always");
	struct actor *c = ENTER("C", .env = "CULIMBO_MODE=observe");
	uint64_t block = alloc(p, SMALL);
	struct handle handle = export_block(p, block);

	open_block(c, &handle);
	free_block(p, block);
	leave(p);
	ok(count_said(p, "CONTEXT") == 0, "P's report names no context, because none ended");
	ok(count_said(p, " still maps 1 block (1 KiB) that process ") == 1, "but it names the block that it freed and C still maps");
	ok(count_said(p, "it may read what others write there") == 1, "and says what harm that can do");
	ok(count_said(p, " held=1 ") == 1 && count_said(p, " limbo=") == 0, "and counts nothing in a limbo");
	leave(c);
}

/* --------------------------------------------------------- which driver it is */
static void which_driver(void)
{
	struct actor *p = ENTER("P", .door = "linked"), *b = ENTER("B", .bare = true);
	char path[64], line[1024];
	bool preload = false, simulated = false, in_bare = false;
	FILE *f;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/proc/%d/maps", (int)(i ? b : p)->pid);
		f = fopen(path, "re");
		if (!f)
			break_off("cannot read %s", path);
		while (fgets(line, sizeof(line), f)) {
			bool ours = strstr(line, "libculimbo.so") != NULL;

			preload = preload || (!i && ours);
			in_bare = in_bare || (i && ours);
			simulated = simulated || strstr(line, "tools/sim/");
		}
		fclose(f);
	}
	ok(preload && !in_bare, "the library is loaded into the actors that are to have it, and into no other");
	ok(simulated != on_real_driver(), "the driver is the %s one", on_real_driver() ? "real" : "simulated");
	leave(p);
	leave(b);
}

const struct scene odd_scenes[] = {
	{ "which-driver", which_driver, 0 },
	{ "bad-option", bad_option, 0 },
	{ "disabled", disabled, 0 },
	{ "unknown-tail", unknown_tail, SCENE_SIMULATED },
	{ "no-folder", no_folder, 0 },
	{ "observed", observed, SCENE_ALONE },
	{ "observed-to-the-end", observed_to_the_end, 0 },
	{ .name = NULL },
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of processes that open memory which CUDA refuses legacy handles (17 and 18): they are killed in the middle of
 * their open, and there are many at once.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "scene_async.h"
#include "scene_shared.h"
#include "scene_virtual.h"

#define SOON_MS 5000

void stop(const struct actor *actor)
{
	int status;

	kill(actor->pid, SIGSTOP);
	if (waitpid(actor->pid, &status, WUNTRACED) != actor->pid || !WIFSTOPPED(status))
		break_off("%s is not stopped", actor->name);
}

/* How many descriptors the actor has whose link begins with @what. */
static int descriptors_of(const struct actor *actor, const char *what)
{
	char path[64], link[320], target[64];
	struct dirent *entry;
	DIR *folder;
	int n = 0;

	snprintf(path, sizeof path, "/proc/%d/fd", (int)actor->pid);
	folder = opendir(path);
	while (folder && (entry = readdir(folder))) {
		ssize_t got;

		snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
		got = readlink(link, target, sizeof target - 1);
		if (got < 0)
			continue;
		target[got] = '\0';
		n += !strncmp(target, what, strlen(what));
	}
	if (folder)
		closedir(folder);
	return n;
}

static bool sleeps(const struct actor *actor)
{
	char path[64], state = '?';
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)actor->pid);
	file = fopen(path, "re");
	if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = '?';
	if (file)
		fclose(file);
	return state == 'S';
}

void ask_for(struct actor *c, const struct handle *handle)
{
	double deadline = now_ms() + 10000;
	int before = descriptors_of(c, "socket:");

	tell(c, OP_open, handle->bytes, (const uint64_t[6]){ LAZY });
	/* from the making of its socket on nothing but the answer lets it wait */
	while (descriptors_of(c, "socket:") <= before || !sleeps(c))
		if (has_answered(c) || !watch_until(deadline))
			break_off("%s asks nobody", c->name);
}

/* ------------------------------------------------------- killed in the middle of an open */
/* The exporter has not answered yet; its answer is on its way, and C does not take it. */
enum moment { UNANSWERED, ANSWERED, MOMENTS };
static const char *const moments[] = { "before P answers", "with P's answer on its way" };

/* The number of P's descriptors, once it is @n or some seconds are over. */
static int descriptors_within(const struct actor *p, int n)
{
	double deadline = now_ms() + SOON_MS;

	while (descriptors_of(p, "") != n && watch_until(deadline))
		;
	return descriptors_of(p, "");
}

/* The number of P's descriptors, when a first open is over: the driver may keep some from then on. */
static int descriptors_after_one(const struct actor *p, const struct handle *handle)
{
	struct actor *first = ENTER("FIRST");
	double deadline = now_ms() + SOON_MS;
	int sockets = descriptors_of(p, "socket:");

	close_block(first, open_block(first, handle));
	leave(first);
	while (descriptors_of(p, "socket:") != sockets && watch_until(deadline))
		;
	return descriptors_of(p, "");
}

/* C is killed while it opens @handle.  Then D has it open, at the address that is returned. */
static uint64_t kill_amid(struct actor *p, struct actor *c, struct actor *d, const struct handle *handle, enum moment moment)
{
	uint64_t import;

	if (p->bare) { /* the driver asks nobody: C is in its open, or just after it */
		tell(c, OP_open, handle->bytes, (const uint64_t[6]){ LAZY });
		taken(c);
		kill_actor(c);
		return open_block(d, handle);
	}
	stop(p);
	ask_for(c, handle);
	if (moment == UNANSWERED)
		kill_actor(c);
	else
		stop(c);
	kill(p->pid, SIGCONT);
	/* it asks after C, and so has its answer after C has */
	import = open_block(d, handle);
	if (moment == ANSWERED)
		kill_actor(c);
	return import;
}

static void importer_killed(bool bare, enum kind kind, enum moment moment)
{
	struct actor *p = bare ? ENTER("P", .bare = true) : ENTER("P", .env = SOON);
	struct actor *c = ENTER("C", .bare = bare), *d = ENTER("D", .bare = bare);
	const char *who = bare ? "control: bare" : "17 18", *when = bare ? "" : moments[moment];
	uint64_t at = shared_alloc(p, kind, BIG, OWN), import, full;
	struct handle handle = export_block(p, at);
	int had = bare ? 0 : descriptors_after_one(p, &handle), has;
	bool back;

	import = kill_amid(p, c, d, &handle, moment);
	ok(reads(d, import, BIG, OWN, NULL) && reads(p, at, BIG, OWN, NULL),
	   "%s: C is killed in its open of %s %s: P lives, and D opens it and reads P's bytes", who, kinds[kind], when);
	close_block(d, import);
	full = free_memory(p);
	if (kind == ASYNC)
		async_free(p, at);
	else if (kind == VIRTUAL)
		virtual_unmap(p, at, BIG);
	else
		free_block(p, at);
	back = kind == ASYNC ? async_claim_within(p, at, BIG, SOON_MS) : free_within(p, full + BIG, SOON_MS, NULL);
	ok(back, "%s: P frees it, and its memory can be had again", who);
	if (!bare) {
		has = descriptors_within(p, had);
		ok(has == had, "17 18 P has as many descriptors as before (%d, before %d)", has, had);
	}
	leave(d);
	leave(p);
	/* of virtual memory C has a hold before it asks */
	ok(!*said(p) || (kind == VIRTUAL && count_said(p, "ended without closing 1 block") == 1 && count_said(p, "findings=1") == 1),
	   "%s: P says nothing, or that C ended without closing it", who);
	ok(no_file_stays(), "no file is left in CULIMBO_DIR");
}

void shared_importer_killed(void)
{
	importer_killed(true, LEGACY, UNANSWERED);
	for (int kind = VIRTUAL; kind < KINDS; kind++)
		for (int moment = 0; moment < MOMENTS; moment++)
			importer_killed(false, (enum kind)kind, (enum moment)moment);
}

/* -------------------------------------------------------------------- many at once */
enum { CROWD = 64, SIDE_BY_SIDE = 70 };

/* All open @handle at once.  With @kill one of four is killed amid its open, or just after it.  Returns how many have it. */
static int open_at_once(struct actor **c, const struct handle *handle, bool kill, uint64_t *import)
{
	int opened = 0;

	for (int i = 0; i < CROWD; i++)
		tell(c[i], OP_open, handle->bytes, (const uint64_t[6]){ LAZY });
	for (int i = 0; i < CROWD; i++) {
		if (kill && i % 4 == 3) {
			kill_actor(c[i]);
			continue;
		}
		opened += !hear(c[i], 20000)->result;
		import[i] = c[i]->reply.v[0];
	}
	return opened;
}

/* How many of those that live read what P wrote: of a block, and with @many also of all allocations side by side. */
static int right(struct actor **c, const uint64_t *block, const uint64_t *many)
{
	int n = 0;

	for (int i = 0; i < CROWD; i++)
		n += !c[i]->ended && reads(c[i], block[i], PIECE, OWN, NULL) &&
		     (!many || !ASK(c[i], v_check_many, many[i], SIDE_BY_SIDE, PIECE, 9)->v[0]);
	return n;
}

/* They all open a block of stream-ordered memory at once, and then memory of many allocations; some are killed meanwhile. */
void shared_crowd(void)
{
	enum { LEFT = CROWD * 3 / 4 };
	struct actor *p = ENTER("P", .env = SOON), *c[CROWD];
	uint64_t at = virtual_reserve(p, SIDE_BY_SIDE * PIECE), block = async_alloc(p, PIECE, OWN);
	uint64_t many[CROWD], import[CROWD];
	struct handle handle;
	int opened, readers;
	char name[8];

	if (ASK(p, v_many, at, SIDE_BY_SIDE, PIECE, 9)->result)
		break_off("P cannot map (%d)", p->reply.result);
	for (int i = 0; i < CROWD; i++) {
		snprintf(name, sizeof name, "C%d", i);
		c[i] = ENTER(name);
	}
	handle = export_block(p, block);
	opened = open_at_once(c, &handle, false, import);
	readers = opened == CROWD ? right(c, import, NULL) : 0;
	ok(readers == CROWD, "18 %d open stream-ordered memory at once: %d succeed, and %d read it", CROWD, opened, readers);
	handle = export_block(p, at);
	opened = open_at_once(c, &handle, true, many);
	ok(opened == LEFT, "17 %d open %d allocations at once, %d are killed: %d succeed", CROWD, SIDE_BY_SIDE, CROWD - LEFT,
	   opened);
	virtual_unmap(p, at, SIDE_BY_SIDE * PIECE);
	async_free(p, block);
	ok(!async_claim(p, block, PIECE), "18 P frees its block: nothing else gets its place while they have it open");
	readers = opened == LEFT ? right(c, import, many) : 0;
	ok(readers == LEFT, "17 18 when P has unmapped and freed all, %d read all of both", readers);
	for (int i = 0; i < CROWD; i++)
		if (!c[i]->ended) {
			close_block(c[i], import[i]);
			close_block(c[i], many[i]);
			leave(c[i]);
		}
	ok(async_claim_within(p, block, PIECE, SOON_MS), "18 they close it, or were killed with it: the pool uses it again");
	leave(p);
	/* one may have been killed amid making its own file */
	ok(no_file_stays(), "no file is left in CULIMBO_DIR");
}

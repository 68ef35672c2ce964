/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scene of pools (16) where one side has another culimbo: E2E_OLDER names its library, of an older
 * version or of one with another layout of exporter files; without it, it is this build's own.  What
 * that library is the scene finds out, and expects what two such sides can do:
 *
 *   it knows pools, has our layout, and stamps export data as we do   each side protects what the other frees
 *   else                                  pools are as where that side has no culimbo
 *   it stamps them in another way         and the importer says so once
 *   it has another layout                 so is memory, and the importer says so once
 */
#include "scene_pool.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MS 300
#define SAYS_LAYOUT "made by another version of culimbo"
#define SAYS_STAMP "has another culimbo, which stamps pointers into memory pools in another way"

static struct other {
	const char *path;
	unsigned int stamps, our_stamps; /* the version of its stamps in export data; 0: it knows no pools */
	uint32_t layout, ours;
} other;

/* ------------------------------------------------------------ what that library is */
/* The layout of the one exporter file that is there: all layouts have it after the magic of 8 bytes. */
static uint32_t layout_there(void)
{
	DIR *folder = opendir(limbo_folder());
	struct dirent *entry;
	char path[1024];
	uint32_t words[3] = { 0 };
	FILE *file;

	while (folder && (entry = readdir(folder)) != NULL) {
		if (strncmp(entry->d_name, "exporter-", 9))
			continue;
		snprintf(path, sizeof(path), "%s/%s", limbo_folder(), entry->d_name);
		file = fopen(path, "re");
		if (!file || fread(words, sizeof(words), 1, file) != 1)
			break_off("%s cannot be read", path);
		fclose(file);
	}
	if (folder)
		closedir(folder);
	return words[2];
}

static uint32_t look_at(struct entry entry, unsigned int *stamps)
{
	static const unsigned char garbage[16] = { [0 ... 15] = 0xee }; /* what the actor asks into */
	struct pair pair = { .p = enter("D", entry) };
	uint32_t layout;
	struct handle data;

	pair.pool = ASK(pair.p, pool_new, 0)->v[0];
	data = pool_export(pair.p, pool_alloc(&pair, SMALL));
	*stamps = memcmp(data.bytes + 48, garbage, sizeof(garbage)) ? data.bytes[50] >> 6 | (data.bytes[51] & 3) << 2 : 0;
	export_block(pair.p, alloc(pair.p, SMALL));
	layout = layout_there();
	leave_by(pair.p, END_EXIT, 0);
	return layout;
}

/* ---------------------------------------------------------------- the same for all */
struct answers {
	int export_again, freed[2], stale, fresh;
	bool imported;		     /* twice, at one address, and C read what P wrote */
	bool pool_got, pool_own;     /* freed by P: it got the address again; C read its own bytes */
	bool memory_got, memory_own; /* the same of a block of cuMemAlloc */
	bool back;		     /* freed by both, P got the address again */
};

static struct answers play(const struct pair *pair)
{
	struct answers a = { .export_again = -1 };
	uint64_t block = pool_alloc(pair, SMALL), import, again, neighbour;
	struct handle data = pool_export(pair->p, block), twice;

	a.export_again = try_pool_export(pair->p, block, &twice);
	import = pool_import(pair->c, pair->taken, &data);
	again = pool_import(pair->c, pair->taken, &twice);
	a.imported = import == again && reads(pair->c, import, SMALL, OWN, NULL);
	a.freed[0] = try_free(pair->c, import);
	a.freed[1] = try_free(pair->c, import);
	/* freed by P, beyond the grace, and overwritten if P got it */
	import = pool_import(pair->c, pair->taken, &data);
	free_block(pair->p, block);
	a.pool_got = pool_claim_within(pair, block, SMALL, 3 * GRACE_MS);
	a.pool_own = reads(pair->c, import, SMALL, OWN, NULL);
	free_in_sure(pair->c, import, 0);
	a.back = a.pool_got || pool_claim_within(pair, block, SMALL, SOON_MS);
	a.stale = try_pool_import(pair->c, pair->taken, &data, &again);
	if (!a.stale)
		free_block(pair->c, again);
	data = pool_export(pair->p, block);
	a.fresh = try_pool_import(pair->c, pair->taken, &data, &again);
	if (!a.fresh && !reads(pair->c, again, SMALL, NEXT, NULL))
		a.fresh = -1;
	if (!a.fresh)
		free_block(pair->c, again);
	free_block(pair->p, block);

	/* the neighbour keeps the driver's chunk, so that the address is given again */
	neighbour = alloc(pair->p, SMALL);
	block = alloc_filled(pair->p, SMALL, OWN);
	data = export_block(pair->p, block);
	import = open_block(pair->c, &data);
	free_block(pair->p, block);
	a.memory_got = claim_within(pair->p, block, SMALL, NEXT, 3 * GRACE_MS, NULL);
	a.memory_own = reads(pair->c, import, SMALL, OWN, NULL);
	close_block(pair->c, import);
	free_block(pair->p, neighbour);
	return a;
}

static void control(void)
{
	struct entry bare = { .bare = true };
	struct pair pair = pool_pair(bare, bare);
	struct answers a = play(&pair);

	ok(a.imported && a.pool_got && !a.pool_own && !a.stale && !a.freed[0] && a.freed[1] == INVALID_VALUE,
	   "control: bare, pool: C reads the next block's bytes, stale data too, and its second free is refused");
	ok(a.memory_got && !a.memory_own, "control: bare: and of a block of cuMemAlloc");
	pool_curtain(&pair);
}

/* -------------------------------------------------------------------- one side older */
static struct pair pair_with(bool importer)
{
	struct entry now = { .env = POOL_GRACE };
	struct entry older = { .bare = true, .env = POOL_GRACE, .other = other.path };

	return importer ? pool_pair(now, older) : pool_pair(older, now);
}

static void older_once(bool importer)
{
	bool same = other.layout == other.ours, both = same && other.stamps == other.our_stamps;
	bool counts = !importer || other.stamps; /* imports are counted by C */
	int says_stamp = other.stamps && other.stamps != other.our_stamps;
	const char *who = importer ? "C" : "P";
	struct pair pair = pair_with(importer);
	struct actor *now = importer ? pair.p : pair.c;
	struct answers a = play(&pair);
	bool silent;

	ok(a.imported && !a.export_again && !a.fresh,
	   "16 %s is older: what P exports, first and again, C imports and reads (%d, %d)", who, a.export_again, a.fresh);
	ok(!a.freed[0] && a.freed[1] == (counts ? 0 : INVALID_VALUE), "16 %s is older: two frees of two imports (%d, %d)", who,
	   a.freed[0], a.freed[1]);
	ok(a.pool_got == !both && a.pool_own == both, "16 %s is older: freed by P, C reads %s", who,
	   both ? "its own bytes" : "the next block's, as bare");
	ok(a.back, "16 %s is older: what both have freed is used again", who);
	ok(a.stale == (both ? INVALID_VALUE : 0), "16 %s is older: stale data are %s (%d)", who,
	   both ? "refused" : "imported, as bare", a.stale);
	ok(a.memory_got == !same && a.memory_own == same, "16 %s is older: of cuMemAlloc, freed by P, C reads %s", who,
	   same ? "its own bytes" : "the next block's, as bare");
	leave(pair.c);
	leave(pair.p);
	if (importer || (same && !says_stamp)) {
		silent = !strstr(said(now), ": warning: ") && !strstr(said(now), ": error: ");
		ok(silent, "16 %s is older: %s has nothing to warn of", who, now->name);
	} else {
		ok(count_said(now, SAYS_LAYOUT) == !same && count_said(now, SAYS_STAMP) == says_stamp &&
			   count_said(now, ": warning: ") == !same + says_stamp,
		   "16 P is older: C says once %s%s%s", same ? "" : "that it cannot read the file of another version",
		   !same && says_stamp ? ", and " : "", says_stamp ? "that its pools' pointers are stamped in another way" : "");
	}
	ok(both == !!strstr(said(pair.c), "STALE: "), "16 %s is older: C's report has %s", who,
	   both ? "the stale data" : "no stale data");
	ok(no_file_is_left(), "16 %s is older: no file is left in CULIMBO_DIR", who);
}

/* C is killed while it has a block imported, and then P. */
static void killed_once(bool importer)
{
	const char *who = importer ? "C" : "P";
	struct pair pair = pair_with(importer);
	uint64_t block = pool_alloc(&pair, SMALL), kept = pool_alloc(&pair, SMALL), import;
	struct handle data = pool_export(pair.p, block), later = pool_export(pair.p, kept);
	struct actor *c = pair.c;

	pool_import(c, pair.taken, &data);
	free_block(pair.p, block);
	kill_actor(c);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 %s is older: C is killed, P gets the address again", who);
	pair.c = enter("E", importer ? (struct entry){ .bare = true, .env = POOL_GRACE, .other = other.path } :
				       (struct entry){ .env = POOL_GRACE });
	pair.taken = pool_taken_by(&pair, pair.c);
	import = pool_import(pair.c, pair.taken, &later);
	kill_actor(pair.p);
	ok(reads(pair.c, import, SMALL, OWN, NULL) && !try_free(pair.c, import),
	   "16 %s is older: P is killed, another C reads its own bytes, and frees them", who);
	leave_by(pair.c, END_EXIT, 0);
}

void pool_older(void)
{
	static char own[1024];

	other.path = getenv("E2E_OLDER");
	if (!other.path) {
		snprintf(own, sizeof(own), "%s/.libs/libculimbo.so", getenv("E2E_BUILD"));
		other.path = own;
	}
	other.ours = look_at((struct entry){ .env = POOL_GRACE }, &other.our_stamps);
	if (!other.our_stamps || !other.ours)
		break_off("this build's library stamps no export data, or has no file");
	other.layout = look_at((struct entry){ .bare = true, .env = POOL_GRACE, .other = other.path }, &other.stamps);
	if (!other.layout)
		break_off("%s is not preloaded", other.path);
	note("ours has layout %u and stamps %u; the other one, %s, has layout %u and stamps %u (0: none)", other.ours,
	     other.our_stamps, other.path, other.layout, other.stamps);
	control();
	for (int importer = 0; importer < 2; importer++) {
		older_once(importer);
		killed_once(importer);
	}
}

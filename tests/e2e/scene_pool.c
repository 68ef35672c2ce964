/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of pools that are shared by pointer (16): what a holder reads, what stale data give, how
 * imports are counted, and what a stream-ordered free of an import waits for; and the list of them
 * and of those in the other files scene_pool_*.c.
 */
#include "scene_pool.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ operations */
uint64_t pool_taken_by(const struct pair *pair, struct actor *actor)
{
	if (ASK(actor, pool_take, (uint64_t)pair->p->pid, pair->fd)->result)
		break_off("%s cannot import the pool (%d)", actor->name, actor->reply.result);
	return actor->reply.v[0];
}

struct pair pool_pair(struct entry p, struct entry c)
{
	struct pair pair = { .p = enter("P", p), .c = enter("C", c) };

	pair.pool = ASK(pair.p, pool_new, 0)->v[0];
	pair.fd = pair.p->reply.v[1];
	pair.taken = pool_taken_by(&pair, pair.c);
	return pair;
}

void pool_curtain(const struct pair *pair)
{
	leave(pair->c);
	leave(pair->p);
	if (pair->p->bare || pair->c->bare)
		return;
	ok(!*said(pair->p) && !*said(pair->c), "%s, %s: a clean run says nothing on stderr", pair->p->name,
	   pair->c->name);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

uint64_t pool_alloc(const struct pair *pair, uint64_t bytes)
{
	const struct wire_reply *reply = ASK(pair->p, pool_alloc, pair->pool, bytes);
	uint64_t block = reply->v[0];

	if (reply->result)
		break_off("no %llu bytes of the pool (%d)", (unsigned long long)bytes, reply->result);
	fill(pair->p, block, bytes, OWN);
	return block;
}

int try_pool_export(struct actor *actor, uint64_t block, struct handle *data)
{
	const struct wire_reply *reply = ASK(actor, pool_export, block);

	memcpy(data->bytes, reply->handle, 64);
	return reply->result;
}

struct handle pool_export(struct actor *actor, uint64_t block)
{
	struct handle data;
	int result = try_pool_export(actor, block, &data);

	if (result)
		break_off("%s cannot export (%d)", actor->name, result);
	return data;
}

int try_pool_import(struct actor *actor, uint64_t pool, const struct handle *data, uint64_t *address)
{
	const struct wire_reply *reply = ask(actor, OP_pool_import, data->bytes, (const uint64_t[6]){ pool });

	*address = reply->v[0];
	return reply->result;
}

uint64_t pool_import(struct actor *actor, uint64_t pool, const struct handle *data)
{
	uint64_t address;
	int result = try_pool_import(actor, pool, data, &address);

	if (result)
		break_off("%s cannot import (%d)", actor->name, result);
	return address;
}

int free_in(struct actor *actor, uint64_t address, uint64_t stream)
{
	return ASK(actor, stream_free, address, stream, 0)->result;
}

void free_in_sure(struct actor *actor, uint64_t address, uint64_t stream)
{
	if (free_in(actor, address, stream))
		break_off("cuMemFreeAsync failed with %d", actor->reply.result);
}

static bool claim_by(const struct pair *pair, uint64_t block, uint64_t bytes, unsigned int tries)
{
	return ASK(pair->p, pool_claim, pair->pool, block, bytes, tries, NEXT)->v[0] != 0;
}

bool pool_claim(const struct pair *pair, uint64_t block, uint64_t bytes)
{
	return claim_by(pair, block, bytes, bytes == SMALL ? 64 : 4);
}

bool pool_claim_within(const struct pair *pair, uint64_t block, uint64_t bytes, double ms)
{
	unsigned int most = bytes == SMALL ? 64 : 4;
	double deadline = now_ms() + ms;

	/*
	 * A block that is freed during a claim is behind those that the claim frees.  So each claim tries one
	 * more, up to four times as many: what claims before this one have freed is in front of it, too.
	 */
	for (unsigned int tries = most; !claim_by(pair, block, bytes, tries); tries += tries < 4 * most)
		if (!watch_until(deadline))
			return false;
	return true;
}

/* ------------------------------------------------------- freed, and overwritten */
enum { BY_FREE = 0, BY_STREAM = 1 };

static void free_by(struct actor *actor, uint64_t address, int how)
{
	if (how == BY_STREAM)
		free_in_sure(actor, address, 0);
	else
		free_block(actor, address);
}

static void reuse_once(const struct pair *pair, uint64_t bytes, int p_frees, int c_frees)
{
	struct actor *p = pair->p, *c = pair->c;
	uint64_t block = pool_alloc(pair, bytes);
	struct handle data = pool_export(p, block);
	uint64_t import = pool_import(c, pair->taken, &data);
	unsigned int foreign = 0;
	char what[80];
	bool got, own;

	snprintf(what, sizeof(what), "%s, %s, %s, %s", p->door, bytes == SMALL ? "small" : "64 MiB",
		 p_frees ? "cuMemFreeAsync" : "cuMemFree", c_frees ? "cuMemFreeAsync" : "cuMemFree");
	if (!reads(c, import, bytes, OWN, NULL))
		break_off("C does not read what P wrote");
	free_by(p, block, p_frees);
	got = pool_claim(pair, block, bytes);
	own = reads(c, import, bytes, OWN, &foreign);
	if (p->bare) {
		ok(got && !own && foreign == NEXT, "control: bare, pool, %s: C reads %u, the next block's byte", what,
		   foreign);
	} else {
		ok(!got, "16 %s: while C has it imported, the address is given to nobody", what);
		ok(own, "16 %s: freed and overwritten by P, C reads its own bytes", what);
	}
	free_by(c, import, c_frees);
	if (!p->bare) {
		got = pool_claim_within(pair, block, bytes, SOON_MS);
		ok(got, "16 %s: after C's free, P gets the address again", what);
	}
	if (got)
		free_block(p, block);
}

static void reuse(const char *of_p, const char *of_c)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct pair pair = pool_pair((struct entry){ .bare = bare, .door = of_p, .env = POOL_GRACE },
					     (struct entry){ .bare = bare, .door = of_c, .env = POOL_GRACE });

		for (int how = 0; how < 4; how++)
			reuse_once(&pair, how % 2 ? BIG : SMALL, how % 2, how / 2);
		reuse_once(&pair, SMALL, BY_STREAM, BY_STREAM);
		pool_curtain(&pair);
	}
}

static void pool_reuse_linked(void)
{
	reuse("linked", "linked");
}

static void pool_reuse_getproc(void)
{
	reuse("getproc", "getproc");
}

/* P and C may use different doors. */
static void pool_reuse_mixed(void)
{
	reuse("dlsym", "getproc");
}

/* ------------------------------------------------------------- data too old */
static void stale_once(bool bare, uint64_t bytes)
{
	const char *size = bytes == SMALL ? "small" : "64 MiB";
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, bytes), import;
	struct handle old = pool_export(pair.p, block), new;
	int result;

	import = pool_import(pair.c, pair.taken, &old); /* it was good once */
	free_block(pair.c, import);
	free_block(pair.p, block);
	if (!pool_claim_within(&pair, block, bytes, SOON_MS)) {
		ok(false, "16 %s: a freed block that nobody holds goes back after the grace", size);
		return;
	}
	result = try_pool_import(pair.c, pair.taken, &old, &import);
	if (bare) {
		ok(!result && reads(pair.c, import, bytes, NEXT, NULL), "control: bare, pool, %s: stale data map the next block",
		   size);
		pool_curtain(&pair);
		return;
	}
	ok(result == INVALID_VALUE, "16 %s: stale, the address allocated again: refused (%d)", size, result);
	new = pool_export(pair.p, block);
	ok(!same_handle(&old, &new), "16 %s: the new block's data are others", size);
	result = try_pool_import(pair.c, pair.taken, &old, &import);
	ok(result == INVALID_VALUE, "16 %s: stale, the address exported again: refused (%d)", size, result);
	import = pool_import(pair.c, pair.taken, &new);
	ok(reads(pair.c, import, bytes, NEXT, NULL), "16 %s: the new data open the new block", size);
	free_block(pair.c, import);
	leave(pair.c);
	leave(pair.p);
	ok(strstr(said(pair.c), "STALE: ") != NULL, "16 %s: C's report says that it used stale data", size);
}

static void pool_stale(void)
{
	stale_once(true, SMALL);
	stale_once(false, SMALL);
	stale_once(true, BIG);
	stale_once(false, BIG);
}

static void pool_in_flight(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=1m" };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL), import;
		struct handle data = pool_export(pair.p, block);
		bool got, own;

		free_block(pair.p, block);
		got = pool_claim(&pair, block, SMALL);
		import = pool_import(pair.c, pair.taken, &data);
		own = reads(pair.c, import, SMALL, OWN, NULL);
		if (bare)
			ok(got && !own, "control: bare, pool: freed while its data are under way, the block is lost");
		else
			ok(!got && own, "16 exported, freed at once, imported within the grace: C reads its own bytes");
		free_block(pair.c, import);
		pool_curtain(&pair);
	}
}

/* ------------------------------------------------------------- imported twice */
static void pool_twice(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = POOL_GRACE };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL);
		struct handle data = pool_export(pair.p, block);
		uint64_t import = pool_import(pair.c, pair.taken, &data), again = pool_import(pair.c, pair.taken, &data);
		int first, second, third;
		bool own;

		ok(again == import, "%simported twice, the address is the same", bare ? "control: bare, pool: " : "16 ");
		first = try_free(pair.c, import);
		if (bare) {
			second = try_free(pair.c, import);
			ok(!first && second == INVALID_VALUE, "control: bare, pool: imported twice, the first free unmaps (%d, %d)",
			   first, second);
			pool_curtain(&pair);
			continue;
		}
		free_block(pair.p, block);
		own = !pool_claim(&pair, block, SMALL) && reads(pair.c, import, SMALL, OWN, NULL);
		ok(!first && own, "16 imported twice, freed once (%d): C reads its own bytes", first);
		second = try_free(pair.c, import);
		ok(!second && pool_claim_within(&pair, block, SMALL, SOON_MS),
		   "16 freed once more (%d), P gets the address again", second);
		third = try_free(pair.c, import);
		ok(third == INVALID_VALUE, "16 freed a third time: as bare (%d)", third);
		leave(pair.c);
		leave(pair.p);
		ok(strstr(said(pair.c), "once more than") != NULL, "16 C's report says that it freed once too often");
	}
}

/* --------------------------------------------------- a free in a stream's order */
static void pool_fence(void)
{
	const uint64_t busy = 400 * MS;

	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = POOL_GRACE };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL), import, stream;
		struct handle data = pool_export(pair.p, block);
		bool got, pending;

		stream = ASK(pair.c, stream_create, 1)->v[0];
		ASK(pair.c, stream_spin, stream, MS); /* the first launch loads the kernels */
		import = pool_import(pair.c, pair.taken, &data);
		free_block(pair.p, block);
		ASK(pair.c, stream_spin, stream, busy);
		free_in_sure(pair.c, import, stream);
		got = pool_claim(&pair, block, SMALL);
		pending = ASK(pair.c, stream_query, stream)->result == NOT_READY;
		if (bare) {
			ok(got && pending, "control: bare, pool: freed by both, P gets the address while C's stream still "
					   "works on it");
		} else {
			ok(!got && pending, "16 C's free in a stream's order: P does not get the address before the stream is "
					    "there");
			ok(pool_claim_within(&pair, block, SMALL, SOON_MS) &&
				   ASK(pair.c, stream_query, stream)->result == 0,
			   "16 and gets it when the stream is there");
		}
		pool_curtain(&pair);
	}
}

/* The first of two frees is in a stream that works, the second is not: the driver unmaps after both. */
static void fences_of_two(bool last_in_stream)
{
	const char *how = last_in_stream ? "cuMemFreeAsync in another stream" : "cuMemFree";
	struct entry entry = { .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), import, stream, other;
	struct handle data = pool_export(pair.p, block);
	int result, third;
	bool got;

	stream = ASK(pair.c, stream_create, 1)->v[0];
	other = ASK(pair.c, stream_create, 1)->v[0];
	ASK(pair.c, stream_spin, stream, MS);
	import = pool_import(pair.c, pair.taken, &data);
	pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ASK(pair.c, stream_spin, stream, 400 * MS);
	free_in_sure(pair.c, import, stream);
	result = last_in_stream ? free_in(pair.c, import, other) : try_free(pair.c, import);
	got = pool_claim(&pair, block, SMALL);
	ok(!result && !got && ASK(pair.c, stream_query, stream)->result == NOT_READY,
	   "16 imported twice, freed in a stream and by %s (%d): held until that stream is there", how, result);
	third = try_free(pair.c, import);
	ok(third == INVALID_VALUE, "16 and a third free is refused meanwhile (%d)", third);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 then P gets the address again");
	third = try_free(pair.c, import);
	ok(third == INVALID_VALUE, "16 and it is unmapped (%d)", third);
	leave(pair.c);
	leave(pair.p);
}

static void pool_fences(void)
{
	fences_of_two(true);
	fences_of_two(false);
}

/* Imported again while the last free waits in a stream. */
static void pool_again(void)
{
	struct entry entry = { .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), import, again, stream;
	struct handle data = pool_export(pair.p, block);
	bool own;

	stream = ASK(pair.c, stream_create, 1)->v[0];
	ASK(pair.c, stream_spin, stream, MS);
	import = pool_import(pair.c, pair.taken, &data);
	ASK(pair.c, stream_spin, stream, 300 * MS);
	free_in_sure(pair.c, import, stream);
	again = pool_import(pair.c, pair.taken, &data);
	ok(ASK(pair.c, stream_query, stream)->result == NOT_READY, "16 (the stream is still at work)");
	free_block(pair.p, block);
	for (double deadline = now_ms() + SOON_MS;
	     ASK(pair.c, stream_query, stream)->result == NOT_READY && watch_until(deadline);)
		;
	own = !pool_claim(&pair, block, SMALL) && reads(pair.c, again, SMALL, OWN, NULL);
	ok(own, "16 imported again while the last free waits in a stream: it stays, and C reads its own bytes");
	free_block(pair.c, again);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 freed, P gets the address again");
	pool_curtain(&pair);
}

/* ------------------------------------------------------------------ the errors */
#define ERRORS_MAX 32
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

static void errors_once(bool bare)
{
	struct entry entry = { .bare = bare };
	struct pair pair = pool_pair(entry, entry);
	uint64_t unshared = pool_alloc(&pair, SMALL), first = pool_alloc(&pair, SMALL), second = pool_alloc(&pair, SMALL);
	struct handle data, again;
	uint64_t import, stream;

	errors_n = 0;
	stream = ASK(pair.p, stream_create, 1)->v[0];
	saw(bare, "export NULL", try_pool_export(pair.p, 0, &data));
	saw(bare, "export an interior pointer", try_pool_export(pair.p, first + 256, &data));
	data = pool_export(pair.p, first);
	saw(bare, "export again", try_pool_export(pair.p, first, &again));
	saw(bare, "... the driver's bytes are the same (1: yes)", !memcmp(data.bytes, again.bytes, 48));
	saw(bare, "free an exported block", try_free(pair.p, first));
	saw(bare, "free it twice", try_free(pair.p, first));
	saw(bare, "free it again in a stream", free_in(pair.p, first, stream));
	saw(bare, "export it after free", try_pool_export(pair.p, first, &again));
	data = pool_export(pair.p, second);
	saw(bare, "import", try_pool_import(pair.c, pair.taken, &data, &import));
	saw(bare, "import by no pool", try_pool_import(pair.c, 0, &data, &import));
	import = pool_import(pair.c, pair.taken, &data);
	saw(bare, "export an import", try_pool_export(pair.c, import, &again));
	saw(bare, "close an import as if by handle", try_close(pair.c, import));
	saw(bare, "free an interior pointer of an import", try_free(pair.c, import + 256));
	saw(bare, "free in a stream", free_in(pair.p, second, stream));
	saw(bare, "free it again in a stream", free_in(pair.p, second, stream));
	saw(bare, "free it again", try_free(pair.p, second));
	saw(bare, "export it after a free in a stream", try_pool_export(pair.p, second, &again));
	saw(bare, "trim the pool", ASK(pair.p, pool_trim, pair.pool, 0)->result);
	saw(bare, "destroy the pool with blocks", ASK(pair.p, pool_destroy, pair.pool)->result);
	saw(bare, "free one that was never shared", try_free(pair.p, unshared));
	saw(bare, "... and twice", try_free(pair.p, unshared));
	leave_by(pair.c, END_EXIT, 0);
	leave_by(pair.p, END_EXIT, 0);
}

static void pool_errors(void)
{
	errors_once(true);
	errors_once(false);
	for (int i = 0; i < errors_n; i++) {
		int with = errors[i].code[0], bare = errors[i].code[1];

		ok(with == bare, "16 %s: as bare (%d), it is %d", errors[i].what, bare, with);
	}
}

/* ---------------------------------------------------------------------- deaths */
static void pool_killed(void)
{
	struct entry entry = { .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), kept, import, other;
	struct handle data = pool_export(pair.p, block), later;
	bool got;

	pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	got = pool_claim(&pair, block, SMALL);
	kill_actor(pair.c);
	ok(!got && pool_claim_within(&pair, block, SMALL, SOON_MS), "16 C is killed: P gets the address again");
	leave(pair.p);

	pair = pool_pair(entry, entry);
	block = pool_alloc(&pair, SMALL);
	kept = pool_alloc(&pair, SMALL);
	data = pool_export(pair.p, block);
	later = pool_export(pair.p, kept);
	import = pool_import(pair.c, pair.taken, &data);
	kill_actor(pair.p);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "16 P is killed: C reads its own bytes");
	ok(!try_pool_import(pair.c, pair.taken, &later, &other) && reads(pair.c, other, SMALL, OWN, NULL),
	   "16 and imports what P had exported before, as bare");
	ok(!try_free(pair.c, import) && !try_free(pair.c, other), "16 and frees both");
	leave_by(pair.c, END_EXIT, 0);
}

/*
 * Of an exporter that has ended, only a process that has its file says which block lies where its data lead:
 * C, which had imported from it before, and not D.
 */
static void pool_ended(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = POOL_GRACE " CULIMBO_LOG=info" };
		struct pair pair = pool_pair(entry, entry);
		struct actor *d = enter("D", entry);
		uint64_t block = pool_alloc(&pair, SMALL), kept = pool_alloc(&pair, SMALL), import, other;
		uint64_t never_imported = pool_alloc(&pair, SMALL);
		uint64_t taken = pool_taken_by(&pair, d);
		struct handle stale = pool_export(pair.p, block), good = pool_export(pair.p, kept);
		struct handle later = pool_export(pair.p, never_imported);
		int result[2];

		import = pool_import(pair.c, pair.taken, &good); /* so the pool lives on */
		free_block(pair.p, block);
		if (!pool_claim_within(&pair, block, SMALL, SOON_MS))
			break_off("P does not get the address again");
		leave(pair.p);
		result[0] = try_pool_import(d, taken, &stale, &other);
		if (bare)
			ok(!result[0] && reads(d, other, SMALL, NEXT, NULL),
			   "control: bare, pool: P has ended, its stale data map the next block (%d)", result[0]);
		result[1] = try_pool_import(d, taken, &good, &other);
		if (bare)
			ok(!result[1] && reads(d, other, SMALL, OWN, NULL),
			   "control: bare, pool: and good ones the block that it had to the end (%d)", result[1]);
		else
			ok(result[0] == INVALID_VALUE && result[1] == INVALID_VALUE,
			   "16 P has ended: its data are refused, stale or good (%d, %d)", result[0], result[1]);
		ok(reads(pair.c, import, SMALL, OWN, NULL), "%sC reads on what it had imported before",
		   bare ? "control: bare, pool: " : "16 ");
		result[0] = try_pool_import(pair.c, pair.taken, &later, &other);
		ok(!result[0] && reads(pair.c, other, SMALL, OWN, NULL),
		   "%sC imports for the first time what P had never freed (%d)", bare ? "control: bare, pool: " : "16 ",
		   result[0]);
		result[1] = try_pool_import(pair.c, pair.taken, &stale, &other);
		if (!bare)
			ok(result[1] == INVALID_VALUE, "16 and not what P had freed (%d)", result[1]);
		leave_by(pair.c, END_EXIT, 0);
		leave_by(d, END_EXIT, 0);
		if (!bare) {
			ok(strstr(said(d), "STALE: process ") && strstr(said(d), " had ended before process "),
			   "16 and D's report says that P had ended");
			ok(!strstr(said(d), " had freed "), "16 and not that it had freed what it had not");
			ok(strstr(said(d), "so culimbo cannot tell whether the block was freed"),
			   "16 and D's log says why also what is good is refused");
		}
	}
}

const struct scene pool_scenes[] = {
	{ "pool-reuse-linked", pool_reuse_linked, 0 },
	{ "pool-reuse-getproc", pool_reuse_getproc, 0 },
	{ "pool-reuse-mixed", pool_reuse_mixed, 0 },
	{ "pool-stale", pool_stale, 0 },
	{ "pool-in-flight", pool_in_flight, 0 },
	{ "pool-twice", pool_twice, 0 },
	{ "pool-fence", pool_fence, SCENE_ALONE },
	{ "pool-fences", pool_fences, SCENE_ALONE },
	{ "pool-again", pool_again, SCENE_ALONE },
	{ "pool-errors", pool_errors, 0 },
	{ "pool-killed", pool_killed, 0 },
	{ "pool-ended", pool_ended, 0 },
	{ "pool-own", pool_own, 0 },
	{ "pool-one-sided", pool_one_sided, 0 },
	{ "pool-capture", pool_capture, 0 },
	{ "pool-fork", pool_fork, 0 },
	{ "pool-threads", pool_threads, SCENE_ALONE },
	{ "pool-context", pool_context, 0 },
	{ "pool-large", pool_large, 0 },
	{ "pool-pressure", pool_pressure, SCENE_ALONE },
	{ "pool-pressure-other", pool_pressure_other, SCENE_ALONE },
	{ "pool-pressure-destroyed", pool_pressure_destroyed, SCENE_ALONE },
	{ "pool-host", pool_host, 0 },
	{ "pool-destroyed", pool_destroyed, 0 },
	{ "pool-observe", pool_observe, 0 },
	{ "pool-held-bytes", pool_held_bytes, 0 },
	{ "pool-inline", pool_inline, 0 },
	{ "pool-device", pool_device, 0 },
	{ "pool-trim", pool_trim, 0 },
	{ "pool-exec", pool_exec, 0 },
	{ "pool-back", pool_back, SCENE_ALONE },
	{ "pool-freed-twice", pool_freed_twice, 0 },
	{ "pool-strict", pool_strict, 0 },
	{ "pool-older", pool_older, 0 },
	{ "pool-two-holders", pool_two_holders, 0 },
	{ "pool-one-of-two-dies", pool_one_of_two_dies, 0 },
	{ "pool-importer-dies", pool_importer_dies, SCENE_ALONE },
	{ "pool-killed-writing", pool_killed_writing, SCENE_ALONE },
	{ "pool-exporter-dies", pool_exporter_dies, 0 },
	{ "pool-back-soon", pool_back_soon, SCENE_ALONE },
	{ "pool-per-thread", pool_per_thread, SCENE_ALONE },
	{ "pool-import-end", pool_import_end, SCENE_ALONE },
	{ "pool-import-end-pending", pool_import_end_pending, SCENE_ALONE },
	{ "pool-import-end-other", pool_import_end_other, 0 },
	{ "pool-import-context", pool_import_context, 0 },
	{ "pool-import-odd", pool_import_odd, SCENE_ALONE },
	{ "pool-inline-fence", pool_inline_fence, SCENE_ALONE },
	{ .name = NULL },
};

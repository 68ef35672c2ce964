/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of pools that are shared by pointer (16): other devices, trim, exec, memory that comes back, a
 * second free of either side.
 */
#include "scene_pool.h"

#include <stdlib.h>
#include <string.h>

static const struct entry both = { .env = POOL_GRACE };

/* ----------------------------------------------------------------- other devices */
/* P's pool is on device 1.  @peer: C works on device 0, with access set; else on device 1. */
static void device_once(bool peer)
{
	const char *where = peer ? "access of device 0 set" : "C's context of device 1";
	struct pair pair = { .p = enter("P", both), .c = enter("C", both) };
	uint64_t block, import;
	struct handle data;
	bool got;

	ASK(pair.p, device, 1);
	pair.pool = ASK(pair.p, pool_new, 1)->v[0];
	pair.fd = pair.p->reply.v[1];
	pair.taken = pool_taken_by(&pair, pair.c);
	if (peer)
		ok(!ASK(pair.c, pool_access, pair.taken, 0)->result, "16 device 1, %s: cuMemPoolSetAccess gives 0", where);
	else
		ASK(pair.c, device, 1);
	block = pool_alloc(&pair, SMALL);
	data = pool_export(pair.p, block);
	import = pool_import(pair.c, pair.taken, &data);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "16 device 1, %s: C reads P's bytes", where);
	free_block(pair.p, block);
	got = pool_claim(&pair, block, SMALL);
	ok(!got && reads(pair.c, import, SMALL, OWN, NULL), "16 device 1, %s: freed by P, C reads its own bytes", where);
	if (free_in(pair.c, import, 0))
		break_off("cuMemFreeAsync failed with %d", pair.c->reply.result);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 device 1, %s: after C's free P gets the address again", where);
	pool_curtain(&pair);
}

void pool_device(void)
{
	struct actor *d;
	uint64_t devices;

	setenv("CULIMBO_SIM_DEVICES", "2", 1);
	d = ENTER("D", .bare = true);
	devices = ASK(d, devices)->v[0];
	leave(d);
	if (devices < 2) {
		ok(true, "16 pools of another device # SKIP there is one device");
		return;
	}
	device_once(false);
	device_once(true);
}

/* --------------------------------------------------------------------------- trim */
/* What is in the limbo is no cache of the pool: a trim leaves it, and takes what is freed later. */
void pool_trim(void)
{
	struct pair pair = pool_pair(both, both);
	uint64_t block = pool_alloc(&pair, BIG), import, other;
	struct handle data = pool_export(pair.p, block);
	bool got;

	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ok(!ASK(pair.p, pool_trim, pair.pool, 0)->result, "16 P trims its pool with a held block in the limbo: 0");
	got = pool_claim(&pair, block, BIG);
	ok(!got && reads(pair.c, import, BIG, OWN, NULL), "16 and C reads its own bytes");
	ok(!try_pool_import(pair.c, pair.taken, &data, &other) && other == import && !try_free(pair.c, other),
	   "16 and may import it once more");
	free_block(pair.c, import);
	for (double deadline = now_ms() + SOON_MS; ASK(pair.p, pool_trim, pair.pool, 0)->result == 0 && !got &&
						    watch_until(deadline);)
		got = pool_claim(&pair, block, BIG);
	ok(got, "16 after C's free, trims or not, P gets the address again");
	pool_curtain(&pair);
}

/* --------------------------------------------------------------------------- exec */
/* The process goes on as another image: what it held or shared is gone. */
void pool_exec(void)
{
	struct pair pair = pool_pair(both, both);
	uint64_t block = pool_alloc(&pair, SMALL), import, kept;
	struct handle data = pool_export(pair.p, block);
	struct actor *q;

	pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	tell(pair.c, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 C execs while it has it imported: P gets the address again");
	ASK(pair.c, begin);
	pair.taken = pool_taken_by(&pair, pair.c);
	kept = pool_alloc(&pair, SMALL);
	data = pool_export(pair.p, kept);
	import = pool_import(pair.c, pair.taken, &data);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "16 and C's new image imports the pool and a block");
	tell(pair.p, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ASK(pair.p, begin);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "16 P execs: C reads its own bytes on");
	ok(!try_free(pair.c, import), "16 and frees them");
	pair.pool = ASK(pair.p, pool_new, 0)->v[0];
	pair.fd = pair.p->reply.v[1];
	pair.taken = pool_taken_by(&pair, pair.c);
	block = pool_alloc(&pair, SMALL);
	data = pool_export(pair.p, block);
	import = pool_import(pair.c, pair.taken, &data);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "16 P's new image shares on");
	free_block(pair.c, import);
	leave(pair.c);
	leave(pair.p);
	/* the next process that shares takes away the file of P's old image */
	for (double deadline = now_ms() + SOON_MS; files() && watch_until(deadline);) {
		q = ENTER("Q");
		export_block(q, alloc(q, SMALL));
		leave(q);
	}
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

/* ---------------------------------------------------------------------- memory back */
/* How much of 64 MiB is taken still, MiB: when both have freed and the pool is destroyed, and when C has ended. */
static void back_once(bool bare, uint64_t taken[2])
{
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	struct actor *o = ENTER("O", .bare = true);
	uint64_t before = free_memory(o), block = pool_alloc(&pair, BIG), import, now = 0;
	struct handle data = pool_export(pair.p, block);

	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.c, import);
	free_block(pair.p, block);
	ASK(pair.p, pool_destroy, pair.pool);
	/* under culimbo the grace is yet to go by */
	for (double deadline = now_ms() + 600; (now = free_memory(o)) < before && watch_until(deadline);)
		;
	taken[0] = now < before ? (before - now) / MIB : 0;
	leave(pair.c);
	for (double deadline = now_ms() + SOON_MS; (now = free_memory(o)) < before && watch_until(deadline);)
		;
	taken[1] = now < before ? (before - now) / MIB : 0;
	leave(pair.p);
	leave(o);
}

void pool_back(void)
{
	uint64_t bare[2], with[2];

	back_once(true, bare);
	back_once(false, with);
	note("of 64 MiB that both have freed, the pool destroyed, %llu MiB are taken bare, %llu under culimbo",
	     (unsigned long long)bare[0], (unsigned long long)with[0]);
	ok(with[0] <= bare[0], "16 what both have freed comes back as far as bare");
	ok(bare[1] == 0 && with[1] == 0, "16 and all of it when C has ended, P still there (%llu, %llu MiB taken)",
	   (unsigned long long)bare[1], (unsigned long long)with[1]);
}

/* ----------------------------------------------------------------- freed twice, P's side */
/* A second free of the exporter is refused, also while the block is held, and reported. */
void pool_freed_twice(void)
{
	struct pair pair = pool_pair(both, both);
	uint64_t block = pool_alloc(&pair, SMALL), import, stream;
	struct handle data = pool_export(pair.p, block);
	int result[3];

	stream = ASK(pair.p, stream_create, 1)->v[0];
	import = pool_import(pair.c, pair.taken, &data);
	result[0] = free_in(pair.p, block, stream);
	result[1] = try_free(pair.p, block);
	result[2] = free_in(pair.p, block, stream);
	ok(!result[0] && result[1] == INVALID_VALUE && result[2] == INVALID_VALUE,
	   "16 P frees in a stream, and twice more: as bare (%d, %d, %d)", result[0], result[1], result[2]);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "16 and C reads its own bytes");
	free_block(pair.c, import);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 freed by C, P gets the address again");
	leave(pair.c);
	leave(pair.p);
	ok(strstr(said(pair.p), "DOUBLE FREE") || strstr(said(pair.p), "twice"), "16 and P's report says that it freed twice");
}

/* CULIMBO_STRICT: what culimbo prevents is a finding, on both sides. */
void pool_strict(void)
{
	struct entry entry = { .env = "CULIMBO_STRICT=1 CULIMBO_GRACE=5s" };
	struct pair pair = pool_pair(entry, entry);
	uint64_t held = pool_alloc(&pair, SMALL), late = pool_alloc(&pair, SMALL), import, other;
	struct handle data = pool_export(pair.p, held), later = pool_export(pair.p, late);

	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, held);
	free_block(pair.p, late);
	other = pool_import(pair.c, pair.taken, &later);
	ok(reads(pair.c, import, SMALL, OWN, NULL) && reads(pair.c, other, SMALL, OWN, NULL),
	   "16 CULIMBO_STRICT: C reads what P has freed, before C imported it and after");
	free_block(pair.c, import);
	free_block(pair.c, other);
	leave_by(pair.c, END_EXIT, 0);
	leave_by(pair.p, END_EXIT, 0);
	ok(count_said(pair.p, "while process ") == 1, "16 and P's report has the block that it freed while C had it");
	ok(count_said(pair.c, "STALE: ") == 1, "16 and C's the block that P had freed before C imported it");
}

/* ------------------------------------------------------- an imported pool's end */
static const char *bare_or(bool bare)
{
	return bare ? "control: bare, pool: " : "16 ";
}

static int destroy_taken(const struct pair *pair)
{
	return ASK(pair->c, pool_destroy, pair->taken)->result;
}

/* C destroys the pool that it has imported: with its import mapped, freed in a stream, and freed. */
void pool_import_end(void)
{
	int answer[2][3];

	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = POOL_GRACE };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL), import, stream;
		struct handle data = pool_export(pair.p, block);

		stream = ASK(pair.c, stream_create, 1)->v[0];
		ASK(pair.c, stream_spin, stream, MS);
		import = pool_import(pair.c, pair.taken, &data);
		answer[bare][0] = destroy_taken(&pair);
		ok(answer[bare][0] == INVALID_VALUE && reads(pair.c, import, SMALL, OWN, NULL),
		   "%sC destroys its pool with a pointer mapped: refused, and it stays good", bare_or(bare));
		ASK(pair.c, stream_spin, stream, 300 * MS);
		free_in_sure(pair.c, import, stream);
		answer[bare][1] = destroy_taken(&pair);
		answer[bare][2] = ASK(pair.c, stream_query, stream)->result;
		free_block(pair.p, block);
		ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "%sP gets the address again", bare_or(bare));
		pool_curtain(&pair);
	}
	ok(!memcmp(answer[0], answer[1], sizeof(answer[0])), "16 and when it has freed that in a busy stream: as bare (%d, %d)",
	   answer[1][1], answer[0][1]);
}

/* Two imports that were freed, one in a busy stream: culimbo has kept the driver's free back for that. */
static void end_once(const char *collector, bool last_in_stream)
{
	const char *how = last_in_stream ? "cuMemFreeAsync" : "cuMemFree";
	struct entry entry = { .env = POOL_GRACE };
	struct entry its = { .env = *collector ? POOL_GRACE " CULIMBO_COLLECTOR=inline" : POOL_GRACE };
	struct pair pair = pool_pair(entry, its);
	uint64_t block = pool_alloc(&pair, SMALL), import, stream, other;
	struct handle data = pool_export(pair.p, block);
	int freed[2], destroyed;
	bool got, busy;

	stream = ASK(pair.c, stream_create, 1)->v[0];
	other = ASK(pair.c, stream_create, 1)->v[0];
	ASK(pair.c, stream_spin, stream, MS);
	import = pool_import(pair.c, pair.taken, &data);
	pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ASK(pair.c, stream_spin, stream, 400 * MS);
	freed[0] = free_in(pair.c, import, stream);
	freed[1] = last_in_stream ? free_in(pair.c, import, other) : try_free(pair.c, import);
	destroyed = destroy_taken(&pair);
	busy = ASK(pair.c, stream_query, stream)->result == NOT_READY;
	got = pool_claim(&pair, block, SMALL);
	ok(!freed[0] && !freed[1] && !destroyed && busy && !got,
	   "16%s C frees two imports, the last by %s, and destroys its pool while a stream is busy: 0 (%d), held until that is "
	   "there", collector, how, destroyed);
	for (double deadline = now_ms() + SOON_MS; !got && watch_until(deadline); got = pool_claim(&pair, block, SMALL))
		ASK(pair.c, stream_query, stream), *collector ? free_block(pair.c, alloc(pair.c, SMALL)) : (void)0;
	ok(got, "16%s then P gets the address again", collector);
	pool_curtain(&pair);
}

void pool_import_end_pending(void)
{
	end_once("", true);
	end_once("", false);
	end_once(" CULIMBO_COLLECTOR=inline:", true);
}

/* While C's frees wait for a stream it destroys what is no pool: that changes nothing of them. */
void pool_import_end_other(void)
{
	struct pair pair = pool_pair(both, both);
	uint64_t block = pool_alloc(&pair, SMALL), import, stream;
	struct handle data = pool_export(pair.p, block);
	int other, good = 0;

	stream = ASK(pair.c, stream_create, 1)->v[0];
	for (int i = 0; i < 20; i++) {
		import = pool_import(pair.c, pair.taken, &data);
		pool_import(pair.c, pair.taken, &data);
		ASK(pair.c, stream_spin, stream, MS);
		free_in_sure(pair.c, import, stream);
		free_in_sure(pair.c, import, stream);
		other = ASK(pair.c, pool_destroy, 0)->result;
		while (ASK(pair.c, stream_query, stream)->result == NOT_READY)
			;
		import = pool_import(pair.c, pair.taken, &data);
		good += other == INVALID_VALUE && reads(pair.c, import, SMALL, OWN, NULL) && !try_free(pair.c, import);
	}
	ok(good == 20, "16 C's frees wait for a stream, it destroys no pool, waits, and imports again: right each time (%d of 20)",
	   good);
	ok(!destroy_taken(&pair), "16 and all freed, its pool is destroyed");
	pool_curtain(&pair);
}

/* A context that has a stream that C's free waits for ends: so does the wait. */
void pool_import_context(void)
{
	struct pair pair = pool_pair(both, both);
	uint64_t block = pool_alloc(&pair, SMALL), import, context, stream;
	struct handle data = pool_export(pair.p, block);

	context = ASK(pair.c, ctx_create)->v[0];
	stream = ASK(pair.c, stream_create, 1)->v[0];
	ASK(pair.c, stream_spin, stream, MS);
	import = pool_import(pair.c, pair.taken, &data);
	pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ASK(pair.c, stream_spin, stream, 200 * MS);
	free_in_sure(pair.c, import, stream);
	free_block(pair.c, import);
	ok(!destroy_taken(&pair), "16 C's pool is destroyed, its free waits for a stream");
	ASK(pair.c, ctx_destroy, context);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 and the stream's context: P gets the address again");
	pool_curtain(&pair);
}

/* C is killed, or forks, while it has freed both imports and a stream has not reached one of them. */
void pool_import_odd(void)
{
	for (int killed = 0; killed < 2; killed++) {
		struct pair pair = pool_pair(both, both);
		uint64_t block = pool_alloc(&pair, SMALL), import, stream;
		struct handle data = pool_export(pair.p, block);

		stream = ASK(pair.c, stream_create, 1)->v[0];
		ASK(pair.c, stream_spin, stream, MS);
		import = pool_import(pair.c, pair.taken, &data);
		pool_import(pair.c, pair.taken, &data);
		free_block(pair.p, block);
		ASK(pair.c, stream_spin, stream, 200 * MS);
		free_in_sure(pair.c, import, stream);
		free_block(pair.c, import);
		if (killed) {
			kill_actor(pair.c);
			ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 C is killed amid that: P gets the address again");
			leave_by(pair.p, END_EXIT, 0);
			continue;
		}
		ASK(pair.c, fork, END_EXIT, 0);
		ASK(pair.c, fork, END_EXIT, 1);
		ok(!destroy_taken(&pair) && pool_claim_within(&pair, block, SMALL, SOON_MS),
		   "16 C forks amid that, the children end: its pool is destroyed, P gets the address again");
		pool_curtain(&pair);
	}
}

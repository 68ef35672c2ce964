/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of pools that are shared by pointer (16): other devices, trim, exec, memory that comes back, a
 * second free of either side, the need of another process, threads.
 */
#include "scene_pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct entry both = { .env = POOL_GRACE };
#define GRACE_MS 300

/* ----------------------------------------------------------------- other devices */
/* P's pool is on device 1.  @peer: C works on device 0, with access set; else on device 1. */
static void device_once(bool peer, bool bare)
{
	const char *where = peer ? "access of device 0 set" : "C's context of device 1";
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = { .p = enter("P", entry), .c = enter("C", entry) };
	uint64_t block, import;
	struct handle data;
	bool got;

	ASK(pair.p, device, 1);
	pair.pool = ASK(pair.p, pool_new, 1)->v[0];
	pair.fd = pair.p->reply.v[1];
	pair.taken = pool_taken_by(&pair, pair.c);
	if (peer)
		ok(!ASK(pair.c, pool_access, pair.taken, 0)->result, "%sdevice 1, %s: cuMemPoolSetAccess gives 0",
		   bare ? "control: bare, pool: " : "16 ", where);
	else
		ASK(pair.c, device, 1);
	block = pool_alloc(&pair, SMALL);
	data = pool_export(pair.p, block);
	import = pool_import(pair.c, pair.taken, &data);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "%sdevice 1, %s: C reads P's bytes", bare ? "control: bare, pool: " : "16 ",
	   where);
	free_block(pair.p, block);
	got = pool_claim(&pair, block, SMALL);
	if (bare) {
		ok(got && reads(pair.c, import, SMALL, NEXT, NULL),
		   "control: bare, pool: device 1, %s: freed by P, C reads the next block's bytes", where);
		pool_curtain(&pair);
		return;
	}
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
	for (int bare = 1; bare >= 0; bare--) {
		device_once(false, bare);
		device_once(true, bare);
	}
}

/* --------------------------------------------------------------------------- trim */
/* What is in the limbo is no cache of the pool: a trim leaves it, and takes what is freed later. */
static void trim_once(bool bare)
{
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, BIG), import, other;
	struct handle data = pool_export(pair.p, block);
	bool got;

	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ok(!ASK(pair.p, pool_trim, pair.pool, 0)->result, "%sP trims its pool when it has freed a block that C has: 0",
	   bare ? "control: bare, pool: " : "16 ");
	got = pool_claim(&pair, block, BIG);
	if (bare) { /* an importer's pages may stay its own at a trim: then another allocation has the address */
		note("control: bare, pool: P gets the address again: %d, C reads its own bytes: %d", got,
		     reads(pair.c, import, BIG, OWN, NULL));
		pool_curtain(&pair);
		return;
	}
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

void pool_trim(void)
{
	trim_once(true);
	trim_once(false);
}

/* --------------------------------------------------------------------------- exec */
/* The process goes on as another image: what it held or shared is gone. */
static void exec_once(bool bare)
{
	const char *who = bare ? "control: bare, pool:" : "16";
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), import, kept;
	struct handle data = pool_export(pair.p, block);

	pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	tell(pair.c, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "%s C execs while it has it imported: P gets the address again", who);
	ASK(pair.c, begin);
	pair.taken = pool_taken_by(&pair, pair.c);
	kept = pool_alloc(&pair, SMALL);
	data = pool_export(pair.p, kept);
	import = pool_import(pair.c, pair.taken, &data);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "%s and C's new image imports the pool and a block", who);
	tell(pair.p, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ASK(pair.p, begin);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "%s P execs: C reads its own bytes on", who);
	ok(!try_free(pair.c, import), "%s and frees them", who);
	pair.pool = ASK(pair.p, pool_new, 0)->v[0];
	pair.fd = pair.p->reply.v[1];
	pair.taken = pool_taken_by(&pair, pair.c);
	block = pool_alloc(&pair, SMALL);
	data = pool_export(pair.p, block);
	import = pool_import(pair.c, pair.taken, &data);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "%s P's new image shares on", who);
	free_block(pair.c, import);
	leave(pair.c);
	leave(pair.p);
	if (bare)
		return;
	/* the next process that shares takes away the file of P's old image */
	ok(no_file_stays(), "no file is left in CULIMBO_DIR");
}

void pool_exec(void)
{
	exec_once(true);
	exec_once(false);
}

/* ---------------------------------------------------------------------- memory back */
/*
 * How much of 64 MiB is taken still, MiB: when both have freed and the pool is destroyed and its descriptor closed,
 * and when C has ended.  @held: C's free is the last, and P sleeps meanwhile.
 */
static void back_once(bool bare, bool held, uint64_t taken[2])
{
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = { .p = enter("P", entry) };
	struct actor *o = ENTER("O", .bare = true);
	uint64_t without_c, before, block, import, now;
	struct handle data;

	pair.pool = ASK(pair.p, pool_new, 0)->v[0];
	pair.fd = pair.p->reply.v[1];
	without_c = free_memory(o); /* C's context takes memory of a GPU, too */
	pair.c = enter("C", entry);
	pair.taken = pool_taken_by(&pair, pair.c);
	before = free_memory(o);
	block = pool_alloc(&pair, BIG);
	data = pool_export(pair.p, block);
	import = pool_import(pair.c, pair.taken, &data);
	if (!held)
		free_block(pair.c, import);
	free_block(pair.p, block);
	ASK(pair.p, pool_destroy, pair.pool, pair.fd);
	if (held && !bare)
		ok(!free_within(o, before, 3 * GRACE_MS, NULL) && reads(pair.c, import, BIG, OWN, NULL),
		   "16 freed and its pool destroyed by P, C has it: its memory stays, and its bytes");
	if (held)
		free_block(pair.c, import);
	/* under culimbo the grace is yet to go by */
	free_within(o, before, 2 * GRACE_MS, NULL);
	now = free_memory(o);
	taken[0] = now < before ? (before - now) / MIB : 0;
	leave(pair.c);
	free_within(o, without_c, SOON_MS, NULL);
	now = free_memory(o);
	taken[1] = now < without_c ? (without_c - now) / MIB : 0;
	leave(pair.p);
	leave(o);
}

void pool_back(void)
{
	uint64_t bare[2], with[2];

	for (int held = 0; held < 2; held++) {
		const char *who = held ? "C last, P asleep" : "P last";

		back_once(true, held, bare);
		back_once(false, held, with);
		note("of 64 MiB that both have freed, %s, the pool destroyed, %llu MiB are taken bare, %llu under culimbo", who,
		     (unsigned long long)bare[0], (unsigned long long)with[0]);
		ok(with[0] <= bare[0], "16 what both have freed, %s, comes back as far as bare", who);
		ok(bare[1] < 32 && with[1] < 32, "16 and all of it when C has ended, P still there (%llu, %llu MiB taken)",
		   (unsigned long long)bare[1], (unsigned long long)with[1]);
	}
}

/* ----------------------------------------------------------------- freed twice, P's side */
/* A second free of the exporter is refused, also while the block is held, and reported. */
void pool_freed_twice(void)
{
	struct pair pair = pool_pair(both, both);
	uint64_t block = pool_alloc(&pair, SMALL), import, stream;
	struct handle data = pool_export(pair.p, block);
	struct handle late;
	int result[4];

	stream = ASK(pair.p, stream_create, 1)->v[0];
	import = pool_import(pair.c, pair.taken, &data);
	result[0] = free_in(pair.p, block, stream);
	result[1] = try_free(pair.p, block);
	result[2] = free_in(pair.p, block, stream);
	ok(!result[0] && result[1] == INVALID_VALUE && result[2] == INVALID_VALUE,
	   "16 P frees in a stream, and twice more: as bare (%d, %d, %d)", result[0], result[1], result[2]);
	result[3] = try_pool_export(pair.p, block, &late);
	ok(result[3] == INVALID_VALUE, "16 and exports it once more: as bare (%d)", result[3]);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "16 and C reads its own bytes");
	free_block(pair.c, import);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 freed by C, P gets the address again");
	leave(pair.c);
	leave(pair.p);
	ok(count_said(pair.p, " after it had freed it") == 1, "16 and P's report says that it exported what it had freed");
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

/* --------------------------------------------------------- another process's need */
/*
 * P's pool keeps nothing, and P has freed a block of it that nobody has imported.  The need is Q's: by it
 * the block goes back to the pool, long before its grace is over.  A pool gives memory back to the device
 * when its process waits for something or trims it: bare, when P does that after its free, if the driver
 * gives back at all what was exported.
 */
static int pressure_once(bool bare)
{
	const uint64_t large = 256 * MIB;
	const char *how = bare ? "control: bare, pool: " : "16 ";
	struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=1m CULIMBO_GRACE_BYTES=1GiB" };
	struct pair pair = { .p = enter("P", entry), .c = enter("Q", entry) };
	struct actor *h = ENTER("H", .bare = true);
	uint64_t block, what;
	int result[3];

	pair.pool = ASK(pair.p, pool_new, 0, 0, 0, 1)->v[0];
	block = pool_alloc(&pair, large);
	pool_export(pair.p, block);
	ASK(h, hog, 96 * MIB);
	result[0] = try_alloc(pair.c, large, &what);
	free_block(pair.p, block);
	ASK(pair.p, pool_trim, pair.pool, 0);
	result[1] = try_alloc(pair.c, large, &what);
	if (!result[1])
		free_block(pair.c, what);
	ASK(pair.p, pool_trim, pair.pool, 0);
	result[2] = try_alloc(pair.c, large, &what);
	ok(result[0] == OUT_OF_MEMORY, "%sP's pool has what Q needs: out of memory (%d)", how, result[0]);
	note("P has freed it and trimmed its pool, and sleeps: %d", result[1]);
	note("%sP has freed it, Q has asked, P trims its pool: Q's allocation gives %d", how, result[2]);
	leave(h);
	leave(pair.c);
	leave(pair.p);
	return result[2];
}

void pool_pressure_other(void)
{
	int bare, result;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	bare = pressure_once(true);
	result = pressure_once(false);
	/* on an H200 neither gets it: the trim gives nothing back of what was exported (seen) */
	ok(!result || bare, "16 P has freed it, Q has asked, P trims its pool: Q gets it where it does bare (%d, bare %d)", result,
	   bare);
}

/*
 * P has freed a block of a pool, destroyed the pool and closed its descriptor, and sleeps.  Nobody has imported of it; its grace is not
 * over.  Q needs the memory.
 */
static int pressure_of_destroyed_once(bool bare)
{
	const uint64_t large = 256 * MIB;
	const char *how = bare ? "control: bare, pool: " : "16 ";
	struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=1m CULIMBO_GRACE_BYTES=1GiB CULIMBO_PRESSURE_WAIT=10s" };
	struct pair pair = { .p = enter("P", entry), .c = enter("Q", entry) };
	struct actor *h = ENTER("H", .bare = true);
	uint64_t block, what;
	int result[2];

	pair.pool = ASK(pair.p, pool_new, 0)->v[0];
	pair.fd = pair.p->reply.v[1];
	block = pool_alloc(&pair, large);
	pool_export(pair.p, block);
	ASK(h, hog, 96 * MIB);
	result[0] = try_alloc(pair.c, large, &what);
	free_block(pair.p, block);
	if (ASK(pair.p, pool_destroy, pair.pool, pair.fd)->result)
		break_off("cuMemPoolDestroy failed with %d", pair.p->reply.result);
	result[1] = try_alloc(pair.c, large, &what);
	ok(result[0] == OUT_OF_MEMORY, "%sP's pool has what Q needs: out of memory (%d)", how, result[0]);
	note("%sP has freed it and destroyed its pool, and sleeps: Q's allocation gives %d", how, result[1]);
	leave(h);
	leave(pair.c);
	leave(pair.p);
	return result[1];
}

void pool_pressure_destroyed(void)
{
	int bare, result;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	bare = pressure_of_destroyed_once(true);
	result = pressure_of_destroyed_once(false);
	ok(!result || bare, "16 P has freed it, destroyed its pool, and sleeps: Q gets it where it does bare (%d, bare %d)", result,
	   bare);
}

/* ------------------------------------------------------------------------- threads */
static void threads_of_pool(unsigned int producers, unsigned int rounds, uint64_t bytes)
{
	enum { CONSUMERS = 4 };
	const struct wire_reply *made, *got;
	struct pair pair;
	int partners[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, partners))
		break_off("socketpair");
	pair = pool_pair((struct entry){ .partner = partners[0], .door = "getproc" }, (struct entry){ .partner = partners[1] });
	close(partners[0]);
	close(partners[1]);
	tell(pair.c, OP_consume, NULL, (const uint64_t[6]){ CONSUMERS, pair.taken });
	tell(pair.p, OP_produce, NULL, (const uint64_t[6]){ producers, rounds, bytes, CONSUMERS, pair.pool });
	made = hear(pair.p, 60000);
	got = hear(pair.c, 60000);
	ok(!made->result && !got->result,
	   "16 %u threads allocate of a pool, export and free blocks of %llu KiB, %d import and free: no error (%d %s, %d %s)",
	   producers, (unsigned long long)(bytes / KIB), CONSUMERS, made->result, made->complaint, got->result, got->complaint);
	note("%llu blocks were sent, %llu received", (unsigned long long)made->v[0], (unsigned long long)got->v[0]);
	ok(made->v[0] && got->v[0] == made->v[0] && got->v[1] == 0 && got->v[2] == 0,
	   "16 each that was sent, twice, is imported and has its own bytes (%llu refused, %llu foreign)",
	   (unsigned long long)got->v[1], (unsigned long long)got->v[2]);
	ok(!ASK(pair.c, pool_destroy, pair.taken)->result, "16 and no import is left in C's pool: it is destroyed");
	pool_curtain(&pair);
}

void pool_threads(void)
{
	threads_of_pool(16, 60, 64 * KIB);
	threads_of_pool(16, 8, 2 * MIB);
}

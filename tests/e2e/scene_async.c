/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of stream-ordered memory that is shared by legacy handles (18, CULIMBO_SHARE=all): what is opened and what
 * the program sees of its pools; and the list of them and of those in scene_async_more.c,
 * scene_async_ends.c and scene_async_pools.c.
 */
#include "scene_async.h"

#define FD 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define MEMPOOL_HANDLE 17
#define TRIES 64

/* ------------------------------------------------------------------ operations */
uint64_t async_alloc(struct actor *actor, uint64_t bytes, unsigned char value)
{
	uint64_t address;

	if (ASK(actor, a_alloc, bytes, 0)->result)
		break_off("%s cannot allocate (%d)", actor->name, actor->reply.result);
	address = actor->reply.v[0];
	fill(actor, address, bytes, value);
	return address;
}

uint64_t async_default(struct actor *actor)
{
	return ASK(actor, a_pools, 0)->v[0];
}

void async_free(struct actor *actor, uint64_t address)
{
	if (ASK(actor, free_async, address, 1)->result)
		break_off("%s cannot free (%d)", actor->name, actor->reply.result);
}

static bool claim_by(struct actor *actor, uint64_t address, uint64_t bytes, uint64_t tries)
{
	ASK(actor, pool_claim, async_default(actor), address, bytes, tries, NEXT);
	return actor->reply.v[0];
}

bool async_claim(struct actor *actor, uint64_t address, uint64_t bytes)
{
	return claim_by(actor, address, bytes, bytes < BIG ? TRIES : 3);
}

bool async_claim_within(struct actor *actor, uint64_t address, uint64_t bytes, double ms)
{
	double deadline = now_ms() + ms;
	uint64_t tries = bytes < BIG ? TRIES : 3;

	/* what came free while a claim held others is behind these the next time */
	while (!claim_by(actor, address, bytes, tries)) {
		tries += tries < TRIES;
		if (!watch_until(deadline))
			return false;
	}
	return true;
}

void async_curtain(struct actor *p, struct actor *c)
{
	leave(c);
	leave(p);
	ok(!*said(p) && !*said(c), "%s, %s: a clean run says nothing on stderr", p->name, c->name);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* ----------------------------------------------------------------------- scenes */
static void one_block(const char *door, uint64_t bytes)
{
	struct actor *p = ENTER("P", .door = door, .env = SOON), *c = ENTER("C", .door = door, .env = "CULIMBO_LOG=info");
	uint64_t neighbour = async_alloc(p, bytes, 1), at = async_alloc(p, bytes, OWN), import, again;
	struct handle handle, inside, beside;
	int result;

	result = try_export(p, at, &handle);
	ok(!result, "18 %s, %d KiB: with CULIMBO_SHARE=all there is a handle (%d)", door, (int)(bytes / KIB), result);
	beside = export_block(p, neighbour);
	result = try_export(p, at + bytes / 2, &inside);
	ok(!result && same_handle(&handle, &inside), "18 an interior pointer gives the handle of its block (%d)", result);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, bytes, OWN, NULL), "18 C opens it, and reads what P wrote (%d)", result);
	if (result)
		break_off("it is not open");
	fill(c, import, bytes, NEXT);
	ok(reads(p, at, bytes, NEXT, NULL) && reads(p, neighbour, bytes, 1, NULL), "18 P reads what C wrote, at its place alone");
	fill(c, import, bytes, OWN);
	again = open_block(c, &handle);
	ok(again == import, "18 a second open gives the same address");
	close_block(c, again);
	ok(reads(c, import, bytes, OWN, NULL), "18 it stays open until the second close");
	async_free(p, at);
	ok(!async_claim(p, at, bytes) && reads(c, import, bytes, OWN, NULL),
	   "18 P frees it: nothing else gets its place while C has it open");
	result = try_export(p, at, &inside);
	ok(result == INVALID_VALUE, "18 P gets no handle of what it has freed (%d)", result);
	close_block(c, import);
	ok(try_close(c, import) == INVALID_VALUE, "18 a third close is refused");
	ok(async_claim_within(p, at, bytes, 2000), "18 C closes it: the pool uses it again");
	result = try_open(c, &handle, &again);
	ok(refused(result), "18 its old handle is stale, and refused (%d)", result);
	import = open_block(c, &beside);
	result = try_open(c, &handle, &again);
	ok(refused(result), "18 also while C has another block of the pool open (%d)", result);
	close_block(c, import);
	ok(count_said(c, "refused a stale handle") == 2 && !count_said(c, "was not opened"), "18 each is reported once, as stale");
	handle = export_block(p, at);
	import = open_block(c, &handle);
	ok(reads(c, import, bytes, NEXT, NULL), "18 the next block there has a handle of its own");
	close_block(c, import);
	leave(c);
	ok(count_said(c, "freed from") == 1 && !count_said(c, "no longer known"), "18 C's report says where P freed what was stale");
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void one(const char *door)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = ENTER("P", .bare = bare, .door = door);
		uint64_t at = async_alloc(p, SMALL, OWN);
		struct handle handle;
		int result = try_export(p, at, &handle);

		ok(result == INVALID_VALUE, "%s%s: cuIpcGetMemHandle refuses cuMemAllocAsync memory (%d)",
		   bare ? "control: bare, " : "18 without the option, ", door, result);
		leave(p);
	}
	one_block(door, SMALL);
	one_block(door, BIG);
}

static void one_linked(void)
{
	one("linked");
}

static void one_dlsym(void)
{
	one("dlsym");
}

static void one_getproc(void)
{
	one("getproc");
}

/* What the program sees of its pools.  @shares: it makes handles meanwhile. */
static void see(const char *who, struct actor *p, bool shares)
{
	uint64_t pool = async_default(p), mine, at, address;
	struct handle handle, data;
	int result;

	ok(ASK(p, a_pools, 0)->v[1] == pool, "%s: the device allocates from its default pool", who);
	at = async_alloc(p, SMALL, OWN);
	ok(ASK(p, v_ask, at, MEMPOOL_HANDLE)->v[0] == pool, "%s: which the pointer names, too", who);
	if (shares)
		handle = export_block(p, at);
	ok(ASK(p, a_attribute, pool, USED, 0)->v[0] >= SMALL, "%s: and which counts it", who);
	result = ASK(p, pool_destroy, pool)->result;
	ok(result == INVALID_VALUE, "%s: it can't be destroyed (%d)", who, result);
	result = ASK(p, a_export_pool, pool)->result;
	ok(result == INVALID_VALUE, "%s: nor exported (%d)", who, result);
	ASK(p, pool_export, at);
	ok(p->reply.result == INVALID_VALUE, "%s: nor a pointer into it (%d)", who, p->reply.result);
	mine = ASK(p, a_new_pool, 0, 0)->v[0];
	ok(!p->reply.result && mine != pool, "%s: P makes a pool", who);
	ok(!ASK(p, a_set_pool, 0, mine)->result && ASK(p, a_pools, 0)->v[1] == mine, "%s: and has the device allocate from it", who);
	address = async_alloc(p, SMALL, NEXT);
	ok(ASK(p, v_ask, address, MEMPOOL_HANDLE)->v[0] == mine, "%s: which it does", who);
	if (shares)
		data = export_block(p, address);
	result = ASK(p, a_export_pool, mine)->result;
	ok(result == INVALID_VALUE, "%s: that pool has no handle type, and can't be exported (%d)", who, result);
	ok(ASK(p, pool_export, address)->result == INVALID_VALUE, "%s: nor can its pointer", who);
	ok(!ASK(p, pool_destroy, mine)->result, "%s: P destroys it", who);
	ok(ASK(p, a_pools, 0)->v[1] == pool, "%s: the device has its default pool again", who);
	async_free(p, address);
	address = async_alloc(p, SMALL, NEXT);
	ok(ASK(p, v_ask, address, MEMPOOL_HANDLE)->v[0] == pool, "%s: and allocates from that", who);
	if (shares)
		ok(!try_export(p, address, &data) && !same_handle(&data, &handle), "%s: of which there are handles", who);
	ok(ASK(p, pool_destroy, mine)->result, "%s: the destroyed one can't be destroyed again", who);
	async_free(p, address);
	async_free(p, at);
}

static void seen(void)
{
	struct actor *p = ENTER("P", .bare = true);

	see("control: bare", p, false);
	leave(p);
	p = ENTER("P", .env = ALL);
	see("18 with the option", p, false);
	leave(p);
	ok(!*said(p) && !files(), "18 who shares nothing has no file");
	p = ENTER("P", .env = ALL);
	see("18 it shares", p, true);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* The release threshold is what the program has set. */
static void threshold(void)
{
	for (int shares = -1; shares < 2; shares++) {
		struct actor *p = shares < 0 ? ENTER("P", .bare = true) : ENTER("P", .env = SOON);
		struct actor *o = ENTER("O", .bare = true);
		uint64_t pool = async_default(p), at, before;
		const char *who = shares < 0 ? "control: bare" : shares ? "18 it shares" : "18 with the option";

		ok(ASK(p, a_attribute, pool, THRESHOLD, 0)->v[0] == 0, "%s: the threshold is 0 at first", who);
		at = async_alloc(p, SMALL, OWN);
		if (shares > 0)
			export_block(p, at);
		ok(ASK(p, a_attribute, pool, THRESHOLD, 0)->v[0] == 0, "%s: and stays so", who);
		ok(!ASK(p, a_attribute, pool, THRESHOLD, 1, MIB)->result &&
			   ASK(p, a_attribute, pool, THRESHOLD, 0)->v[0] == MIB, "%s: P reads what it has set", who);
		ok(!ASK(p, a_attribute, pool, THRESHOLD, 1, 0)->result, "%s: P sets it back", who);
		if (shares < 1) {
			before = free_memory(o);
			at = async_alloc(p, BIG, OWN);
			ok(free_memory(o) + BIG <= before, "%s: P has taken memory", who);
			async_free(p, at);
			ok(free_memory(o) == before, "%s: the free gives it back, since nothing was shared", who);
		}
		leave(p);
		leave(o);
	}
}

/* An open that fails, of a pool that is imported for it, is no more to a capture than one that CUDA refuses. */
static void opens_in_vain_in_a_capture(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL " CULIMBO_POOL_IMPORT_MAX=1MiB");
	struct handle handle = export_block(p, async_alloc(p, 2 * MIB, OWN));
	uint64_t stream = ASK(c, stream_create, 1)->v[0], at;
	int result;

	if (ASK(c, stream_capture, stream, 0)->result)
		break_off("no capture");
	result = try_open(c, &handle, &at);
	ok(result == NOT_SUPPORTED && !ASK(c, stream_captured, stream)->result,
	   "18 a block that is too large is not opened (%d), and the capture is good (%d)", result, c->reply.result);
	leave(c);
	leave(p);
}

/* A stream that captures allocates as bare, from the default pool and from one of the program. */
static void captures(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = bare ? ENTER("P", .bare = true) : ENTER("P", .env = ALL);
		const char *who = bare ? "control: bare" : "18";
		uint64_t stream = ASK(p, stream_create, 1)->v[0], mine = ASK(p, a_new_pool, 0, 0)->v[0], at;
		uint64_t theirs = ASK(p, a_new_pool, 0, FD)->v[0];
		struct handle handle;

		for (int mode = 0; mode < 3; mode++) {
			if (ASK(p, stream_capture, stream, mode)->result)
				break_off("no capture");
			ok(!ASK(p, a_alloc, SMALL, stream)->result && p->reply.v[0], "%s: cuMemAllocAsync in a capture (%d, mode %d)",
			   who, p->reply.result, mode);
			ok(!ASK(p, a_alloc_from, mine, SMALL, stream)->result && p->reply.v[0],
			   "%s: and from a pool of the program (%d)", who, p->reply.result);
			ok(ASK(p, a_alloc_from, theirs, SMALL, stream)->result == NOT_SUPPORTED,
			   "%s: from a pool with a handle type it gives 801 (%d)", who, p->reply.result);
			ok(!ASK(p, stream_captured, stream)->result, "%s: the capture is good (%d)", who, p->reply.result);
		}
		ok(!ASK(p, a_alloc, SMALL, stream)->result, "%s: afterwards it allocates as before", who);
		at = p->reply.v[0];
		if (!bare) {
			handle = export_block(p, at);
			if (ASK(p, stream_capture, stream, 0)->result)
				break_off("no capture");
			ok(!try_export(p, at, &handle), "18 a handle during a capture");
			ok(!ASK(p, stream_captured, stream)->result, "18 spoils nothing");
		}
		leave(p);
	}
	opens_in_vain_in_a_capture();
}

/* What C reads of an import is what it would of a legacy one. */
static void queries(void)
{
	enum { CONTEXT = 1, LEGACY = 10, MAPPING_SIZE = 18, MAPPING_BASE_ADDR = 19 };
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	const uint64_t bytes = 4 * MIB;
	uint64_t at = async_alloc(p, bytes, OWN), block = alloc(p, bytes), import, legacy, context;
	struct handle handle = export_block(p, at);

	ok(ASK(p, v_ask, at, LEGACY)->v[0] == 0, "18 P reads that its memory has no legacy handle, as without the option");
	import = open_block(c, &handle);
	handle = export_block(p, block);
	legacy = open_block(c, &handle);
	ASK(c, v_range, import + 4096);
	ok(c->reply.v[0] == import && c->reply.v[1] == bytes && c->reply.v[2] == import && c->reply.v[3] == bytes,
	   "18 cuMemGetAddressRange and the range attributes give the block");
	context = ASK(c, v_ask, legacy, CONTEXT)->v[0];
	ok(context && ASK(c, v_ask, import + 4096, CONTEXT)->v[0] == context, "18 its context is that of a legacy import");
	ok(like_a_legacy_import(c, legacy, import + 4096) &&
		   ASK(c, v_ask, legacy, MAPPING_SIZE)->v[0] == bytes && ASK(c, v_ask, import, MAPPING_SIZE)->v[0] == bytes,
	   "18 its other attributes are those of a legacy import");
	ok(!ASK(c, v_ask, legacy, MEMPOOL_HANDLE)->v[0], "18 and is of no pool");
	ok(ASK(c, v_ask, legacy, MAPPING_BASE_ADDR)->v[0] == legacy && ASK(c, v_ask, import, MAPPING_BASE_ADDR)->v[0] == import,
	   "18 its mapping begins with it, as that of a legacy import");
	close_block(c, legacy);
	close_block(c, import);
	/* the second of two small blocks, which share a piece of the pool */
	async_alloc(p, SMALL, OWN);
	at = async_alloc(p, SMALL, OWN);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	ok(ASK(c, v_ask, import, MAPPING_BASE_ADDR)->v[0] == import && ASK(c, v_ask, import, MAPPING_SIZE)->v[0] == SMALL,
	   "18 a small one begins its mapping, too, and is all of it");
	close_block(c, import);
	async_curtain(p, c);
}

const struct scene async_scenes[] = {
	{ "async-one-linked", one_linked, 0 },
	{ "async-one-dlsym", one_dlsym, 0 },
	{ "async-one-getproc", one_getproc, 0 },
	{ "async-seen", seen, 0 },
	{ "async-threshold", threshold, SCENE_ALONE },
	{ "async-captures", captures, 0 },
	{ "async-queries", queries, 0 },
	{ "async-dead", async_dead, 0 },
	{ "async-importer-dies", async_importer_dies, 0 },
	{ "async-stopped", async_stopped, 0 },
	{ "async-odd", async_odd, 0 },
	{ "async-own", async_own, 0 },
	{ "async-one-side", async_one_side, 0 },
	{ "async-off", async_off, 0 },
	{ "async-device", async_device, 0 },
	{ "async-flips", async_flips, 0 },
	{ "async-fork", async_fork, 0 },
	{ "async-fork-stays", async_fork_stays, SCENE_ALONE },
	{ "async-pool", async_pool, 0 },
	{ "async-context", async_context, 0 },
	{ "async-context-captured", async_context_captured, 0 },
	{ "async-capture-access", async_capture_access, 0 },
	{ "async-whose", async_whose, SCENE_ALONE | SCENE_SIMULATED },
	{ "async-types", async_types, 0 },
	{ "async-told", async_told, 0 },
	{ "async-pool-destroyed", async_pool_destroyed, SCENE_ALONE },
	{ "async-stream", async_stream, 0 },
	{ "async-back", async_back, SCENE_ALONE },
	{ "async-both-ways", async_both_ways, 0 },
	{ "async-visible", async_visible, 0 },
	{ "async-large", async_large, 0 },
	{ "async-together", async_together, 0 },
	{ "async-stopped-threads", async_stopped_threads, 0 },
	{ "async-pool-taken", async_pool_taken, 0 },
	{ "async-pool-taken-twice", async_pool_taken_twice, 0 },
	{ "async-used", async_used, 0 },
	{ "async-threads", async_threads, SCENE_ALONE },
	{ 0 }
};

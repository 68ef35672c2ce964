/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of virtual memory that is shared by legacy handles (17, CULIMBO_SHARE=all): what is opened and what
 * is read; and the list of them and of those in scene_virtual_*.c.
 */
#include "scene_virtual.h"

#define FD 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */

/* ------------------------------------------------------------------ operations */
uint64_t virtual_reserve(struct actor *actor, uint64_t bytes)
{
	if (ASK(actor, v_reserve, bytes)->result)
		break_off("%s cannot reserve (%d)", actor->name, actor->reply.result);
	return actor->reply.v[0];
}

uint64_t virtual_make(struct actor *actor, uint64_t bytes, uint64_t types)
{
	if (ASK(actor, v_create, bytes, types)->result)
		break_off("%s cannot create (%d)", actor->name, actor->reply.result);
	return actor->reply.v[0];
}

void virtual_map(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value)
{
	uint64_t memory = virtual_make(actor, bytes, 0);

	if (ASK(actor, v_map, address, bytes, memory)->result)
		break_off("%s cannot map (%d)", actor->name, actor->reply.result);
	if (ASK(actor, v_release, memory)->result)
		break_off("%s cannot release (%d)", actor->name, actor->reply.result);
	fill(actor, address, bytes, value);
}

void virtual_unmap(struct actor *actor, uint64_t address, uint64_t bytes)
{
	if (ASK(actor, v_unmap, address, bytes)->result)
		break_off("%s cannot unmap (%d)", actor->name, actor->reply.result);
}

void virtual_curtain(struct actor *p, struct actor *c)
{
	leave(c);
	leave(p);
	ok(!*said(p) && !*said(c), "%s, %s: a clean run says nothing on stderr", p->name, c->name);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* ----------------------------------------------------------------------- scenes */
/* One allocation, by each door; bare and without the option it is refused. */
static void one(const char *door)
{
	struct actor *p, *c;
	struct handle handle;
	uint64_t at, import, again;
	int result;

	for (int bare = 1; bare >= 0; bare--) {
		p = ENTER("P", .bare = bare, .door = door);
		at = virtual_reserve(p, 4 * PIECE);
		virtual_map(p, at, PIECE, OWN);
		result = try_export(p, at, &handle);
		ok(result == INVALID_VALUE, "%s%s: cuIpcGetMemHandle refuses virtual memory (%d)",
		   bare ? "control: bare, " : "17 without the option, ", door, result);
		leave(p);
	}
	p = ENTER("P", .door = door, .env = ALL);
	c = ENTER("C", .door = door, .env = ALL);
	at = virtual_reserve(p, 4 * PIECE);
	virtual_map(p, at, PIECE, OWN);
	result = try_export(p, at, &handle);
	ok(!result, "17 %s: with CULIMBO_SHARE=all there is a handle (%d)", door, result);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 %s: C opens it, and reads what P wrote (%d)", door, result);
	if (result)
		break_off("it is not open");
	fill(c, import, PIECE, NEXT);
	ok(reads(p, at, PIECE, NEXT, NULL), "17 %s: P reads what C wrote", door);
	again = open_block(c, &handle);
	ok(again == import, "17 %s: a second open gives the same address", door);
	close_block(c, again);
	ok(reads(c, import, PIECE, NEXT, NULL), "17 %s: it stays open until the second close", door);
	close_block(c, import);
	ok(try_close(c, import) == INVALID_VALUE, "17 %s: a third close is refused", door);
	virtual_unmap(p, at, PIECE);
	ok(!ASK(p, v_free, at, 4 * PIECE)->result, "17 %s: P unmaps it and frees its addresses", door);
	leave(c);
	leave(p);
	ok(!*said(p), "17 %s: P says nothing", door);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
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

/* What the program reads of its memory is what it asked for. */
static void as_asked(void)
{
	static const struct { const char *env; uint64_t asked, reads, legacy; } tries[] = {
		{ "CULIMBO_SHARE=cuda", 0, 0, 0 },	 { ALL, 0, 0, 0 },
		{ ALL, FD, FD, 0 },			 { "CULIMBO_SHARE=all,visible", 0, FD, 1 },
		{ "CULIMBO_SHARE=all,visible", FD, FD, 1 },
	};

	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		struct actor *p = ENTER("P", .env = tries[i].env);
		uint64_t at = virtual_reserve(p, PIECE), memory = virtual_make(p, PIECE, tries[i].asked);
		int result;

		if (ASK(p, v_map, at, PIECE, memory)->result || ASK(p, v_types, memory, at)->result)
			break_off("P cannot map (%d)", p->reply.result);
		ok(p->reply.v[0] == tries[i].reads && p->reply.v[1] == tries[i].reads,
		   "17 %s: of memory with handle types %d the program reads %d, %d", tries[i].env, (int)tries[i].asked,
		   (int)p->reply.v[0], (int)p->reply.v[1]);
		ok(p->reply.v[2] == tries[i].legacy, "17 %s: and that it has legacy handles, or not (%d)", tries[i].env,
		   (int)p->reply.v[2]);
		/* of the memory that has descriptors only by us none is given, as without us */
		result = ASK(p, v_export, memory)->result;
		ok(result == (tries[i].reads ? 0 : INVALID_VALUE), "17 %s: its descriptor is given or refused as that says (%d)",
		   tries[i].env, result);
		leave(p);
		if (tries[i].reads)
			continue;
		ok(!*said(p) && !files(), "17 %s: who shares nothing has no file", tries[i].env);
	}
}

/* Several allocations with a hole, by both bases that callers use. */
static void several(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = virtual_reserve(p, 8 * PIECE), start, second, inside;
	struct handle handle;

	virtual_map(p, at, PIECE, 1);
	virtual_map(p, at + PIECE, 2 * PIECE, 2);
	virtual_map(p, at + 4 * PIECE, PIECE, 4);
	handle = export_block(p, at);
	start = open_block(c, &handle);
	ok(reads(c, start, PIECE, 1, NULL) && reads(c, start + PIECE, 2 * PIECE, 2, NULL) &&
		   reads(c, start + 4 * PIECE, PIECE, 4, NULL),
	   "17 by the reservation: C reads all three allocations, the hole between them");
	handle = export_block(p, at + PIECE);
	second = open_block(c, &handle);
	ok(second == start + PIECE, "17 by the second allocation: the same mirror, at its offset");
	handle = export_block(p, at + 2 * PIECE + 4096);
	inside = open_block(c, &handle);
	ok(inside == second, "17 an interior pointer gives the handle of its allocation");
	virtual_map(p, at + 3 * PIECE, PIECE, 3);
	handle = export_block(p, at + 3 * PIECE);
	inside = open_block(c, &handle);
	ok(inside == start + 3 * PIECE && reads(c, inside, PIECE, 3, NULL),
	   "17 what was mapped after the first export goes into the hole");
	close_block(c, start);
	ok(reads(c, second, 2 * PIECE, 2, NULL), "17 each address is open until it is closed");
	close_block(c, second);
	close_block(c, second);
	close_block(c, inside);
	virtual_curtain(p, c);
}

/* What C reads of an import is what it would of a legacy one: one block, which begins where it was opened. */
static void queries(void)
{
	enum { CONTEXT = 1, DEVICE_POINTER = 3, MAPPING_SIZE = 18, MAPPING_BASE_ADDR = 19 };
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = virtual_reserve(p, 8 * PIECE), import, block = alloc(p, PIECE), legacy, context, hole;
	struct handle handle;
	int result;

	virtual_map(p, at, PIECE, 1);
	virtual_map(p, at + 2 * PIECE, PIECE, 2);
	virtual_map(p, at + 3 * PIECE, PIECE, 3);
	handle = export_block(p, at + 2 * PIECE);
	import = open_block(c, &handle);
	handle = export_block(p, block);
	legacy = open_block(c, &handle);
	ASK(c, v_range, import + PIECE + 4096);
	ok(c->reply.v[0] == import && c->reply.v[1] == 2 * PIECE, "17 cuMemGetAddressRange: from the import on, both allocations");
	ok(c->reply.v[2] == import && c->reply.v[3] == 2 * PIECE, "17 RANGE_START_ADDR and RANGE_SIZE say the same");
	ASK(c, v_range, legacy + 4096);
	ok(c->reply.v[0] == legacy && c->reply.v[2] == legacy, "17 as of a legacy import");
	context = ASK(c, v_ask, legacy, CONTEXT)->v[0];
	ok(context && ASK(c, v_ask, import, CONTEXT)->v[0] == context, "17 its context is that of a legacy import");
	ok(like_a_legacy_import(c, legacy, import + 4096), "17 its other attributes are those of a legacy import");
	ok(ASK(c, v_ask, legacy + 4096, MAPPING_BASE_ADDR)->v[0] == legacy &&
		   ASK(c, v_ask, import + PIECE + 4096, MAPPING_BASE_ADDR)->v[0] == import &&
		   ASK(c, v_ask, legacy, MAPPING_SIZE)->v[0] == PIECE && ASK(c, v_ask, import, MAPPING_SIZE)->v[0] == 2 * PIECE,
	   "17 its mapping is all of it, as that of a legacy import");
	/* nothing is mapped there: only culimbo knows the address */
	virtual_unmap(p, at, PIECE);
	handle = export_block(p, at);
	hole = open_block(c, &handle);
	result = ASK(c, v_range, hole + 4096)->result;
	ok(!result && c->reply.v[0] == hole && c->reply.v[1] == 4 * PIECE && c->reply.v[2] == hole && c->reply.v[3] == 4 * PIECE,
	   "17 an import that begins with a hole is one block, too (%d)", result);
	ok(like_a_legacy_import(c, legacy, hole + 4096) && like_a_legacy_import(c, legacy, hole + PIECE + 4096),
	   "17 and in its hole, too, it has the attributes of a legacy import");
	ok(!ASK(c, v_ask, hole + 4096, DEVICE_POINTER)->result && c->reply.v[0] == hole + 4096,
	   "17 and the address that is asked for is its own (%d)", c->reply.result);
	ASK(c, v_ask_two, hole + 4096, CONTEXT);
	ok(!c->reply.result && c->reply.v[0] == context && c->reply.v[1] == 2, "17 and so by cuPointerGetAttributes (%d)",
	   c->reply.result);
	close_block(c, hole);
	ASK(p, v_range, at + 3 * PIECE);
	ok(p->reply.v[0] == at + 3 * PIECE && p->reply.v[2] == at && p->reply.v[3] == 8 * PIECE,
	   "17 P reads what it would without the option");
	close_block(c, legacy);
	close_block(c, import);
	virtual_curtain(p, c);
}

/* P unmaps what C has open, and maps something else there. */
static void unmapped(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = virtual_reserve(p, 4 * PIECE), old, new, address;
	uint64_t stream = ASK(p, stream_create, 1)->v[0];
	struct handle before, after;
	int result;

	virtual_map(p, at, PIECE, OWN);
	before = export_block(p, at);
	if (ASK(p, stream_capture, stream, 0)->result)
		break_off("no capture");
	ok(!try_export(p, at, &after) && same_handle(&before, &after), "17 a handle again during a capture");
	ok(!ASK(p, stream_captured, stream)->result, "17 spoils nothing");
	old = open_block(c, &before);
	virtual_unmap(p, at, PIECE);
	ok(reads(c, old, PIECE, OWN, NULL), "17 P unmaps it: C reads its bytes");
	result = try_open(c, &before, &address);
	ok(refused(result), "17 the handle is stale, and refused (%d)", result);
	ok(try_export(p, at, &after) == INVALID_VALUE, "17 nothing is mapped there: no handle");
	virtual_map(p, at, PIECE, NEXT);
	result = try_open(c, &before, &address);
	ok(refused(result), "17 P maps other memory there: the old handle is refused (%d)", result);
	after = export_block(p, at);
	ok(!same_handle(&before, &after), "17 its handle is another");
	new = open_block(c, &after);
	ok(new != old && reads(c, new, PIECE, NEXT, NULL) && reads(c, old, PIECE, OWN, NULL),
	   "17 C reads the new bytes by the new handle, and the old ones where it had them");
	close_block(c, old);
	close_block(c, new);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * The first allocation of a reservation is unmapped, and others stay.  A handle of the reservation named the
 * first one, so it is refused; that of the others, and a new one of the reservation, are good.
 */
static void first_unmapped(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = virtual_reserve(p, 4 * PIECE), old, import;
	struct handle all, second, again;
	int result;

	virtual_map(p, at, PIECE, 1);
	virtual_map(p, at + PIECE, PIECE, 2);
	virtual_map(p, at + 2 * PIECE, PIECE, 3);
	all = export_block(p, at);
	second = export_block(p, at + PIECE);
	old = open_block(c, &all);
	virtual_unmap(p, at, PIECE);
	result = try_open(c, &all, &import);
	ok(refused(result), "17 the first is unmapped: the reservation's handle is refused (%d)", result);
	ok(reads(c, old, PIECE, 1, NULL) && reads(c, old + PIECE, PIECE, 2, NULL),
	   "17 what was opened by it before keeps its bytes");
	import = open_block(c, &second);
	ok(import == old + PIECE && reads(c, import + PIECE, PIECE, 3, NULL), "17 the handle of the second is good");
	close_block(c, import);
	again = export_block(p, at);
	ok(!same_handle(&all, &again), "17 another one of the reservation, where nothing is mapped, is another handle");
	import = open_block(c, &again);
	ok(reads(c, import + PIECE, PIECE, 2, NULL) && reads(c, import + 2 * PIECE, PIECE, 3, NULL),
	   "17 it gives what is left, at its offsets");
	close_block(c, import);
	virtual_map(p, at, PIECE, 4);
	result = try_open(c, &all, &import);
	ok(refused(result), "17 other memory is mapped there: the old handle does not give that (%d)", result);
	import = open_block(c, &again);
	ok(reads(c, import, PIECE, 4, NULL) && reads(c, import + PIECE, PIECE, 2, NULL),
	   "17 the newer one gives it, since nothing was there when it was made");
	close_block(c, import);
	close_block(c, old);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* Memory that C has closed, or died with, comes back. */
static void back(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL), *o = ENTER("O", .bare = true);
	uint64_t at = virtual_reserve(p, BIG), before = free_memory(o), import;
	struct handle handle;
	double took;

	for (int dies = 0; dies < 2; dies++) {
		virtual_map(p, at, BIG, OWN);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		virtual_unmap(p, at, BIG);
		ok(free_memory(o) + BIG <= before, "17 P unmaps what C has open: the driver keeps it");
		if (dies)
			kill_actor(c);
		else
			close_block(c, import);
		ok(free_within(o, before, 2000, &took), "17 C %s: it is free", dies ? "is killed" : "closes it");
	}
	/* C's context has gone with C, so the device may have more free than before */
	before = free_memory(o);
	virtual_map(p, at, BIG, OWN);
	handle = export_block(p, at);
	virtual_unmap(p, at, BIG);
	ok(free_memory(o) == before, "17 nobody has opened it: the unmap gives it back at once");
	leave(p);
	leave(o);
}

/* A process opens its own handle, as it can of a block with culimbo. */
static void own(void)
{
	struct actor *p = ENTER("P", .env = ALL);
	uint64_t at = virtual_reserve(p, 4 * PIECE), same;
	struct handle handle;
	int result;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	result = try_open(p, &handle, &same);
	ok(!result && same == at, "17 the same process gets its own address (%d)", result);
	ok(!try_close(p, same), "17 and closes it");
	ok(reads(p, at, PIECE, OWN, NULL), "17 its memory is as it was");
	ok(try_close(p, same) == INVALID_VALUE, "17 a second close is refused");
	result = try_open(p, &handle, &same);
	virtual_unmap(p, at, PIECE);
	ok(!result && try_close(p, same) == INVALID_VALUE, "17 after its unmap there is nothing to close");
	ok(!ASK(p, v_free, at, 4 * PIECE)->result && try_close(p, same) == INVALID_VALUE, "17 nor after the free of its addresses");
	leave(p);
	ok(!*said(p) || count_said(p, "closed"), "17 it says nothing but that");
}

/* One side lacks culimbo, or the option. */
static void one_side(void)
{
	struct actor *p = ENTER("P", .env = ALL), *b = ENTER("B", .bare = true), *c = ENTER("C");
	uint64_t at = virtual_reserve(p, 4 * PIECE), import;
	struct handle handle;
	double start;
	int result;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	start = now_ms();
	result = try_open(b, &handle, &import);
	ok(result && now_ms() - start < 1000, "17 without culimbo it is refused at once (%d)", result);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 who opens needs no option (%d)", result);
	close_block(c, import);
	leave(b);
	virtual_curtain(p, c);
}

const struct scene virtual_scenes[] = {
	{ "virtual-one-linked", one_linked, 0 },
	{ "virtual-one-dlsym", one_dlsym, 0 },
	{ "virtual-one-getproc", one_getproc, 0 },
	{ "virtual-as-asked", as_asked, 0 },
	{ "virtual-several", several, 0 },
	{ "virtual-queries", queries, 0 },
	{ "virtual-threads", virtual_threads, SCENE_ALONE },
	{ "virtual-unmapped", unmapped, 0 },
	{ "virtual-first-unmapped", first_unmapped, 0 },
	{ "virtual-back", back, SCENE_ALONE },
	{ "virtual-own", own, 0 },
	{ "virtual-one-side", one_side, 0 },
	{ "virtual-dead", virtual_dead, 0 },
	{ "virtual-stopped", virtual_stopped, 0 },
	{ "virtual-no-service", virtual_no_service, 0 },
	{ "virtual-odd", virtual_odd, SCENE_ALONE },
	{ "virtual-execs", virtual_execs, SCENE_ALONE },
	{ "virtual-off", virtual_off, 0 },
	{ "virtual-no-descriptors", virtual_no_descriptors, SCENE_SIMULATED },
	{ "virtual-peers", virtual_peers, 0 },
	{ "virtual-flips", virtual_flips, 0 },
	{ "virtual-told", virtual_told, 0 },
	{ "virtual-told-of-ends", virtual_told_of_ends, 0 },
	{ "virtual-misused", virtual_misused, 0 },
	{ "virtual-cached", virtual_cached, 0 },
	{ "virtual-many", virtual_many, 0 },
	{ "virtual-forks", virtual_forks, 0 },
	{ 0 }
};

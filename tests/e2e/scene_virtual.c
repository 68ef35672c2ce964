/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of virtual memory that is shared by legacy handles (17): CULIMBO_SHARE=all.
 */
#include "stage.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL "CULIMBO_SHARE=all"
#define PIECE (2 * MIB)
#define FD 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */

/* ------------------------------------------------------------------ operations */
static uint64_t reserve(struct actor *actor, uint64_t bytes)
{
	if (ASK(actor, v_reserve, bytes)->result)
		break_off("%s cannot reserve (%d)", actor->name, actor->reply.result);
	return actor->reply.v[0];
}

static uint64_t make(struct actor *actor, uint64_t bytes, uint64_t types)
{
	if (ASK(actor, v_create, bytes, types)->result)
		break_off("%s cannot create (%d)", actor->name, actor->reply.result);
	return actor->reply.v[0];
}

/* Maps @bytes of new memory at @address, and fills it. */
static void map(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value)
{
	uint64_t memory = make(actor, bytes, 0);

	if (ASK(actor, v_map, address, bytes, memory)->result)
		break_off("%s cannot map (%d)", actor->name, actor->reply.result);
	if (ASK(actor, v_release, memory)->result)
		break_off("%s cannot release (%d)", actor->name, actor->reply.result);
	fill(actor, address, bytes, value);
}

static void unmap(struct actor *actor, uint64_t address, uint64_t bytes)
{
	if (ASK(actor, v_unmap, address, bytes)->result)
		break_off("%s cannot unmap (%d)", actor->name, actor->reply.result);
}

static void curtain(struct actor *p, struct actor *c)
{
	leave(c);
	leave(p);
	ok(!*said(p) && !*said(c), "%s, %s: a clean run says nothing on stderr", p->name, c->name);
	ok(files() == 0, "no file is left in CULIMBO_DIR");
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
		at = reserve(p, 4 * PIECE);
		map(p, at, PIECE, OWN);
		result = try_export(p, at, &handle);
		ok(result == INVALID_VALUE, "%s%s: cuIpcGetMemHandle refuses virtual memory (%d)",
		   bare ? "control: bare, " : "17 without the option, ", door, result);
		leave(p);
	}
	p = ENTER("P", .door = door, .env = ALL);
	c = ENTER("C", .door = door, .env = ALL);
	at = reserve(p, 4 * PIECE);
	map(p, at, PIECE, OWN);
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
	unmap(p, at, PIECE);
	ok(!ASK(p, v_free, at, 4 * PIECE)->result, "17 %s: P unmaps it and frees its addresses", door);
	leave(c);
	leave(p);
	ok(!*said(p), "17 %s: P says nothing", door);
	ok(files() == 0, "no file is left in CULIMBO_DIR");
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
	static const struct { const char *env; uint64_t asked, reads; } tries[] = {
		{ "CULIMBO_SHARE=cuda", 0, 0 }, { ALL, 0, 0 }, { ALL, FD, FD }, { "CULIMBO_SHARE=all,visible", 0, FD },
	};

	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		struct actor *p = ENTER("P", .env = tries[i].env);
		uint64_t at = reserve(p, PIECE), memory = make(p, PIECE, tries[i].asked);

		if (ASK(p, v_map, at, PIECE, memory)->result || ASK(p, v_types, memory, at)->result)
			break_off("P cannot map (%d)", p->reply.result);
		ok(p->reply.v[0] == tries[i].reads && p->reply.v[1] == tries[i].reads,
		   "17 %s: of memory with handle types %d the program reads %d, %d", tries[i].env, (int)tries[i].asked,
		   (int)p->reply.v[0], (int)p->reply.v[1]);
		leave(p);
		ok(!*said(p) && !files(), "17 %s: who shares nothing has no file", tries[i].env);
	}
}

/* Several allocations with a hole, by both bases that callers use. */
static void several(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = reserve(p, 8 * PIECE), start, second, inside;
	struct handle handle;

	map(p, at, PIECE, 1);
	map(p, at + PIECE, 2 * PIECE, 2);
	map(p, at + 4 * PIECE, PIECE, 4);
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
	map(p, at + 3 * PIECE, PIECE, 3);
	handle = export_block(p, at + 3 * PIECE);
	inside = open_block(c, &handle);
	ok(inside == start + 3 * PIECE && reads(c, inside, PIECE, 3, NULL),
	   "17 what was mapped after the first export goes into the hole");
	close_block(c, start);
	ok(reads(c, second, 2 * PIECE, 2, NULL), "17 each address is open until it is closed");
	close_block(c, second);
	close_block(c, second);
	close_block(c, inside);
	curtain(p, c);
}

/* What C reads of an import is what it would of a legacy one: one block, which begins where it was opened. */
static void queries(void)
{
	enum { CONTEXT = 1, LEGACY = 10, TYPES = 14 };
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = reserve(p, 8 * PIECE), import, block = alloc(p, PIECE), legacy, context;
	struct handle handle;

	map(p, at, PIECE, 1);
	map(p, at + 2 * PIECE, PIECE, 2);
	map(p, at + 3 * PIECE, PIECE, 3);
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
	ok(!ASK(c, v_ask, import, TYPES)->v[0] && ASK(c, v_ask, import, LEGACY)->v[0] == 1,
	   "17 it has no handle types, and is legacy memory");
	ASK(p, v_range, at + 3 * PIECE);
	ok(p->reply.v[0] == at + 3 * PIECE && p->reply.v[2] == at && p->reply.v[3] == 8 * PIECE,
	   "17 P reads what it would without the option");
	close_block(c, legacy);
	close_block(c, import);
	curtain(p, c);
}

/* P unmaps what C has open, and maps something else there. */
static void unmapped(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = reserve(p, 4 * PIECE), old, new, address;
	struct handle before, after;
	int result;

	map(p, at, PIECE, OWN);
	before = export_block(p, at);
	old = open_block(c, &before);
	unmap(p, at, PIECE);
	ok(reads(c, old, PIECE, OWN, NULL), "17 P unmaps it: C reads its bytes");
	result = try_open(c, &before, &address);
	ok(refused(result), "17 the handle is stale, and refused (%d)", result);
	ok(try_export(p, at, &after) == INVALID_VALUE, "17 nothing is mapped there: no handle");
	map(p, at, PIECE, NEXT);
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
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

/* Memory that C has closed, or died with, comes back. */
static void back(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL), *o = ENTER("O", .bare = true);
	uint64_t at = reserve(p, BIG), before = free_memory(o), import;
	struct handle handle;
	double took;

	for (int dies = 0; dies < 2; dies++) {
		map(p, at, BIG, OWN);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		unmap(p, at, BIG);
		ok(free_memory(o) + BIG <= before, "17 P unmaps what C has open: the driver keeps it");
		if (dies)
			kill_actor(c);
		else
			close_block(c, import);
		ok(free_within(o, before, 2000, &took), "17 C %s: it is free", dies ? "is killed" : "closes it");
	}
	map(p, at, BIG, OWN);
	handle = export_block(p, at);
	unmap(p, at, BIG);
	ok(free_memory(o) == before, "17 nobody has opened it: the unmap gives it back at once");
	leave(p);
	leave(o);
}

/* A process opens its own handle, as it can of a block with culimbo. */
static void own(void)
{
	struct actor *p = ENTER("P", .env = ALL);
	uint64_t at = reserve(p, 4 * PIECE), same;
	struct handle handle;
	int result;

	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	result = try_open(p, &handle, &same);
	ok(!result && same == at, "17 the same process gets its own address (%d)", result);
	ok(!try_close(p, same), "17 and closes it");
	ok(reads(p, at, PIECE, OWN, NULL), "17 its memory is as it was");
	ok(try_close(p, same) == INVALID_VALUE, "17 a second close is refused");
	leave(p);
	ok(!*said(p) || count_said(p, "closed"), "17 it says nothing but that");
}

/* One side lacks culimbo, or the option. */
static void one_side(void)
{
	struct actor *p = ENTER("P", .env = ALL), *b = ENTER("B", .bare = true), *c = ENTER("C");
	uint64_t at = reserve(p, 4 * PIECE), import;
	struct handle handle;
	double start;
	int result;

	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	start = now_ms();
	result = try_open(b, &handle, &import);
	ok(result && now_ms() - start < 1000, "17 without culimbo it is refused at once (%d)", result);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 who opens needs no option (%d)", result);
	close_block(c, import);
	leave(b);
	curtain(p, c);
}

/* The exporter ends, is killed, or stands still. */
static void dead(void)
{
	for (int how = 0; how < 2; how++) {
		struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
		uint64_t at = reserve(p, 4 * PIECE), import, again;
		struct handle handle;
		double start;
		int result;

		map(p, at, PIECE, OWN);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		if (how)
			kill_actor(p);
		else
			leave(p);
		ok(reads(c, import, PIECE, OWN, NULL), "17 P %s: C reads on", how ? "is killed" : "exits");
		start = now_ms();
		result = try_open(c, &handle, &again);
		ok(result && now_ms() - start < 2000, "17 P %s: another open is refused at once (%d)",
		   how ? "is killed" : "exits", result);
		ok(!try_close(c, import), "17 the import can be closed");
		leave(c);
		ok(files() == 0, "no file is left in CULIMBO_DIR");
	}
}

static void stopped(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = reserve(p, 4 * PIECE), import;
	struct handle handle;
	double start;
	int result, status;

	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	/* all its threads stand still once it is reported as stopped */
	kill(p->pid, SIGSTOP);
	if (waitpid(p->pid, &status, WUNTRACED) != p->pid || !WIFSTOPPED(status))
		break_off("P is not stopped");
	start = now_ms();
	result = try_open(c, &handle, &import);
	ok(result && now_ms() - start < 9000, "17 P is stopped: the open ends with an error (%d, %.0f ms)", result,
	   now_ms() - start);
	ok(count_said(c, "does not answer") == 1, "17 C says why");
	kill(p->pid, SIGCONT);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 P goes on: C opens it (%d)", result);
	leave(c);
	leave(p);
}

/* A free in place of the close, and a close by an ended context. */
static void odd(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL), *o = ENTER("O", .bare = true);
	uint64_t at = reserve(p, BIG), before = free_memory(o), import, context;
	struct handle handle;
	double took;
	int result;

	map(p, at, BIG, OWN);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	result = try_free(c, import);
	ok(result == INVALID_VALUE && reads(c, import, BIG, OWN, NULL), "17 cuMemFree of an import is refused (%d)", result);
	close_block(c, import);
	context = ASK(c, ctx_create)->v[0];
	import = open_block(c, &handle);
	ok(ASK(c, ctx_destroy, context)->result == 0, "17 C destroys the context in which it opened it");
	unmap(p, at, BIG);
	ok(free_within(o, before, 2000, &took), "17 then it is closed: the memory is free once P unmaps it");
	leave(c);
	leave(p);
	leave(o);
}

/* Many allocations: more than descriptors go into one message. */
static void many(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t n = 300, at = reserve(p, n * PIECE), import;
	struct handle handle;
	double start;

	if (ASK(p, v_many, at, n, PIECE, 7)->result)
		break_off("P cannot map them (%d)", p->reply.result);
	handle = export_block(p, at);
	start = now_ms();
	import = open_block(c, &handle);
	note("300 allocations opened in %.1f ms", now_ms() - start);
	ASK(c, v_check_many, import, n, PIECE, 7);
	ok(!c->reply.v[0], "17 C reads all 300 allocations side by side");
	close_block(c, import);
	curtain(p, c);
}

/* A forked child and an exec end no service, and leave nothing. */
static void forks(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = reserve(p, 4 * PIECE), import;
	struct handle handle;
	int result;

	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	for (int by_clone = 0; by_clone < 2; by_clone++) {
		ASK(p, fork, END_EXIT, by_clone);
		ASK(c, fork, END_EXIT, by_clone);
		result = try_open(c, &handle, &import);
		ok(!result && reads(c, import, PIECE, OWN, NULL), "17 after a %s the service is there (%d)",
		   by_clone ? "clone()" : "fork()", result);
		ASK(c, fork, END_EXIT, by_clone);
		ok(reads(c, import, PIECE, OWN, NULL), "17 and C's child has ended none of its imports");
		close_block(c, import);
	}
	ASK(p, close_fds, CLOSE_ALL);
	handle = export_block(p, at);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 P closes all descriptors: its next handle works (%d)", result);
	if (!result)
		close_block(c, import);
	leave(c);
	leave(p);
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

/* Opens meet unmaps, in several threads on both sides: what is opened has its own bytes, to the end. */
static void threads(void)
{
	enum { CONSUMERS = 4, PRODUCERS = 6 };
	struct actor *o = ENTER("O", .bare = true), *p, *c;
	const struct wire_reply *made, *got;
	uint64_t before;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		break_off("socketpair");
	p = ENTER("P", .partner = pair[0], .env = ALL);
	c = ENTER("C", .partner = pair[1]);
	close(pair[0]);
	close(pair[1]);
	before = free_memory(o);
	tell(c, OP_consume, NULL, (const uint64_t[6]){ CONSUMERS });
	tell(p, OP_produce, NULL, (const uint64_t[6]){ PRODUCERS, 40, PIECE, CONSUMERS, 1 });
	made = hear(p, 50000);
	got = hear(c, 50000);
	ok(!made->result && !got->result, "17 %d threads map, export and unmap, %d open and close: no error (%d %s, %d %s)",
	   PRODUCERS, CONSUMERS, made->result, made->complaint, got->result, got->complaint);
	note("%llu handles, %llu refused", (unsigned long long)got->v[0], (unsigned long long)got->v[1]);
	ok(got->v[0] == made->v[0] && got->v[2] == 0, "17 no import has foreign bytes (%llu)",
	   (unsigned long long)got->v[2]);
	ok(free_within(o, before, 5000, NULL), "17 then nothing is left");
	leave(c);
	leave(p);
	leave(o);
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

/* Many importers at once, some of which are killed. */
static void crowd(void)
{
	enum { N = 16 };
	struct actor *p = ENTER("P", .env = ALL), *c[N];
	uint64_t at = reserve(p, 70 * PIECE), import[N];
	struct handle handle;
	int opened = 0, right = 0;
	char name[8];

	if (ASK(p, v_many, at, 70, PIECE, 9)->result)
		break_off("P cannot map (%d)", p->reply.result);
	handle = export_block(p, at);
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof name, "C%d", i);
		c[i] = ENTER(name);
	}
	for (int i = 0; i < N; i++)
		tell(c[i], OP_open, handle.bytes, (const uint64_t[6]){ 1 });
	for (int i = 0; i < N; i++) {
		if (i % 4 == 3) { /* amid its open, or just after it */
			kill_actor(c[i]);
			continue;
		}
		opened += !hear(c[i], 20000)->result;
		import[i] = c[i]->reply.v[0];
	}
	ok(opened == N * 3 / 4, "17 %d open 70 allocations at once, %d are killed: %d succeed", N, N / 4, opened);
	for (int i = 0; i < N; i++)
		if (i % 4 != 3)
			right += !ASK(c[i], v_check_many, import[i], 70, PIECE, 9)->v[0];
	ok(right == opened, "17 each reads all of them");
	unmap(p, at, 70 * PIECE);
	for (int i = 0; i < N; i++)
		if (i % 4 != 3) {
			right -= !ASK(c[i], v_check_many, import[i], 70, PIECE, 9)->v[0];
			close_block(c[i], import[i]);
			leave(c[i]);
		}
	ok(!right, "17 and when P has unmapped them, too");
	leave(p);
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

/* After exec a process is another image: what it had open is closed, and what it shared is gone. */
static void execs(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C"), *o = ENTER("O", .bare = true);
	uint64_t before = free_memory(o), at = reserve(p, BIG), import, again;
	struct handle handle;
	int result;

	map(p, at, BIG, OWN);
	handle = export_block(p, at);
	open_block(c, &handle);
	unmap(p, at, BIG);
	tell(c, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ok(free_within(o, before, 3000, NULL), "17 C execs: what it had open is free");
	ASK(c, begin);
	map(p, at, BIG, NEXT);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	tell(p, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ASK(p, begin);
	ok(reads(c, import, BIG, NEXT, NULL), "17 P execs: C reads on");
	result = try_open(c, &handle, &again);
	ok(result, "17 P execs: its handles are refused (%d)", result);
	at = reserve(p, PIECE);
	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	again = open_block(c, &handle);
	ok(reads(c, again, PIECE, OWN, NULL), "17 P's new image shares on");
	close_block(c, again);
	close_block(c, import);
	leave(c);
	leave(p);
	leave(o);
}

/* Switched off, nothing differs from bare. */
static void off(void)
{
	static const char *const envs[] = { ALL " CULIMBO_MODE=observe", ALL " CULIMBO_DISABLE=1" };

	for (size_t i = 0; i < sizeof envs / sizeof *envs; i++) {
		struct actor *p = ENTER("P", .env = envs[i]);
		uint64_t at = reserve(p, PIECE), memory = make(p, PIECE, 0);
		struct handle handle;

		if (ASK(p, v_map, at, PIECE, memory)->result)
			break_off("P cannot map");
		ok(try_export(p, at, &handle) == INVALID_VALUE, "17 %s: refused as bare", envs[i]);
		ASK(p, v_types, memory, at);
		ok(!p->reply.v[0] && !p->reply.v[1], "17 %s: the memory has no handle types", envs[i]);
		leave(p);
	}
}

/* Descriptors run out, at either side: an error in bounded time, and it works again after. */
static void no_descriptors(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = reserve(p, 4 * PIECE), import;
	struct handle handle;
	double start;
	int result;

	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	close_block(c, open_block(c, &handle));
	for (int side = 0; side < 2; side++) {
		struct actor *poor = side ? c : p;

		ASK(poor, descriptors, 1);
		start = now_ms();
		result = try_open(c, &handle, &import);
		ok(result && now_ms() - start < 9000, "17 %s has no descriptor left: an error (%d, %.0f ms)", poor->name,
		   result, now_ms() - start);
		ASK(poor, descriptors, 0);
		result = try_open(c, &handle, &import);
		ok(!result && reads(c, import, PIECE, OWN, NULL), "17 then it works again (%d)", result);
		if (!result)
			close_block(c, import);
	}
	ok(count_said(c, "no descriptors left") == 1, "17 C says why, once");
	leave(c);
	leave(p);
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

/* Devices that have peer access to the one that opens may read an import, whichever came first. */
static void peers(void)
{
	struct actor *p = ENTER("P", .env = ALL " CULIMBO_SIM_DEVICES=3"), *c = ENTER("C", .env = "CULIMBO_SIM_DEVICES=3");
	uint64_t at = reserve(p, 4 * PIECE), import;
	struct handle handle;

	if (on_real_driver() && ASK(c, devices)->v[0] < 3) {
		note("there are not three devices");
		ok(true, "17 peers need three devices");
		return;
	}
	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	ASK(c, device, 1);
	ok(!ASK(c, peer, 0)->result, "17 before: device 1 gets access to device 0");
	ASK(c, device, 0);
	import = open_block(c, &handle);
	ok(ASK(c, v_access, import, 0)->v[0] == 3, "17 the device that opens has access");
	ok(ASK(c, v_access, import, 1)->v[0] == 3, "17 so has one that had peer access before");
	ok(ASK(c, v_access, import, 2)->v[0] == 0, "17 no other one has");
	ASK(c, device, 2);
	ok(!ASK(c, peer, 0)->result && ASK(c, v_access, import, 2)->v[0] == 3, "17 after: device 2 gets it with its peer access");
	ASK(c, device, 0);
	close_block(c, import);
	curtain(p, c);
}

/* A handle with any bit changed opens nothing, and is refused at once. */
static void flips(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = reserve(p, 8 * PIECE), import;
	struct handle handle, damaged;
	double start = now_ms(), began, longest = 0;
	int opened = 0;

	map(p, at, PIECE, OWN);
	map(p, at + PIECE, PIECE, OWN);
	map(p, at + 4 * PIECE, PIECE, OWN);
	handle = export_block(p, at + PIECE);
	close_block(c, open_block(c, &handle));
	for (int bit = 0; bit < 512; bit++) {
		damaged = handle;
		damaged.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
		/* the handle of the reservation, which is as good */
		if (!memcmp(damaged.bytes, (char[8]){ 0 }, 8))
			continue;
		began = now_ms();
		opened += !try_open(c, &damaged, &import);
		longest = now_ms() - began > longest ? now_ms() - began : longest;
	}
	note("%.0f ms for all", now_ms() - start);
	ok(!opened, "17 none of 511 handles with one bit changed is opened (%d)", opened);
	ok(longest < 2000, "17 each is refused at once (%.0f ms at most)", longest);
	import = open_block(c, &handle);
	ok(reads(c, import, PIECE, OWN, NULL), "17 the handle itself is as good as before");
	close_block(c, import);
	leave(c);
	leave(p);
}

/* What the two sides say of memory that is unmapped while it is open. */
static void told(void)
{
	struct actor *p = ENTER("P", .env = ALL " CULIMBO_REPORT=always"), *c = ENTER("C", .env = "CULIMBO_REPORT=always");
	uint64_t at = reserve(p, 4 * PIECE), import;
	struct handle handle;

	map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	unmap(p, at, PIECE);
	(void)import;
	leave(p);
	leave(c);
	ok(count_said(p, "UNMAPPED: process") == 1 && count_said(p, "reads what was there before") == 1,
	   "17 P says that C reads the old bytes");
	ok(count_said(c, "not_closed=1") == 1, "17 C says that it has not closed it");
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

const struct scene virtual_scenes[] = {
	{ "virtual-one-linked", one_linked, 0 },
	{ "virtual-one-dlsym", one_dlsym, 0 },
	{ "virtual-one-getproc", one_getproc, 0 },
	{ "virtual-as-asked", as_asked, 0 },
	{ "virtual-several", several, 0 },
	{ "virtual-queries", queries, 0 },
	{ "virtual-threads", threads, SCENE_ALONE },
	{ "virtual-crowd", crowd, 0 },
	{ "virtual-unmapped", unmapped, 0 },
	{ "virtual-back", back, SCENE_ALONE },
	{ "virtual-own", own, 0 },
	{ "virtual-one-side", one_side, 0 },
	{ "virtual-dead", dead, 0 },
	{ "virtual-stopped", stopped, 0 },
	{ "virtual-odd", odd, SCENE_ALONE },
	{ "virtual-execs", execs, SCENE_ALONE },
	{ "virtual-off", off, 0 },
	{ "virtual-no-descriptors", no_descriptors, SCENE_SIMULATED },
	{ "virtual-peers", peers, 0 },
	{ "virtual-flips", flips, 0 },
	{ "virtual-told", told, 0 },
	{ "virtual-many", many, 0 },
	{ "virtual-forks", forks, 0 },
	{ 0 }
};

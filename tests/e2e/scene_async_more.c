/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of stream-ordered memory that is shared by legacy handles (18): processes that end or stand still, other
 * pools, devices and streams, misuse, and handles that are damaged.
 */
#include "scene_async.h"
#include "shim/shm/layout.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FD 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define MS UINT64_C(1000000) /* ns */
#define SOON_MS 5000

static uint64_t alloc_from(struct actor *actor, uint64_t pool, uint64_t bytes, unsigned char value)
{
	uint64_t address;

	if (ASK(actor, a_alloc_from, pool, bytes, 0)->result)
		break_off("%s cannot allocate (%d)", actor->name, actor->reply.result);
	address = actor->reply.v[0];
	fill(actor, address, bytes, value);
	return address;
}

/* The exporter ends, or is killed. */
void async_dead(void)
{
	for (int how = 0; how < 2; how++) {
		struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
		uint64_t at = async_alloc(p, BIG, OWN), import, again;
		struct handle handle = export_block(p, at);
		double start;
		int result;

		import = open_block(c, &handle);
		if (how)
			kill_actor(p);
		else
			leave(p);
		ok(reads(c, import, BIG, OWN, NULL), "18 P %s: C reads on", how ? "is killed" : "exits");
		start = now_ms();
		result = try_open(c, &handle, &again);
		ok(refused(result) && now_ms() - start < 2000, "18 P %s: another open is refused at once (%d)",
		   how ? "is killed" : "exits", result);
		ok(!try_close(c, import), "18 the import can be closed");
		leave(c);
		ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	}
}

/* The importer is killed while it has a block open that P has freed. */
void async_importer_dies(void)
{
	struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C"), *d = ENTER("D");
	uint64_t at = async_alloc(p, BIG, OWN), import;
	struct handle handle = export_block(p, at);

	open_block(c, &handle);
	import = open_block(d, &handle);
	async_free(p, at);
	kill_actor(c);
	ok(!async_claim(p, at, BIG) && reads(d, import, BIG, OWN, NULL), "18 one of two importers is killed: the other reads on");
	kill_actor(d);
	ok(async_claim_within(p, at, BIG, SOON_MS), "18 so is the other: the pool uses the block again");
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A stopped exporter costs bounded time; one that has no descriptor left an error. */
void async_stopped(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = async_alloc(p, SMALL, OWN), other = async_alloc(p, SMALL, NEXT), import;
	struct handle handle = export_block(p, at), second = export_block(p, other);
	double start;
	int result, status;

	kill(p->pid, SIGSTOP);
	if (waitpid(p->pid, &status, WUNTRACED) != p->pid || !WIFSTOPPED(status))
		break_off("P is not stopped");
	start = now_ms();
	result = try_open(c, &handle, &import);
	ok(result && now_ms() - start < 9000, "18 P is stopped: the open ends with an error (%d, %.0f ms)", result,
	   now_ms() - start);
	ok(count_said(c, "does not answer") == 1, "18 C says why");
	kill(p->pid, SIGCONT);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, SMALL, OWN, NULL), "18 P goes on: C opens it (%d)", result);
	kill(p->pid, SIGSTOP);
	if (waitpid(p->pid, &status, WUNTRACED) != p->pid || !WIFSTOPPED(status))
		break_off("P is not stopped");
	result = try_open(c, &second, &import);
	ok(!result && reads(c, import, SMALL, NEXT, NULL), "18 C has P's pool: another block of it needs no answer (%d)", result);
	kill(p->pid, SIGCONT);
	leave(c);
	leave(p);
}

/* A free in place of the close, by either call, and the end of the context. */
void async_odd(void)
{
	struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C");
	uint64_t at = async_alloc(p, BIG, OWN), import, block = alloc(p, BIG), legacy, context, again;
	struct handle handle = export_block(p, at), theirs = export_block(p, block);
	int result;

	import = open_block(c, &handle);
	legacy = open_block(c, &theirs);
	for (int async = 0; async < 2; async++) {
		int of_legacy = async ? ASK(c, free_async, legacy, 0)->result : try_free(c, legacy);

		result = async ? ASK(c, free_async, import, 0)->result : try_free(c, import);
		ok(result == of_legacy && result && reads(c, import, BIG, OWN, NULL),
		   "18 %s of an import is refused, as of a legacy one (%d, %d)", async ? "cuMemFreeAsync" : "cuMemFree", result,
		   of_legacy);
	}
	close_block(c, legacy);
	close_block(c, import);
	context = ASK(c, ctx_create)->v[0];
	import = open_block(c, &handle);
	ok(ASK(c, ctx_destroy, context)->result == 0, "18 C destroys the context in which it opened it");
	async_free(p, at);
	ok(async_claim_within(p, at, BIG, SOON_MS), "18 then it is closed: P's pool uses it again");
	ok(try_close(c, import) == INVALID_VALUE, "18 and there is nothing to close");
	handle = export_block(p, at);
	import = open_block(c, &handle);
	context = ASK(c, ctx_create)->v[0];
	again = open_block(c, &handle);
	ok(again == import && ASK(c, ctx_destroy, context)->result == 0, "18 opened in two contexts, of which one ends");
	async_free(p, at);
	ok(!async_claim(p, at, BIG) && reads(c, import, BIG, NEXT, NULL), "18 the other has it open");
	close_block(c, import);
	ok(async_claim_within(p, at, BIG, SOON_MS), "18 until it closes it");
	leave(c);
	leave(p);
	ok(count_said(c, "freed"), "18 C reports the frees");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A process opens its own handle, as it can of any block. */
void async_own(void)
{
	struct actor *p = ENTER("P", .env = SOON);
	uint64_t at = async_alloc(p, SMALL, OWN), same;
	struct handle handle = export_block(p, at);
	int result = try_open(p, &handle, &same);

	ok(!result && same == at, "18 the same process gets its own address (%d)", result);
	ok(!try_close(p, same), "18 and closes it");
	ok(reads(p, at, SMALL, OWN, NULL), "18 its memory is as it was");
	ok(try_close(p, same) == INVALID_VALUE, "18 a second close is refused");
	if (try_open(p, &handle, &same))
		break_off("it is not open");
	async_free(p, at);
	ok(!async_claim(p, at, SMALL), "18 freed while it is open: its place stays free");
	ok(!try_close(p, same), "18 P closes it");
	ok(async_claim_within(p, at, SMALL, SOON_MS), "18 the pool uses it again");
	ok(refused(try_open(p, &handle, &same)), "18 the old handle is stale here, too");
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* One side lacks culimbo. */
void async_one_side(void)
{
	struct actor *p = ENTER("P", .env = ALL), *b = ENTER("B", .bare = true);
	struct actor *c = ENTER("C", .env = "CULIMBO_MODE=observe"), *d = ENTER("D", .env = "CULIMBO_DISABLE=1");
	uint64_t at = async_alloc(p, SMALL, OWN), import;
	struct handle handle = export_block(p, at);
	struct actor *without[] = { b, c, d };

	for (int i = 0; i < 3; i++) {
		double start = now_ms();
		int result = try_open(without[i], &handle, &import);

		ok(result && now_ms() - start < 1000, "18 %s it is refused at once (%d)",
		   i == 0 ? "without culimbo" : i == 1 ? "with CULIMBO_MODE=observe" : "with CULIMBO_DISABLE", result);
		leave(without[i]);
	}
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

void async_off(void)
{
	static const char *const envs[] = { ALL " CULIMBO_MODE=observe", ALL " CULIMBO_DISABLE=1" };

	for (size_t i = 0; i < sizeof envs / sizeof *envs; i++) {
		struct actor *p = ENTER("P", .env = envs[i]);
		uint64_t at = async_alloc(p, SMALL, OWN), pool = async_default(p), mine = ASK(p, a_new_pool, 0, 0)->v[0];
		struct handle handle;

		ok(try_export(p, at, &handle) == INVALID_VALUE, "18 %s: refused as bare", envs[i]);
		ok(ASK(p, a_export_pool, pool)->result == INVALID_VALUE && ASK(p, a_export_pool, mine)->result == INVALID_VALUE,
		   "18 %s: no pool can be exported", envs[i]);
		leave(p);
	}
}

/* The pool is of one device, and the importer's context of another. */
void async_device(void)
{
	struct actor *p, *c, *d;
	uint64_t at, import, other;
	struct handle handle, second;
	int result;

	setenv("CULIMBO_SIM_DEVICES", "2", 1);
	setenv("CULIMBO_SIM_POOL_ACCESS", "set", 1);
	p = ENTER("P", .env = ALL);
	c = ENTER("C");
	d = ENTER("D");
	if (ASK(p, devices)->v[0] < 2) {
		note("there are not two devices");
		ok(true, "18 another device # SKIP there is one device");
		return;
	}
	at = async_alloc(p, SMALL, OWN);
	handle = export_block(p, at);
	ASK(c, device, 1);
	import = open_block(c, &handle);
	ok(reads(c, import, SMALL, OWN, NULL), "18 a context of device 1 opens a block of device 0, and reads it");
	close_block(c, import);
	import = open_block(d, &handle);
	ASK(d, device, 1);
	ok(!ASK(d, peer, 0)->result && reads(d, import, SMALL, OWN, NULL), "18 a device that gets peer access later reads it, too");
	ASK(d, device, 0);
	close_block(d, import);
	import = open_block(d, &handle);
	ASK(d, device, 1);
	ok(reads(d, import, SMALL, OWN, NULL), "18 and when it is opened again");
	/* P allocates on device 1, where it has a stand-in as well */
	ASK(p, device, 1);
	other = async_alloc(p, SMALL, NEXT);
	ok(ASK(p, v_ask, other, 17)->v[0] == ASK(p, a_pools, 1)->v[0] && p->reply.v[0] != async_default(p),
	   "18 each device has its default pool");
	result = try_export(p, other, &second);
	ok(!result, "18 P shares a block of device 1 (%d)", result);
	import = open_block(c, &second);
	ok(reads(c, import, SMALL, NEXT, NULL), "18 which C reads in a context of device 1");
	close_block(c, import);
	ASK(c, device, 0);
	import = open_block(c, &second);
	ok(reads(c, import, SMALL, NEXT, NULL), "18 and of device 0");
	leave(d);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	unsetenv("CULIMBO_SIM_DEVICES");
	unsetenv("CULIMBO_SIM_POOL_ACCESS");
}

/* Bits of a stamp that say only in which place its file is: in that place they change nothing (layout.h, stamp). */
static bool says_the_place(int bit)
{
	return bit >= 448 + CL_STAMP_FILE_BITS && bit < 448 + CL_STAMP_FILE_BITS + CL_STAMP_MORE_BITS;
}

/* A handle with any bit changed opens nothing but the block itself, and is refused at once. */
void async_flips(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = async_alloc(p, SMALL, OWN), import;
	struct handle handle, damaged;
	double longest = 0;
	int foreign = 0;

	async_alloc(p, SMALL, NEXT);
	handle = export_block(p, at);
	close_block(c, open_block(c, &handle));
	for (int bit = 0; bit < 512; bit++) {
		double began = now_ms();

		damaged = handle;
		damaged.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
		if (says_the_place(bit))
			continue;
		if (!try_open(c, &damaged, &import)) {
			foreign += !reads(c, import, SMALL, OWN, NULL);
			close_block(c, import);
		}
		longest = now_ms() - began > longest ? now_ms() - began : longest;
	}
	ok(!foreign, "18 no handle with one bit changed opens another block (%d)", foreign);
	ok(longest < 2000, "18 each is answered at once (%.0f ms at most)", longest);
	import = open_block(c, &handle);
	ok(reads(c, import, SMALL, OWN, NULL), "18 the handle itself is as good as before");
	close_block(c, import);
	leave(c);
	leave(p);
}

/* Both sides fork; P closes its descriptors. */
void async_fork(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = async_alloc(p, SMALL, OWN), import;
	struct handle handle = export_block(p, at);
	int result;

	for (int by_clone = 0; by_clone < 2; by_clone++) {
		ASK(p, fork, END_EXIT, by_clone);
		ASK(c, fork, END_EXIT, by_clone);
		result = try_open(c, &handle, &import);
		ok(!result && reads(c, import, SMALL, OWN, NULL), "18 after a %s the service is there (%d)",
		   by_clone ? "clone()" : "fork()", result);
		ASK(c, fork, END_EXIT, by_clone);
		ok(reads(c, import, SMALL, OWN, NULL), "18 and C's child has ended none of its imports");
		close_block(c, import);
	}
	ASK(p, close_fds, on_real_driver() ? CLOSE_CULIMBO : CLOSE_ALL);
	handle = export_block(p, at);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, SMALL, OWN, NULL), "18 P closes its descriptors: its next handle works (%d)", result);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* What P keeps of a destroyed pool for who opens its blocks keeps the pool's memory, and a child has a copy. */
void async_fork_stays(void)
{
	struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C"), *o = ENTER("O", .bare = true);
	uint64_t pool = ASK(p, a_new_pool, 0, 0)->v[0], at = alloc_from(p, pool, BIG, OWN), before, import;
	struct handle handle = export_block(p, at);
	double took;

	ASK(p, pool_destroy, pool);
	ASK(p, fork_stays, 0);
	import = open_block(c, &handle);
	ok(reads(c, import, BIG, OWN, NULL), "18 P destroys its pool and forks: C opens the block");
	close_block(c, import);
	before = free_memory(o);
	async_free(p, at);
	if (on_real_driver())
		note("a child keeps what the driver has open for an exported pool, and so the pool's memory, also bare (measured)");
	else
		ok(free_within(o, before + BIG, SOON_MS, &took), "18 P frees it: the device has the memory again, while P's child lives");
	ASK(p, fork_stays, 1);
	ok(free_within(o, before + BIG, SOON_MS, &took), "18 P frees it, and its child has ended: the device has the memory again");
	leave(c);
	leave(p);
	leave(o);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A pool of the program, without a handle type and with one. */
void async_pool(void)
{
	for (int types = 0; types < 2; types++) {
		struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C");
		uint64_t pool = ASK(p, a_new_pool, 0, types ? FD : 0)->v[0], at = alloc_from(p, pool, BIG, OWN), import, other;
		struct handle handle, second;
		int result = try_export(p, at, &handle);

		ok(!result, "18 of a pool of the program, %s, there is a handle (%d)", types ? "exportable" : "not exportable", result);
		result = try_open(c, &handle, &import);
		ok(!result && reads(c, import, BIG, OWN, NULL), "18 C opens it, and reads what P wrote (%d)", result);
		other = async_alloc(p, SMALL, NEXT);
		second = export_block(p, other);
		other = open_block(c, &second);
		ok(reads(c, other, SMALL, NEXT, NULL), "18 and a block of the default pool beside it");
		async_free(p, at);
		ASK(p, pool_claim, pool, at, BIG, 3, NEXT);
		ok(!p->reply.v[0] && reads(c, import, BIG, OWN, NULL), "18 P frees it: C's bytes stay");
		result = ASK(p, a_export_pool, pool)->result;
		ok(result == (types ? 0 : INVALID_VALUE), "18 P itself can export it, or not, as it has asked (%d)", result);
		close_block(c, import);
		close_block(c, other);
		async_curtain(p, c);
	}
}

/* P destroys its pool while C has a block of it open, and while nobody has. */
void async_pool_destroyed(void)
{
	struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C"), *d = ENTER("D"), *o = ENTER("O", .bare = true);
	uint64_t pool = ASK(p, a_new_pool, 0, 0)->v[0], at = alloc_from(p, pool, BIG, OWN), before, import, other;
	struct handle handle = export_block(p, at), again;
	double took;
	int result;

	import = open_block(c, &handle);
	ok(!ASK(p, pool_destroy, pool)->result, "18 P destroys its pool, of which C has a block open");
	ok(reads(c, import, BIG, OWN, NULL) && reads(p, at, BIG, OWN, NULL), "18 the block is there, for both");
	result = try_open(d, &handle, &other);
	ok(!result && reads(d, other, BIG, OWN, NULL), "18 its handle is good: D opens it (%d)", result);
	ok(!try_export(p, at, &again) && same_handle(&handle, &again), "18 P gets the handle again");
	close_block(d, other);
	close_block(c, import);
	before = free_memory(o);
	async_free(p, at);
	ok(free_within(o, before + BIG, SOON_MS, &took), "18 P frees it: the device has the memory again");
	ok(refused(try_open(d, &handle, &other)), "18 its handle is stale");
	/* freed before the destroy, and held over it */
	pool = ASK(p, a_new_pool, 0, 0)->v[0];
	at = alloc_from(p, pool, BIG, OWN);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	async_free(p, at);
	ok(!ASK(p, pool_destroy, pool)->result && reads(c, import, BIG, OWN, NULL), "18 a pool whose block waits for C is destroyed");
	result = try_open(d, &handle, &other);
	ok(!result && reads(d, other, BIG, OWN, NULL), "18 that handle was under way: D opens it all the same (%d)", result);
	if (!result)
		close_block(d, other);
	before = free_memory(o);
	close_block(c, import);
	ok(free_within(o, before + BIG, SOON_MS, &took), "18 C closes it: the device has the memory again");
	leave(d);
	leave(c);
	leave(p);
	leave(o);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* P frees in the order of a stream that a kernel blocks, by either form. */
void async_stream(void)
{
	for (int per_thread = 0; per_thread < 2; per_thread++) {
		struct actor *p = ENTER("P", .env = SOON, .door = per_thread ? "linked" : NULL), *c = ENTER("C");
		uint64_t stream = per_thread ? 2 : ASK(p, stream_create, 1)->v[0], at, import;
		struct handle handle;
		int result;

		at = async_alloc(p, SMALL, OWN);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		ASK(p, stream_spin, stream, 300 * MS);
		result = ASK(p, stream_free, at, stream, per_thread)->result;
		ok(!result, "18 P frees it behind a kernel (%d)", result);
		close_block(c, import);
		ok(ASK(p, stream_query, stream)->result == NOT_READY, "18 C closes it before the stream is there");
		result = try_export(p, at, &handle);
		ok(result == INVALID_VALUE, "18 P gets no handle of it any more (%d)", result);
		ok(async_claim_within(p, at, SMALL, SOON_MS), "18 the pool uses it again");
		ok(!ASK(p, stream_query, stream)->result, "18 but not before the stream was there");
		leave(c);
		leave(p);
	}
}

/* What nobody has open any more comes back to the pool, and with the exporter to the device. */
void async_back(void)
{
	struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C"), *o = ENTER("O", .bare = true);
	uint64_t before, at, import;
	struct handle handle;
	double took;

	at = async_alloc(p, SMALL, OWN);
	handle = export_block(p, at);
	close_block(c, open_block(c, &handle));
	before = free_memory(o);
	for (int i = 0; i < 8; i++) {
		at = async_alloc(p, BIG, OWN);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		close_block(c, import);
		async_free(p, at);
	}
	ok(free_memory(o) + BIG >= before, "18 8 blocks in turn take the memory of one");
	leave(p);
	ok(free_within(o, before, SOON_MS, &took), "18 P ends: the device has its memory, though C lives");
	leave(c);
	leave(o);
}

/* C has a block by its pool's pointer, and by a handle: frees and closes are counted apart. */
void async_both_ways(void)
{
	struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C");
	uint64_t pool = ASK(p, pool_new, 0, 0, 0, 0)->v[0], fd = p->reply.v[1], taken, at, pointer, import;
	struct handle handle, data;
	int result;

	at = alloc_from(p, pool, SMALL, OWN);
	alloc_from(p, pool, SMALL, 1);
	taken = ASK(c, pool_take, (uint64_t)p->pid, fd)->v[0];
	if (ASK(p, pool_export, at)->result)
		break_off("no pointer");
	memcpy(data.bytes, p->reply.handle, 64);
	handle = export_block(p, at);
	if (ask(c, OP_pool_import, data.bytes, (uint64_t[6]){ taken })->result)
		break_off("no import");
	pointer = c->reply.v[0];
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, SMALL, OWN, NULL), "18 C imports a pointer, and opens a handle of the same block (%d)", result);
	if (import == pointer) {
		ok(!try_free(c, pointer), "18 it frees the import");
		ok(reads(c, import, SMALL, OWN, NULL), "18 what the handle opened stays");
		ok(try_free(c, import) == INVALID_VALUE, "18 and can't be freed");
	} else {
		note("they have two addresses");
		ok(!try_free(c, pointer), "18 it frees the import");
	}
	async_free(p, at);
	ASK(p, pool_claim, pool, at, SMALL, 64, NEXT);
	ok(!p->reply.v[0] && reads(c, import, SMALL, OWN, NULL), "18 P frees it: C's bytes stay");
	close_block(c, import);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* With all,visible the program reads that its memory has handles, and may export it itself. */
void async_visible(void)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_SHARE=all,visible"), *c = ENTER("C");
	uint64_t at = async_alloc(p, SMALL, OWN), pool = async_default(p), import;
	struct handle handle;
	int result;

	ok(ASK(p, v_ask, at, 10)->v[0] == 1, "18 all,visible: it is legacy memory");
	ok(!ASK(p, a_export_pool, pool)->result, "18 all,visible: its pool can be exported");
	ok(!ASK(p, pool_export, at)->result, "18 all,visible: and its pointer");
	ok(ASK(p, pool_destroy, pool)->result == INVALID_VALUE, "18 all,visible: but not destroyed");
	ok(ASK(p, a_attribute, pool, THRESHOLD, 0)->v[0] == 0, "18 all,visible: its threshold is what it was");
	handle = export_block(p, at);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, SMALL, OWN, NULL), "18 all,visible: C opens its handle (%d)", result);
	close_block(c, import);
	async_curtain(p, c);
}

/* Opens meet frees, in several threads on both sides: what is opened has its own bytes, to the end. */
void async_threads(void)
{
	enum { CONSUMERS = 4, PRODUCERS = 6 };
	const struct wire_reply *made, *got;
	struct actor *p, *c;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		break_off("socketpair");
	p = ENTER("P", .partner = pair[0], .env = ALL);
	c = ENTER("C", .partner = pair[1]);
	close(pair[0]);
	close(pair[1]);
	tell(c, OP_consume, NULL, (const uint64_t[6]){ CONSUMERS });
	tell(p, OP_produce, NULL, (const uint64_t[6]){ PRODUCERS, 60, SMALL, CONSUMERS, 2 });
	made = hear(p, 50000);
	got = hear(c, 50000);
	ok(!made->result && !got->result, "18 %d threads allocate, export and free, %d open and close: no error (%d %s, %d %s)",
	   PRODUCERS, CONSUMERS, made->result, made->complaint, got->result, got->complaint);
	note("%llu handles, %llu refused", (unsigned long long)got->v[0], (unsigned long long)got->v[1]);
	ok(got->v[0] == made->v[0] && got->v[2] == 0, "18 no import has foreign bytes (%llu)",
	   (unsigned long long)got->v[2]);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

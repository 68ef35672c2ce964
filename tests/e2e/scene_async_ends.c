/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of stream-ordered memory that is shared by legacy handles (18): contexts that end while it is open, and what
 * must not differ for programs that share nothing.
 */
#include <stdlib.h>

#include "scene_async.h"

enum { EXPORT_TYPES = 10, ALLOWED_TYPES = 14, FD = 1 }; /* attributes and a handle type of the driver */

/* C opens a block of P's in a context, which ends before it is closed. */
static void one_context(int how)
{
	static const char *const says[] = { "destroys its context", "resets its device", "releases its context",
					    "destroys its only context" };
	struct actor *p = ENTER("P", .env = SOON), *c = ENTER("C");
	uint64_t at = async_alloc(p, SMALL, OWN), context = 0, import;
	struct handle handle;

	async_alloc(p, SMALL, 1);
	handle = export_block(p, at);
	if (how == 0 || how == 3)
		context = ASK(c, ctx_create)->v[0];
	import = open_block(c, &handle);
	if (!reads(c, import, SMALL, OWN, NULL))
		break_off("it is not open");
	if (how == 3)
		ASK(c, ctx_release);
	if (how == 0 || how == 3)
		ASK(c, ctx_destroy, context);
	else if (how == 1)
		ASK(c, ctx_reset);
	else
		ASK(c, ctx_release);
	async_free(p, at);
	ok(async_claim_within(p, at, SMALL, 2000), "18 C %s: P's pool has the block again", says[how]);
	leave(c);
	leave(p);
	ok(files() == 0, "no file is left in CULIMBO_DIR");
}

void async_context(void)
{
	for (int how = 0; how < 4; how++)
		one_context(how);
}

/*
 * While a stream of C captures, C ends a context in which a block of P's is open: culimbo closes it, by calls that CUDA
 * forbids during a capture.  Bare C has nothing open there.  @primary: it is the primary context, which is current.
 */
static void captured(bool bare, bool primary)
{
	struct actor *p = ENTER("P", .bare = bare, .env = SOON), *c = ENTER("C", .bare = bare);
	const char *who = bare ? "control: bare, " : "18 ";
	uint64_t at = async_alloc(p, SMALL, OWN), stream = 0, context;
	struct handle handle;
	int result;

	async_alloc(p, SMALL, 1);
	if (!bare)
		handle = export_block(p, at);
	if (!primary)
		stream = ASK(c, stream_create, 1)->v[0];
	else if (!bare)
		open_block(c, &handle);
	context = ASK(c, ctx_create)->v[0];
	if (primary)
		stream = ASK(c, stream_create, 1)->v[0];
	else if (!bare)
		open_block(c, &handle);
	if (ASK(c, stream_capture, stream, 0)->result)
		break_off("no capture");
	if (primary) {
		ASK(c, device, 0);
		ASK(c, ctx_release);
		ASK(c, ctx_release);
		result = c->reply.result;
		ASK(c, ctx_again);
	} else {
		result = ASK(c, ctx_destroy, context)->result;
	}
	ok(!result, "%sC ends %s while a stream of its other one captures (%d)", who,
	   primary ? "its primary context" : "a context", result);
	ok(!ASK(c, stream_captured, stream)->result, "%sthe capture is good (%d)", who, c->reply.result);
	if (!bare) {
		async_free(p, at);
		ok(async_claim_within(p, at, SMALL, 2000), "18 and the block is closed: P's pool has it again");
	}
	leave(c);
	leave(p);
}

void async_context_captured(void)
{
	for (int primary = 0; primary < 2; primary++)
		for (int bare = 1; bare >= 0; bare--)
			captured(bare, primary);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A device that the program lets reach a pool reaches what a capture allocates from it. */
void async_capture_access(void)
{
	setenv("CULIMBO_SIM_DEVICES", "2", 1);
	setenv("CULIMBO_SIM_POOL_ACCESS", "set", 1);
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = bare ? ENTER("P", .bare = true) : ENTER("P", .env = ALL);
		const char *who = bare ? "control: bare" : "18 with the option";
		uint64_t stream = ASK(p, stream_create, 1)->v[0], mine = ASK(p, a_new_pool, 0, 0)->v[0], at[2];

		if (ASK(p, devices)->v[0] < 2) {
			note("there are not two devices");
			ok(true, "18 another device # SKIP there is one device");
			return;
		}
		if (ASK(p, pool_access, async_default(p), 1)->result || ASK(p, pool_access, mine, 1)->result)
			break_off("no access");
		for (int own = 0; own < 2; own++) {
			if (ASK(p, stream_capture, stream, 0)->result)
				break_off("no capture");
			if (own)
				ASK(p, a_alloc_from, mine, SMALL, stream);
			else
				ASK(p, a_alloc, SMALL, stream);
			at[own] = p->reply.v[0];
			ok(!p->reply.result && !ASK(p, stream_launched, stream)->result, "%s: a capture allocates", who);
		}
		fill(p, at[0], SMALL, OWN);
		fill(p, at[1], SMALL, NEXT);
		ASK(p, device, 1);
		ok(reads(p, at[0], SMALL, OWN, NULL), "%s: the other device reads memory of the default pool", who);
		ok(reads(p, at[1], SMALL, NEXT, NULL), "%s: and that of a pool of the program", who);
		leave(p);
	}
	unsetenv("CULIMBO_SIM_DEVICES");
	unsetenv("CULIMBO_SIM_POOL_ACCESS");
}

/*
 * Memory is of the stream's device, whatever context is current, and that of a capture has pages of its own.  With
 * the option, too, where it comes from another pool.
 */
void async_whose(void)
{
	setenv("CULIMBO_SIM_DEVICES", "2", 1);
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = bare ? ENTER("P", .bare = true) : ENTER("P", .env = ALL);
		const char *who = bare ? "control: bare" : "18 with the option";
		uint64_t stream = ASK(p, stream_create, 1)->v[0], room, other;

		if (ASK(p, a_alloc, SMALL, 0)->result)
			break_off("no memory");
		room = free_memory(p);
		if (ASK(p, stream_capture, stream, 0)->result)
			break_off("no capture");
		ok(!ASK(p, a_alloc, SMALL, stream)->result && free_memory(p) < room, "%s: a capture's block has another page", who);
		room = free_memory(p);
		ASK(p, device, 1);
		other = free_memory(p);
		ok(!ASK(p, a_alloc, BIG, stream)->result && free_memory(p) == other,
		   "%s: in a capture of device 0 nothing of device 1 is taken", who);
		ok(!ASK(p, stream_captured, stream)->result, "%s: the capture is good", who);
		ok(!ASK(p, a_alloc, BIG, stream)->result && free_memory(p) == other, "%s: nor is it after that", who);
		ASK(p, device, 0);
		ok(free_memory(p) == room - 2 * BIG, "%s: it is device 0's", who);
		leave(p);
	}
	unsetenv("CULIMBO_SIM_DEVICES");
}

/* Returns true if P reads @types as the handle types of @pool, or gets the refusal of a driver that does not tell them. */
static bool told(struct actor *p, uint64_t pool, uint64_t types, int refusal)
{
	const struct wire_reply *r = ASK(p, a_attribute, pool, EXPORT_TYPES, 0);

	return refusal ? r->result == refusal : !r->result && r->v[0] == types;
}

/* Attributes do not say that a pool can be exported, if the program has not asked for that. */
void async_types(void)
{
	static const char *const says[] = { "control: bare", "18 with the option", "18 all,visible" };
	int refusal = 0; /* bare, of a driver before CUDA 13.1: pools have no such attribute */

	for (int how = 0; how < 3; how++) {
		struct actor *p = how == 0 ? ENTER("P", .bare = true) :
				  how == 1 ? ENTER("P", .env = ALL) :
					     ENTER("P", .env = "CULIMBO_SHARE=all,visible");
		uint64_t pool = async_default(p), mine = ASK(p, a_new_pool, 0, 0)->v[0];
		uint64_t theirs = ASK(p, a_new_pool, 0, FD)->v[0], at = async_alloc(p, SMALL, OWN), want = how == 2 ? FD : 0;

		if (how == 0)
			refusal = ASK(p, a_attribute, theirs, EXPORT_TYPES, 0)->result;
		ok(told(p, pool, want, refusal), "%s: the default pool's handle types (a refusal: %d)", says[how], refusal);
		ok(told(p, mine, want, refusal), "%s: those of a pool without", says[how]);
		ok(told(p, theirs, FD, refusal), "%s: those of a pool with some", says[how]);
		ok(ASK(p, v_ask, at, ALLOWED_TYPES)->v[0] == want, "%s: those of the default pool's memory", says[how]);
		leave(p);
	}
}

/* By default a handle is of at most 4 GiB: bare an importer crashes at 6 GiB (fact 16). */
static void large_by_default(void)
{
	struct handle handle;
	struct actor *p;

	setenv("CULIMBO_SIM_MEMORY", "16GiB", 1); /* it takes what is touched alone */
	p = ENTER("P", .env = ALL);
	for (int over = 0; over < 2; over++) {
		int result = ASK(p, a_alloc, 4096 * MIB + (over ? MIB : 0), 0)->result;

		if (!result)
			result = try_export(p, p->reply.v[0], &handle);
		ok(result == (over ? INVALID_VALUE : 0) && count_said(p, "4 GiB") == over,
		   "18 a block of 4 GiB%s (%d)", over ? " and 1 MiB has no handle, and P says why" : " has a handle", result);
	}
	leave(p);
	unsetenv("CULIMBO_SIM_MEMORY");
}

/* A block that importers of the driver would crash on is refused. */
void async_large(void)
{
	struct actor *p = ENTER("P", .env = ALL " CULIMBO_POOL_IMPORT_MAX=1MiB"), *q = ENTER("Q", .env = ALL);
	struct actor *c = ENTER("C", .env = "CULIMBO_POOL_IMPORT_MAX=1MiB");
	uint64_t at = async_alloc(p, BIG, OWN), import;
	struct handle handle;
	int result = try_export(p, at, &handle);

	ok(result == INVALID_VALUE && count_said(p, "CULIMBO_POOL_IMPORT_MAX") == 1,
	   "18 there is no handle of a block beyond CULIMBO_POOL_IMPORT_MAX, and P says why (%d)", result);
	at = async_alloc(q, BIG, OWN);
	handle = export_block(q, at);
	result = try_open(c, &handle, &import);
	ok(result == NOT_SUPPORTED && count_said(c, "CULIMBO_POOL_IMPORT_MAX") == 1, "18 nor does C open one (%d)", result);
	leave(c);
	leave(q);
	leave(p);
	if (!on_real_driver()) /* two blocks of 4 GiB need a device of their own */
		large_by_default();
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

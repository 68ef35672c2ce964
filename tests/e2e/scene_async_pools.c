/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of one pool that a process imports more than once (18): by several threads that open blocks of it, and by the
 * program itself, which got its descriptor.  The driver gives the same pool each time and counts (measured).
 */
#include <signal.h>
#include <sys/wait.h>

#include "scene_async.h"
#include "scene_pool.h"
#include "scene_virtual.h"

/* Two blocks of one pool are opened and closed by several threads. */
void async_together(void)
{
	enum { THREADS = 16 };
	const uint64_t rounds_at_once = on_real_driver() ? 40 : 400; /* there a first open takes a millisecond */
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");

	for (uint64_t i = 0; i < 2; i++) {
		struct handle handle = export_block(p, async_alloc(p, SMALL, (unsigned char)(OWN + i)));

		ask(c, OP_a_keep, handle.bytes, (const uint64_t[6]){ i });
	}
	for (uint64_t wait = 0; wait < 2; wait++) {
		const uint64_t rounds = wait ? rounds_at_once : 5 * rounds_at_once;
		const struct wire_reply *r;

		tell(c, OP_a_together, NULL, (const uint64_t[6]){ THREADS, rounds, OWN, wait });
		r = hear(c, 50000);
		ok(!r->result && r->v[0] == THREADS * rounds && !r->v[1],
		   "18 %d threads open and close two blocks of a pool, %s (%d, %llu opens, %llu wrong)", THREADS,
		   wait ? "all at once" : "the last close against an open", r->result, (unsigned long long)r->v[0],
		   (unsigned long long)r->v[1]);
	}
	async_curtain(p, c);
}

/*
 * Several threads open something of an exporter that stands still.  All of them have their error as soon as one alone would
 * have it, and its memory can be opened when the exporter goes on.  C opens stream-ordered memory, D virtual memory.
 */
void async_stopped_threads(void)
{
	enum { THREADS = 4, SIDES = 2 };
	struct actor *p = ENTER("P", .env = ALL), *side[SIDES] = { ENTER("C"), ENTER("D") };
	struct handle handle[SIDES];
	uint64_t at = virtual_reserve(p, PIECE), import;
	const struct wire_reply *r;
	double start;
	int status;

	virtual_map(p, at, PIECE, OWN);
	handle[0] = export_block(p, async_alloc(p, SMALL, OWN));
	handle[1] = export_block(p, at);
	for (int i = 0; i < SIDES; i++)
		for (uint64_t which = 0; which < 2; which++)
			ask(side[i], OP_a_keep, handle[i].bytes, (const uint64_t[6]){ which });
	kill(p->pid, SIGSTOP);
	if (waitpid(p->pid, &status, WUNTRACED) != p->pid || !WIFSTOPPED(status))
		break_off("P is not stopped");
	start = now_ms();
	for (int i = 0; i < SIDES; i++)
		tell(side[i], OP_a_together, NULL, (const uint64_t[6]){ THREADS, 1, OWN, 1 });
	for (int i = 0; i < SIDES; i++) {
		r = hear(side[i], 50000);
		ok(r->result && !refused(r->result) && !r->v[0] && now_ms() - start < 8000,
		   "%s P is stopped: %d threads of %s open its memory, and all have an error (%d, %.0f ms)", i ? "17" : "18",
		   THREADS, side[i]->name, r->result, now_ms() - start);
	}
	kill(p->pid, SIGCONT);
	for (int i = 0; i < SIDES; i++) {
		ok(count_said(side[i], "does not answer") == 1, "%s says why, once", side[i]->name);
		import = open_block(side[i], &handle[i]);
		ok(reads(side[i], import, SMALL, OWN, NULL), "P goes on: %s opens it", side[i]->name);
		close_block(side[i], import);
		leave(side[i]);
	}
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* Who comes first, and who goes first. */
struct order {
	bool taken_first, destroyed_first;
};

/* C imports P's pool itself, and opens a block of it by its handle. */
static void taken(struct order order)
{
	struct entry all = { .env = ALL }, plain = { .bare = false };
	struct pair pair = { .p = enter("P", all), .c = enter("C", plain) };
	struct handle handle, data;
	uint64_t block, import, other;
	int result;

	note("the program imports the pool %s our open, and destroys it %s our close", order.taken_first ? "before" : "after",
	     order.destroyed_first ? "before" : "after");
	pair.pool = ASK(pair.p, pool_new, 0)->v[0];
	pair.fd = pair.p->reply.v[1];
	block = pool_alloc(&pair, SMALL);
	handle = export_block(pair.p, block);
	data = pool_export(pair.p, block);
	if (order.taken_first)
		pair.taken = pool_taken_by(&pair, pair.c);
	import = open_block(pair.c, &handle);
	if (!order.taken_first)
		pair.taken = pool_taken_by(&pair, pair.c);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "18 C opens a block of it by a handle");
	if (order.destroyed_first) {
		other = pool_import(pair.c, pair.taken, &data);
		result = ASK(pair.c, pool_destroy, pair.taken)->result;
		ok(result == INVALID_VALUE, "18 C destroys it, and has a pointer of it imported: refused (%d)", result);
		free_block(pair.c, other);
		result = ASK(pair.c, pool_destroy, pair.taken)->result;
		ok(!result && reads(pair.c, import, SMALL, OWN, NULL), "18 C destroys it: the open block stays (%d)", result);
		pair.taken = pool_taken_by(&pair, pair.c);
		other = pool_import(pair.c, pair.taken, &data);
		ok(reads(pair.c, other, SMALL, OWN, NULL), "18 C imports it once more, and the pointer");
		free_block(pair.c, other);
		ok(reads(pair.c, import, SMALL, OWN, NULL), "18 C has freed that: the open block stays");
	}
	close_block(pair.c, import);
	other = pool_import(pair.c, pair.taken, &data);
	ok(reads(pair.c, other, SMALL, OWN, NULL), "18 C has closed the block: its own import of the pool is good");
	free_block(pair.c, other);
	result = ASK(pair.c, pool_destroy, pair.taken)->result;
	ok(!result, "18 C destroys it (%d)", result);
	import = open_block(pair.c, &handle);
	ok(reads(pair.c, import, SMALL, OWN, NULL), "18 after that C opens the block again");
	close_block(pair.c, import);
	pool_curtain(&pair);
}

void async_pool_taken(void)
{
	for (int i = 0; i < 4; i++)
		taken((struct order){ .taken_first = i & 1, .destroyed_first = i & 2 });
}

/* What the scenes above rest on; and that a program which imports a pool twice, and destroys it once, may go on so. */
void async_pool_taken_twice(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL), again = pool_taken_by(&pair, pair.c), import;
		struct handle data = pool_export(pair.p, block);

		ok(again == pair.taken, "%simported again, a pool is the same", bare ? "control: bare: " : "18 ");
		import = pool_import(pair.c, again, &data);
		ok(reads(pair.c, import, SMALL, OWN, NULL), "%sand its block is read", bare ? "control: bare: " : "18 ");
		free_block(pair.c, import);
		pool_curtain(&pair);
	}
}

/* What @pool says that it has given out, once that is @bytes or 2 s are over. */
static uint64_t used_within(struct actor *p, uint64_t pool, uint64_t bytes)
{
	double deadline = now_ms() + 2000;
	uint64_t used;

	do
		used = ASK(p, a_attribute, pool, USED, 0)->v[0];
	while (used != bytes && watch_until(deadline));
	return used;
}

/*
 * The driver's counter of what a pool has given out never gets back what cuMemFree() has freed (measured).  So a free in
 * a stream's order must stay one.
 */
void async_used(void)
{
	static const uint64_t size[] = { SMALL, BIG };
	struct actor *bare = ENTER("BARE", .bare = true), *p = ENTER("P", .env = SOON), *c = ENTER("C");
	uint64_t at = async_alloc(bare, SMALL, OWN), used;

	free_block(bare, at);
	used = ASK(bare, a_attribute, async_default(bare), USED, 0)->v[0];
	ok(used >= SMALL, "control: bare, cuMemFree of a pool's block leaves it counted (%llu bytes)", (unsigned long long)used);
	for (int i = 0; i < 4; i++) {
		const char *who = i & 2 ? "of P's pool" : "of the default pool";
		uint64_t bytes = size[i & 1], pool = i & 2 ? ASK(p, a_new_pool, 0, 0)->v[0] : async_default(p), import;
		struct handle handle;

		at = i & 2 ? ASK(p, a_alloc_from, pool, bytes)->v[0] : async_alloc(p, bytes, OWN);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		async_free(p, at);
		used = ASK(p, a_attribute, pool, USED, 0)->v[0];
		ok(used >= bytes, "18 P frees %llu bytes %s, which C has open: they are counted (%llu)",
		   (unsigned long long)bytes, who, (unsigned long long)used);
		close_block(c, import);
		used = used_within(p, pool, 0);
		ok(!used, "18 C closes the block: the pool counts nothing any more (%llu)", (unsigned long long)used);
		handle = export_block(p, at = i & 2 ? ASK(p, a_alloc_from, pool, bytes)->v[0] : async_alloc(p, bytes, OWN));
		async_free(p, at);
		used = used_within(p, pool, 0);
		ok(!used, "18 nor of a block that nobody has opened (%llu)", (unsigned long long)used);
	}
	leave(bare);
	async_curtain(p, c);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scene of virtual memory that is shared by legacy handles (17): a thousand allocations side by side, beside as many by
 * descriptors.
 */
#include "scene_virtual.h"

#include <sys/socket.h>
#include <unistd.h>

/*
 * The control of virtual_many(): two bare processes hand over allocations in a program's own way, by descriptors, while
 * the machine has the same load.  One such way has half as many allocations as the open by a handle, so that those
 * before and after it together have as many.
 */
#define ROOM "CULIMBO_SIM_MEMORY=4GiB"
#define MANY 1000
#define HALF (MANY / 2)
struct own_way {
	struct actor *giver, *taker;
};

static struct own_way own_way_begin(void)
{
	struct own_way own;
	uint64_t at;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		break_off("socketpair");
	own.giver = ENTER("giver", .bare = true, .partner = pair[0], .env = ROOM);
	own.taker = ENTER("taker", .bare = true, .partner = pair[1], .env = ROOM);
	close(pair[0]);
	close(pair[1]);
	own.giver->answer_ms = own.taker->answer_ms = 120000;
	at = virtual_reserve(own.giver, HALF * PIECE);
	if (ASK(own.giver, v_exportable, at, HALF, PIECE, 3)->result)
		break_off("the giver cannot map them (%d)", own.giver->reply.result);
	return own;
}

/* Returns how many ms it took. */
static double own_way(const struct own_way *own)
{
	double start = now_ms(), took;
	uint64_t import;

	tell(own->giver, OP_v_give, NULL, (const uint64_t[6]){ HALF });
	tell(own->taker, OP_v_take, NULL, (const uint64_t[6]){ HALF, PIECE });
	/* a giver that fails says why; its taker then only waits */
	hear(own->giver, own->giver->answer_ms);
	if (own->giver->reply.result || own->giver->reply.complaint[0])
		break_off("the giver gives none (%d): %s", own->giver->reply.result, own->giver->reply.complaint);
	import = hear(own->taker, own->taker->answer_ms)->v[0];
	took = now_ms() - start;
	if (own->taker->reply.result || own->taker->reply.complaint[0])
		break_off("the taker gets none (%d): %s", own->taker->reply.result, own->taker->reply.complaint);
	ASK(own->taker, v_check_many, import, HALF, PIECE, 3);
	if (own->taker->reply.v[0])
		break_off("the taker reads other bytes");
	virtual_unmap(own->taker, import, HALF * PIECE);
	if (ASK(own->taker, v_free, import, HALF * PIECE)->result)
		break_off("the taker cannot free its addresses (%d)", own->taker->reply.result);
	return took;
}

/* Many allocations: more than descriptors go into one message. */
void virtual_many(void)
{
	struct actor *p = ENTER("P", .env = ALL " " ROOM), *c = ENTER("C", .env = ROOM);
	uint64_t at = virtual_reserve(p, MANY * PIECE), import;
	struct own_way own = own_way_begin();
	double before, by_handle, after, bound;
	struct handle handle;

	/* 33 ms for each descriptor were seen on a GPU with the other scenes beside this one */
	c->answer_ms = p->answer_ms = 120000;
	if (ASK(p, v_many, at, MANY, PIECE, 7)->result)
		break_off("P cannot map them (%d)", p->reply.result);
	before = own_way(&own);
	handle = export_block(p, at);
	by_handle = now_ms();
	import = open_block(c, &handle);
	by_handle = now_ms() - by_handle;
	after = own_way(&own);
	note("own way %.1f ms for %d allocations, by a handle %.1f ms for %d, own way again %.1f ms", before, HALF,
	     by_handle, MANY, after);
	ASK(c, v_check_many, import, MANY, PIECE, 7);
	ok(!c->reply.v[0], "17 C reads all 1,000 allocations side by side");
	/* The load changes at any moment.  So this bound notices a loss by a factor, and is no benchmark. */
	bound = 5 * 2 * (before > after ? before : after) + 1000;
	ok(by_handle <= bound, "17 it waits for them at most 5 times as long as in a program's own way and 1 s more (%.0f of %.0f ms)",
	   by_handle, bound);
	close_block(c, import);
	leave(own.taker);
	leave(own.giver);
	virtual_curtain(p, c);
}

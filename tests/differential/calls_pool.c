/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared pools, and pointers into them.  Players create, trim and destroy pools.  They allocate, export,
 * import (also more than once), read, write and free blocks on both sides, at once or in stream order.
 * Only some runs do this, in addition to the other operations, with random numbers of its own.
 *
 * These differ under culimbo: a read through a freed block's import (rule foreign), an import of an ended
 * block (stale), a free of a block that was imported more than once (twice), and the amount of free memory.
 *
 * Never made, because without culimbo one call would affect another block: an import while the player
 * has a freed block open, because both may have one address; and a call on a pointer after its end when its
 * address may belong to another block.
 */
#include <stdio.h>
#include <string.h>

#include "tests/differential/calls.h"
#include "tests/differential/stage.h"

enum { NONE = -1, DATA = 6 };

struct pool_life {
	enum { ALIVE, PUT_BACK, ENDED } state; /* ENDED: its process has ended */
	bool exported, filled, was_freed;
	bool outlived; /* a process that ended had it open: it is not known when its hold is taken back */
	bool refused;  /* it was freed when no process had it or could get it */
	/* it or an import was freed in a stream's order, or an import amid held work: it may wait for that */
	bool freed_late;
	uint8_t player, value;
	int pool;
	uint64_t bytes;
	unsigned int ended_at;
};
struct pool_import {
	int life;
	unsigned int count, closed_at;
};

static struct pool_life pool_life[LIVES];
static int pool_lives, pools_made;
static struct {
	int pool[POOLS];		/* the numbers of the player's own pools, or NONE */
	int taken[PLAYERS][POOLS];	/* whose pools it imported last */
	uint64_t pid[POOLS], fd[POOLS]; /* the pids and descriptors of its own pools */
	int block[POOL_BLOCKS];
	struct pool_import import[POOL_IMPORTS];
} has[PLAYERS];
static struct handle data[DATA];
static bool pools_scattered;

bool pools_may_take_memory(void)
{
	return pools_scattered;
}

void pools_begin(unsigned int p)
{
	for (unsigned int i = 0; i < POOLS; i++)
		has[p].pool[i] = NONE;
	for (unsigned int i = 0; i < PLAYERS * POOLS; i++)
		has[p].taken[i / POOLS][i % POOLS] = NONE;
	for (unsigned int i = 0; i < POOL_BLOCKS; i++)
		has[p].block[i] = NONE;
	for (unsigned int i = 0; i < POOL_IMPORTS; i++)
		has[p].import[i] = (struct pool_import){ .life = NONE };
	for (unsigned int i = 0; i < DATA && !pool_lives; i++)
		data[i].life = NONE;
}

static unsigned int held_by(unsigned int p, int l)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < POOL_IMPORTS; i++)
		if (has[p].import[i].life == l)
			n += has[p].import[i].count;
	return n;
}

void pools_player_ended(unsigned int p)
{
	for (int l = 0; l < pool_lives; l++) {
		pool_life[l].outlived |= held_by(p, l) > 0;
		if (pool_life[l].player == p)
			pool_life[l].state = ENDED;
		/* it is not known when the blocks that the player held are released */
		if (held_by(p, l) || pool_life[l].player == p)
			pools_scattered = true;
	}
}

/* An import whose address the driver may also give to the next import. */
static bool has_pool_hazard(void)
{
	for (unsigned int i = 0; i < POOL_IMPORTS; i++) {
		const struct pool_import *import = &has[op.player].import[i];

		if (import->life >= 0 && import->count && pool_life[import->life].state != ALIVE)
			return true;
	}
	return false;
}

/* ------------------------------------------------------------------------ pools */
static void make(unsigned int slot)
{
	struct order o = { .call = DO_POOL_NEW, .slot = (uint8_t)slot, .bytes = op.b % 2 ? UINT64_MAX : 0 };
	struct answer a = tell(op.player, &o);

	with("pool %u, threshold %s", slot, o.bytes ? "greatest" : "0");
	print("cuMemPoolCreate", &a, NULL);
	if (a.result)
		return;
	has[op.player].pool[slot] = pools_made++;
	memcpy(&has[op.player].pid[slot], a.handle, 8);
	memcpy(&has[op.player].fd[slot], a.handle + 8, 8);
}

/* Has pool @number of the current player a block that it has not freed? */
static bool has_block(int number)
{
	for (int l = 0; l < pool_lives; l++)
		if (pool_life[l].player == op.player && pool_life[l].pool == number && pool_life[l].state == ALIVE)
			return true;
	return false;
}

static void play_pool(void)
{
	unsigned int slot = op.a % POOLS;
	int *pool = &has[op.player].pool[slot];
	struct order o = { .call = op.c % 4 ? DO_POOL_TRIM : DO_POOL_DESTROY, .slot = (uint8_t)slot };
	struct answer a;

	if (*pool == NONE) {
		make(slot);
		return;
	}
	/* freed after its pool's destroy, a block has the GPU's driver use memory that it has freed (measured) */
	if (settings->gpu && has_block(*pool))
		o.call = DO_POOL_TRIM;
	a = tell(op.player, &o);
	with("pool %u", slot);
	print(o.call == DO_POOL_TRIM ? "cuMemPoolTrimTo" : "cuMemPoolDestroy", &a, NULL);
	if (!a.result && o.call == DO_POOL_DESTROY)
		*pool = NONE;
}

/*
 * The pool of @owner as imported by the current player.  False: it cannot be imported.  No player imports a pool twice:
 * the driver does not count that, and a destroy may corrupt its heap (measured).  Nor does one destroy an import.
 */
static bool take(unsigned int owner, unsigned int slot)
{
	int *taken = &has[op.player].taken[owner][slot];
	struct order o = { .call = DO_POOL_TAKE, .slot = (uint8_t)slot, .other = (uint8_t)owner,
			   .offset = has[owner].pid[slot], .bytes = has[owner].fd[slot] };
	struct answer a;

	if (has[owner].pool[slot] == NONE)
		return false;
	if (*taken == has[owner].pool[slot])
		return true;
	a = tell(op.player, &o);
	with("pool %u of P%u", slot, owner);
	print("cuMemPoolImportFromShareableHandle", &a, NULL);
	*taken = a.result ? NONE : has[owner].pool[slot];
	return !a.result;
}

/* ----------------------------------------------------------------------- blocks */
static void play_pool_alloc(void)
{
	static const uint64_t sizes[] = { SMALL, SMALL, 4096, 1 << 20, PAGE };
	unsigned int slot = op.a % POOL_BLOCKS, pool = op.b % POOLS;
	struct order o = { .call = DO_POOL_ALLOC, .slot = (uint8_t)slot, .other = op.c % STREAMS, .flags = pool,
			   .bytes = sizes[op.d % 5] };
	int *block = &has[op.player].block[slot];
	struct pool_life *l;
	struct answer a;

	if (has[op.player].pool[pool] == NONE)
		make(pool);
	if (has[op.player].pool[pool] == NONE || (*block >= 0 && pool_life[*block].state == ALIVE) ||
	    !usable(o.other) || captures(me()) || me()->busy)
		return;
	a = tell(op.player, &o);
	with("pool block %u of pool %u, %llu bytes, stream %u", slot, pool, (unsigned long long)o.bytes, o.other);
	print("cuMemAllocFromPoolAsync", &a, NULL);
	if (a.result)
		return;
	me()->taken++;
	*block = pool_lives;
	pool_life[pool_lives] = (struct pool_life){ .player = op.player, .value = (uint8_t)(1 + pool_lives % 250),
						    .pool = has[op.player].pool[pool], .bytes = o.bytes };
	l = &pool_life[pool_lives++];
	settle();
	o = (struct order){ .call = DO_FILL, .at = AT_POOL_BLOCK, .slot = (uint8_t)slot, .flags = l->value,
			    .bytes = l->bytes };
	a = tell(op.player, &o);
	with("pool block %u, value %u", slot, l->value);
	print("cuMemsetD8", &a, NULL);
	l->filled = !a.result;
}

static int block_of(unsigned int *slot)
{
	for (unsigned int i = 0; op.d % 8 && i < POOL_BLOCKS; i++) {
		int l = has[op.player].block[(op.a + i) % POOL_BLOCKS];

		*slot = (op.a + i) % POOL_BLOCKS;
		if (l >= 0 && pool_life[l].state == ALIVE)
			return l;
	}
	*slot = op.a % POOL_BLOCKS;
	return has[op.player].block[*slot];
}

/* How to free it: in a stream, at once, or not at all where the result is undefined. */
static bool choose_free(struct order *o)
{
	bool in_stream = op.c % 2;

	o->call = in_stream ? DO_FREE_ASYNC : DO_FREE;
	o->other = op.b % STREAMS;
	return !in_stream || usable(o->other);
}

static const char *print_free(const struct order *o, const struct answer *a, const char *reason, const char *what)
{
	if (o->call == DO_FREE_ASYNC)
		with("%s %u, stream %u", what, o->slot, o->other);
	else
		with("%s %u", what, o->slot);
	print(o->call == DO_FREE_ASYNC ? "cuMemFreeAsync" : "cuMemFree", a, reason);
	return reason;
}

static void play_pool_free(void)
{
	struct order o = { .at = AT_POOL_BLOCK };
	struct pool_life *l;
	unsigned int slot;
	struct answer a;
	int number = block_of(&slot);

	if (number < 0 || !choose_free(&o))
		return;
	l = &pool_life[number];
	/* a second free only as long as no other block has its address */
	if (l->state != ALIVE && (l->state == ENDED || l->ended_at != me()->taken))
		return;
	o.slot = (uint8_t)slot;
	a = tell(op.player, &o);
	print_free(&o, &a, NULL, "pool block");
	if (a.result || l->state != ALIVE)
		return;
	l->freed_late |= o.call != DO_FREE;
	l->refused = !l->exported || (settings->grace == GRACE_NONE && !l->freed_late && !l->outlived &&
				      !held_by(0, number) && !held_by(1, number));
	l->state = PUT_BACK;
	l->was_freed = true;
	l->ended_at = me()->taken;
	pools_scattered |= l->exported;
}

static void play_pool_export(void)
{
	struct order o = { .call = DO_POOL_EXPORT, .at = AT_POOL_BLOCK, .offset = op.b % 8 == 7 ? 512 : 0 };
	unsigned int slot, place = op.c % DATA;
	int number = block_of(&slot);
	struct answer a;

	if (number < 0 || pool_life[number].state == ENDED ||
	    (pool_life[number].state == PUT_BACK && pool_life[number].ended_at != me()->taken))
		return;
	o.slot = (uint8_t)slot;
	a = tell(op.player, &o);
	with("pool block %u%s%s, data %u", slot, o.offset ? " + 512" : "",
	     pool_life[number].state == ALIVE ? "" : " freed", place);
	print("cuMemPoolExportPointer", &a, NULL);
	if (a.result)
		return;
	pool_life[number].exported = true;
	data[place].life = number;
	memcpy(data[place].bytes, a.handle, sizeof(data[place].bytes));
}

/* ---------------------------------------------------------------------- imports */
/* Imports an ended block; a successful import is checked and freed at once. */
static void import_stale(struct order *o, const struct pool_life *l, unsigned int place)
{
	struct order then = { .call = DO_READ, .at = AT_POOL_IMPORT, .slot = o->slot, .bytes = l->bytes };
	struct answer a, b;
	char expected[16];

	/* bare it may have the address of any other import */
	for (unsigned int i = 0; i < POOL_IMPORTS; i++)
		if (has[op.player].import[i].count)
			return;
	if (me()->busy || captures(me()) || !context_alive(me(), current()))
		return;
	settle();
	a = tell(op.player, o);
	me()->taken++;
	if (!a.result) {
		snprintf(expected, sizeof(expected), "bytes=%u", l->value);
		b = tell(op.player, &then);
		promised(!l->refused, "stale data import");
		promised(!l->filled || b.result || !strcmp(b.text, expected), "foreign bytes");
		then.call = DO_FREE;
		b = tell(op.player, &then);
		promised(!b.result, "an import cannot be freed");
	}
	with("data %u %s", place, l->state == PUT_BACK ? "freed" : "gone");
	print("cuMemPoolImportPointer", &a, "stale");
}

static unsigned int import_place(void)
{
	for (unsigned int i = 0; op.d % 4 && i < POOL_IMPORTS; i++)
		if (has[op.player].import[(op.a + i) % POOL_IMPORTS].count)
			return (op.a + i) % POOL_IMPORTS;
	return op.a % POOL_IMPORTS;
}

static void play_pool_import(void)
{
	struct order o = { .call = DO_POOL_IMPORT, .at = AT_POOL_IMPORT };
	unsigned int place = op.b % DATA, at = op.a % POOL_IMPORTS, owner = PLAYERS, slot = 0;
	struct pool_import *import;
	struct pool_life *l;
	struct answer a;

	if (data[place].life < 0)
		return;
	l = &pool_life[data[place].life];
	/* mostly a block of the other player */
	if (settings->players > 1 && op.c % 5 && l->player == op.player)
		op.player = !op.player;
	if (has_pool_hazard() || (l->player < PLAYERS && l->state != ENDED && me()->busy))
		return;
	for (unsigned int i = 0; i < settings->players * POOLS && owner == PLAYERS; i++) {
		bool of_it = has[op.player].taken[i / POOLS][i % POOLS] == l->pool;

		if (!of_it && has[i / POOLS].pool[i % POOLS] == l->pool)
			of_it = take(i / POOLS, i % POOLS);
		if (of_it) {
			owner = i / POOLS;
			slot = i % POOLS;
		}
	}
	if (owner == PLAYERS)
		return;
	for (unsigned int i = 0; i < POOL_IMPORTS; i++)
		if (has[op.player].import[i].count && has[op.player].import[i].life == data[place].life) {
			at = i;
			o.flags = 1;
		}
	import = &has[op.player].import[at];
	if (import->count && !o.flags)
		return;
	o.slot = (uint8_t)at;
	o.other = (uint8_t)(owner * POOLS + slot);
	memcpy(o.handle, data[place].bytes, sizeof(o.handle));
	if (l->state != ALIVE) {
		import->life = NONE;
		import_stale(&o, l, place);
		return;
	}
	a = tell(op.player, &o);
	with("data %u, pool import %u", place, at);
	print("cuMemPoolImportPointer", &a, NULL);
	if (a.result)
		return;
	me()->taken++;
	if (!o.flags)
		*import = (struct pool_import){ .life = data[place].life };
	import->count++;
}

static void play_pool_read(void)
{
	bool of_import = op.b % 4;
	unsigned int slot = import_place();
	struct order o = { .call = DO_READ, .at = of_import ? AT_POOL_IMPORT : AT_POOL_BLOCK };
	int number = has[op.player].import[slot].count ? has[op.player].import[slot].life : NONE;
	struct pool_life *l;
	char expected[16];
	struct answer a;

	if (!of_import)
		number = block_of(&slot);
	if (number < 0 || me()->busy)
		return;
	l = &pool_life[number];
	if (!l->filled || (!of_import && l->state != ALIVE))
		return;
	o.slot = (uint8_t)slot;
	o.bytes = l->bytes;
	a = tell(op.player, &o);
	snprintf(expected, sizeof(expected), "bytes=%u", l->value);
	promised(a.result || !strcmp(a.text, expected), "foreign bytes");
	with("pool %s %u", of_import ? "import" : "block", slot);
	print("cuMemcpyDtoH", &a, l->was_freed ? "foreign" : NULL);
}

static void play_pool_write(void)
{
	unsigned int slot = import_place();
	const struct pool_import *import = &has[op.player].import[slot];
	struct order o = { .call = DO_FILL, .at = AT_POOL_IMPORT, .slot = (uint8_t)slot, .flags = 1 + op.number % 250 };
	struct pool_life *l;
	struct answer a;

	if (!import->count || pool_life[import->life].state != ALIVE || me()->busy || captures(me()))
		return;
	l = &pool_life[import->life];
	o.bytes = l->bytes;
	a = tell(op.player, &o);
	with("pool import %u, value %u", slot, o.flags);
	print("cuMemsetD8", &a, NULL);
	if (a.result)
		return;
	l->filled = true;
	l->value = (uint8_t)o.flags;
}

/* Frees all its imports of one block, because without culimbo the first free unmaps the others. */
static void play_pool_free_import(void)
{
	unsigned int slot = import_place();
	struct pool_import *import = &has[op.player].import[slot];
	struct order o = { .at = AT_POOL_IMPORT, .slot = (uint8_t)slot }, look = { .call = DO_READ };
	const struct pool_life *l;
	bool first = true, late = me()->busy;
	char expected[16];
	struct answer a, b;

	if (import->life < 0 || !choose_free(&o) || (!import->count && import->closed_at != me()->taken))
		return;
	l = &pool_life[import->life];
	/* one free too many, which gives the same again */
	if (!import->count && (op.d % 3 || l->state != ALIVE))
		return;
	do {
		late |= o.call != DO_FREE;
		a = tell(op.player, &o);
		if (under_culimbo && import->count > 1 && first && !a.result && !me()->busy && !captures(me()) &&
		    context_alive(me(), current()) && l->filled) {
			look = (struct order){ .call = DO_READ, .at = AT_POOL_IMPORT, .slot = o.slot, .bytes = l->bytes };
			b = tell(op.player, &look);
			snprintf(expected, sizeof(expected), "bytes=%u", l->value);
			promised(!b.result && !strcmp(b.text, expected), "imported twice and freed once, it is not mapped");
		}
		promised(first || !a.result || captures(me()), "a counted free is refused");
		print_free(&o, &a, first ? NULL : "twice", import->count ? "pool import" : "pool import freed");
		if (a.result && first)
			return;
		first = false;
		o.call = (import->count + op.a) % 2 ? DO_FREE : o.call;
	} while (import->count && --import->count);
	pool_life[import->life].freed_late |= late;
	import->closed_at = me()->taken;
}

/* ------------------------------------------------------------------------- all */
static const struct {
	void (*play)(void);
	unsigned int weight;
} plays[] = {
	{ play_pool, 4 }, { play_pool_alloc, 14 }, { play_pool_free, 12 }, { play_pool_export, 18 },
	{ play_pool_import, 24 }, { play_pool_read, 14 }, { play_pool_write, 4 }, { play_pool_free_import, 12 },
};

void pools_play(uint32_t dice)
{
	unsigned int sum = 0;

	for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++)
		sum += plays[i].weight;
	dice %= sum;
	for (size_t i = 0;; i++) {
		if (dice < plays[i].weight) {
			plays[i].play();
			return;
		}
		dice -= plays[i].weight;
	}
}

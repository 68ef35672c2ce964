/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: allocated, exported, opened, read, closed, freed. */
#include <stdio.h>
#include <string.h>

#include "tests/differential/calls.h"
#include "tests/differential/stage.h"

static void play_alloc(bool async)
{
	unsigned int slot = op.a % BLOCKS, stream = op.c % STREAMS;
	static const uint64_t mixed[] = { SMALL, SMALL, 4096, 1 << 20, PAGE };
	uint64_t bytes = settings->large ? PAGE * (1 + op.b % 2) : mixed[op.b % 5];
	struct order o = { .call = async ? DO_ALLOC_ASYNC : DO_ALLOC, .slot = (uint8_t)slot,
			   .other = (uint8_t)stream, .bytes = bytes };
	struct life *l = block_at(slot);
	struct answer a;

	if ((l && l->state == LIVE) || (async && !usable(stream)))
		return;
	if (op.d % 40 == 0)
		o.bytes = bytes = 0;
	a = tell(op.player, &o);
	if (async)
		with("block %u, %llu bytes, stream %u", slot, (unsigned long long)bytes, stream);
	else
		with("block %u, %llu bytes", slot, (unsigned long long)bytes);
	print(async ? "cuMemAllocAsync" : "cuMemAlloc", &a, NULL);
	if (a.result)
		return;
	if (bytes < PAGE && any_limbo())
		scattered = true;
	me()->taken++;
	life[lives] = (struct life){ .async = async, .of_graph = async && me()->stream[stream].captures, .player = op.player, .ctx = whole(current()),
				     .device = device_of(async ? context_of(stream) : current()), .value = (uint8_t)(1 + lives % 250), .bytes = bytes };
	me()->block[slot] = lives;
	l = &life[lives++];
	/* .other: set when no call may wait for it */
	o = (struct order){ .call = DO_FILL, .at = AT_BLOCK, .slot = (uint8_t)slot, .flags = l->value,
			    .bytes = bytes, .other = captures(me()) };
	if (me()->busy || (settings->gpu && o.other))
		return;
	a = tell(op.player, &o);
	with("block %u, value %u", slot, l->value);
	print("cuMemsetD8", &a, NULL);
	l->filled = !a.result;
}
void play_alloc_sync(void)
{
	play_alloc(false);
}
void play_alloc_async(void)
{
	play_alloc(true);
}

/* Returns the drawn place, or the next place with a block in the state that most calls need. */
static unsigned int import_place(void)
{
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (me()->import[(op.a + i) % IMPORTS].life >= 0 && me()->import[(op.a + i) % IMPORTS].count)
			return (op.a + i) % IMPORTS;
	return op.a % IMPORTS;
}
static unsigned int block_place(void)
{
	for (unsigned int i = 0; op.d % 4 && i < BLOCKS; i++) {
		int l = me()->block[(op.a + i) % BLOCKS];

		if (l >= 0 && life[l].state == LIVE)
			return (op.a + i) % BLOCKS;
	}
	return op.a % BLOCKS;
}

/* Finds a pointer for a call; *l: the block it belongs to.  False: there is none. */
static bool choose(struct order *o, struct life **l, int *number)
{
	unsigned int slot = block_place(), import = import_place();
	bool inside = op.b % 8 == 7;

	*l = NULL;
	*number = -1;
	o->offset = inside ? 512 : 0;
	switch (op.b % 16) {
	case 3:
		o->at = AT_NULL;
		o->offset = 0;
		with("NULL");
		return true;
	case 5:
		o->at = AT_UNKNOWN;
		with("unknown");
		return true;
	case 9:
	case 15:
		if (me()->import[import].life < 0 || !me()->import[import].count)
			return false;
		o->at = AT_IMPORT;
		o->slot = (uint8_t)import;
		with("import %u%s", import, inside ? " + 512" : "");
		return true;
	default:
		o->at = AT_BLOCK;
		o->slot = (uint8_t)slot;
		*number = me()->block[slot];
		*l = block_at(slot);
		if (!*l || !is_alone(*l))
			return false;
		with("block %u%s%s", slot, inside ? " + 512" : "",
		     (*l)->state == LIVE ? "" : (*l)->state == FREED ? " freed" : " gone");
		return true;
	}
}

static void play_free(bool async)
{
	struct order o = { .call = async ? DO_FREE_ASYNC : DO_FREE, .other = op.c % STREAMS };
	size_t length;
	struct answer a;
	struct life *l;
	int number;

	if (!choose(&o, &l, &number) || (async && !usable(o.other)))
		return;
	/*
	 * Bare, a second free before the first is done gives 0, or hangs the context (measured).  It may not be done even
	 * after all work was waited for, if a host function was launched behind it (measured, too).
	 */
	if (settings->gpu && l && (l->pending || l->in_order))
		return;
	if (!async && me()->busy && o.at != AT_NULL)
		return;
	/* doc/differences.md, rule "ended" */
	if (!async && l && l->exported && !context_alive(me(), current()))
		return;
	/* the capturing stream refuses such a free (measured); with culimbo the block belongs to the graph */
	if (async && me()->stream[o.other].captures &&
	    (me()->stream[o.other].mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
	     me()->mode == CU_STREAM_CAPTURE_MODE_RELAXED))
		return;
	if (async) {
		length = strlen(operands);
		snprintf(operands + length, sizeof(operands) - length, ", stream %u", o.other);
	}
	a = tell(op.player, &o);
	print(async ? "cuMemFreeAsync" : "cuMemFree", &a, NULL);
	if (!a.result && l && !o.offset && l->state == LIVE) {
		freed(number);
		l->pending = l->in_order = async;
	}
}
void play_free_sync(void)
{
	play_free(false);
}
void play_free_async(void)
{
	play_free(true);
}

/*
 * A handle of stream-ordered memory, under CULIMBO_SHARE=all: the other player opens it, looks and closes it.  These
 * calls have no lines, since nothing corresponds to them without culimbo, where there is no handle.
 */
static void look_by_handle(const struct life *l, const uint8_t *bytes)
{
	struct order o = { .call = DO_OPEN, .at = AT_IMPORT, .slot = IMPORTS - 1, .flags = 1 };
	const uint8_t owner = op.player;
	char expected[16];
	struct answer a;

	if (settings->players < 2 || settings->tail)
		return;
	op.player = !owner;
	if (virtual_can_work() && (me()->import[o.slot].life < 0 || !me()->import[o.slot].count)) {
		me()->import[o.slot].life = -1;
		memcpy(o.handle, bytes, sizeof(o.handle));
		virtual_opened_some();
		a = tell(op.player, &o);
		me()->taken++;
		if (!under_culimbo) {
			op.player = owner;
			return;
		}
		promised(!a.result, "a handle of stream-ordered memory cannot be opened");
		o.call = DO_READ;
		o.bytes = l->bytes;
		snprintf(expected, sizeof(expected), "bytes=%u", l->value);
		if (!a.result && l->filled) {
			a = tell(op.player, &o);
			promised(!a.result && !strcmp(a.text, expected), "foreign bytes");
		}
		o.call = DO_CLOSE;
		a = tell(op.player, &o);
		promised(!a.result, "it cannot be closed");
	}
	op.player = owner;
}

void play_export(void)
{
	unsigned int slot = op.c % HANDLES;
	struct order o = { .call = DO_EXPORT };
	size_t length;
	struct answer a;
	struct life *l;
	int number;

	if (!choose(&o, &l, &number))
		return;
	/*
	 * A driver may make a handle of a block that was freed in stream order, even after all work was waited for
	 * (H100).  When culimbo no longer knows that the block was freed, it treats it as live then: README, "What it
	 * can't do".
	 */
	if (l && (l->pending || (l->in_order && settings->gpu)) && !l->waits)
		return;
	length = strlen(operands);
	snprintf(operands + length, sizeof(operands) - length, ", handle %u", slot);
	a = tell(op.player, &o);
	/* without a context the call fails because of that */
	promised(!l || !l->pending || a.result, "a freed block is exported");
	/* a driver gives 0 for an allocation of 0 bytes, too, and no memory (H100) */
	if (l && l->async && l->bytes && !l->pending && l->state == LIVE && virtual_shares_all() && context_alive(me(), current())) {
		promised(!a.result || l->of_graph, "stream-ordered memory has no handle");
		print("cuIpcGetMemHandle", &a, "async");
		me()->async[l->device].handed = true;
		if (l->of_graph)
			return;
		l->exported = true;
		look_by_handle(l, a.handle);
		return;
	}
	print("cuIpcGetMemHandle", &a, l && (settings->gpu ? l->in_order : l->pending) && context_alive(me(), current()) ? "freed" : NULL);
	/* no other player gets this handle */
	if (a.result || !l || l->in_order)
		return;
	l->exported = true;
	handles[slot].life = number;
	memcpy(handles[slot].bytes, a.handle, sizeof(handles[slot].bytes));
}

static bool is_open_here(const struct life *l)
{
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (me()->import[i].life == (int)(l - life) && me()->import[i].count)
			return true;
	return false;
}

/* Opens a handle of a freed block; a successful open is checked and closed at once. */
static void open_stale(struct order *o, const struct life *l, unsigned int slot)
{
	bool old = o->call == DO_OPEN_OLD, own = l->player == op.player;
	struct order then = { .call = DO_READ, .at = AT_IMPORT, .slot = o->slot, .bytes = SMALL };
	struct answer a, b;
	char expected[16];

	/* a handle without a stamp may belong to another block by now */
	if (settings->tail || me()->busy)
		return;
	settle();
	a = tell(op.player, o);
	me()->taken++; /* counts even a failed open */
	/*
	 * During a capture settle() waits for nothing.  The side whose open succeeds then waits in the read, and so gets back
	 * what it has freed in a stream's order; the other side gets it back later.
	 */
	if (captures(me()))
		scattered = true;
	if (!a.result) {
		then.bytes = l->bytes;
		snprintf(expected, sizeof(expected), "bytes=%u", l->value);
		b = tell(op.player, &then);
		promised(!own || l->own_opens || l->state == FREED, "the block is gone, and its handle opens");
		promised(own || is_open_here(l) || (l->state == FREED && !l->refused), "a stale handle opens");
		promised(!l->filled || b.result || !strcmp(b.text, expected), "foreign bytes");
		then.call = DO_CLOSE;
		b = tell(op.player, &then);
		promised(!b.result, "an open block cannot be closed");
	}
	with("handle %u %s, flags %u", slot, l->state == FREED ? "freed" : "gone", o->flags);
	print(old ? "cuIpcOpenMemHandle(4.1)" : "cuIpcOpenMemHandle", &a,
	      o->flags == 1 && context_alive(me(), current()) ? "stale" : NULL);
}

static bool has_hazard(void)
{
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (me()->import[i].life >= 0 && me()->import[i].count &&
		    life[me()->import[i].life].state != LIVE)
			return true;
	return false;
}

void play_open(void)
{
	unsigned int slot = op.b % HANDLES, at = op.a % IMPORTS;
	struct order o = { .call = op.c % 11 == 10 ? DO_OPEN_OLD : DO_OPEN, .at = AT_IMPORT,
			   .flags = op.d % 12 == 0 ? 0 : op.d % 12 == 1 ? 2 : 1 };
	bool old = o.call == DO_OPEN_OLD;
	struct import *import;
	struct answer a;
	struct life *l;

	if (handles[slot].life < 0)
		return;
	l = &life[handles[slot].life];
	/* mostly a block of the other player */
	if (settings->players > 1 && op.c % 5 && l->player == op.player)
		op.player = !op.player;
	/* 208 is possible here without culimbo (measured) */
	if ((old || settings->gpu) && has_hazard())
		return;
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (me()->import[i].life == handles[slot].life && me()->import[i].count &&
		    me()->import[i].ctx == whole(current()))
			at = i, o.bytes = 1;
	import = &me()->import[at];
	memcpy(o.handle, handles[slot].bytes, sizeof(o.handle));
	o.slot = (uint8_t)at;
	if (l->state != LIVE) {
		/* the import goes to a place of its own */
		o.slot = IMPORTS - 1;
		o.bytes = 0;
		if (me()->import[o.slot].life >= 0 && me()->import[o.slot].count)
			return;
		me()->import[o.slot].life = -1;
		open_stale(&o, l, slot);
		return;
	}
	if (!o.bytes && import->life >= 0 && import->count)
		return;
	if (l->player == op.player)
		o.at = AT_NULL;
	a = tell(op.player, &o);
	with("handle %u%s, import %u, flags %u", slot, l->player == op.player ? " own" : "", at, o.flags);
	if (l->player == op.player) {
		/*
		 * The driver accepts what it checks first: both sides give the same, or the line shows it.
		 * Without its stamp culimbo cannot recognise a handle of this process.
		 */
		bool good = !settings->tail && o.flags == 1 && context_alive(me(), current()) &&
			    (!a.result || a.result == CUDA_ERROR_INVALID_CONTEXT);

		promised(!good || !a.result, "its own handle is refused");
		print(old ? "cuIpcOpenMemHandle(4.1)" : "cuIpcOpenMemHandle", &a, good ? "own" : NULL);
		l->own_opens += good;
		return;
	}
	print(old ? "cuIpcOpenMemHandle(4.1)" : "cuIpcOpenMemHandle", &a, NULL);
	if (a.result)
		return;
	me()->taken++;
	if (!o.bytes)
		*import = (struct import){ .life = handles[slot].life, .ctx = whole(current()) };
	import->count++;
}

void play_close(void)
{
	struct order o = { .call = DO_CLOSE, .at = AT_IMPORT,
			   .slot = (uint8_t)(op.b % 6 ? import_place() : op.a % IMPORTS) };
	struct import *import = &me()->import[o.slot];
	struct answer a;

	if (import->life < 0 || me()->busy)
		return;
	if (!import->count && (import->closed_at != me()->taken || has_hazard() ||
			       life[import->life].state != LIVE || op.b % 2))
		return;
	a = tell(op.player, &o);
	with("import %u%s", o.slot, import->count ? "" : " closed");
	print("cuIpcCloseMemHandle", &a, NULL);
	if (!a.result && import->count && --import->count == 0)
		import->closed_at = me()->taken;
}

/* Closes a pointer that is not an import. */
void play_close_other(void)
{
	struct order o = { .call = DO_CLOSE };
	bool counted;
	struct answer a;
	struct life *l;
	int number;

	if (me()->busy || !choose(&o, &l, &number) || (o.at == AT_IMPORT && !o.offset))
		return;
	a = tell(op.player, &o);
	counted = l && !o.offset && l->own_opens; /* also without a context, because nothing is unmapped */
	promised(!counted || !a.result, "its own open block cannot be closed");
	print("cuIpcCloseMemHandle", &a, counted ? "own" : NULL);
	if (counted)
		l->own_opens--;
}

void play_read(void)
{
	bool of_import = op.b % 4;
	unsigned int slot = of_import ? import_place() : block_place();
	int number = of_import ? (me()->import[slot].count ? me()->import[slot].life : -1) : me()->block[slot];
	struct order o = { .call = DO_READ, .at = of_import ? AT_IMPORT : AT_BLOCK, .slot = (uint8_t)slot };
	char expected[16];
	struct answer a;
	struct life *l;

	if (number < 0 || me()->busy)
		return;
	l = &life[number];
	if (!l->filled || (!of_import && l->state != LIVE))
		return;
	o.bytes = l->bytes;
	a = tell(op.player, &o);
	snprintf(expected, sizeof(expected), "bytes=%u", l->value);
	promised(a.result || !strcmp(a.text, expected), "foreign bytes");
	with("%s %u", of_import ? "import" : "block", slot);
	print("cuMemcpyDtoH", &a, l->was_freed ? "foreign" : NULL);
}

void play_write(void)
{
	unsigned int slot = import_place();
	const struct import *import = &me()->import[slot];
	struct order o = { .call = DO_FILL, .at = AT_IMPORT, .slot = (uint8_t)slot,
			   .flags = 1 + op.number % 250, .other = captures(me()) };
	struct answer a;
	struct life *l;

	if ((settings->gpu && o.other) || import->life < 0 || !import->count || life[import->life].state != LIVE || me()->busy)
		return;
	l = &life[import->life];
	o.bytes = l->bytes;
	a = tell(op.player, &o);
	with("import %u, value %u", slot, o.flags);
	print("cuMemsetD8", &a, NULL);
	if (!a.result) {
		l->filled = true;
		l->value = (uint8_t)o.flags;
	}
}

void play_query(void)
{
	struct order o = { .call = DO_QUERY };
	struct answer a;
	struct life *l;
	int number;

	if (!choose(&o, &l, &number))
		return;
	a = tell(op.player, &o);
	print("cuPointerGetAttribute", &a, may_differ_as(l));
}

void play_memory(void)
{
	struct order o = { .call = DO_MEMORY };
	const char *reason = NULL;
	struct answer a;

	if (settings->gpu)
		return;
	if (any_limbo() || scattered || pools_may_take_memory() || virtual_may_take_memory())
		reason = "memory";
	else if (pools_may_keep(device_of(current()), PLAYERS))
		reason = "threshold";
	a = tell(op.player, &o);
	with("%s", "");
	print("cuMemGetInfo", &a, reason);
}

/* Counts all memory that there is, when no work is pending. */
void play_exhaust(void)
{
	struct order o;
	bool stays = false, waits = false;
	const char *reason = NULL;
	uint8_t player = op.player, device = device_of(current());
	struct answer a;

	if (settings->gpu || op.d % 3 || anybody_busy() || captures(&players[0]) || captures(&players[1]) ||
	    !context_alive(me(), current()))
		return;
	for (op.player = 0; op.player < settings->players; op.player++)
		settle();
	op.player = player;
	for (int l = 0; l < lives; l++) {
		waits |= life[l].state == FREED && life[l].exported && held(l);
		stays |= life[l].state == FREED && (life[l].own_opens || life[l].outlived || is_kept(&life[l]));
	}
	stays |= pools_may_take_memory() || virtual_may_take_memory();
	stays |= settings->inline_collector && players[!player].maybe_limbo[device];
	/* whole pages stay while they are mapped, without culimbo too */
	if (stays || (!settings->large && (waits || scattered)))
		reason = "memory";
	else if (pools_may_keep(device, player))
		reason = "threshold";
	o = (struct order){ .call = DO_EXHAUST };
	a = tell(player, &o);
	with("%s", "");
	print("cuMemAlloc until it fails", &a, reason);
	me()->taken++;
	/* a process with an inline collector learns of it at its next call, so it is not known when that is over */
	players[0].pressed = players[1].pressed = true;
	if (a.result != CUDA_ERROR_OUT_OF_MEMORY || stays || waits)
		return;
	/* memory freed on another device does not help, and stays */
	if (!settings->tail)
		players[0].maybe_limbo[device] = players[1].maybe_limbo[device] = false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The director: decides what is called, has the players do it one after the other, prints a
 * line for each call, and knows what each may answer.
 *
 * Each operation is a few dice of the seed and of its own number, so that it stays what it is
 * when others are left out.  What it names may not be there: then it is no call, and no line.
 *
 * What must hold: what is there follows from the answers alone that must be the same with and
 * without culimbo; so the calls are the same up to the first difference.  A line ends with
 * "~reason" where it may differ, and only then (see may_differ_as()); with "!what" where,
 * under culimbo, it breaks a promise, whatever it is without.
 *
 * Never played, for a driver may crash on it: an event or a context after its end; and, for
 * without culimbo it may be anything, a pointer after its end once its address can be
 * another's (anything was allocated or opened since), a close too many of what may be so.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/differential/play.h"

enum { NOBODY = 255 }; /* a player that has ended */
enum { HANDLES = 6, DEPTH = 8, LIVES = OPS_MAX + 1, SMALL = 1024, PAGE = 2 << 20 };

/* One block, from its allocation on. */
struct life {
	enum { LIVE, FREED, GONE } state; /* GONE: with its context */
	bool async, exported, filled, was_freed;
	bool outlived; /* who ended had it open: when its hold is taken back is not known */
	bool refused; /* freed when nobody had or could get it: its handle must be refused */
	uint8_t player, ctx, value;
	unsigned int own_opens;
	uint64_t bytes;
	unsigned int ended_at; /* what the player had allocated or opened by then */
};
/* One event likewise. */
struct event_life {
	bool alive, gone, spoilt; /* spoilt: a recording failed, it may never be done */
	uint8_t player;
};
struct import {
	int life; /* -1: none */
	uint8_t ctx;
	unsigned int count, closed_at;
};
struct event {
	int life; /* -1: none */
	uint8_t ctx;
};
struct handle {
	int life;
	uint8_t bytes[64];
};
struct stream {
	bool alive, captures;
	uint8_t ctx, mode;
};

static const struct settings *settings;
static bool under_culimbo;
static struct life life[LIVES];
static struct event_life event_life[LIVES];
static int lives, event_lives;
static struct handle handles[HANDLES], event_handles[HANDLES];
static struct player {
	int fd; /* -1: this process */
	pid_t pid;
	int block[BLOCKS]; /* its last life, or -1 */
	struct import import[IMPORTS];
	struct event event[EVENTS];
	struct stream stream[STREAMS];
	bool own[CONTEXTS]; /* of OWN_A, OWN_B, GREEN: is there */
	unsigned int references[DEVICES];
	uint8_t stack[DEPTH];
	unsigned int depth;
	bool busy;	    /* work is under way that ends when it is let go */
	unsigned int taken; /* addresses, so far */
	bool maybe_limbo;
	bool pending; /* a free that its stream may not have come to */
	uint8_t mode; /* the thread's, of captures */
} players[PLAYERS];
static bool scattered; /* small blocks may lie elsewhere than without culimbo */

/* The operation that is being played. */
static struct op {
	unsigned int number;
	uint8_t player;
	uint32_t a, b, c, d;
} op;

/* ------------------------------------------------------------------- the dice */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}
static uint32_t dice(uint64_t seed, unsigned int number, unsigned int which)
{
	return (uint32_t)(mix(mix(seed * 1000003 + number) + which * UINT64_C(0x9e3779b97f4a7c15)) >> 33);
}

struct settings settings_of(uint64_t seed, bool gpu)
{
	uint32_t d[11];

	for (unsigned int i = 0; i < 11; i++)
		d[i] = dice(seed, UINT32_MAX, i);
	return (struct settings){
		.seed = seed,
		.gpu = gpu,
		.players = d[0] % 4 ? 2 : 1,
		.devices = gpu ? 1 : DEVICES,
		.grace = d[1] % 4,
		.inline_collector = d[2] % 3 == 0,
		.no_stacks = d[3] % 2,
		.large = d[4] % 4 == 0,
		.getproc = d[5] % 3 == 0,
		.thunk = d[6] % 6 == 0,
		.tail = !gpu && d[7] % 10 == 0,
		.trace = d[9] % 6 == 0,
		.few_events = d[10] % 5 == 0,
	};
}

/* ------------------------------------------------------------------ the players */
static struct answer tell(unsigned int p, const struct order *order)
{
	struct answer answer = { 0 };

	if (players[p].fd < 0)
		player_do(order, &answer);
	else if (send(players[p].fd, order, sizeof(*order), MSG_NOSIGNAL) != (ssize_t)sizeof(*order) ||
		 recv(players[p].fd, &answer, sizeof(answer), 0) != (ssize_t)sizeof(answer))
		die("player %u is gone", p);
	return answer;
}

/* Starts the second player, which is a process of its own from the beginning on. */
static const char *self;
static void start(struct player *player)
{
	int pair[2];
	char fd[16];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		die("socketpair: %s", strerror(errno));
	fflush(stdout);
	player->pid = fork();
	if (!player->pid) {
		close(pair[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		snprintf(fd, sizeof(fd), "%d", pair[1]);
		execl(self, self, "player", fd, (char *)NULL);
		_exit(97);
	}
	close(pair[1]);
	player->fd = pair[0];
}

/* Ends the second player; its status. */
static int end(struct player *player, unsigned int how)
{
	struct order order = { .call = DO_END, .flags = how };
	int status;

	if (send(player->fd, &order, sizeof(order), MSG_NOSIGNAL) < 0 ||
	    waitpid(player->pid, &status, 0) != player->pid)
		die("player 1 is gone");
	close(player->fd);
	return status;
}

/* -------------------------------------------------------------------- the lines */
static char operands[160];
static char wrong[96];
static bool promised(bool holds, const char *what)
{
	if (under_culimbo && !holds)
		snprintf(wrong, sizeof(wrong), " !%s", what);
	return holds;
}
static void print(const char *name, const struct answer *a, const char *reason)
{
	printf("%u P%u %s(%s) = %d%s%s%s%s%s\n", op.number, op.player, name, operands, a->result,
	       *a->text ? " " : "", a->text, reason ? " ~" : "", reason ? reason : "", wrong);
	wrong[0] = 0;
}
static __attribute__((format(printf, 1, 2))) void with(const char *format, ...);
static void with(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(operands, sizeof(operands), format, args);
	va_end(args);
}

/* ----------------------------------------------------------------- what is there */
static struct player *me(void)
{
	return &players[op.player];
}
static uint8_t whole(uint8_t ctx)
{
	return ctx == GREEN ? PRIMARY_0 : ctx;
}
static bool primary_alive(const struct player *p, unsigned int device)
{
	return p->references[device] || (device == 0 && p->own[GREEN]);
}
static bool context_alive(const struct player *p, uint8_t ctx)
{
	if (ctx == NOWHERE)
		return false;
	return ctx < DEVICES ? primary_alive(p, ctx) : p->own[ctx];
}
static uint8_t current(void)
{
	return me()->depth ? me()->stack[me()->depth - 1] : NOWHERE;
}
static unsigned int on_stack(uint8_t ctx)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < me()->depth; i++)
		n += me()->stack[i] == ctx;
	return n;
}
/* (what a driver makes of another context's stream is not known) */
static bool usable(unsigned int stream)
{
	const struct stream *s = &me()->stream[stream];

	return s->alive && (!settings->gpu || stream < MADE_A || s->ctx == current());
}
static bool captures(const struct player *p)
{
	return p->stream[MADE_A].captures || p->stream[MADE_B].captures;
}
/* How often others have it open. */
static unsigned int held(int l)
{
	unsigned int n = 0;

	for (unsigned int p = 0; p < settings->players; p++)
		for (unsigned int i = 0; i < IMPORTS; i++)
			if (players[p].import[i].life == l)
				n += players[p].import[i].count;
	return n;
}
static struct life *block_at(unsigned int slot)
{
	int l = me()->block[slot];

	return l < 0 ? NULL : &life[l];
}
static bool anybody_busy(void)
{
	return players[0].busy || players[1].busy;
}

/* A pointer to it is that of nothing else, whoever has its address by now. */
static bool is_alone(const struct life *l)
{
	return l->state == LIVE || l->ended_at == me()->taken;
}

static void end_context(uint8_t ctx)
{
	struct player *p = me();

	for (int l = 0; l < lives; l++)
		if (life[l].player == op.player && life[l].ctx == ctx && life[l].state != GONE) {
			if (life[l].state == LIVE)
				life[l].ended_at = p->taken;
			life[l].state = GONE;
			life[l].own_opens = 0;
		}
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (p->import[i].life >= 0 && p->import[i].ctx == ctx)
			p->import[i] = (struct import){ .life = -1 };
	for (unsigned int e = 0; e < EVENTS; e++)
		if (p->event[e].life >= 0 && p->event[e].ctx == ctx) {
			struct event_life *l = &event_life[p->event[e].life];

			if (l->player == op.player)
				l->gone = true, l->alive = false;
			p->event[e].life = -1;
		}
	for (unsigned int s = MADE_A; s < STREAMS; s++)
		if (p->stream[s].alive && p->stream[s].ctx == ctx)
			p->stream[s] = (struct stream){ 0 };
	if (ctx == PRIMARY_0) /* a reset one: what was made in the green one's streams */
		for (unsigned int s = MADE_A; s < STREAMS; s++)
			if (p->stream[s].alive && p->stream[s].ctx == GREEN)
				p->stream[s] = (struct stream){ 0 };
}

/* Freed by a call that was good. */
static void freed(int l)
{
	struct life *f = &life[l];
	bool had = held(l) || f->own_opens || f->outlived;

	f->state = FREED;
	f->was_freed = true;
	f->ended_at = me()->taken;
	f->refused = f->exported && settings->grace == GRACE_NONE && !had;
	if (f->exported && !f->refused)
		me()->maybe_limbo = true;
	if (!f->exported)
		f->refused = true;
}

/* ------------------------------------------------------------------ what may differ */
/*
 * All that may: as the design says, and only where the model says that it can be.
 *   stale     the handle of a block or an event that was freed: without culimbo it opens
 *             whatever is there, or fails in the driver's ways; culimbo opens that very
 *             block while it waits in the limbo, and else refuses (promise 2)
 *   own       a handle of the process's own: refused without culimbo; with it, it gives
 *             the block's own pointer, and as many closes are good (DESIGN, "Same process")
 *   foreign   what is read through a mapping of a block that was freed: without culimbo it
 *             can be another's bytes; with it, the block's own (promise 1)
 *   limbo     what is told of a pointer to a shared block that was freed: it may still be
 *             known (README, "After cudaFree, before the real free"); how much is free, while
 *             a shared block that was freed may not be back
 */
static const char *may_differ_as(const struct life *l)
{
	return l && l->exported && l->state == FREED ? "limbo" : NULL;
}

/* ---------------------------------------------------------------------- memory */
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
	if (bytes < PAGE && (players[0].maybe_limbo || players[1].maybe_limbo))
		scattered = true;
	me()->taken++;
	life[lives] = (struct life){ .async = async, .player = op.player, .ctx = whole(current()),
				     .value = (uint8_t)(1 + lives % 250), .bytes = bytes };
	me()->block[slot] = lives;
	l = &life[lives++];
	if (me()->busy)
		return;
	o = (struct order){ .call = DO_FILL, .at = AT_BLOCK, .slot = (uint8_t)slot, .flags = l->value,
			    .bytes = bytes };
	a = tell(op.player, &o);
	with("block %u, value %u", slot, l->value);
	print("cuMemsetD8", &a, NULL);
	l->filled = !a.result;
}
static void play_alloc_sync(void)
{
	play_alloc(false);
}
static void play_alloc_async(void)
{
	play_alloc(true);
}

/* The place that the dice say, or the next that has what most calls are about. */
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

/* A pointer for a call that takes one; *l: the block that it is of.  False: there is none. */
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
	if (!async && me()->busy && o.at != AT_NULL)
		return;
	/* what becomes of such a free is not known (not measured): it is the graph's */
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
	me()->pending |= async && !a.result;
	if (!a.result && l && !o.offset && l->state == LIVE)
		freed(number);
}
static void play_free_sync(void)
{
	play_free(false);
}
static void play_free_async(void)
{
	play_free(true);
}

static void play_export(void)
{
	unsigned int slot = op.c % HANDLES;
	struct order o = { .call = DO_EXPORT };
	size_t length;
	struct answer a;
	struct life *l;
	int number;

	if (!choose(&o, &l, &number))
		return;
	length = strlen(operands);
	snprintf(operands + length, sizeof(operands) - length, ", handle %u", slot);
	a = tell(op.player, &o);
	print("cuIpcGetMemHandle", &a, NULL);
	if (a.result || !l)
		return;
	l->exported = true;
	handles[slot].life = number;
	memcpy(handles[slot].bytes, a.handle, sizeof(handles[slot].bytes));
}

/* Waits for all work of this player. */
static void settle(void)
{
	struct order o = { .call = DO_SETTLE };

	for (unsigned int c = 0; c < CONTEXTS; c++)
		o.flags |= (uint32_t)context_alive(me(), (uint8_t)c) << c;
	tell(op.player, &o);
	me()->pending = false;
}

static void let_go(void)
{
	struct order o = { .call = DO_LET_GO };

	for (unsigned int c = 0; c < CONTEXTS; c++)
		o.flags |= (uint32_t)context_alive(me(), (uint8_t)c) << c;
	tell(op.player, &o);
	me()->busy = me()->pending = false;
}

static bool is_open_here(const struct life *l)
{
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (me()->import[i].life == (int)(l - life) && me()->import[i].count)
			return true;
	return false;
}

/* Of a block that was freed: what comes of it is looked at, and closed at once. */
static void open_stale(struct order *o, const struct life *l, unsigned int slot)
{
	bool old = o->call == DO_OPEN_OLD, own = l->player == op.player;
	struct order then = { .call = DO_READ, .at = AT_IMPORT, .slot = o->slot, .bytes = SMALL };
	struct answer a, b;
	char expected[16];

	/* (a handle without a stamp may be another block's by now) */
	if (settings->tail || me()->busy)
		return;
	/* (whether a driver refuses an open in a capture, and spoils that, is not measured: a refusal of ours does not) */
	if (captures(me()))
		return;
	settle();
	a = tell(op.player, o);
	me()->taken++; /* (whether or not it was opened) */
	if (!a.result) {
		then.bytes = l->bytes;
		snprintf(expected, sizeof(expected), "bytes=%u", l->value);
		b = tell(op.player, &then);
		promised(!own || l->own_opens || l->state == FREED, "it is gone, and opens");
		promised(own || is_open_here(l) || (l->state == FREED && !l->refused), "a stale handle opens");
		promised(!l->filled || b.result || !strcmp(b.text, expected), "foreign bytes");
		then.call = DO_CLOSE;
		b = tell(op.player, &then);
		promised(!b.result, "what was opened is not closed");
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

static void play_open(void)
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
	/* (mostly the other's) */
	if (settings->players > 1 && op.c % 5 && l->player == op.player)
		op.player = !op.player;
	/* (208 is possible there without culimbo, measured) */
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
		/* (looked at in a place of its own) */
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
		/* what the driver looks at first is good: the same on both sides, or the line tells */
		bool good = o.flags == 1 && context_alive(me(), current()) &&
			    (!a.result || a.result == CUDA_ERROR_INVALID_CONTEXT);

		promised(!good || !a.result, "a handle of its own is refused");
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

static void play_close(void)
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

/* What is no import. */
static void play_close_other(void)
{
	struct order o = { .call = DO_CLOSE };
	bool counted;
	struct answer a;
	struct life *l;
	int number;

	if (me()->busy || !choose(&o, &l, &number) || (o.at == AT_IMPORT && !o.offset))
		return;
	a = tell(op.player, &o);
	counted = l && !o.offset && l->own_opens; /* (with no context, too: nothing is unmapped) */
	promised(!counted || !a.result, "what was opened of its own is not closed");
	print("cuIpcCloseMemHandle", &a, counted ? "own" : NULL);
	if (counted)
		l->own_opens--;
}

static void play_read(void)
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

static void play_write(void)
{
	unsigned int slot = import_place();
	const struct import *import = &me()->import[slot];
	struct order o = { .call = DO_FILL, .at = AT_IMPORT, .slot = (uint8_t)slot,
			   .flags = 1 + op.number % 250 };
	struct answer a;
	struct life *l;

	if (import->life < 0 || !import->count || life[import->life].state != LIVE || me()->busy)
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

static void play_query(void)
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

static bool any_limbo(void)
{
	return players[0].maybe_limbo || players[1].maybe_limbo;
}

static void play_memory(void)
{
	struct order o = { .call = DO_MEMORY };
	struct answer a;

	if (settings->gpu)
		return;
	a = tell(op.player, &o);
	with("%s", "");
	print("cuMemGetInfo", &a, any_limbo() || scattered ? "limbo" : NULL);
}

/* All there is, when nothing is under way any more. */
static void play_exhaust(void)
{
	struct order o;
	bool stays = false, waits = false;
	uint8_t player = op.player;
	struct answer a;

	if (settings->gpu || op.d % 3 || anybody_busy() || captures(&players[0]) || captures(&players[1]) ||
	    !context_alive(me(), current()))
		return;
	for (op.player = 0; op.player < settings->players; op.player++)
		settle();
	op.player = player;
	for (int l = 0; l < lives; l++) {
		waits |= life[l].state == FREED && life[l].exported && held(l);
		stays |= life[l].state == FREED && (life[l].own_opens || life[l].outlived);
	}
	stays |= settings->inline_collector && players[!player].maybe_limbo;
	o = (struct order){ .call = DO_EXHAUST };
	a = tell(player, &o);
	with("%s", "");
	/* (whole pages stay where they are without culimbo, too, while they are mapped) */
	print("cuMemAlloc until it fails", &a,
	      stays || (!settings->large && (waits || scattered)) ? "limbo" : NULL);
	me()->taken++;
	if (a.result != CUDA_ERROR_OUT_OF_MEMORY || stays || waits)
		return;
	players[0].maybe_limbo = players[1].maybe_limbo = false;
}

/* ---------------------------------------------------------------------- events */
static void play_event_create(void)
{
	static const uint32_t flags[] = { CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
					  CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
					  CU_EVENT_DEFAULT, CU_EVENT_INTERPROCESS };
	struct order o = { .call = DO_EVENT_CREATE, .slot = op.a % EVENTS, .flags = flags[op.b % 4] };
	struct answer a;

	if (me()->event[o.slot].life >= 0)
		return;
	a = tell(op.player, &o);
	with("event %u, flags %u", o.slot, o.flags);
	print("cuEventCreate", &a, NULL);
	if (a.result)
		return;
	event_life[event_lives] = (struct event_life){ .alive = true, .player = op.player };
	me()->event[o.slot] = (struct event){ event_lives++, whole(current()) };
}

static struct event *event_at(struct order *o)
{
	for (unsigned int i = 0; i < EVENTS; i++) {
		o->slot = (uint8_t)((op.a + i) % EVENTS);
		if (me()->event[o->slot].life >= 0)
			return &me()->event[o->slot];
	}
	return NULL;
}

static void play_event_destroy(void)
{
	struct order o = { .call = DO_EVENT_DESTROY };
	struct event *event = event_at(&o);
	struct answer a;

	if (!event)
		return;
	a = tell(op.player, &o);
	with("event %u", o.slot);
	print("cuEventDestroy", &a, NULL);
	if (event_life[event->life].player == op.player)
		event_life[event->life].alive = false;
	event->life = -1;
}

static void play_event(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_EVENT_RECORD, "cuEventRecord" }, { DO_EVENT_RECORD, "cuEventRecord" },
		      { DO_EVENT_QUERY, "cuEventQuery" }, { DO_EVENT_WAIT, "cuEventSynchronize" },
		      { DO_STREAM_WAIT_EVENT, "cuStreamWaitEvent" } };
	unsigned int which = op.b % 5;
	struct order o = { .call = calls[which].call, .other = op.c % STREAMS };
	struct event *event = event_at(&o);
	struct event_life *l = event ? &event_life[event->life] : NULL;
	bool on_stream = o.call == DO_EVENT_RECORD || o.call == DO_STREAM_WAIT_EVENT;
	struct answer a;

	if (!event || l->spoilt || ((o.call == DO_EVENT_WAIT || o.call == DO_STREAM_WAIT_EVENT) && anybody_busy()) || (on_stream && !usable(o.other)) ||
	    (o.call == DO_EVENT_RECORD && me()->stream[o.other].captures) ||
	    (settings->gpu && me()->stream[o.other].ctx != event->ctx))
		return;
	a = tell(op.player, &o);
	if (on_stream)
		with("event %u, stream %u", o.slot, o.other);
	else
		with("event %u", o.slot);
	print(calls[which].name, &a, NULL);
	l->spoilt |= o.call == DO_EVENT_RECORD && a.result;
}

static void play_event_export(void)
{
	unsigned int slot = op.b % HANDLES;
	struct order o = { .call = DO_EVENT_EXPORT };
	const struct event *event = event_at(&o);
	struct answer a;

	if (!event)
		return;
	a = tell(op.player, &o);
	with("event %u, handle %u", o.slot, slot);
	print("cuIpcGetEventHandle", &a, NULL);
	if (a.result)
		return;
	event_handles[slot].life = event->life;
	memcpy(event_handles[slot].bytes, a.handle, sizeof(event_handles[slot].bytes));
}

static void play_event_open(void)
{
	unsigned int slot = op.b % HANDLES;
	struct order o = { .call = DO_EVENT_OPEN, .slot = op.a % EVENTS };
	int number = event_handles[slot].life;
	const struct event_life *l;
	bool stale;
	struct answer a, b;

	if (number < 0)
		return;
	l = &event_life[number];
	if (settings->players > 1 && op.c % 5 && l->player == op.player)
		op.player = !op.player;
	if (me()->event[o.slot].life >= 0)
		return;
	stale = !l->alive;
	if (stale && (settings->gpu || settings->tail))
		return;
	memcpy(o.handle, event_handles[slot].bytes, sizeof(o.handle));
	a = tell(op.player, &o);
	with("handle %u%s, event %u", slot, l->player == op.player ? " own" : stale ? " destroyed" : "", o.slot);
	if (stale && !a.result) {
		promised(!l->gone, "a stale handle opens");
		o.call = DO_EVENT_DESTROY;
		b = tell(op.player, &o);
		promised(!b.result, "what was opened is not destroyed");
	}
	print("cuIpcOpenEventHandle", &a, stale && l->player != op.player &&
	      context_alive(me(), current()) ? "stale" : NULL);
	if (!a.result && !stale)
		me()->event[o.slot] = (struct event){ number, whole(current()) };
}

/* --------------------------------------------------------------------- streams */
static void play_stream_create(void)
{
	struct order o = { .call = DO_STREAM_CREATE, .other = MADE_A + op.a % 2, .flags = op.b % 2 };
	struct answer a;

	if (me()->stream[o.other].alive)
		return;
	a = tell(op.player, &o);
	with("stream %u, flags %u", o.other, o.flags);
	print("cuStreamCreate", &a, NULL);
	if (!a.result)
		me()->stream[o.other] = (struct stream){ .alive = true, .ctx = current() };
}

static void play_stream(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_STREAM_DESTROY, "cuStreamDestroy" }, { DO_STREAM_QUERY, "cuStreamQuery" },
		      { DO_STREAM_WAIT, "cuStreamSynchronize" }, { DO_STREAM_WAIT, "cuStreamSynchronize" } };
	unsigned int which = op.b % 4;
	struct order o = { .call = calls[which].call, .other = op.a % STREAMS };
	struct answer a;

	if (!usable(o.other) || (o.call == DO_STREAM_DESTROY && o.other < MADE_A) ||
	    (me()->busy && o.call != DO_STREAM_QUERY))
		return;
	a = tell(op.player, &o);
	with("stream %u", o.other);
	print(calls[which].name, &a, NULL);
	if (o.call == DO_STREAM_DESTROY && !a.result)
		me()->stream[o.other] = (struct stream){ 0 };
}

static void play_capture(void)
{
	struct order o = { .call = DO_CAPTURE, .other = MADE_A + op.a % 2, .flags = op.b % 3 };
	struct stream *stream = &me()->stream[o.other];
	struct answer a;

	if (!usable(o.other) || me()->busy)
		return;
	o.call = stream->captures ? DO_CAPTURE_END : DO_CAPTURE;
	a = tell(op.player, &o);
	if (stream->captures) {
		with("stream %u", o.other);
		print("cuStreamEndCapture", &a, NULL);
		if (!a.result || a.result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
			stream->captures = false;
	} else {
		with("stream %u, mode %u", o.other, o.flags);
		print("cuStreamBeginCapture", &a, NULL);
		stream->captures = !a.result;
		stream->mode = (uint8_t)o.flags;
	}
}

static void play_capture_mode(void)
{
	struct order o = { .call = DO_CAPTURE_MODE, .flags = op.a % 3 };
	struct answer a = tell(op.player, &o);

	with("mode %u", o.flags);
	print("cuThreadExchangeStreamCaptureMode", &a, NULL);
	me()->mode = (uint8_t)o.flags;
}

/* -------------------------------------------------------------------- contexts */
static void play_ctx_create(void)
{
	struct order o = { .call = DO_CTX_CREATE, .slot = OWN_A + op.a % 2,
			   .other = (uint8_t)(op.b % settings->devices) };
	struct answer a;

	if (me()->own[o.slot] || me()->depth == DEPTH)
		return;
	a = tell(op.player, &o);
	with("context %u, device %u", o.slot, o.other);
	print("cuCtxCreate", &a, NULL);
	if (a.result)
		return;
	me()->own[o.slot] = true;
	me()->stack[me()->depth++] = o.slot;
}

static void play_ctx_destroy(void)
{
	struct order o = { .call = DO_CTX_DESTROY, .slot = OWN_A + op.a % 2 };
	bool is_current = current() == o.slot;
	struct answer a;

	if (!me()->own[o.slot] || on_stack(o.slot) > is_current || me()->busy)
		return;
	a = tell(op.player, &o);
	with("context %u", o.slot);
	print("cuCtxDestroy", &a, NULL);
	if (a.result)
		return;
	end_context(o.slot);
	me()->own[o.slot] = false;
	me()->depth -= is_current;
}

static void play_ctx_current(void)
{
	struct order o = { .call = op.b % 2 ? DO_CTX_SET : DO_CTX_PUSH, .slot = op.a % (CONTEXTS + 1) };
	bool set = o.call == DO_CTX_SET, none = o.slot == NOWHERE;
	struct answer a;

	if ((none && (!set || op.c % 6)) || (!none && !context_alive(me(), o.slot)) ||
	    (!set && me()->depth == DEPTH))
		return;
	a = tell(op.player, &o);
	with("context %u", o.slot);
	print(set ? "cuCtxSetCurrent" : "cuCtxPushCurrent", &a, NULL);
	if (a.result)
		return;
	if (none)
		me()->depth -= me()->depth > 0;
	else if (set && me()->depth)
		me()->stack[me()->depth - 1] = o.slot;
	else
		me()->stack[me()->depth++] = o.slot;
}

static void play_ctx(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_CTX_POP, "cuCtxPopCurrent" }, { DO_CTX_GET, "cuCtxGetCurrent" },
		      { DO_CTX_WAIT, "cuCtxSynchronize" } };
	unsigned int which = op.a % 3;
	struct order o = { .call = calls[which].call };
	struct answer a;

	if ((o.call == DO_CTX_POP && me()->depth == 1 && op.b % 3) || (o.call == DO_CTX_WAIT && me()->busy))
		return;
	a = tell(op.player, &o);
	with("%s", "");
	print(calls[which].name, &a, NULL);
	if (o.call == DO_CTX_POP && !a.result)
		me()->depth--;
}

static void play_primary(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_RETAIN, "cuDevicePrimaryCtxRetain" }, { DO_RETAIN, "cuDevicePrimaryCtxRetain" },
		      { DO_RETAIN, "cuDevicePrimaryCtxRetain" },
		      { DO_RELEASE, "cuDevicePrimaryCtxRelease" }, { DO_RELEASE, "cuDevicePrimaryCtxRelease" },
		      { DO_RESET, "cuDevicePrimaryCtxReset" } };
	unsigned int which = op.b % 6, device = op.a % settings->devices;
	struct order o = { .call = calls[which].call, .slot = (uint8_t)device };
	unsigned int *references = &me()->references[device];
	bool green = device == 0 && me()->own[GREEN];
	struct answer a;

	if (me()->busy && o.call != DO_RETAIN)
		return;
	if ((o.call == DO_RESET && (green || op.c % 2)) || (o.call == DO_RELEASE && !*references && green))
		return;
	if (o.call != DO_RETAIN && *references <= 1 && op.d % 3)
		return;
	if (settings->gpu && o.call != DO_RETAIN && (on_stack((uint8_t)device) || !*references))
		return;
	a = tell(op.player, &o);
	with("device %u", device);
	print(calls[which].name, &a, NULL);
	if (a.result)
		return;
	if (o.call == DO_RETAIN)
		++*references;
	else if (o.call == DO_RESET || (--*references == 0 && !green))
		end_context((uint8_t)device);
}

static void play_green(void)
{
	struct order o = { .call = me()->own[GREEN] ? DO_GREEN_DESTROY : DO_GREEN_CREATE, .slot = GREEN };
	struct answer a;

	if (me()->own[GREEN] && (on_stack(GREEN) || me()->busy || (settings->gpu && !me()->references[0] && on_stack(0))))
		return;
	/* (its stream would go on capturing, and nobody could end that) */
	for (unsigned int s = MADE_A; me()->own[GREEN] && s < STREAMS; s++)
		if (me()->stream[s].ctx == GREEN && me()->stream[s].captures)
			return;
	a = tell(op.player, &o);
	with("%s", "");
	print(o.call == DO_GREEN_CREATE ? "cuGreenCtxCreate" : "cuGreenCtxDestroy", &a, NULL);
	if (a.result)
		return;
	me()->own[GREEN] = o.call == DO_GREEN_CREATE;
	if (o.call == DO_GREEN_CREATE)
		return;
	/* its streams are not to be used any more; all else is the primary one's */
	for (unsigned int s = MADE_A; s < STREAMS; s++)
		if (me()->stream[s].ctx == GREEN)
			me()->stream[s] = (struct stream){ 0 };
	if (!me()->references[0])
		end_context(PRIMARY_0);
}

static void play_fork(void)
{
	struct order o = { .call = DO_FORK, .at = AT_BLOCK, .slot = op.a % BLOCKS, .flags = op.b };
	struct answer a;

	if (op.c % 3 || me()->busy || (settings->gpu && op.b % 3))
		return;
	if (handles[op.d % HANDLES].life >= 0)
		memcpy(o.handle, handles[op.d % HANDLES].bytes, sizeof(o.handle));
	else
		o.flags = op.b % 2;
	a = tell(op.player, &o);
	with("block %u, way %u", o.slot, o.flags % 3);
	print("fork", &a, NULL);
}

/* Its stream's work is under way from here on, until it is let go. */
static void play_hold(void)
{
	struct order o = { .call = DO_HOLD, .other = op.a % STREAMS };
	struct answer a;

	if (me()->busy || !usable(o.other) || captures(me()) || !context_alive(me(), current()))
		return;
	a = tell(op.player, &o);
	with("stream %u", o.other);
	print("cuLaunchHostFunc", &a, NULL);
	me()->busy = !a.result;
}

static void begin(struct player *p)
{
	static const struct order retain = { .call = DO_RETAIN }, set = { .call = DO_CTX_SET };
	unsigned int number = (unsigned int)(p - players);

	for (unsigned int i = 0; i < BLOCKS; i++)
		p->block[i] = -1;
	for (unsigned int i = 0; i < IMPORTS; i++)
		p->import[i].life = -1;
	for (unsigned int i = 0; i < EVENTS; i++)
		p->event[i].life = -1;
	p->stream[LEGACY].alive = p->stream[PER_THREAD].alive = true;
	p->references[0] = 1;
	p->stack[p->depth++] = PRIMARY_0;
	if (tell(number, &retain).result || tell(number, &set).result)
		die("player %u has no context", number);
}

static void play_let_go(void)
{
	if (me()->busy)
		let_go();
}

/* The second player ends, and another begins. */
static void play_end(void)
{
	struct player *p = &players[1];
	int status;

	if (settings->players < 2 || op.d % 3 || captures(p))
		return;
	op.player = 1;
	if (p->busy)
		let_go();
	status = end(p, op.a);
	printf("%u P1 ends with %x\n", op.number, (unsigned int)status);
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (p->import[i].life >= 0 && p->import[i].count)
			life[p->import[i].life].outlived = true;
	for (int l = 0; l < lives; l++)
		if (life[l].player == 1) {
			life[l].player = NOBODY;
			life[l].state = GONE;
		}
	for (int e = 0; e < event_lives; e++)
		if (event_life[e].player == 1) {
			event_life[e] = (struct event_life){ .gone = true, .spoilt = event_life[e].spoilt,
							     .player = NOBODY };
		}
	/* (pages of a process that was killed come back when somebody looks for some) */
	scattered = true;
	*p = (struct player){ 0 };
	start(p);
	begin(p);
}

/* ------------------------------------------------------------------------- all */
static const struct {
	void (*play)(void);
	unsigned int weight;
} plays[] = {
	{ play_alloc_sync, 14 }, { play_alloc_async, 3 }, { play_free_sync, 12 }, { play_free_async, 7 },
	{ play_export, 16 }, { play_open, 26 }, { play_close, 10 }, { play_close_other, 4 },
	{ play_read, 12 }, { play_write, 3 }, { play_query, 5 }, { play_memory, 2 }, { play_exhaust, 2 },
	{ play_event_create, 4 }, { play_event_destroy, 3 }, { play_event, 6 }, { play_event_export, 4 },
	{ play_event_open, 5 }, { play_stream_create, 3 }, { play_stream, 4 }, { play_capture, 5 },
	{ play_capture_mode, 1 }, { play_ctx_create, 2 }, { play_ctx_destroy, 2 }, { play_ctx_current, 9 },
	{ play_ctx, 4 }, { play_primary, 4 }, { play_green, 2 }, { play_fork, 2 }, { play_hold, 4 }, { play_let_go, 12 }, { play_end, 2 },
};

static void play(unsigned int number)
{
	uint64_t seed = settings->seed;
	unsigned int sum = 0, left;

	op = (struct op){ .number = number, .player = (uint8_t)(dice(seed, number, 0) % settings->players),
			  .a = dice(seed, number, 1), .b = dice(seed, number, 2),
			  .c = dice(seed, number, 3), .d = dice(seed, number, 4) };
	for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++)
		sum += plays[i].weight;
	left = dice(seed, number, 5) % sum;
	for (size_t i = 0;; i++) {
		if (left < plays[i].weight) {
			plays[i].play();
			return;
		}
		left -= plays[i].weight;
	}
}

int direct(const struct settings *as, unsigned int ops, const char *keep, const char *program)
{
	const char *side = getenv("DIFFERENTIAL_SIDE");
	uint32_t how = dice(as->seed, UINT32_MAX, 19);

	settings = as;
	self = program;
	under_culimbo = side && !strcmp(side, "culimbo");
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (unsigned int i = 0; i < HANDLES; i++)
		handles[i].life = event_handles[i].life = -1;
	players[0].fd = -1;
	if (as->players > 1)
		start(&players[1]);
	player_begin();
	for (unsigned int p = 0; p < as->players; p++)
		begin(&players[p]);
	for (unsigned int i = 0; i < ops; i++)
		if (!keep || keep[i] == '1')
			play(i);
	for (op.player = 0; op.player < as->players; op.player++)
		if (me()->busy)
			let_go();
	if (as->players > 1)
		printf("%u P1 ends with %x\n", ops, (unsigned int)end(&players[1], how / 12));
	return player_end(how % 3);
}

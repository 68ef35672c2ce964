/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The director: chooses the calls, has the players make them one after the other, prints a
 * line for each call, and knows from the model (model.c) which results are allowed.
 *
 * Each operation depends only on the seed and on its own number, so it stays the same when others are
 * left out.  When its operands do not exist, there is no call and no line.
 *
 * Rules: A line ends with "~reason" where it may differ, and only there (see may_differ_as()).  It ends
 * with "!what" where, under culimbo, it breaks a promise, whatever happens without culimbo.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/differential/calls.h"
#include "tests/differential/stage.h"

enum { NOBODY = 255 /* a player that has ended */, MEMORY_MS = 10000 };
static const char *self;

/* ---------------------------------------------------------------- random numbers */
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

/* DIFFERENTIAL_VIRTUAL=no: virtual memory is not played; all other operations of a seed keep their random numbers. */
static bool plays_virtual(uint32_t die)
{
	const char *wish = getenv("DIFFERENTIAL_VIRTUAL");

	return !(wish && !strcmp(wish, "no")) && (die % 4 == 0 || getenv("CULIMBO_SHARE"));
}

struct settings settings_of(uint64_t seed, bool gpu)
{
	uint32_t d[12];

	for (unsigned int i = 0; i < 12; i++)
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
		.virtuals = plays_virtual(d[8]),
		/* bare, the driver may crash when the importer frees first (doc/measurements.md) */
		.pools = d[11] % 3 == 0 && (!gpu || getenv("DIFFERENTIAL_POOLS")),
	};
}

/* -------------------------------------------------------- beginnings and ends */
static void begin(struct player *p)
{
	static const struct order retain = { .call = DO_RETAIN }, set = { .call = DO_CTX_SET };
	unsigned int number = (unsigned int)(p - players);
	uint64_t until = now_ms() + MEMORY_MS;
	int retained, current;

	for (unsigned int i = 0; i < BLOCKS; i++)
		p->block[i] = -1;
	for (unsigned int i = 0; i < IMPORTS; i++)
		p->import[i].life = -1;
	for (unsigned int i = 0; i < EVENTS; i++)
		p->event[i].life = -1;
	p->stream[LEGACY].alive = p->stream[PER_THREAD].alive = true;
	pools_begin(number);
	virtual_begin(number);
	p->references[0] = 1;
	p->stack[p->depth++] = PRIMARY_0;
	/* memory of earlier processes, even killed ones, comes back when the driver has cleaned up */
	while ((retained = tell(number, &retain).result) == CUDA_ERROR_OUT_OF_MEMORY && now_ms() < until)
		;
	current = retained ? -1 : tell(number, &set).result;
	if (current)
		die_without_context("player %u has no context: cuDevicePrimaryCtxRetain gave %d, cuCtxSetCurrent %d", number, retained, current);
}

static void play_let_go(void)
{
	if (me()->busy)
		let_go();
}

/* The second player ends, and another starts. */
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
	pools_player_ended(1);
	virtual_player_ended(1);
	for (int e = 0; e < event_lives; e++)
		if (event_life[e].player == 1) {
			event_life[e] = (struct event_life){ .gone = true, .spoilt = event_life[e].spoilt,
							     .player = NOBODY };
		}
	/* pages of a killed process come back when another process asks for memory */
	scattered = true;
	*p = (struct player){ 0 };
	start(p, self);
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

/* Pool operations have random numbers of their own, so that the other operations of a seed stay the same. */
static void play_pools(unsigned int number)
{
	uint64_t seed = settings->seed;

	op = (struct op){ .number = number, .player = (uint8_t)(dice(seed, number, 10) % settings->players),
			  .a = dice(seed, number, 11), .b = dice(seed, number, 12),
			  .c = dice(seed, number, 13), .d = dice(seed, number, 14) };
	pools_play(dice(seed, number, 15));
}

/* And so have those of virtual memory. */
static void play_virtual(unsigned int number)
{
	uint64_t seed = settings->seed;

	op = (struct op){ .number = number, .player = (uint8_t)(dice(seed, number, 20) % settings->players),
			  .a = dice(seed, number, 21), .b = dice(seed, number, 22),
			  .c = dice(seed, number, 23), .d = dice(seed, number, 24) };
	virtual_play(dice(seed, number, 25));
}

int direct(const struct settings *as, unsigned int ops, const char *keep, const char *program)
{
	const char *side = getenv("DIFFERENTIAL_SIDE"), *mode;
	uint32_t how = dice(as->seed, UINT32_MAX, 19);

	settings = as;
	self = program;
	mode = getenv("CULIMBO_MODE");
	/* in that mode culimbo promises only to change nothing */
	under_culimbo = side && !strcmp(side, "culimbo") && !(mode && !strcmp(mode, "observe"));
	setvbuf(stdout, NULL, _IOLBF, 0);
	underway_open();
	say_underway("the start, cuInit of P0");
	for (unsigned int i = 0; i < HANDLES; i++)
		handles[i].life = event_handles[i].life = -1;
	players[0].fd = -1;
	if (as->players > 1)
		start(&players[1], program);
	player_begin();
	for (unsigned int p = 0; p < as->players; p++)
		begin(&players[p]);
	for (unsigned int i = 0; i < ops; i++)
		if (!keep || keep[i] == '1') {
			play(i);
			if (as->pools)
				play_pools(i);
			if (as->virtuals)
				play_virtual(i);
		}
	for (op.player = 0; op.player < as->players; op.player++)
		if (me()->busy)
			let_go();
	if (as->players > 1)
		printf("%u P1 ends with %x\n", ops, (unsigned int)end(&players[1], how / 12));
	say_underway("the end of P0");
	return player_end(how % 3);
}

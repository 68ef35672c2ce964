/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the director knows: what is there by now, in each player, and so what a call may answer.
 *
 * What must hold: it follows from the answers alone that must be the same with and without
 * culimbo; so the calls are the same up to the first difference.  Of one process, and one thread.
 */
#ifndef DIFFERENTIAL_MODEL_H
#define DIFFERENTIAL_MODEL_H

#include "tests/differential/play.h"

enum { HANDLES = 6, DEPTH = 8, LIVES = OPS_MAX + 1, SMALL = 1024, PAGE = 2 << 20 };

/* One block, from its allocation on. */
struct life {
	enum { LIVE, FREED, GONE } state; /* GONE: with its context */
	bool async, exported, filled, was_freed;
	bool outlived; /* who ended had it open: when its hold is taken back is not known */
	bool refused; /* freed when nobody had or could get it: its handle must be refused */
	bool waits;   /* it surely went into the limbo when it was freed: how old its grace was does not matter */
	bool pending; /* freed in a stream's order: its player has not waited for all work since */
	uint8_t player, ctx, device, value;
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

struct player {
	int fd; /* -1: this process */
	pid_t pid;
	int block[BLOCKS]; /* its last life, or -1 */
	struct import import[IMPORTS];
	struct event event[EVENTS];
	struct stream stream[STREAMS];
	bool own[CONTEXTS]; /* of OWN_A, OWN_B, GREEN: is there */
	unsigned int references[DEVICES];
	uint8_t own_device[CONTEXTS]; /* of OWN_A, OWN_B */
	uint8_t stack[DEPTH];
	unsigned int depth;
	bool busy;	    /* work is under way that ends when it is let go */
	unsigned int taken; /* addresses, so far */
	bool maybe_limbo[DEVICES];
	uint8_t mode; /* the thread's, of captures */
};
/* The operation that is being played. */
struct op {
	unsigned int number;
	uint8_t player;
	uint32_t a, b, c, d;
};

extern const struct settings *settings;
extern bool under_culimbo;
extern struct life life[LIVES];
extern struct event_life event_life[LIVES];
extern int lives, event_lives;
extern struct handle handles[HANDLES], event_handles[HANDLES];
extern struct player players[PLAYERS];
extern bool scattered; /* small blocks may lie elsewhere than without culimbo */
extern struct op op;

/* Of the player whose operation it is. */
struct player *me(void);
uint8_t current(void);
unsigned int on_stack(uint8_t ctx);
struct life *block_at(unsigned int slot);
bool usable(unsigned int stream);
/* A pointer to it is that of nothing else, whoever has its address by now. */
bool is_alone(const struct life *l);
/* Once freed, it stays to the end: no importer could say that it has it. */
bool is_kept(const struct life *l);

uint8_t whole(uint8_t ctx);
/* That a context of the player whose operation it is is on. */
uint8_t device_of(uint8_t ctx);
bool primary_alive(const struct player *p, unsigned int device);
bool context_alive(const struct player *p, uint8_t ctx);
bool captures(const struct player *p);
bool anybody_busy(void);
bool any_limbo(void);
/* How often others have it open. */
unsigned int held(int l);

/* What a good call has done. */
void freed(int l);
/* All work of the player whose operation it is has been waited for. */
void settled(void);
void end_context(uint8_t ctx);

/* The rule by which what is told of a pointer to it may differ, or NULL. */
const char *may_differ_as(const struct life *l);

#endif

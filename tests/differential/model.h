/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The director's model: which objects exist in each player, and so which results a call may have.
 *
 * Rule: The model depends only on results that must be the same with and without culimbo; so the calls
 * are the same up to the first difference.  It is used by one process with one thread.
 */
#ifndef DIFFERENTIAL_MODEL_H
#define DIFFERENTIAL_MODEL_H

#include "tests/differential/play.h"

enum { HANDLES = 6, DEPTH = 8, LIVES = OPS_MAX + 1, SMALL = 1024, PAGE = 2 << 20 };

/* One block, from its allocation on. */
struct life {
	enum { LIVE, FREED, GONE } state; /* GONE: its context has ended, or its process */
	bool of_graph; /* allocated by a capture, if that was still good: then no handle is made of it */
	bool async; /* of its device's pool: it outlives contexts (measured) */
	bool exported, filled, was_freed;
	bool outlived; /* a process that ended had it open: it is not known when its hold is taken back */
	bool refused; /* it was freed when no process had it or could get it: its handle must be refused */
	bool waits;   /* it certainly went into the limbo when it was freed, whatever was left of its grace period */
	bool pending; /* it was freed in stream order, and its player has not waited for all work since */
	bool in_order; /* it was freed in stream order, and its address is no other block's yet */
	uint8_t player, ctx, device, value;
	unsigned int own_opens;
	uint64_t bytes;
	unsigned int ended_at; /* how often the player had allocated or opened by then */
};
/* One event. */
struct event_life {
	bool alive, gone, spoilt; /* spoilt: recording it failed, so it may never be done */
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
	int block[BLOCKS]; /* the number of its last block, or -1 */
	struct import import[IMPORTS];
	struct event event[EVENTS];
	struct stream stream[STREAMS];
	bool own[CONTEXTS]; /* OWN_A, OWN_B, GREEN: it exists */
	unsigned int references[DEVICES];
	uint8_t own_device[CONTEXTS]; /* of OWN_A, OWN_B */
	uint8_t stack[DEPTH];
	unsigned int depth;
	bool busy;	    /* a stream is busy until it is let go */
	unsigned int taken; /* number of addresses taken so far */
	bool maybe_limbo[DEVICES];
	bool pressed; /* a process has asked all others for memory: for a while no block that nobody holds has a grace */
	/* its stream-ordered memory: a handle was asked for, something was freed, something that has a handle was freed */
	struct {
		bool handed, freed, handed_freed;
	} async[DEVICES];
	uint8_t mode; /* the thread's capture mode */
};
/* The current operation. */
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
extern bool scattered; /* small blocks may have other addresses than without culimbo, and chunks of them may be kept */
extern struct op op;

/* The player of the current operation. */
struct player *me(void);
uint8_t current(void);
unsigned int on_stack(uint8_t ctx);
struct life *block_at(unsigned int slot);
bool usable(unsigned int stream);
/* True when a pointer to the block cannot point to another one, even if its address is used again. */
bool is_alone(const struct life *l);
/* A freed block that stays to the end, because no importer can report that it has it. */
bool is_kept(const struct life *l);

uint8_t whole(uint8_t ctx);
/* Index of a context of the current player. */
uint8_t device_of(uint8_t ctx);
/* The context of a stream of the current player: a default stream belongs to the current one. */
uint8_t context_of(unsigned int stream);
bool primary_alive(const struct player *p, unsigned int device);
bool context_alive(const struct player *p, uint8_t ctx);
bool captures(const struct player *p);
bool anybody_busy(void);
bool any_limbo(void);
/*
 * Rule "threshold": true if pools may keep memory of @device that they would have given back without culimbo.  Those
 * of @player give back all but memory with handles, because an allocation has found too little; PLAYERS: nobody's do.
 */
bool pools_may_keep(uint8_t device, unsigned int player);
/* How often other players have it open. */
unsigned int held(int l);

/* Records what a successful call did. */
void freed(int l);
/* The current player has waited for all its work. */
void settled(void);
void end_context(uint8_t ctx);

/* The rule by which the results of a query about a pointer may differ, or NULL. */
const char *may_differ_as(const struct life *l);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of tests/differential/differential; see runner.c.
 *
 * player.c makes one driver call at a time, in one process for each player (stage.c starts them).
 * director.c chooses the calls, calls*.c check their results, and model.c has the current state.
 * runner.c runs a seed with and without culimbo (a "play" for each side) and compares.
 */
#ifndef DIFFERENTIAL_PLAY_H
#define DIFFERENTIAL_PLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/e2e/cuda_door.h"

enum { PLAYERS = 2, CONTEXTS = 5, BLOCKS = 6, IMPORTS = 4, STREAMS = 4, EVENTS = 6, OPS_MAX = 400 };
enum { DEVICES = 2 };
enum { POOLS = 2, POOL_BLOCKS = 4, POOL_IMPORTS = 3 };
enum { V_REGIONS = 2, V_IMPORTS = 3 };
/* Places for contexts: the devices' primary ones, two created ones, a green one of device 0. */
enum { PRIMARY_0, PRIMARY_1, OWN_A, OWN_B, GREEN, NOWHERE };
/* Places for streams: the legacy one, the thread's own, two created ones. */
enum { LEGACY, PER_THREAD, MADE_A, MADE_B };

/* What the seed decides for a whole run. */
struct settings {
	uint64_t seed;
	bool gpu; /* only what any driver survives, and little memory */
	unsigned int players, devices;
	enum { GRACE_NONE, GRACE_SHORT, GRACE_DEFAULT, GRACE_LONG } grace;
	bool inline_collector, no_stacks, large; /* large: all blocks are whole pages of 2 MiB */
	bool getproc, thunk;
	bool tail;  /* the driver's handles have no room for a stamp */
	bool trace; /* CULIMBO_TRACE */
	bool few_events; /* CULIMBO_MAX_EVENTS */
	bool pools;	 /* also shares pools */
	bool virtuals;	 /* also plays virtual memory */
};
struct settings settings_of(uint64_t seed, bool gpu);

/* A file, named by DIFFERENTIAL_UNDERWAY, with the current call of a side: see stage.c. */
struct underway {
	uint64_t moves; /* grows with each step */
	char what[120]; /* in words */
};

/* The calls.  player.c says which operands each takes. */
enum call {
	DO_ALLOC, DO_ALLOC_ASYNC, DO_FREE, DO_FREE_ASYNC, DO_EXPORT, DO_OPEN, DO_OPEN_OLD, DO_CLOSE,
	DO_READ, DO_FILL, DO_QUERY, DO_MEMORY, DO_EXHAUST, DO_SETTLE,
	DO_EVENT_CREATE, DO_EVENT_DESTROY, DO_EVENT_RECORD, DO_EVENT_QUERY, DO_EVENT_WAIT,
	DO_STREAM_WAIT_EVENT, DO_EVENT_EXPORT, DO_EVENT_OPEN,
	DO_STREAM_CREATE, DO_STREAM_DESTROY, DO_STREAM_QUERY, DO_STREAM_WAIT,
	DO_CAPTURE, DO_CAPTURE_END, DO_CAPTURE_MODE,
	DO_CTX_CREATE, DO_CTX_DESTROY, DO_CTX_SET, DO_CTX_PUSH, DO_CTX_POP, DO_CTX_GET, DO_CTX_WAIT,
	DO_RETAIN, DO_RELEASE, DO_RESET, DO_GREEN_CREATE, DO_GREEN_DESTROY,
	DO_POOL_NEW, DO_POOL_TAKE, DO_POOL_TRIM, DO_POOL_DESTROY, DO_POOL_ALLOC, DO_POOL_EXPORT, DO_POOL_IMPORT,
	DO_V_RESERVE, DO_V_FREE, DO_V_MAP, DO_V_UNMAP, DO_V_FILL, DO_V_READ, DO_V_QUERY, DO_V_EXPORT, DO_V_OPEN,
	DO_V_LOOK, DO_V_CLOSE,
	DO_HOLD, DO_LET_GO, DO_FORK, DO_END,
};

/* A pointer, by the object it points to. */
enum at { AT_NULL, AT_UNKNOWN, AT_BLOCK, AT_IMPORT, AT_POOL_BLOCK, AT_POOL_IMPORT };

struct order {
	uint8_t call, at, slot, other; /* other: a stream, an event, ... */
	uint8_t plant; /* a planted fault instead of the call: see plant() in stage.c */
	uint8_t page, pages; /* of virtual memory: @offset counts from the page's beginning */
	uint32_t flags;
	uint64_t bytes, offset;
	uint8_t handle[64];
};
struct answer {
	int32_t result;
	char text[212]; /* further results that must be the same, as text */
	uint8_t handle[64];
};

/* For a player's process. */
void player_begin(void);
void player_do(const struct order *order, struct answer *answer);
/* player_pool.c; *address: the address of the order's block or import */
CUresult pool_call(const struct order *order, struct answer *answer, CUdeviceptr *address, CUstream stream);
/* player_virtual.c */
CUresult virtual_call(const struct order *order, struct answer *answer);
/* Executes the orders that come through @fd, up to DO_END. */
int player_serve(int fd);
/* Ends the process; returns when the end is a return from main(). */
int player_end(unsigned int how);

/* Runs all operations and prints a line for each call; @keep: a '1' for each that is to run, or NULL. */
int direct(const struct settings *settings, unsigned int ops, const char *keep, const char *self);

/* A fault that a test plants, to check what is reported of it. */
enum plant { PLANT_NONE, PLANT_CRASH, PLANT_KILL, PLANT_EXIT, PLANT_HANG, PLANT_REFUSE };

uint64_t now_ms(void); /* monotonic */

enum { NO_CONTEXT = 95 }; /* the exit status of a process to which the driver gave no context */

/* Ends this process with status NO_CONTEXT because the driver refuses its first calls; prints why to stderr. */
void die_without_context(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Ends this process with status 99.  Prints why to stderr, or after die_said_as to stdout. */
extern const char *die_said_as;
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage: what a scene is written with.
 *
 * A scene is one of the promises of culimbo, played by actors: real processes
 * (actor.c), with or without the library, that do what the scene says, line by
 * line.  The stage itself is never under the library and makes no CUDA call.
 *
 * What must hold: nothing waits without a deadline and nothing sleeps to be
 * safe; a step of the setting that fails ends the scene as failed; whatever
 * happens, no actor outlives the stage.
 *
 * On the simulated driver and on a real one the same scenes run.
 */
#ifndef STAGE_H
#define STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define SMALL KIB	 /* beside a live neighbour in its 2 MiB chunk */
#define BIG (64 * MIB)	 /* an allocation of its own */

/* What bytes are made of. */
#define OWN 17
#define NEXT 99 /* the next owner's */

/* Driver results that scenes speak of. */
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define INVALID_CONTEXT 201
#define ALREADY_MAPPED 208
#define NOT_READY 600
#define NOT_PERMITTED 800
#define NOT_SUPPORTED 801

/* ------------------------------------------------------------------- scenes */
enum {
	SCENE_ALONE = 1,     /* asserts times or free memory: nothing is to run beside it */
	SCENE_SIMULATED = 2, /* only on the simulated driver */
	SCENE_REAL = 4,	     /* only on a real one */
};

struct scene {
	const char *name;
	void (*play)(void);
	int flags;
};

/* Each file of scenes has a list of them, which ends with a name of NULL. */
extern const struct scene memory_scenes[], death_scenes[], pressure_scenes[], event_scenes[],
	process_scenes[], green_scenes[], odd_scenes[], report_scenes[], random_scenes[],
	stream_scenes[], pool_scenes[];

/* ------------------------------------------------------------------ results */
/* One line of the result: the promise, in words. */
void ok(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The setting broke: the scene ends here, as failed. */
void break_off(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

bool on_real_driver(void);
double now_ms(void);
/* For loops that watch for something: a short pause, false once @deadline is over. */
bool watch_until(double deadline_ms);

/* ------------------------------------------------------------------- actors */
struct actor {
	char name[16];
	pid_t pid;
	int fd;
	bool bare, ended;
	int status; /* of waitpid, once ended */
	char out[512], err[512]; /* the files that its stdout and stderr go to */
	const char *door;
	struct wire_reply reply; /* the last one */
};

struct entry {
	bool bare;	    /* without culimbo */
	bool raw;	    /* makes no CUDA call until told to */
	const char *door;   /* "linked", "dlsym" or "getproc" */
	const char *env;    /* "NAME=value NAME=value" beside what all have */
	const char *other;   /* the library of another culimbo, preloaded with .bare */
	int partner;	    /* a descriptor to become WIRE_PARTNER_FD, or 0 */
};
/* Starts an actor: ENTER("P", .bare = true). */
#define ENTER(name, ...) enter(name, (struct entry){ __VA_ARGS__ })
struct actor *enter(const char *name, struct entry entry);

/* Does an operation and waits for the reply, which the scene then judges. */
#define ASK(actor, operation, ...)                                                                 \
	ask(actor, OP_##operation, NULL, (const uint64_t[6]){ __VA_ARGS__ })
const struct wire_reply *ask(struct actor *actor, enum wire_operation operation,
			     const unsigned char *handle, const uint64_t a[6]);
/* Begins, as all do that don't enter raw; false: it sees no device. */
bool begins(struct actor *actor);
/* The two halves of ask(), for what takes long. */
void tell(struct actor *actor, enum wire_operation operation, const unsigned char *handle,
	  const uint64_t a[6]);
const struct wire_reply *hear(struct actor *actor, int deadline_ms);

/* Lets an actor end as told and returns what waitpid() says. */
int leave_by(struct actor *actor, enum ending how, int status);
/* exit(0); breaks off when it ends in another way. */
void leave(struct actor *actor);
void kill_actor(struct actor *actor);
/* What it wrote, so far. */
const char *said(const struct actor *actor);
size_t printed(const struct actor *actor);
/* How often @text is in what it said. */
int count_said(const struct actor *actor, const char *text);

/* ---------------------------------------------------------------- operations */
struct handle {
	unsigned char bytes[64];
};

/* The try_ forms return what the driver said; the others break off on an error. */
int try_alloc(struct actor *actor, uint64_t bytes, uint64_t *address);
uint64_t alloc(struct actor *actor, uint64_t bytes);
/* A block full of @value. */
uint64_t alloc_filled(struct actor *actor, uint64_t bytes, unsigned char value);
void fill(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value);
int try_free(struct actor *actor, uint64_t address);
void free_block(struct actor *actor, uint64_t address);
int try_export(struct actor *actor, uint64_t address, struct handle *handle);
struct handle export_block(struct actor *actor, uint64_t address);
int try_open(struct actor *actor, const struct handle *handle, uint64_t *address);
uint64_t open_block(struct actor *actor, const struct handle *handle);
int try_close(struct actor *actor, uint64_t address);
void close_block(struct actor *actor, uint64_t address);
/* Whether every byte is @value; the first other one goes to *@foreign. */
bool reads(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value,
	   unsigned int *foreign);
/* Whether the driver has that address to give; takes it, full of @value, if so. */
bool claim(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value);
/* The same, tried for so long; *@took in ms. */
bool claim_within(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value,
		  double ms, double *took);
/* For scenes that are SCENE_ALONE; so is free_within(). */
uint64_t free_memory(struct actor *actor);
/* Whether so much is free as seen by @observer within @ms; *@took in ms. */
bool free_within(struct actor *observer, uint64_t bytes, double ms, double *took);

bool same_handle(const struct handle *a, const struct handle *b);
bool tail_is_zero(const struct handle *handle);
/* The driver's two ways to refuse a handle (doc/measurements.md). */
bool refused(int result);

/* --------------------------------------------------------- culimbo's folder */
const char *limbo_folder(void); /* CULIMBO_DIR of this scene, which need not exist */
/* The number of files in it. */
int files(void);
/* Whether there are so many within @ms. */
bool files_within(int n, double ms);

#endif

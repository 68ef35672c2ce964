/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage: the functions with which scenes are written.
 *
 * A scene tests one promise of culimbo.  Its actors are real processes (actor.c), with or without
 * the library, that make the calls that the scene tells them, line by line.  The stage itself
 * never has the library and makes no CUDA call.
 *
 * Rules: No wait is without a deadline, and no sleep replaces a wait.  A step of the setup that
 * fails ends the scene as failed.  No actor outlives the stage.
 *
 * The same scenes run on the simulated driver and on a real one.
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
#define SMALL KIB	 /* in a 2 MiB chunk with a live neighbour */
#define BIG (64 * MIB)	 /* an allocation of its own */

/* The contents of blocks. */
#define OWN 17
#define NEXT 99 /* the next owner's bytes */

/* Driver results that scenes compare with. */
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define INVALID_CONTEXT 201
#define ALREADY_MAPPED 208
#define INVALID_HANDLE 400
#define NOT_READY 600
#define NOT_PERMITTED 800
#define NOT_SUPPORTED 801
#define CAPTURE_UNSUPPORTED 900
#define CAPTURE_INVALIDATED 901

/* ------------------------------------------------------------------- scenes */
enum {
	SCENE_ALONE = 1,     /* asserts times or free memory: no other scene may run at the same time */
	SCENE_SIMULATED = 2, /* only on the simulated driver */
	SCENE_REAL = 4,	     /* only on a real one */
};

struct scene {
	const char *name;
	void (*play)(void);
	int flags;
};

/* Each file of scenes has a list, which ends with a NULL name. */
extern const struct scene memory_scenes[], death_scenes[], pressure_scenes[], event_scenes[],
	process_scenes[], exec_scenes[], device_scenes[], green_scenes[], odd_scenes[], report_scenes[], random_scenes[],
	stream_scenes[], pool_scenes[], virtual_scenes[], async_scenes[], shared_scenes[];

/* ------------------------------------------------------------------ results */
/* Prints one line of the result: the assertion, in words. */
void ok(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Ends the scene as failed, because its setup failed. */
void break_off(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

bool on_real_driver(void);
double now_ms(void);
/* For loops that wait for a change: a short pause, then false once @deadline has passed. */
bool watch_until(double deadline_ms);
/*
 * Returns how many ms after its last release a block was gone, or more than @limit_ms if it was still there then.  @there
 * looks for the block: it returns true if it could take the block, and has then given it back.  So each such look is
 * itself the last release, and the time counts from it; the next look comes later each time, so that a busy machine's
 * collector is not kept from the block by the looks themselves.
 */
double gone_after(bool (*there)(void *data), void *data, double limit_ms);
/*
 * Between begin() and end() most() returns how many ms this machine has stopped a process at most since reset(), though
 * it was to run (stage_pauses.c).
 */
void pauses_begin(void);
void pauses_reset(void);
double pauses_most(void);
void pauses_end(void);

/* ------------------------------------------------------------------- actors */
struct actor {
	char name[16];
	pid_t pid;
	int fd;
	bool bare, ended;
	int status; /* from waitpid, once it has ended */
	char out[512], err[512]; /* the paths of its stdout and stderr */
	const char *door;
	int answer_ms; /* for an answer, if not ANSWER_MS */
	struct wire_reply reply; /* the last reply */
};

struct entry {
	bool bare;	    /* without culimbo */
	bool raw;	    /* makes no CUDA call until told to */
	const char *door;   /* "linked", "dlsym" or "getproc" */
	const char *env;    /* "NAME=value NAME=value" in addition to the common environment */
	const char *other;   /* another culimbo's library, preloaded together with .bare */
	int partner;	    /* a descriptor to become WIRE_PARTNER_FD, or 0 */
};
/* Starts an actor: ENTER("P", .bare = true). */
#define ENTER(name, ...) enter(name, (struct entry){ __VA_ARGS__ })
struct actor *enter(const char *name, struct entry entry);

/* Sends a request and waits for the reply, which the scene then checks. */
#define ASK(actor, operation, ...)                                                                 \
	ask(actor, OP_##operation, NULL, (const uint64_t[6]){ __VA_ARGS__ })
const struct wire_reply *ask(struct actor *actor, enum wire_operation operation,
			     const unsigned char *handle, const uint64_t a[6]);
/* Initialises CUDA in an actor that was entered raw; false: it sees no device. */
bool begins(struct actor *actor);
/* The two halves of ask(), for long operations. */
void tell(struct actor *actor, enum wire_operation operation, const unsigned char *handle,
	  const uint64_t a[6]);
const struct wire_reply *hear(struct actor *actor, int deadline_ms);

/* Ends an actor as requested; returns the status from waitpid(). */
int leave_by(struct actor *actor, enum ending how, int status);
/* Waits for an actor that ends by itself; returns the status from waitpid(). */
int end_of(struct actor *actor);
/* exit(0); ends the scene when the actor ends otherwise. */
void leave(struct actor *actor);
void kill_actor(struct actor *actor);
/* What the actor has written to stderr so far. */
const char *said(const struct actor *actor);
size_t printed(const struct actor *actor);
/* How often @text occurs there. */
int count_said(const struct actor *actor, const char *text);

/* ---------------------------------------------------------------- operations */
struct handle {
	unsigned char bytes[64];
};

/* The try_ forms return the driver's result; the others end the scene on an error. */
int try_alloc(struct actor *actor, uint64_t bytes, uint64_t *address);
uint64_t alloc(struct actor *actor, uint64_t bytes);
/* Allocates a block and fills it with @value. */
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
/* True when every byte is @value; otherwise *@foreign gets the first other one. */
bool reads(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value,
	   unsigned int *foreign);
/*
 * Returns true if the pointer attributes of memory that say what it is are the same at @import as at @legacy, an import by a
 * legacy handle: how it was made, where it is, who may have it.  Notes each that differs.
 */
bool like_a_legacy_import(struct actor *actor, uint64_t legacy, uint64_t import);
/* True when the driver can give @address out; it is then allocated and filled with @value. */
bool claim(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value);
/* The same, repeated for up to @ms; *@took in ms. */
bool claim_within(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value,
		  double ms, double *took);
/* Only for scenes with SCENE_ALONE, like free_within(). */
uint64_t free_memory(struct actor *actor);
/* True when @observer sees so much free memory within @ms; *@took in ms. */
bool free_within(struct actor *observer, uint64_t bytes, double ms, double *took);

bool same_handle(const struct handle *a, const struct handle *b);
bool is_unstamped(const struct handle *handle);
/* The driver's two errors for a handle that it refuses (doc/measurements.md). */
bool refused(int result);

/* The value of an environment variable that run.sh sets. */
const char *setting(const char *name);

/* --------------------------------------------------------- culimbo's folder */
const char *limbo_folder(void); /* CULIMBO_DIR of this scene; it need not exist */
/* The number of files in it. */
int files(void);
/* True when the number of files becomes this within @ms. */
bool files_within(int n, double ms);
/* True if there is none.  Else prints their names. */
bool no_file_is_left(void);
/*
 * The same, after other processes have removed what a killed process left.  They do so as they
 * begin to share.  A file that the process was still making they leave for 3 s, since its maker may live.
 */
bool no_file_stays(void);

#endif

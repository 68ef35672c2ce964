/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table that the storm's players (storm_player.c) and its supervisor (storm.c) share.
 */
#ifndef CL_TEST_STORM_H
#define CL_TEST_STORM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/e2e/cuda_door.h"
#include "tests/torture/chance.h"
#include "tests/torture/supervisor.h"

#include <errno.h>
#include <stdio.h>

#define FINISH_NS (60000 * MS)

enum {
	EXPORTERS = 5,
	IMPORTERS = 2,
	PLACES = EXPORTERS + IMPORTERS,
	DEVICES = 2,
	SLOTS = 24, /* the most blocks of an exporter */
	THREADS = 8,
	KEPT = 12, /* the most imports of a thread */
	POOL = 64, /* and of the pool between threads */
	BYTES = 4096,
	WORDS = BYTES / 8,
	HANDLE_WORDS = 8,
};

/* X(counter): all counters are printed. */
#define COUNTERS(X)                                                                                \
	X(exports)                                                                                 \
	X(frees)                                                                                   \
	X(opens)	 /* of memory, granted */                                                  \
	X(opens_freed)	 /* of which withdrawn meanwhile, or of a killed exporter */               \
	X(refused)	 /* of such ones */                                                        \
	X(refused_alive) /* of those still published, their exporter alive: must be none */        \
	X(reads)                                                                                   \
	X(foreign)	 /* which met a word that is not the block's: must be none */              \
	X(pool_blocks)	 /* of a pool, exported by pointer */                                      \
	X(pool_imports)	 /* of which */                                                            \
	X(virtual_blocks) /* of virtual memory */                                                  \
	X(virtual_opens)                                                                           \
	X(async_blocks)	 /* of stream-ordered memory, with a legacy handle */                      \
	X(async_opens)                                                                             \
	X(handed)	 /* from one thread to another */                                          \
	X(own)		 /* blocks that a thread of an importer exported, opened and freed */      \
	X(events)	 /* opened */                                                              \
	X(events_refused)                                                                          \
	X(context_ends)                                                                            \
	X(forks)                                                                                   \
	X(kills)                                                                                   \
	X(leaves)	 /* importers that closed all and ended, and another came */               \
	X(exits)	 /* those that called exit() while their threads worked */                 \
	X(errors)	 /* answers that bare would not give: must be none */

/* Of a block.  OF_POOL: its handle is a pool pointer's export data. */
enum kind { OF_MEMORY, OF_POOL, OF_VIRTUAL, OF_ASYNC };

enum phase { PHASE_PLAY, PHASE_FINISH, PHASE_LEAVE };
enum state { STATE_BEGINS, STATE_READY, STATE_EMPTY };

/*
 * An exporter publishes a handle here.  The writer makes @seq odd, stores the rest with release, and
 * makes @seq even.  A reader loads with acquire; when it finds the same even @seq before and after, the
 * rest is consistent.  Token 0: nothing is published.
 */
struct slot {
	_Atomic uint64_t seq, token;
	_Atomic uint64_t kind; /* enum kind */
	_Atomic uint64_t memory[HANDLE_WORDS], event[HANDLE_WORDS];
};

/* How an importer is asked to end. */
enum leaves {
	STAYS,
	CLOSES, /* its threads close everything and end, and then it does */
	EXITS,	/* its first thread calls exit() while the others work.  What these see from then on counts for nothing */
};

struct place {
	_Atomic uint32_t life, doomed, state;
	_Atomic uint32_t leaves; /* enum leaves: asks an importer to end; another starts */
	_Atomic uint64_t pool_fd; /* the process << 32, and the descriptor of its pool in that process */
	_Atomic uint64_t pool_kept, pool_used; /* bytes of the default pool of an exporter that has freed everything */
	struct slot slot[SLOTS];
	struct spot { /* the current call, to explain a hang */
		_Atomic uint32_t line;
		_Atomic uint64_t beat;
	} spot[THREADS];
};

struct table {
	uint64_t seed;
	bool control, may_fork;
	uint64_t began; /* torture_now() when the players began */
	_Atomic uint32_t phase;
#define X(name) _Atomic uint64_t name;
	COUNTERS(X)
#undef X
	struct place place[PLACES];
};
extern struct table *table;

#define COUNT(name) atomic_fetch_add_explicit(&table->name, 1, memory_order_relaxed)

/* A place in the player's files. */
enum storm_file { STORM_PLAYER, STORM_OWN };
#define STORM_LINE(file, line) ((uint32_t)(file) << 16 | (line))

/* Records the current source line; STORM_FILE tells which file it is in. */
#define CALL(call) (atomic_store_explicit(&spot->line, STORM_LINE(STORM_FILE, __LINE__), memory_order_relaxed), (call))
#define SURE(call)                                                                                 \
	({                                                                                         \
		CUresult sure_result = CALL(call);                                                 \
		if (sure_result)                                                                   \
			complain(#call, sure_result);                                              \
		!sure_result;                                                                      \
	})

struct import {
	CUdeviceptr address; /* 0: none */
	CUevent event;
	enum kind kind;
	uint64_t token;
};

/* storm_player.c */
extern __thread uint64_t seed;
extern __thread struct spot *spot;
extern struct place *me;
extern uint32_t here;
uint32_t dice(uint32_t sides);
void withdraw(struct slot *slot, uint32_t die);
int play(void *shared, uint32_t place, char **argv);
/* A result that would be wrong without culimbo, too. */
void complain(const char *call, int result);
void fill(CUdeviceptr address, uint64_t token);
void import_close(struct import *import);

/*
 * storm_claims.c.  A thread of an importer names its context first: the contexts of two threads are the same, if their
 * numbers are.
 */
void claims_are_of(int context);
/* Returns true if the thread's context may open the block of @token. */
bool claim(uint64_t token);
void claim_end(uint64_t token); /* once for each claim(): the open has failed, or was closed */
void claims_end(void);		/* the context has ended, and all that was open in it is closed */

/* storm_own.c: threads of an importer share with their own process, each kind of memory */
void share_own(void);
void share_own_virtual(CUdevice device);
void share_own_async(CUdevice device);
void share_own_pool(void);

/* storm_pool.c; the results are the driver's */
CUresult pool_make(CUdevice device);
CUresult pool_end(void);
CUresult pool_alloc(CUdeviceptr *address);
CUresult pool_export(CUipcMemHandle *handle, CUdeviceptr address);
/* Returns false when the exporter's pool cannot be imported any more. */
bool pool_import(CUdeviceptr *address, const CUipcMemHandle *handle, uint32_t place, uint32_t life, CUresult *result);

/* storm_virtual.c; likewise */
bool virtual_is_shared(void);
CUresult virtual_alloc(CUdeviceptr *address, CUdevice device);
CUresult virtual_free(CUdeviceptr address);
CUresult virtual_close(CUdeviceptr address); /* of an import; it has a name of its own in complaints */

/* storm_async.c; likewise */
CUresult async_alloc(CUdeviceptr *address, CUdevice device);
CUresult async_end_pool(void);
CUresult async_close(CUdeviceptr address);
/*
 * What cuMemFree() has freed counts as used for good (measured).  So only a process for which is_counted() returns true,
 * and which uses it for no stream-ordered memory, says what its default pool has given out.
 */
bool async_is_counted(void);
/* Says what the default pool of @device keeps. */
CUresult async_tell(CUdevice device);

#endif

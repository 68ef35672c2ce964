/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the processes of the torture: a table in memory that outlives each of them (a memfd that all
 * inherit), and the contents of a block.
 *
 * Rules: The table says nothing about what culimbo did or should do.  It has counters, and it says which
 * blocks are alive; so the checks know whether a handle may be refused.  A process may be killed between
 * any two stores here.
 */
#ifndef TORTURE_H
#define TORTURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/torture/chance.h"

#define EXPORTERS 8
#define IMPORTERS 24
#define PLACES (EXPORTERS + IMPORTERS)
#define BLOCKS 24 /* the most live blocks of an exporter */
#define REGIONS 3 /* the most reservations of an exporter */
#define REGION_SLOTS 8 /* pages of a reservation; a power of 2 */

/* X(counter): the last line prints some, comments the others. */
#define COUNTERS(X)                                                                                \
	X(operations)                                                                              \
	X(exports)                                                                                 \
	X(opens)	 /* of memory, granted */                                                  \
	X(opens_twice)	 /* of which already open in that process */                               \
	X(opens_own)	 /* of which by the exporter itself */                                     \
	X(opens_freed)	 /* of which had been freed, or had lost their exporter */                 \
	X(refused)	 /* handles of blocks that were freed, or had lost their exporter */       \
	X(refused_alive) /* of living blocks of living exporters: must be none */                  \
	X(reads)                                                                                   \
	X(foreign)	 /* reads that met a word that is not the block's own: must be none */     \
	X(frees)                                                                                   \
	X(frees_async)                                                                             \
	X(pool_blocks)	/* made in pools and exported by pointer */                                \
	X(pool_imports)                                                                            \
	X(pool_copies)	/* read in a stream, in front of the import's free there */                \
	X(pools_ended)                                                                             \
	X(async_exports) /* legacy handles of stream-ordered memory */                              \
	X(async_bare)	 /* of which refused, where the option is not set */                       \
	X(async_opens)                                                                             \
	X(async_copies)	 /* read in a stream, in front of the exporter's free there */             \
	X(async_ended)	 /* pools of such memory that were destroyed */                            \
	X(virtual_exports) /* handles of virtual memory */                                         \
	X(virtual_bare)	 /* of which refused, where the option is not set */                       \
	X(virtual_unmaps)                                                                          \
	X(virtual_opens)                                                                           \
	X(virtual_several) /* of which with more than one page */                                  \
	X(virtual_refused)                                                                         \
	X(virtual_old)	 /* pages read that their exporter had unmapped */                         \
	X(no_memory)	 /* allocations that failed, all callbacks notwithstanding */              \
	X(pressures)                                                                               \
	X(events)	 /* opened */                                                              \
	X(events_refused)                                                                          \
	X(kills)                                                                                   \
	X(stops)                                                                                   \
	X(execs)                                                                                   \
	X(forks)                                                                                   \
	X(exits)                                                                                   \
	X(begins)	 /* processes that made their first calls of the driver */                 \
	X(begin_failed)	 /* of which got an error */                                               \
	X(begin_unknown) /* of which by CUDA_ERROR_UNKNOWN or _LAUNCH_FAILED of a GPU's driver */   \
	X(begin_waited)	 /* which waited too long for a GPU's driver, and were killed */           \
	X(errors)	 /* answers of the driver that bare would not give: must be none */

/* What a process is doing.  X(deed): do_<deed>() in player*.c. */
#define DEEDS(X)                                                                                   \
	X(begin)                                                                                   \
	X(make)                                                                                    \
	X(tell)                                                                                    \
	X(free)                                                                                    \
	X(open_own)                                                                                \
	X(pool)                                                                                    \
	X(async)                                                                                   \
	X(virtual)                                                                                 \
	X(event)                                                                                   \
	X(noise)                                                                                   \
	X(hear)                                                                                    \
	X(read)                                                                                    \
	X(close)                                                                                   \
	X(late)                                                                                    \
	X(pressure)                                                                                \
	X(fork)                                                                                    \
	X(exec)                                                                                    \
	X(end)                                                                                     \
	X(finish)                                                                                  \
	X(drain)                                                                                   \
	X(leave)

enum deed {
#define X(name) DEED_##name,
	DEEDS(X)
#undef X
};

enum phase { PHASE_GATHER, PHASE_PLAY, PHASE_FINISH, PHASE_DRAIN, PHASE_LEAVE };
enum state { STATE_BEGINS, STATE_READY, STATE_EMPTY };

/* A place in the player's files. */
enum player_file { PLAYER, PLAYER_MEMORY, PLAYER_POOL, PLAYER_VIRTUAL, PLAYER_ASYNC };
#define PLAYER_LINE(file, line) ((uint32_t)(file) << 16 | (line))
static inline const char *player_file(uint32_t line)
{
	static const char *const names[] = { "player.c", "player_memory.c", "player_pool.c", "player_virtual.c",
					     "player_async.c" };

	return names[line >> 16 <= PLAYER_ASYNC ? line >> 16 : PLAYER];
}

struct place {
	_Atomic uint32_t life;		/* incremented by each exec, and before each end */
	_Atomic uint32_t doomed;	/* 1: the supervisor is about to kill it; or CRASHED */
	_Atomic uint32_t state;		/* enum state */
	_Atomic uint32_t doing;		/* the current deed, to explain a hang */
	_Atomic uint32_t line;		/* the PLAYER_LINE() of the last call that began */
	_Atomic uint64_t beat;		/* number of deeds */
	_Atomic uint64_t serial;	/* of the last block made here */
	_Atomic uint64_t alive[BLOCKS]; /* serials of the blocks that are not freed yet */
	_Atomic uint64_t regions;	/* reservations made here */
	_Atomic uint64_t mapped[REGIONS][REGION_SLOTS]; /* what is mapped at each page; 0: nothing */
	_Atomic uint64_t pool_kept, pool_used; /* bytes of the default pool of one that has freed everything */
	int inbox[2];			/* descriptors: this process reads the first, others write to the second */
};

/* The pools that exporters have: see TORTURE_POOLS in torture.sh. */
enum pools { POOLS_NONE, POOLS_KEPT, POOLS_BOTH, POOLS_MOST };

struct table {
	uint64_t seed, grace_ns;
	uint64_t big_bytes; /* size of the biggest block */
	bool control, gpu, virtuals, asyncs;
	enum pools pools;
	_Atomic uint32_t phase;
#define X(name) _Atomic uint64_t name;
	COUNTERS(X)
#undef X
	struct place place[PLACES];
};

/* Sent by an exporter to any process, or by an importer to another. */
enum gift_kind { GIFT_MEMORY, GIFT_EVENT, GIFT_POOL, GIFT_VIRTUAL, GIFT_ASYNC };
struct gift {
	unsigned char handle[64];
	uint64_t serial, bytes;
	uint64_t pool; /* GIFT_POOL: which pool of that life */
	uint64_t mappings; /* GIFT_VIRTUAL: how often that memory had been mapped */
	uint32_t kind, place, life, block;
	uint32_t slot; /* GIFT_VIRTUAL: the page to which the handle opens; .block is the reservation */
};

/*
 * Each word of a block names its owner: the place that made the block, its serial number there (never
 * used twice in a run), and the word's position in the block.
 */
static inline uint64_t torture_word(uint32_t place, uint64_t serial, uint64_t index)
{
	return (uint64_t)(place + 1) << 58 | (serial & ((UINT64_C(1) << 38) - 1)) << 20 |
	       (index & 0xfffff);
}

/* player.c: runs a process under test with its @argv; returns the exit status. */
int torture_play(void *shared, uint32_t place, char **argv);

#endif

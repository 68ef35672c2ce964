/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of the torture have in common: one table in memory that
 * outlives each of them (a memfd, inherited by all), and what a block holds.
 *
 * What must hold: nothing in the table says what culimbo did or should do; it
 * counts, and it says which blocks are alive, so that a handle that is refused
 * can be told from one that had to be.  A process may be killed between any
 * two stores here.
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
#define BLOCKS 24 /* of an exporter, alive at once */

/* Counters.  X(name): the line at the end has some, the comments the others. */
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

/* What a process does, one at a time.  X(deed): do_<deed>() in player*.c. */
#define DEEDS(X)                                                                                   \
	X(begin)                                                                                   \
	X(make)                                                                                    \
	X(tell)                                                                                    \
	X(free)                                                                                    \
	X(open_own)                                                                                \
	X(pool)                                                                                    \
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

/* Where in the player's files something is. */
enum player_file { PLAYER, PLAYER_MEMORY, PLAYER_POOL };
#define PLAYER_LINE(file, line) ((uint32_t)(file) << 16 | (line))
static inline const char *player_file(uint32_t line)
{
	static const char *const names[] = { "player.c", "player_memory.c", "player_pool.c" };

	return names[line >> 16 <= PLAYER_POOL ? line >> 16 : PLAYER];
}

struct place {
	_Atomic uint32_t life;		/* one more with each image, and when one is about to end */
	_Atomic uint32_t doomed;	/* the supervisor is about to kill it */
	_Atomic uint32_t state;		/* enum state */
	_Atomic uint32_t doing;		/* which deed, for who wonders why it hangs */
	_Atomic uint32_t line;		/* and with which call: the PLAYER_LINE() of the last begun */
	_Atomic uint64_t beat;		/* deeds */
	_Atomic uint64_t serial;	/* of the block made last here */
	_Atomic uint64_t alive[BLOCKS]; /* serials of what is not freed yet */
	int inbox[2];			/* descriptors: what it reads, what others write */
};

struct table {
	uint64_t seed, grace_ns;
	uint64_t big_bytes; /* of the biggest block */
	bool control, gpu, pools;
	_Atomic uint32_t phase;
#define X(name) _Atomic uint64_t name;
	COUNTERS(X)
#undef X
	struct place place[PLACES];
};

/* From an exporter to whom it likes, or from one importer to the next. */
enum gift_kind { GIFT_MEMORY, GIFT_EVENT, GIFT_POOL };
struct gift {
	unsigned char handle[64];
	uint64_t serial, bytes;
	uint64_t pool; /* GIFT_POOL: which of that life */
	uint32_t kind, place, life, block;
};

/*
 * A block is full of words that say whose they are: the place that made it,
 * its serial there (never used twice in a run), and where in the block.
 */
static inline uint64_t torture_word(uint32_t place, uint64_t serial, uint64_t index)
{
	return (uint64_t)(place + 1) << 58 | (serial & ((UINT64_C(1) << 38) - 1)) << 20 |
	       (index & 0xfffff);
}

/* player.c: a process under test; @argv is its own.  Returns its exit status. */
int torture_play(void *shared, uint32_t place, char **argv);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns: an import and a free of one pointer into a pool are never in the driver together, or the free
 * could unmap what the import has just counted.  A thread has at most one turn.
 *
 * A turn's key is made of the export data (cl_turn_key()).  Where two pointers have one key, they wait for
 * each other without need.  Functions that end in _locked want cl_imports_lock held, the others
 * take it.
 */
#ifndef CL_TURNS_H
#define CL_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct cl_turn {
	struct cl_turn *next;
	uint64_t key; /* 0: not taken */
};

/* @print: the fingerprint of the data, see pool_data.h. */
static inline uint64_t cl_turn_key(uint64_t print)
{
	return print | 1;
}

/* Takes @turn with @key.  Returns false if another thread has a turn with it. */
bool cl_turn_try_locked(struct cl_turn *turn, uint64_t key);
/* Lets go of the lock until some thread ends its turn.  May also return before that. */
void cl_turn_wait_locked(void);
/* Takes @turn with @key.  While another thread has a turn with it, waits without the lock. */
static inline void cl_turn_begin_locked(struct cl_turn *turn, uint64_t key)
{
	while (__builtin_expect(!cl_turn_try_locked(turn, key), 0))
		cl_turn_wait_locked();
}
void cl_turn_begin(struct cl_turn *turn, uint64_t key);
/* Ends @turn, which this thread has taken. */
void cl_turn_end_locked(struct cl_turn *turn);
/* The same if it is taken. */
void cl_turn_end(struct cl_turn *turn);
/* Returns true if this thread has a turn: then it must not do rests, which take turns (pool_imports.h). */
bool cl_turn_is_held(void);

void cl_turns_forget(void); /* in a forked child */

#endif

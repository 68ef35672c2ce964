/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns: an import and a free of one pointer into a pool are never in the driver together, or the free
 * could unmap what the import has just counted.  A thread has at most one turn of a pointer.
 *
 * Each pool of another process has a turn as well (imported_pools.c).
 *
 * The key of a pointer's turn is made of its export data (cl_turn_key()) and is odd; that of a pool's turn is even.
 * Where two pointers, or two pools, have one key, they wait for each other without need.  Functions that end in
 * _locked want cl_imports_lock held, the others take it.
 */
#ifndef CL_TURNS_H
#define CL_TURNS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/base/list.h"

struct cl_turn {
	struct cl_node node; /* in the chain of those that threads have */
	uint64_t key; /* 0: not taken */
};

/* @fingerprint: of the data, see pool_data.h. */
static inline uint64_t cl_turn_key(uint64_t fingerprint)
{
	return fingerprint | 1;
}

/* For the functions below. */
struct cl_turns {
	struct cl_node head; /* of the chain of those that threads have, the newest first */
	unsigned int waiting;  /* threads that wait for the end of one */
	pthread_cond_t ended;
};
extern struct cl_turns cl_turns;
extern __thread unsigned int cl_turns_held __attribute__((tls_model("initial-exec"))); /* by this thread */

/* Takes @turn with @key.  Returns false if another thread has a turn with it. */
static inline bool cl_turn_try_locked(struct cl_turn *turn, uint64_t key)
{
	const struct cl_turn *other;

	CL_CHAIN_EACH(other, CL_LIST_ENTRY(cl_turns.head.next, struct cl_turn, node), struct cl_turn, node)
		if (other->key == key)
			return false;
	turn->key = key;
	cl_chain_add_after(&cl_turns.head, &turn->node);
	cl_turns_held++;
	return true;
}
/* Lets go of the lock until some thread ends its turn.  May also return before that. */
void cl_turn_wait_locked(void);
/* Takes @turn with @key.  While another thread has a turn with it, waits without the lock. */
static inline void cl_turn_begin_locked(struct cl_turn *turn, uint64_t key)
{
	while (__builtin_expect(!cl_turn_try_locked(turn, key), 0))
		cl_turn_wait_locked();
}
void cl_turn_begin(struct cl_turn *turn, uint64_t key);
/* Removes @turn, which is not the first.  A forked child may have forgotten it. */
void cl_turns_remove_locked(struct cl_turn *turn);
/* Ends @turn, which this thread has taken. */
static inline void cl_turn_end_locked(struct cl_turn *turn)
{
	if (__builtin_expect(cl_turns.head.next == &turn->node, 1))
		cl_chain_remove(&turn->node);
	else
		cl_turns_remove_locked(turn);
	turn->key = 0;
	cl_turns_held--;
	if (__builtin_expect(cl_turns.waiting, 0))
		pthread_cond_broadcast(&cl_turns.ended);
}
void cl_turn_end_now(struct cl_turn *turn);
/* Ends @turn if it is taken. */
static inline void cl_turn_end(struct cl_turn *turn)
{
	if (__builtin_expect(turn->key != 0, 0))
		cl_turn_end_now(turn);
}
/* Returns true if this thread has a turn: then it must not do rests, which take turns (pool_imports.h). */
static inline bool cl_turn_is_held(void)
{
	return cl_turns_held != 0;
}

void cl_turns_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Turns: see turns.h. */
#include "shim/importer/turns.h"
#include "shim/self/self.h"

static struct cl_turn *turns; /* those that threads have, the newest first */
static unsigned int waiting; /* threads that wait for the end of one */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static __thread unsigned int held __attribute__((tls_model("initial-exec"))); /* by this thread */

bool cl_turn_is_held(void)
{
	return held != 0;
}

bool cl_turn_try_locked(struct cl_turn *turn, uint64_t key)
{
	const struct cl_turn *other;

	for (other = turns; other; other = other->next)
		if (other->key == key)
			return false;
	turn->key = key;
	turn->next = turns;
	turns = turn;
	held++;
	return true;
}

void cl_turn_wait_locked(void)
{
	waiting++;
	cl_lock_wait(&ended, &cl_imports_lock);
	/* 0: a child was forked by a signal handler amid the wait */
	if (waiting)
		waiting--;
}

void cl_turn_begin(struct cl_turn *turn, uint64_t key)
{
	cl_lock(&cl_imports_lock);
	cl_turn_begin_locked(turn, key);
	cl_unlock(&cl_imports_lock);
}

void cl_turn_end_locked(struct cl_turn *turn)
{
	struct cl_turn **at = &turns;

	while (*at && *at != turn)
		at = &(*at)->next;
	if (*at) /* NULL: a forked child has forgotten it */
		*at = turn->next;
	turn->key = 0;
	held--;
	if (__builtin_expect(waiting, 0))
		pthread_cond_broadcast(&ended);
}

void cl_turn_end(struct cl_turn *turn)
{
	if (!turn->key)
		return;
	cl_lock(&cl_imports_lock);
	cl_turn_end_locked(turn);
	cl_unlock(&cl_imports_lock);
}

void cl_turns_forget(void)
{
	turns = NULL;
	waiting = 0;
	ended = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

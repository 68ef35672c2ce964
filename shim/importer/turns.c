/* SPDX-License-Identifier: Apache-2.0 */
/* Turns: see turns.h. */
#include "shim/importer/turns.h"
#include "shim/self/self.h"

struct cl_turns cl_turns = { .ended = PTHREAD_COND_INITIALIZER };
__thread unsigned int cl_turns_held __attribute__((tls_model("initial-exec")));

void cl_turn_wait_locked(void)
{
	cl_turns.waiting++;
	cl_lock_wait(&cl_turns.ended, &cl_imports_lock);
	/* 0: a child was forked by a signal handler amid the wait */
	if (cl_turns.waiting)
		cl_turns.waiting--;
}

void cl_turns_remove_locked(struct cl_turn *turn)
{
	const struct cl_turn *other;

	CL_CHAIN_EACH(other, CL_LIST_ENTRY(cl_turns.head.next, struct cl_turn, node), struct cl_turn, node)
		if (other == turn) {
			cl_chain_remove(&turn->node);
			return;
		}
}

void cl_turn_begin(struct cl_turn *turn, uint64_t key)
{
	cl_lock(&cl_imports_lock);
	cl_turn_begin_locked(turn, key);
	cl_unlock(&cl_imports_lock);
}

void cl_turn_end_now(struct cl_turn *turn)
{
	cl_lock(&cl_imports_lock);
	cl_turn_end_locked(turn);
	cl_unlock(&cl_imports_lock);
}

void cl_turns_forget(void)
{
	cl_turns = (struct cl_turns){ .ended = PTHREAD_COND_INITIALIZER };
}

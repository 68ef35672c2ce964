/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A collection: finds what may go, and has it given back.
 *
 * Any thread, several at once.  Functions that end in _locked want cl_exports_lock held;
 * the others take it, and let go of it around every CUDA call.
 */
#ifndef CL_COLLECT_H
#define CL_COLLECT_H

#include "shim/limbo/release.h"

/*
 * Gives back all that may go.  @end_grace: what nobody opened does not wait
 * for its grace.  Any thread; several at once.
 */
struct cl_collected cl_limbo_collect(bool end_grace);
/*
 * The same, again and again as long as holders of what is left are dying, which is a matter of
 * milliseconds; until @until (CLOCK_MONOTONIC, ns) at most, or until *@stop is set (NULL: never).
 */
void cl_limbo_collect_from_dying(bool end_grace, uint64_t until, const _Atomic bool *stop);

/*
 * Whether the program's free of @block can go straight to the driver: its
 * grace is over, or the budget has no room for it, and nobody holds it.  If so its record is DYING until
 * cl_record_release_end() is told what the driver said (block->before).
 */
bool cl_limbo_can_skip_locked(struct cl_block *block, uint64_t now);

/*
 * Waits until @until (CLOCK_MONOTONIC, ns) at most, until no other thread is in the driver
 * to give blocks back: what they had taken is back then.  And as long as @back() is @had,
 * until none keeps blocks from going by a call that may end their context; true: one did so,
 * and does not any more: a collection may find something.
 */
bool cl_limbo_wait_for_others(uint64_t until, uint64_t (*back)(void), uint64_t had);

#endif

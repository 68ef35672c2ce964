/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A collection: finds the blocks of the limbo that may go, and gives them back to the driver.
 *
 * Any thread may collect, and several may at once.  Functions that end in _locked want
 * cl_exports_lock held; the others take it, and let go of it around every CUDA call.  Nothing
 * here fails: a block that cannot go yet stays in the limbo.
 */
#ifndef CL_COLLECT_H
#define CL_COLLECT_H

#include "shim/limbo/release.h"

/* Gives back all blocks that may go.  @end_grace ends the grace of all blocks first. */
struct cl_collected cl_limbo_collect(struct cl_exporter *ex, bool end_grace);
/*
 * Collects again and again while a holder of a block that is left is dying, which takes
 * milliseconds.  Stops at @until (CLOCK_MONOTONIC, ns), or when *@stop is set; @stop may be NULL.
 */
void cl_limbo_collect_from_dying(struct cl_exporter *ex, bool end_grace, uint64_t until,
				 const _Atomic bool *stop);

/*
 * Returns true if the program's free of @block can go straight to the driver: nobody holds it,
 * and it gets no grace (grace.h) or its memory is needed.  Then its record is DYING until the
 * caller passes the driver's answer and block->before to cl_record_release_end().
 */
bool cl_limbo_can_skip_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now);

/*
 * Waits until no thread is in the driver for the limbo, so that the blocks they took are back,
 * or until @until (CLOCK_MONOTONIC, ns).  As long as @back() returns @had it also waits while
 * blocks or fences are of a context that is ending.  Returns true if such an end was over in
 * time and @back() still returns @had: the caller collects again.  Otherwise returns false.
 */
bool cl_limbo_wait_for_others(struct cl_exporter *ex, uint64_t until,
			      uint64_t (*back)(const struct cl_exporter *ex), uint64_t had);

#endif

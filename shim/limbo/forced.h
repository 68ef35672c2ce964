/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes though somebody may still have it: events and held blocks beyond a limit, and,
 * when memory is short, what could not be tracked.
 *
 * Functions that end in _locked want cl_exports_lock held, and let go of it around CUDA calls.
 */
#ifndef CL_FORCED_H
#define CL_FORCED_H

#include "shim/limbo/release.h"

/*
 * Gives back the oldest of what others hold, as far as it is more than
 * CULIMBO_HELD_BYTES.  Its record waits for its holders, as after the end of its
 * context: no handle of it opens any more, and they can close it.
 */
void cl_forced_held_out_locked(struct cl_collected *sum);

/*
 * Events beyond @keep go, oldest first; their records wait for the importers.  @any: also where
 * another thread is at older ones (which count, but are about to go by themselves).
 */
unsigned int cl_forced_events_out_locked(uint64_t keep, bool any);

/*
 * Destroys the oldest events of the limbo, held or not, a few at a time.  Where other
 * threads are at all that there are (give them back, or may be ending their context), waits
 * until @until (CLOCK_MONOTONIC, ns) at most for one that can go.
 */
void cl_limbo_force_events_out(uint64_t until);
/* Whether the limbo has events, or a thread is in the driver with the last of them. */
bool cl_limbo_has_events(void);

/*
 * Last resort, when an allocation fails and nothing else came free: gives
 * back blocks of 2 MiB and more that could not be tracked (CL_BLOCK_UNTRACKED).
 * Their importers, if any, go on reading the old bytes: such a block is an
 * allocation of its own (measured).
 */
struct cl_collected cl_limbo_release_untracked(void);
bool cl_limbo_has_untracked(void); /* such blocks */

#endif

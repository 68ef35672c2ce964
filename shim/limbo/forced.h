/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forces blocks out though somebody may still have them: held memory and events beyond a limit.
 *
 * Any thread may call these.  Functions that end in _locked want cl_exports_lock held, and the
 * others take it; both let go of it around CUDA calls.
 */
#ifndef CL_FORCED_H
#define CL_FORCED_H

#include "shim/limbo/release.h"

/*
 * Gives back the oldest HELD blocks until each device is within CULIMBO_HELD_BYTES, and adds
 * them to @sum.  A block that is still held becomes ORPHANED: its handles no longer open, and its
 * holders can close it.  The log names a few of them, and says how many more there were.
 */
void cl_forced_held_out_locked(struct cl_exporter *ex, struct cl_collected *sum);

/*
 * Destroys the oldest events of the limbo until @keep are left; their records wait for the
 * importers.  Stops at an event that another thread is busy with, unless @any: then it skips
 * that one.  Returns how many it destroyed.
 */
unsigned int cl_forced_events_out_locked(struct cl_exporter *ex, uint64_t keep, bool any);

/*
 * Destroys up to CL_BATCH of the oldest events of the limbo, held or not.  While other threads
 * are busy with all of them, it waits until one can go or has gone, or until @until
 * (CLOCK_MONOTONIC, ns).
 */
void cl_limbo_force_events_out(struct cl_exporter *ex, uint64_t until);
/* Returns true if the limbo has events, or a thread is destroying one that it has forced out. */
bool cl_limbo_has_events(struct cl_exporter *ex);

#endif

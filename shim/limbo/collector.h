/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collector: one thread per process that gives blocks back as they come
 * free, so that memory returns though the program sleeps.
 *
 * Started at the first block that enters the limbo; asleep on a futex in the
 * exporter file; all signals blocked; gone before exit; absent in forked
 * children.  With CULIMBO_COLLECTOR=inline there is none: then the program's
 * own calls do its work (cl_collector_wake() does a pass in the calling thread).  So they do as
 * long as a thread cannot be had; it is tried again (see backoff.h) by calls that find work.
 */
#ifndef CL_COLLECTOR_H
#define CL_COLLECTOR_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/options.h"

/* The thread could not be started when that was last tried. */
extern _Atomic bool cl_collector_failed;

/* Something may be due: starts or wakes the collector, or does its work.  No lock may be held. */
void cl_collector_wake(void);
/*
 * A call of the program that came to us, whatever it was: where no thread runs,
 * does its work if there is any.  No lock may be held.
 */
void cl_collector_called(void);
/* Whether it is such calls that do the work.  Any thread; a load. */
static inline bool cl_collector_is_inline(void)
{
	return cl_options.collector.number == CL_COLLECTOR_INLINE || cl_collector_failed;
}
/* The same as cl_collector_wake(), for something that will be due at @when (ns): wakes only who would sleep past it. */
void cl_collector_wake_by(uint64_t when);
/* A block became CL_BLOCK_ORPHANED (@orphaned), so its holders are to be looked at.  No lock may be held. */
void cl_collector_watch_holders(bool orphaned);
/* Ends the thread; waits for it @wait ns at most.  Returns false when it is still in the driver. */
bool cl_collector_stop(uint64_t wait);
void cl_collector_forget(void); /* in a forked child */

#endif

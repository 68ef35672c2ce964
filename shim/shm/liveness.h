/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is alive: the judgement of a process that we share with.
 *
 * Measured (one H200, driver 580): a killed process's locks are free after
 * 0.25 ms, its kernels write until 9 ms, its last task is gone after 48 ms.  So
 * a free lock alone is not death.  Dead is: the lock is free, and
 *   - /proc shows no task of it but a zombie leader, or no such process (the
 *     start time tells a reused pid), or
 *   - the process lives but does not map the file any more (it called exec),
 *     and that has been so for the settling time, or
 *   - /proc cannot tell (another PID namespace, no /proc), and the lock has
 *     been free for the settling time.
 * In doubt it is alive: then memory is kept, which harms nobody.
 */
#ifndef CL_LIVENESS_H
#define CL_LIVENESS_H

#include "shim/base/clock.h"
#include "shim/shm/region.h"

enum cl_liveness {
	CL_ALIVE,
	CL_SETTLING, /* its lock is free, and nothing else is known yet */
	CL_LEAVING,  /* it dies, or has exec'ed: what it shared is no more, what it holds still is */
	CL_DEAD,
};

/* Fills @identity for the calling process.  What cannot be read is 0. */
void cl_identity_self(struct cl_identity *identity);

/*
 * Judges the process @identity, which is to hold @lock_byte of @region's file.
 * @free_since: where the caller keeps, for this process, since when the lock
 * has been free (0: not); @now and @settle in ns (CLOCK_MONOTONIC).
 */
enum cl_liveness cl_liveness_judge(struct cl_region *region, off_t lock_byte,
				   const struct cl_identity *identity, uint64_t *free_since,
				   uint64_t now, uint64_t settle);

/*
 * Whether process @pid of this PID namespace is the one that maps exporter file @file_id,
 * whether or not that has a name still.  In doubt (/proc does not say what it maps): @in_doubt.
 */
bool cl_liveness_is_exporter(uint32_t pid, uint32_t file_id, bool in_doubt);

#endif

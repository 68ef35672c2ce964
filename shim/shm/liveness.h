/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is alive: the judgement of a process that we share with.
 *
 * Measured (one H200, driver 580): after a kill a process's locks are free within 0.25 ms, its
 * kernels write until 9 ms, its last task is gone after 48 ms.  So a free lock alone does not mean
 * death.  A process is dead if its lock is free and
 *   - /proc shows no such process, or no task of it but a zombie leader (the start time tells a
 *     reused pid), or
 *   - it lives but does not map the file any more (it called exec), and the lock has been free for
 *     the settling time, or
 *   - /proc cannot tell (another PID namespace, no /proc), and the lock has been free for the
 *     settling time.
 * In doubt it is alive: then memory is kept, which harms nobody.  Any thread.
 */
#ifndef CL_LIVENESS_H
#define CL_LIVENESS_H

#include "shim/base/clock.h"
#include "shim/shm/region.h"

enum cl_liveness {
	CL_ALIVE,
	CL_SETTLING, /* its lock is free, and nothing else is known yet */
	CL_LEAVING,  /* it is dying or called exec: its blocks are gone, its holds are not yet */
	CL_DEAD,
};

/* Fills @identity for the calling process, but for its image (see cl_self_identify()).  What cannot be read is 0. */
void cl_identity_self(struct cl_identity *identity);

/*
 * Judges the process @identity, which should hold the lock @lock_byte of @region's file.  The
 * caller keeps *@free_since for this process: since when the lock has been free, 0 if it was not.
 * @now and @settle are in ns (CLOCK_MONOTONIC).
 */
enum cl_liveness cl_liveness_judge(struct cl_region *region, off_t lock_byte,
				   const struct cl_identity *identity, uint64_t *free_since,
				   uint64_t now, uint64_t settle);

/*
 * Returns true if @who, which does not have the lock @lock_byte of @region's file any more, lives on as another program:
 * it called exec.  In doubt, and when that program has ended, false.  @said: that program has said so (CL_SLOT_LEFT), and
 * may map the file, too.
 */
bool cl_liveness_called_exec(const struct cl_region *region, off_t lock_byte, const struct cl_identity *who, bool said);

/*
 * Returns true if process @pid of this PID namespace maps exporter file @file_id under its final
 * name, even if the file was removed since, and false if it does not.  Returns @in_doubt if
 * /proc does not show what the process maps.
 */
bool cl_liveness_is_exporter(uint32_t pid, uint32_t file_id, bool in_doubt);
/*
 * Returns true if the memory of process @exporter does not map the exporter file @file_id any more: it is on its way out, or
 * another program after exec.  It serves nobody, though it may still use what it has open.  In doubt false.
 */
bool cl_liveness_has_left(const struct cl_identity *exporter, uint32_t file_id);

#endif

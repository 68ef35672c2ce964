/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes the files of dead exporters.
 *
 * A file is removed only if its exporter is dead by liveness.h (or was this very process before it
 * called exec), and we have its byte lock.  Callers never pass their own file.  Whatever is not a
 * whole exporter file of ours, or of another version, is left alone.  Any thread.
 */
#ifndef CL_GC_H
#define CL_GC_H

#include "shim/shm/liveness.h"

/*
 * Judges @region's exporter.  The file itself keeps since when its lock has been free, so that a
 * later look, of any process, can tell that it has settled.
 */
enum cl_liveness cl_gc_judge(struct cl_region *region);

/*
 * Removes @region's file if its exporter is dead.  Returns 0 if it did, -EBUSY if the exporter
 * lives or may live, -ENOENT or -ESTALE if another process has removed the file, or another -errno.
 */
int cl_gc_file(struct cl_region *region, int dirfd);

/*
 * Removes the file @name in @dirfd, whose id is @file_id, if a process of another version of culimbo
 * made it more than 60 s ago, and that is dead: nobody has any lock on it, and /proc shows no process
 * that made it, or shows another PID namespace's not.  @dry: only says whether it would.  Returns true
 * if it did.  The caller must not have the file open.
 */
bool cl_gc_other_version(int dirfd, const char *name, uint32_t file_id, bool dry);

/*
 * Returns true if a dead process's file stays for a while, for `culimbo report`
 * (CULIMBO_KEEP_DEAD).  `culimbo gc` removes it all the same.
 */
bool cl_gc_is_kept(const struct cl_region *region);

/*
 * Removes the files of dead exporters from @dirfd.  Leaves those that @is_open says this process
 * has open, since closing them again would drop its locks; those that cl_gc_is_kept(); and those
 * that are just being made.  Of those that are kept 16 and CULIMBO_KEEP_DEAD_BYTES stay at most, and no
 * more than take a quarter of what is free in the file system; the oldest goes first.  Of thousands of files it judges a few hundred.  With @is_open NULL,
 * for a command, which has none open, it looks at all of them, and keeps none.  A socket goes with its
 * file, and an old one without a file, too.  Returns how many it removed.
 */
unsigned int cl_gc_directory(int dirfd, bool (*is_open)(uint32_t file_id));

#endif

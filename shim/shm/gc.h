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
 * made it more than 60 s ago and that process is dead.  It is dead if no process has a lock on the file and
 * cl_liveness_judge() says so: the lock counts as long free.  Returns true if the file was removed, or with
 * @dry, which removes nothing, if it would be.  The caller must not have the file open.
 */
bool cl_gc_other_version(int dirfd, const char *name, uint32_t file_id, bool dry);

/*
 * Returns true if a dead process's file stays for a while, for `culimbo report`
 * (CULIMBO_KEEP_DEAD).  `culimbo gc` removes it all the same.
 */
bool cl_gc_is_kept(const struct cl_region *region);

/*
 * Removes the files of dead exporters from @dirfd.  It leaves files that this process has open, as
 * @is_open() says: to open and close them again would drop this process's locks.  It leaves files that are
 * just being made, and files that stay for reports (cl_gc_is_kept()).  Of these at most 16 stay, which take at
 * most CULIMBO_KEEP_DEAD_BYTES and at most a quarter of what is free in the file system; the oldest go first.
 * If CULIMBO_KEEP_DEAD_BYTES is 0, all of these stay.
 * Of thousands of files it judges a few hundred.  A command has no file open, and passes NULL as @is_open: then
 * all files are judged, and none stays for reports.  A socket is removed with its file, and so is an old
 * socket without a file.  Returns how many files and lone sockets it removed.
 */
unsigned int cl_gc_directory(int dirfd, bool (*is_open)(uint32_t file_id));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking away the files that dead exporters left.
 *
 * A file goes only when its exporter is dead by liveness.h (or was this very
 * process before exec) and we hold its byte lock; the caller's own file is never
 * given here; what is not a whole exporter file of ours is left alone.
 */
#ifndef CL_GC_H
#define CL_GC_H

#include "shim/shm/liveness.h"

/*
 * Judges @region's exporter.  Since when its lock has been free is kept in the
 * file itself, so that one look settles what another began.
 */
enum cl_liveness cl_gc_judge(struct cl_region *region);

/*
 * Takes @region's file away if its exporter is dead.  Returns 0 when it has
 * done so, -EBUSY when its exporter lives (or may), -ENOENT or -ESTALE when
 * another process has taken the file away, or another -errno.
 */
int cl_gc_file(struct cl_region *region, int dirfd);

/*
 * Whether a dead process's file is to be left for a while, for `culimbo report`
 * (CULIMBO_KEEP_DEAD).  Who is asked for a gc by a person does not ask this.
 */
bool cl_gc_is_kept(const struct cl_region *region);

/*
 * The files in @dirfd, but for those that @is_open says this process has
 * (opening and closing such a file would drop its locks), those that are kept,
 * and those that are just being made; of thousands the first few hundred.
 * @is_open NULL: a command, which has none open, and takes all of them, kept or
 * not.  Returns how many went.
 */
unsigned int cl_gc_directory(int dirfd, bool (*is_open)(uint32_t file_id));

#endif

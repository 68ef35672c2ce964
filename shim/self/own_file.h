/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's own region: its exporter file, or, as long as none can be made, a region in memory
 * that nobody else can find (cl_region_in_memory()).  There always is one.
 *
 * The region in memory:
 *  - Its header is a static variable, so that it cannot fail.  Stacks and findings get 16 MiB of
 *    address space when the first of them is written, and pages as they are written.  A process that
 *    shares nothing, or that has a file, has no such address space.  If that mapping is refused
 *    (RLIMIT_AS), findings are counted in the header and not listed.
 *  - It has no records: nobody could find a block by them.  So an export works as without culimbo, its
 *    handle has no stamp, and its block is CL_BLOCK_UNTRACKED once it is freed.  That is logged once.
 *    cl_own_need_locked() then returns false.  An export treats that as an error (blocks.c); code that
 *    only writes stacks and findings does not.
 *  - It has no log of imports.  Only other processes read that log, and the report at exit reads what
 *    this process knows of its imports.
 *
 * Once a file can be made, the content moves there.  The file is made whole, and named, while the
 * region in memory is in use.  Then, under cl_exports_lock, cl_own becomes the file's.  Modules, stacks
 * and findings are copied, the entries of each before their count.  A process that is killed meanwhile
 * leaves a good file with fewer entries.  An index of a stack or a device stays valid.  A pointer does
 * not, so no thread keeps one when it releases the lock.
 *
 * cl_own_id is set last, and a file stays until the process ends.  So a thread that reads cl_own_id may
 * use the file without the lock.  Hence:
 *  - nobody sleeps on the `wake` of a region in memory: the collector starts with a file, for
 *    without one there is nothing in the limbo.  A collection only asks fences until then, for imports that wait.
 *  - a signal handler takes the lock, or gives up, as for everything under that lock.
 *  - the trace and the stamp read the file's id from cl_own.file_id, under the lock.  It is 0 until
 *    the file is there, and no stamp is made until then.
 *  - imports are logged under cl_imports_lock alone: in a file, or not at all.
 * Blocks that were exported before stay untracked: processes that opened them could not say so.
 *
 * A process that only imports has such a region, too, and does not log that it has no file.  A forked
 * child has neither: its header is emptied, and the mapping is not there (MADV_DONTFORK), as that of a
 * file.
 *
 * Functions that end in _locked want cl_exports_lock held.
 */
#ifndef CL_OWN_FILE_H
#define CL_OWN_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/live.h"

/* .file_id is 0 while it is in memory.  Its header is filled in by cl_own_need_locked(). */
extern struct cl_region cl_own;
/*
 * Makes sure that cl_own is there.  Returns true if it is a file, false if it is in memory because
 * no file can be made, or because an importer asks after the report at exit was written.  That is logged once as an error, unless @importer: an importer wants the
 * file for reports only.  A later call tries again (backoff.h).  Once made, a file stays until the
 * process ends.
 */
bool cl_own_need_locked(bool importer);
/* The number of our file, 0 as long as there is none. */
extern _Atomic uint32_t cl_own_id;
/*
 * Returns true if a handle whose stamp names file @file_id may be of this process.  False is certain
 * for a handle that the caller has: an export sets cl_own_id before it returns the handle.  False
 * says nothing about a file name that the caller read in the directory, since a file gets its
 * name before cl_own_id is set.  Any thread, without the lock.
 */
static inline bool cl_own_may_be(uint32_t file_id)
{
	return atomic_load_explicit(&cl_own_id, memory_order_acquire) == file_id;
}

/* Returns true if there is a file, for a thread without the lock: it may then read cl_own. */
static inline bool cl_own_has_file(void)
{
	/* acquire: a thread that sees the id sees cl_own */
	return atomic_load_explicit(&cl_own_id, memory_order_acquire) != 0;
}

void cl_own_forget(void); /* in a forked child */

#endif

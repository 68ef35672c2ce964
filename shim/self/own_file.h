/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's own region: its exporter file, or, as long as none can be made, a region in memory
 * that nobody else can find (cl_region_in_memory()).  There always is one.
 *
 * What a region in memory has.  The header is a static one, so that it cannot fail; stacks and
 * findings get 16 MiB of address space when the first is noted, and pages as they are written.
 * Nothing of it is there in a process that shares nothing, or that has a file.  Where that mapping
 * is refused (RLIMIT_AS), findings are counted in the header and not listed.  It has no records:
 * nobody could find a block by them.  So an export works as without culimbo, its handle has no
 * stamp, its block is CL_BLOCK_UNTRACKED once freed, and that is said once: cl_own_need_locked()
 * returns false then; an export minds (blocks.c), and whoever needs only stacks and findings does
 * not.  It has no log of imports: only other processes read that, and the report at exit reads what
 * we ourselves know of them.
 *
 * How the content moves when a file can be made.  The file is made whole, and named, apart from the
 * region in use; then, under cl_exports_lock, cl_own becomes the file's, and what was noted is
 * copied, each part before its count, as if it were noted then.  A process that is killed on the way
 * leaves a good file with fewer notes.  An index (of a stack, a device) stays what it was; a pointer
 * does not, so nobody keeps one beyond the lock.  cl_own_id is set last, and a file stays until the
 * process ends: a thread that reads cl_own_id may use the file without the lock.  So:
 *  - nobody sleeps on the `wake` of a region in memory: the collector starts with a file, for
 *    without one there is nothing in the limbo.  A collection does nothing until then.
 *  - a signal handler takes the lock, or gives up, as for everything under that lock.
 *  - the trace and the stamp read the file's id from cl_own.file_id, under the lock.  It is 0 until
 *    the file is there, and no stamp is made until then.
 *  - imports are logged under cl_imports_lock alone: in a file, or not at all.
 * Blocks that were exported before stay untracked: processes that opened them could not say so.
 *
 * A process that only imports has the same, and does not log that it has no file.  A forked child
 * has nothing of it: the header is emptied, and the mapping is not there (MADV_DONTFORK), as with
 * a file's.
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
 * no file can be made.  That is logged once as an error, unless @importer: an importer wants the
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
	/* acquire: who sees the id sees cl_own */
	return atomic_load_explicit(&cl_own_id, memory_order_acquire) != 0;
}

void cl_own_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the CUDA contexts of a process outlive it.
 *
 * Measured (H100, driver 580, doc/measurements.md): a process that forks after cuInit() gives the child
 * the driver's descriptors.  Until that child ends, calls exec or closes them, the parent's contexts
 * live, although the parent was killed or has called exit(), and its kernels write to their end.  So what
 * such a process holds must not go when it dies.
 *
 * So a process that has called cuInit() takes a lock before its first fork, on one byte of the directory of exporter
 * files.  Its identity says on which, and exec changes that: the next program of the process has other bytes.  The lock
 * belongs to the open file, whose descriptor is copied, closed and ended by exec as the driver's are: the kernel drops the
 * lock when the last copy is gone.  A process that ends is slow to close the driver's files: meanwhile the GPU still works
 * for it.  So it closes ours after those (base/last_closed.h).
 *
 * Several such processes may be killed at the same time.  Then one of them may close the last copy of our file, while
 * another one is at work on the driver's.  So each forked child locks another byte through an open file of its own, and
 * closes its copy.  These have only the copy, and then the lock may go some ms too early:
 * - a child that is killed before it has its lock, or that runs no fork handlers (clone());
 * - one without four free descriptors, or whose system calls are refused (seccomp);
 * - one that may not open the directory any more (its parent has called setuid());
 * - one of so many that live at the same time that their files are near a sixteenth of RLIMIT_NOFILE.
 *
 * If another thread of its parent was just taking the lock, a child has copies of that thread's temporary descriptors,
 * too.  Nobody closes them; they lead to the locked directory, and do no harm.
 *
 * What must hold: a process that never forks has no descriptor and no directory from this.  Where the kernel or the
 * file system has no such locks, no context counts as outliving its process.
 */
#ifndef CL_OUTLIVE_H
#define CL_OUTLIVE_H

#include <stdbool.h>

#include "shim/shm/layout.h"

/* Has each later fork of this process take the lock.  Called at each cuInit(). */
void cl_outlive_watch_forks(void);

/*
 * Takes the lock of this process on the directory as it is now, if it had one: the directory may have
 * been removed and made again since.  Any thread.
 */
void cl_outlive_keep(void);

/* Returns true if this process has taken the lock. */
bool cl_outlive_took(void);

/*
 * Returns 1 while a process that was forked by @who keeps the contexts of @who alive, which has ended or called exec, and 0
 * if none does.
 * Returns -EMFILE, -ENFILE, -ENOMEM, -ENOSPC or -ENOLCK if that cannot be asked now; any other error counts as none.
 * Some system calls.  Any thread.
 */
int cl_outlive_is_outlived(const struct cl_identity *who);

/*
 * Returns true if another process relies on the directory @dirfd for such a lock.  Processes that this one has forked
 * do not count: if they keep a hold of this process alive, the file with that hold is in the directory, which then cannot
 * be removed.
 */
bool cl_outlive_uses(int dirfd);

#endif

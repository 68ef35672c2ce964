/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the processes below this one ended, from the kernel's process connector: it tells of every fork and end,
 * however short the process lived, and though its parent has collected its status.
 *
 * It works in the first PID, user and network namespace only: not in containers.  On Linux before 6.6 it is
 * for root only.  The reader must be as quick as processes end.  What it misses is then not known.
 */
#ifndef CU_CHECK_ENDS_H
#define CU_CHECK_ENDS_H

#include <sys/types.h>

struct cu_ends;

/* Begins to listen, for all that descends from this process from now on.  Returns NULL if that is not possible here; the functions below take NULL, too. */
struct cu_ends *cu_ends_begin(void);
/* Reads what the kernel has told since. */
void cu_ends_read(struct cu_ends *ends);
/* Returns waitpid()'s status of descendant @pid, which has ended; -1: not known. */
int cu_ends_status(const struct cu_ends *ends, pid_t pid);
/* Calls @killed for each descendant that a signal has killed. */
void cu_ends_killed(const struct cu_ends *ends, void (*killed)(void *data, pid_t pid, int status), void *data);
void cu_ends_free(struct cu_ends *ends);

#endif

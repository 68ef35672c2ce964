/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor that we keep while the program runs.
 *
 * A program may close our descriptors and reuse their numbers.  So each is kept with its inode, and
 * before it is used its inode tells whether it is still ours.
 *
 * Nothing here has a state or takes a lock.  Any thread, a signal handler and a forked child may call it.
 */
#ifndef CL_OWN_FD_H
#define CL_OWN_FD_H

#include <stdbool.h>
#include <sys/types.h>

struct cl_own_fd {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
};

/* Returns @fd with its inode.  If the kernel does not tell that, @fd is closed, and .fd is -1. */
struct cl_own_fd cl_own_fd_of(int fd);
bool cl_own_fd_is_ours(const struct cl_own_fd *own);
/* Closes the descriptor if it is still ours. */
void cl_own_fd_close(struct cl_own_fd *own);

#endif

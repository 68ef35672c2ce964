/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions on sockets and descriptors for both sides of the descriptor service.  They have no state, and
 * any thread may call them.
 *
 * A program may close our descriptors and reuse their numbers.  So each is kept with its inode, and
 * before it is used its inode tells whether it is still ours.
 */
#ifndef CL_SERVE_SOCKET_H
#define CL_SERVE_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

struct cl_own_fd {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
};

/* Moves @fd to a high number, and keeps it.  If the kernel does not know it, .fd is -1. */
struct cl_own_fd cl_own_fd_keep(int fd);
bool cl_own_fd_is_ours(const struct cl_own_fd *own);
/* Closes the descriptor if it is still ours. */
void cl_own_fd_close(struct cl_own_fd *own);

/*
 * Finds the address of the service of exporter file @file_id, in the directory of exporter files.  A
 * path that is too long for an address leads through a descriptor of the directory: then *@dirfd is
 * that, and else -1.  The caller closes it after its use of the address.  Returns 0 or -errno.
 */
int cl_serve_address(struct sockaddr_un *address, uint32_t file_id, int *dirfd);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor that we keep while the program runs: see own_fd.h. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/own_fd.h"

struct cl_own_fd cl_own_fd_of(int fd)
{
	struct stat st;

	if (!fstat(fd, &st))
		return (struct cl_own_fd){ .fd = fd, .dev = st.st_dev, .ino = st.st_ino };
	if (errno != EBADF) /* the program has closed it already */
		close(fd);
	return (struct cl_own_fd){ .fd = -1 };
}

bool cl_own_fd_is_ours(const struct cl_own_fd *own)
{
	struct stat st;

	if (own->fd < 0)
		return false;
	/* one that is open, but for some reason cannot be looked at, is ours: else its peers would wait */
	if (fstat(own->fd, &st))
		return errno != EBADF;
	return st.st_dev == own->dev && st.st_ino == own->ino;
}

void cl_own_fd_close(struct cl_own_fd *own)
{
	if (cl_own_fd_is_ours(own))
		close(own->fd);
	own->fd = -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and descriptors of the service: see socket.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/base/descriptor.h"
#include "shim/self/self.h"
#include "shim/descriptors/socket.h"

struct cl_own_fd cl_own_fd_keep(int fd)
{
	struct cl_own_fd own = { .fd = cl_fd_move_high(fd, &cl_self_known.room) };
	struct stat st = { 0 };

	if (fstat(own.fd, &st)) {
		if (errno != EBADF) /* the program has closed it already */
			close(own.fd);
		own.fd = -1;
	}
	own.dev = st.st_dev;
	own.ino = st.st_ino;
	return own;
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

int cl_serve_address(struct sockaddr_un *address, uint32_t file_id, int *dirfd)
{
	char dir[4096], name[16];

	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*dirfd = -1;
	cl_region_socket_name(name, file_id);
	cl_self_dir_path(dir, sizeof dir);
	if (strlen(dir) + 1 + strlen(name) < sizeof address->sun_path) {
		memcpy(address->sun_path, dir, strlen(dir));
		address->sun_path[strlen(dir)] = '/';
		strcpy(address->sun_path + strlen(dir) + 1, name);
		return 0;
	}
	*dirfd = cl_self_open_dir(false);
	if (*dirfd < 0)
		return *dirfd;
	/* by the thread: /proc/self/fd is empty once the first thread has ended */
	snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/task/%ld/fd/%d/%s",
		 syscall(SYS_gettid), *dirfd, name);
	return 0;
}

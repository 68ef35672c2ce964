/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that wait in a socket: see park.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/descriptors/park.h"

static bool send_fd(int to, int fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = { 0 };
	char byte = 0;
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(rights), &fd, sizeof fd);
	return sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

/* @peek: MSG_PEEK leaves the message in the queue, 0 takes it out.  Returns the descriptor, or -errno. */
static int receive_fd(int from, int peek)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	char byte;
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *rights;
	int fd;

	if (recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | peek) < 0)
		return -errno;
	rights = CMSG_FIRSTHDR(&message);
	/* the kernel leaves it out if it has no number for it */
	if (!rights || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(sizeof fd))
		return -EMFILE;
	memcpy(&fd, CMSG_DATA(rights), sizeof fd);
	return fd;
}

static bool is_same(int a, int b)
{
	struct stat one, other;

	return !fstat(a, &one) && !fstat(b, &other) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* Returns a socket in whose queue @fd is, or -1 if the kernel refuses it, or does not let us look at it there. */
static int into_queue(int fd)
{
	int ends[2], copy;
	bool good;

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends))
		return -1;
	good = send_fd(ends[1], fd);
	copy = good ? receive_fd(ends[0], MSG_PEEK) : -1;
	good = copy >= 0 && is_same(copy, fd);
	if (copy >= 0)
		close(copy);
	/* the message stays in the queue of the other end */
	close(ends[1]);
	if (good)
		return ends[0];
	close(ends[0]);
	return -1;
}

struct cl_parked cl_park(int fd)
{
	int queue = into_queue(fd);
	struct cl_parked parked = { .itself = queue < 0 };

	parked.fd = cl_own_fd_keep(parked.itself ? fd : queue);
	if (!parked.itself)
		close(fd);
	return parked;
}

int cl_parked_copy(const struct cl_parked *parked)
{
	int fd;

	if (!cl_own_fd_is_ours(&parked->fd))
		return -EIO;
	if (!parked->itself)
		return receive_fd(parked->fd.fd, MSG_PEEK);
	fd = fcntl(parked->fd.fd, F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

void cl_parked_end(struct cl_parked *parked)
{
	int fd = -1;

	if (!parked->itself && cl_own_fd_is_ours(&parked->fd))
		fd = receive_fd(parked->fd.fd, 0);
	if (fd >= 0)
		close(fd);
	cl_parked_forget(parked);
}

void cl_parked_forget(struct cl_parked *parked)
{
	cl_own_fd_close(&parked->fd);
	*parked = (struct cl_parked){ .fd = { .fd = -1 } };
}

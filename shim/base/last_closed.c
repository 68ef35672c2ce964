/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is closed last: see last_closed.h. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shim/base/last_closed.h"

/* A message of one byte with one descriptor. */
struct message {
	char byte;
	struct iovec part;
	struct msghdr head;
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
};

static void prepare(struct message *m)
{
	memset(m, 0, sizeof *m);
	m->part = (struct iovec){ &m->byte, 1 };
	m->head = (struct msghdr){ .msg_iov = &m->part,
				   .msg_iovlen = 1,
				   .msg_control = m->control.bytes,
				   .msg_controllen = sizeof m->control.bytes };
}

int cl_last_closed_put(int fd)
{
	struct cmsghdr *rights;
	struct message m;
	int pair[2], there, err = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -errno;
	prepare(&m);
	rights = CMSG_FIRSTHDR(&m.head);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(rights), &fd, sizeof fd);
	if (sendmsg(pair[0], &m.head, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
		err = -errno;
	/* a sandbox may have sockets whose queue nobody can look into */
	there = err ? err : cl_last_closed_look(pair[1]);
	if (there >= 0)
		close(there);
	else
		err = there;
	/* what was sent stays in the other one's queue */
	close(pair[0]);
	close(err ? pair[1] : fd);
	return err ? err : pair[1];
}

int cl_last_closed_look(int socket)
{
	struct cmsghdr *rights;
	struct message m;
	ssize_t n;
	int fd;

	prepare(&m);
	do
		n = recvmsg(socket, &m.head, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	rights = n ? CMSG_FIRSTHDR(&m.head) : NULL;
	if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
		memcpy(&fd, CMSG_DATA(rights), sizeof fd);
		return fd;
	}
	return m.head.msg_flags & MSG_CTRUNC ? -EMFILE : -ENOENT;
}

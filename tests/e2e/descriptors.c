/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives descriptors: see descriptors.h. */
#include <string.h>
#include <sys/socket.h>

#include "tests/e2e/descriptors.h"

union control {
	char bytes[CMSG_SPACE(DESCRIPTORS_AT_ONCE * sizeof(int))];
	struct cmsghdr align;
};

unsigned int descriptors_next(uint64_t n, uint64_t from)
{
	return n - from < DESCRIPTORS_AT_ONCE ? (unsigned int)(n - from) : DESCRIPTORS_AT_ONCE;
}

bool descriptors_send(int socket, const int *fd, unsigned int count)
{
	union control control = { { 0 } };
	char byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
				  .msg_controllen = CMSG_SPACE(count * sizeof(int)) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(head), fd, count * sizeof(int));
	return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

bool descriptors_receive(int socket, int *fd, unsigned int count)
{
	union control control;
	char byte;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
				  .msg_controllen = sizeof control.bytes };
	struct cmsghdr *head;

	if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
		return false;
	head = CMSG_FIRSTHDR(&message);
	if (!head || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(count * sizeof(int)))
		return false;
	memcpy(fd, CMSG_DATA(head), count * sizeof(int));
	return true;
}

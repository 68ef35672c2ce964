/* SPDX-License-Identifier: Apache-2.0 */
/* Listens to the kernel's process connector: see check_ends.h. */
#include "config.h"

#include <errno.h>
#include <linux/cn_proc.h>
#include <linux/connector.h>
#include <linux/netlink.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/commands/check_ends.h"

enum {
	ENDS = 1 << 16,	   /* the last ones are kept: more than a run has, or than find a place in the buffer */
	BUFFER = 16 << 20, /* bytes that the kernel keeps for us; it gives others than root some 200 KiB */
};

struct cu_ends {
	int fd;
	uint64_t n; /* of all; `list` is a ring */
	struct {
		pid_t pid;
		int status;
	} list[ENDS];
};

/* Older headers do not have it: Linux 6.6 tells only of ends, if it is asked so. */
struct only {
	uint32_t op, events;
};
#define ALL_ENDS 0x80000000u

/* Linux before 6.6 ignores what has not the size of an op. */
static bool ask(int fd, const void *what, size_t size)
{
	union {
		struct nlmsghdr head;
		char bytes[NLMSG_SPACE(sizeof(struct cn_msg) + sizeof(struct only))];
	} message = { .head = { .nlmsg_len = (uint32_t)NLMSG_LENGTH(sizeof(struct cn_msg) + size), .nlmsg_type = NLMSG_DONE } };
	struct cn_msg connector = { .id = { CN_IDX_PROC, CN_VAL_PROC }, .len = (uint16_t)size };
	char *data = NLMSG_DATA(&message.head);

	memcpy(data, &connector, sizeof(connector));
	memcpy(data + sizeof(connector), what, size);
	return send(fd, &message, message.head.nlmsg_len, 0) == (ssize_t)message.head.nlmsg_len;
}

struct cu_ends *cu_ends_begin(void)
{
	struct sockaddr_nl at = { .nl_family = AF_NETLINK, .nl_groups = CN_IDX_PROC };
	struct only op = { .op = PROC_CN_MCAST_LISTEN, .events = ALL_ENDS };
	struct cu_ends *ends = calloc(1, sizeof(*ends));
	int size = BUFFER;

	if (!ends)
		return NULL;
	ends->fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_CONNECTOR);
	if (ends->fd < 0) {
		free(ends);
		return NULL;
	}
	if (setsockopt(ends->fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		setsockopt(ends->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	if (bind(ends->fd, (struct sockaddr *)&at, sizeof(at)) || !ask(ends->fd, &op.op, sizeof(op.op))) {
		cu_ends_free(ends);
		return NULL;
	}
	ask(ends->fd, &op, sizeof(op));
	return ends;
}

/* The last thread of a process that ends has the status of the process. */
static void take(struct cu_ends *ends, const struct nlmsghdr *head, size_t n)
{
	struct cn_msg connector;
	struct proc_event event;
	const char *data = (const char *)head + NLMSG_HDRLEN;

	if (n < NLMSG_LENGTH(sizeof(connector) + sizeof(event)))
		return;
	memcpy(&connector, data, sizeof(connector));
	memcpy(&event, data + sizeof(connector), sizeof(event));
	if (connector.id.idx != CN_IDX_PROC || connector.id.val != CN_VAL_PROC || (uint32_t)event.what != ALL_ENDS)
		return;
	ends->list[ends->n % ENDS].pid = event.event_data.exit.process_tgid;
	ends->list[ends->n % ENDS].status = (int)event.event_data.exit.exit_code;
	ends->n++;
}

void cu_ends_read(struct cu_ends *ends)
{
	struct sockaddr_nl from;
	union {
		struct nlmsghdr head;
		char bytes[1024];
	} message;

	while (ends) {
		socklen_t size = sizeof(from);
		ssize_t n = recvfrom(ends->fd, &message, sizeof(message), 0, (struct sockaddr *)&from, &size);

		if (n >= 0) {
			/* other processes may send, too */
			if (size == sizeof(from) && from.nl_pid == 0)
				take(ends, &message.head, (size_t)n);
		} else if (errno != EINTR && errno != ENOBUFS) { /* ENOBUFS: some were lost; others follow */
			break;
		}
	}
}

int cu_ends_status(const struct cu_ends *ends, pid_t pid)
{
	uint64_t n = ends ? ends->n : 0, first = n > ENDS ? n - ENDS : 0;

	while (n-- > first)
		if (ends->list[n % ENDS].pid == pid)
			return ends->list[n % ENDS].status;
	return -1;
}

void cu_ends_free(struct cu_ends *ends)
{
	if (!ends)
		return;
	close(ends->fd);
	free(ends);
}

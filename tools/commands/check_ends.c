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
#include <sys/wait.h>
#include <unistd.h>

#include "tools/commands/check_ends.h"

enum {
	ENDS = 1 << 16, /* the last ones are kept */
	PIDS = 1 << 22, /* the kernel's limit */
	BUFFER = 16 << 20, /* bytes that the kernel keeps for us; it gives others than root some 200 KiB */
};

struct cu_ends {
	int fd;
	uint8_t below[PIDS / 8]; /* a bit for each process that descends from this one */
	uint64_t n; /* of all; `list` is a ring */
	struct {
		pid_t pid;
		int status;
	} list[ENDS];
};

/* Older headers do not have it: Linux 6.6 tells only of forks and ends, if it is asked so. */
struct only {
	uint32_t op, events;
};
enum { A_FORK = 1 };
#define AN_END 0x80000000u

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

static bool is_below(const struct cu_ends *ends, pid_t pid)
{
	return pid > 0 && pid < PIDS && ends->below[pid / 8] & 1 << pid % 8;
}

static void set_below(struct cu_ends *ends, pid_t pid, bool below)
{
	if (pid > 0 && pid < PIDS)
		ends->below[pid / 8] = (uint8_t)((ends->below[pid / 8] & ~(1 << pid % 8)) | below << pid % 8);
}

struct cu_ends *cu_ends_begin(void)
{
	struct sockaddr_nl at = { .nl_family = AF_NETLINK, .nl_groups = CN_IDX_PROC };
	struct only op = { .op = PROC_CN_MCAST_LISTEN, .events = A_FORK | AN_END };
	struct cu_ends *ends = calloc(1, sizeof(*ends));
	int size = BUFFER;

	if (!ends)
		return NULL;
	set_below(ends, getpid(), true);
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
	if (connector.id.idx != CN_IDX_PROC || connector.id.val != CN_VAL_PROC)
		return;
	/* a thread is told of as a child within its own process */
	if ((uint32_t)event.what == A_FORK && event.event_data.fork.child_pid == event.event_data.fork.child_tgid)
		set_below(ends, event.event_data.fork.child_tgid, is_below(ends, event.event_data.fork.parent_tgid));
	if ((uint32_t)event.what != AN_END || !is_below(ends, event.event_data.exit.process_tgid))
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

void cu_ends_killed(const struct cu_ends *ends, void (*killed)(void *data, pid_t pid, int status), void *data)
{
	uint64_t n = ends ? ends->n : 0;

	for (uint64_t i = n > ENDS ? n - ENDS : 0; i < n; i++) {
		pid_t pid = ends->list[i % ENDS].pid;
		int status = ends->list[i % ENDS].status;

		/* each of its threads is told of */
		if (WIFSIGNALED(status) && cu_ends_status(ends, pid) == status)
			killed(data, pid, status);
	}
}

void cu_ends_free(struct cu_ends *ends)
{
	if (!ends)
		return;
	close(ends->fd);
	free(ends);
}

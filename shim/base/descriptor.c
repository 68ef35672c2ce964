/* SPDX-License-Identifier: Apache-2.0 */
/* Where descriptors of ours are: see descriptor.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shim/base/descriptor.h"

enum {
	FD_HIGHEST = 1024, /* what select() can name */
	FD_OURS = 16,	   /* of the numbers up there, at most so many are ours before others follow */
	FD_FEW = 64,	   /* where a process may have no more, there is no "high" */
};

/* How many descriptors the process's table has room for (FDSize); 0: /proc does not say. */
static unsigned int table_room(void)
{
	int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	char text[2048];
	const char *at;
	ssize_t n;

	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof text - 1);
	close(fd);
	text[n < 0 ? 0 : n] = 0;
	at = strstr(text, "\nFDSize:");
	return at ? (unsigned int)strtoul(at + 8, NULL, 10) : 0;
}

/*
 * Within the room that the table has: a number beyond makes the kernel enlarge it, and where
 * the process has threads that waits for all processors (20 to 50 ms on the H200 machines).
 */
int cl_fd_move_high(int fd, _Atomic unsigned int *remembered)
{
	unsigned int room = remembered ? atomic_load_explicit(remembered, memory_order_relaxed) : 0;
	rlim_t floor = FD_HIGHEST;
	struct rlimit limit;
	int high = -1;

	if (!room)
		room = table_room();
	if (room && room < floor)
		floor = room;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > FD_FEW) {
		if (limit.rlim_cur < floor)
			floor = limit.rlim_cur;
		high = fcntl(fd, F_DUPFD_CLOEXEC, (int)(floor - FD_OURS));
	}
	/* a fuller table has grown, and is looked at again */
	if (remembered)
		atomic_store_explicit(remembered, high < (int)room ? room : 0, memory_order_relaxed);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

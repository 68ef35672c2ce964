/* SPDX-License-Identifier: Apache-2.0 */
/* Moves our descriptors to high numbers: see descriptor.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shim/base/descriptor.h"

enum {
	FD_HIGHEST = 1024, /* select() can name the numbers below this */
	FD_OURS = 16,	   /* the search for a free number starts so far below the top */
	FD_FEW = 64,	   /* a process that may have no more than this has no high numbers */
};

/* Returns how many descriptors the process's table has room for (FDSize), or 0 if /proc does not say. */
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
 * The new number stays within the room that the table has.  A number beyond makes the kernel
 * enlarge the table, which in a process with threads waits for all processors (20 to 50 ms on
 * the H200 machines).
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
	/* a number beyond the remembered room means that the table has grown: ask again next time */
	if (remembered)
		atomic_store_explicit(remembered, high < (int)room ? room : 0, memory_order_relaxed);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

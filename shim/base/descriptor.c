/* SPDX-License-Identifier: Apache-2.0 */
/* Moves our descriptors to high numbers: see descriptor.h. */
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shim/base/descriptor.h"

enum {
	FD_HIGHEST = 1024, /* select() can name the numbers below this */
	FD_OURS = 16,	   /* the search for a free number starts so far below the top */
	FD_BATCH = 80,	   /* and so much further for one of many that are there for a moment */
	FD_TRIES = 4096,   /* so many numbers are looked at, at most */
	FD_SAMPLES = 64,   /* and so many, if most are free */
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
 * The search for a free number begins @below under the top, but not in the lowest quarter, and goes up.  The top is where
 * the room of the table ends: a number beyond makes the kernel enlarge the table, which in a process with threads waits
 * for all processors (8 to 50 ms on the H200 machines).  That happens only if all numbers from the begin of the search on
 * are taken.  In a table of 128, a batch has no room in the upper half alone.
 */
static int move(int fd, _Atomic unsigned int *remembered, rlim_t below)
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
		high = fcntl(fd, F_DUPFD_CLOEXEC, (int)(floor - (below < floor / 4 * 3 ? below : floor / 4 * 3)));
	}
	/* a number beyond the remembered room means that the table has grown: ask again next time */
	if (remembered)
		atomic_store_explicit(remembered, high < (int)room ? room : 0, memory_order_relaxed);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

int cl_fd_move_high(int fd, _Atomic unsigned int *remembered)
{
	return move(fd, remembered, FD_OURS);
}

int cl_fd_move_high_for_now(int fd, _Atomic unsigned int *remembered)
{
	return move(fd, remembered, FD_OURS + FD_BATCH);
}

static bool is_free(rlim_t fd)
{
	return fcntl((int)fd, F_GETFD) < 0;
}

/* Returns true if some of the numbers from @first to below @end tell that far more than @most of them are free. */
static bool are_plenty(rlim_t first, rlim_t end, unsigned int most)
{
	rlim_t step = (end - first) / FD_SAMPLES;
	unsigned int n = 0;

	/* a process uses the lowest numbers that it can get */
	for (rlim_t fd = first; step && fd < end && step * n <= 2ull * most; fd += step)
		n += is_free(fd);
	return step * n > 2ull * most;
}

unsigned int cl_fd_count_free(unsigned int most)
{
	struct rlimit limit;
	rlim_t fd, first;
	unsigned int n = 0;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	fd = limit.rlim_cur < INT_MAX ? limit.rlim_cur : INT_MAX;
	first = fd > FD_TRIES ? fd - FD_TRIES : 0;
	if (most > FD_SAMPLES && are_plenty(first, fd, most))
		return most;
	while (n < most && fd > first)
		n += is_free(--fd);
	return n;
}

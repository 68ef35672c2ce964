/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: times the pieces that culimbo can't do without and that are not its own, such as
 * system calls, on this machine.
 */
#include "tests/bench/parts.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t piece_lock = PTHREAD_MUTEX_INITIALIZER;
static int piece_file = -1;

static void op_clock(uint64_t run)
{
	struct timespec now;

	(void)run;
	clock_gettime(CLOCK_MONOTONIC, &now);
}
static void op_clock_coarse(uint64_t run)
{
	struct timespec now;

	(void)run;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
}
static void op_lock(uint64_t run)
{
	(void)run;
	pthread_mutex_lock(&piece_lock);
	pthread_mutex_unlock(&piece_lock);
}
static void op_cancel(uint64_t run)
{
	int was;

	(void)run;
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &was);
	pthread_setcanceltype(was, NULL);
}
static void op_fence(uint64_t run)
{
	(void)run;
	atomic_thread_fence(memory_order_seq_cst);
}
static void op_nothing(uint64_t run)
{
	(void)run;
}
static void op_getlk(uint64_t run)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1 };

	(void)run;
	fcntl(piece_file, F_GETLK, &lock);
}

static void *idle(void *unused)
{
	for (;;)
		pause();
	return unused;
}

int pieces(int argc, char **argv)
{
	unsigned int n = (unsigned int)strtoul(argv[0], NULL, 0);
	char path[64];
	pthread_t thread;

	(void)argc;
	snprintf(path, sizeof path, "%s/piece", folder);
	piece_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	/* as with a real driver; in a process of one thread libc's locks use no atomic instruction */
	if (piece_file < 0 || pthread_create(&thread, NULL, idle, NULL))
		return 1;
	measure("piece-nothing", op_nothing, n);
	measure("piece-clock", op_clock, n);
	measure("piece-clock-coarse", op_clock_coarse, n);
	measure("piece-lock", op_lock, n);
	measure("piece-cancel", op_cancel, n);
	measure("piece-fence", op_fence, n);
	measure("piece-getlk", op_getlk, n);
	return 0;
}

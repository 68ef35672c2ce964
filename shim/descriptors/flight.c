/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors in flight: see flight.h. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/descriptor.h"
#include "shim/base/own_fd.h"
#include "shim/descriptors/flight.h"
#include "shim/self/self.h"

static struct cl_lock lock = CL_LOCK_INIT(CL_RANK_FLIGHT); /* all that follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct cl_own_fd flight[CL_FLIGHTS];
static unsigned int flights;
static unsigned int busy;  /* threads between begin() and end() */
static unsigned int forks; /* threads that want to fork: nobody begins before they have */

void cl_flight_begin(void)
{
	struct timespec until = cl_after(CL_END_WAIT);

	cl_lock(&lock);
	while (forks && cl_lock_wait_until(&changed, &lock, &until))
		;
	busy++;
	cl_unlock(&lock);
}

void cl_flight_end(void)
{
	cl_lock(&lock);
	if (busy) /* a child that was forked meanwhile by a signal handler of this thread has none */
		busy--;
	if (!busy && forks)
		pthread_cond_broadcast(&changed);
	cl_unlock(&lock);
}

int cl_flight_enter(int fd)
{
	struct cl_own_fd own;
	bool room;

	fcntl(fd, F_SETFD, FD_CLOEXEC);
	own = cl_own_fd_of(cl_fd_move_high_for_now(fd, &cl_self_known.room));
	if (own.fd < 0)
		return -EMFILE;
	cl_lock(&lock);
	room = flights < CL_FLIGHTS;
	if (room)
		flight[flights++] = own;
	cl_unlock(&lock);
	if (room)
		return own.fd;
	cl_own_fd_close(&own);
	return -EMFILE;
}

/* Finds @fd in the list: the one that came last, since only that can be its file.  Removes it if @leaves. */
static struct cl_own_fd find(int fd, bool leaves)
{
	struct cl_own_fd own = { .fd = -1 };

	cl_lock(&lock);
	for (unsigned int i = fd < 0 ? 0 : flights; i-- > 0;)
		if (flight[i].fd == fd) {
			own = flight[i];
			if (leaves)
				flight[i] = flight[--flights];
			break;
		}
	cl_unlock(&lock);
	return own;
}

void cl_flight_close_all(const int *fds, unsigned int n)
{
	cl_flight_begin();
	while (n) {
		struct cl_own_fd own = find(fds[--n], true);

		cl_own_fd_close(&own);
	}
	cl_flight_end();
}

void cl_flight_close(int fd)
{
	if (fd >= 0)
		cl_flight_close_all(&fd, 1);
}

void cl_flight_hang_up(int fd)
{
	if (cl_flight_is_ours(fd))
		shutdown(fd, SHUT_RDWR);
	cl_flight_close(fd);
}

bool cl_flight_is_ours(int fd)
{
	struct cl_own_fd own = find(fd, false);

	return cl_own_fd_is_ours(&own);
}

bool cl_flight_leave(int fd)
{
	struct cl_own_fd own = find(fd, true);

	return cl_own_fd_is_ours(&own);
}

unsigned int cl_flight_most(unsigned int wanted)
{
	unsigned int free = wanted > 1 ? cl_fd_count_free(4 * wanted) : 0, places;

	cl_lock(&lock);
	places = CL_FLIGHTS - flights;
	cl_unlock(&lock);
	if (free > places)
		free = places;
	return free >= 8 ? free / 4 : 1;
}

/* ----------------------------------------------------------------------- fork */
bool cl_flight_fork(uint64_t wait)
{
	struct timespec until = cl_after(wait);

	if (!cl_lock_until(&lock, &until))
		return false;
	forks++;
	while (busy && cl_lock_wait_until(&changed, &lock, &until))
		;
	return true;
}

void cl_flight_fork_over(void)
{
	if (!--forks)
		pthread_cond_broadcast(&changed);
	cl_unlock(&lock);
}

void cl_flights_forget(void)
{
	/* bounded: a child without fork handlers may have got the list half changed */
	for (unsigned int i = 0; i < flights && i < CL_FLIGHTS; i++)
		cl_own_fd_close(&flight[i]);
	flights = busy = forks = 0;
	changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	cl_lock_reset(&lock);
}

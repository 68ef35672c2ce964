/* SPDX-License-Identifier: Apache-2.0 */
/* Whether CUDA contexts outlive their process: see outlive.h. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/descriptor.h"
#include "shim/base/last_closed.h"
#include "shim/base/options.h"
#include "shim/base/own_fd.h"
#include "shim/self/outlive.h"
#include "shim/self/self.h"

/*
 * Our lock: the process that took it, and the file that it is on.  A child without fork handlers
 * finds its parent's pid here.  Two threads that fork at once may both take it: each lock lasts as long as the other
 * would.  Known fault: if only one of them gets a socket, .queued may not be of .file, and then nothing counts as outlived.
 */
static struct {
	_Atomic pid_t pid;
	struct cl_own_fd file; /* the socket that has the file in its queue; or the file itself */
	bool queued;
} lock;

/*
 * The pid of the process that has called cuInit(), and of the one that could not get the lock.  A forked child has
 * another pid: it has none of its parent's contexts, and tries for a lock of its own.
 */
static _Atomic pid_t initialized, refused;

/* The byte of the process @who.  Two processes share one with a chance of 1 to 2^62: then one counts as outlived. */
static off_t byte_of(const struct cl_identity *who)
{
	uint64_t x = who->pid_ns * 0x9e3779b97f4a7c15u ^ who->start_time;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = ((x ^ who->pid) ^ x >> 27) * 0x94d049bb133111ebu;
	return (off_t)((x ^ x >> 31) >> 2);
}

static int ask(int fd, int command, struct flock *about)
{
	int err;

	do
		err = fcntl(fd, command, about) ? -errno : 0;
	while (err == -EINTR);
	return err;
}

/* Returns a descriptor of the file that our lock is on, for give_back(), or -errno. */
static int take_file(void)
{
	return lock.queued ? cl_last_closed_look(lock.file.fd) : lock.file.fd;
}
static void give_back(int fd)
{
	if (lock.queued && fd >= 0)
		close(fd);
}

/* Returns true if this process has the lock, and the directory that it is on is still there. */
static bool is_kept(void)
{
	struct stat st;
	bool kept;
	int fd;

	if (atomic_load_explicit(&lock.pid, memory_order_acquire) != getpid() || !cl_own_fd_is_ours(&lock.file))
		return false;
	fd = take_file();
	/* without a free number nobody can look, nor could take it anew */
	kept = fd == -EMFILE || (fd >= 0 && !fstat(fd, &st) && st.st_nlink);
	give_back(fd);
	return kept;
}

/* Has this process keep the file of @fd, which has our lock. */
static void keep(int fd)
{
	int socket = cl_last_closed_put(fd);

	lock.queued = socket >= 0;
	/* the former one, of a removed directory or of a parent without fork handlers, is left to its copies */
	lock.file = cl_own_fd_of(lock.queued ? cl_fd_move_high(socket, &cl_self_known.room) : fd);
	atomic_store_explicit(&lock.pid, getpid(), memory_order_release);
}

static void take(void)
{
	struct flock about = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1 };
	struct cl_identity self;
	struct stat st;
	int fd;

	cl_identity_self(&self);
	about.l_start = byte_of(&self);
	/* a second time if an ending process has removed the directory meanwhile */
	for (int i = 0; i < 2; i++) {
		fd = cl_self_open_dir(true);
		if (fd < 0)
			break;
		fd = cl_fd_move_high(fd, &cl_self_known.room);
		if (ask(fd, F_OFD_SETLK, &about) || fstat(fd, &st)) {
			close(fd);
			break;
		}
		if (st.st_nlink) {
			keep(fd);
			return;
		}
		close(fd);
	}
	/* not again at each fork */
	atomic_store_explicit(&refused, getpid(), memory_order_relaxed);
}

/* Runs in any thread that forks, in a signal handler, too: system calls only, and no lock of ours. */
static void before_fork(void)
{
	CL_UNCANCELLED;

	if (!cl_options.disable.number && atomic_load_explicit(&initialized, memory_order_relaxed) == getpid() &&
	    atomic_load_explicit(&refused, memory_order_relaxed) != getpid() && !is_kept())
		take();
}

void cl_outlive_watch_forks(void)
{
	static atomic_flag done = ATOMIC_FLAG_INIT;

	atomic_store_explicit(&initialized, getpid(), memory_order_relaxed);
	if (!atomic_flag_test_and_set_explicit(&done, memory_order_relaxed))
		pthread_atfork(before_fork, NULL, NULL);
}

bool cl_outlive_took(void)
{
	pid_t pid = atomic_load_explicit(&lock.pid, memory_order_relaxed);

	return pid && pid == getpid();
}

void cl_outlive_keep(void)
{
	if (cl_outlive_took() && !is_kept())
		take();
}

bool cl_outlive_is_outlived(const struct cl_identity *who)
{
	struct flock about = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte_of(who), .l_len = 1 };
	/* our own lock does not count: @who may be this process as it was before it called exec */
	bool kept = who->pid && is_kept(), is;
	int fd;

	if (!who->pid)
		return false;
	fd = kept ? take_file() : cl_self_open_dir(false);
	if (fd < 0)
		return fd == -EMFILE || fd == -ENFILE;
	is = !ask(fd, F_OFD_GETLK, &about) && about.l_type != F_UNLCK;
	if (kept)
		give_back(fd);
	else
		close(fd);
	return is;
}

bool cl_outlive_uses(int dirfd)
{
	struct flock about = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	/* by our own open file, whose lock does not count, if it is of this directory */
	int fd = is_kept() ? take_file() : -EBADF;
	bool is = !ask(fd < 0 ? dirfd : fd, F_OFD_GETLK, &about) && about.l_type != F_UNLCK;

	give_back(fd);
	return is;
}

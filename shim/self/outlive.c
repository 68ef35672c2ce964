/* SPDX-License-Identifier: Apache-2.0 */
/* Whether CUDA contexts outlive their process: see outlive.h. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/descriptor.h"
#include "shim/base/last_closed.h"
#include "shim/base/options.h"
#include "shim/self/outlive.h"
#include "shim/self/self.h"

/*
 * What this process keeps.  A forked child has its parent's pid and byte here, and so has a child without fork handlers.
 * Two threads that fork at once may both take the lock, and the later one's file stays: each .file is whole in itself.
 */
static struct {
	_Atomic pid_t pid;	   /* the process whose contexts the lock is about */
	_Atomic off_t byte;	   /* its byte */
	_Atomic uint64_t file;	   /* see word_of(); 0: none */
	_Atomic unsigned int forks; /* how many there were since the lock was taken, those of a forking parent included */
} lock;

/*
 * The pid of the process that has called cuInit(), and of the one that could not get the lock.  A forked child has
 * another pid: it has none of its parent's contexts, and tries for no lock of its own.
 */
static _Atomic pid_t initialized, refused;

/*
 * The kernel counts all files that a user has in the queues of sockets, and refuses more than RLIMIT_NOFILE of them.
 * The program may send files, too: a process and those that it forks use at most this part of that number.
 */
enum { PART = 16 };

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

/* --------------------------------------------------------- the file of the lock */
/* Returns @fd and the lower half of its inode number in one word, or 0: then @fd is not open. */
static uint64_t word_of(int fd)
{
	struct stat st;

	if (!fstat(fd, &st))
		return (uint64_t)(uint32_t)st.st_ino << 32 | ((uint32_t)fd + 1);
	if (errno != EBADF) /* the program has closed it already */
		close(fd);
	return 0;
}

static int number_of(uint64_t file)
{
	return (int)(uint32_t)file - 1;
}

/* Returns false if the program has closed the descriptor.  It may have reused its number. */
static bool is_ours(uint64_t file)
{
	struct stat st;

	if (!file)
		return false;
	/* one that is open, but for some reason cannot be looked at, is ours */
	if (fstat(number_of(file), &st))
		return errno != EBADF;
	return (uint32_t)st.st_ino == file >> 32 && (S_ISSOCK(st.st_mode) || S_ISDIR(st.st_mode));
}

/*
 * Returns a descriptor of the locked directory, for give_back(), or -errno.  @number is of a socket that has the
 * directory in its queue, or of the directory itself.
 */
static int look(int number)
{
	int fd = cl_last_closed_look(number);

	return fd == -ENOTSOCK ? number : fd;
}
static void give_back(int fd, int number)
{
	if (fd >= 0 && fd != number)
		close(fd);
}

/* Returns false if this process does not have the lock, or if the directory that it is on is gone.  In doubt true. */
static bool is_kept(void)
{
	uint64_t file = atomic_load_explicit(&lock.file, memory_order_acquire);
	bool kept = cl_outlive_took() && is_ours(file);
	struct stat st;
	int fd;

	if (!kept)
		return false;
	fd = look(number_of(file));
	if (fd >= 0)
		kept = fstat(fd, &st) || st.st_nlink;
	give_back(fd, number_of(file));
	return kept;
}

/* Returns a descriptor of the directory with a lock on @byte, or -errno. */
static int lock_directory(off_t byte)
{
	struct flock about = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	int fd, err = -ENOENT;
	struct stat st;

	/* a second time if an ending process has removed the directory meanwhile */
	for (int i = 0; i < 2 && err == -ENOENT; i++) {
		fd = cl_self_open_dir(true);
		if (fd < 0)
			return fd;
		fd = cl_fd_move_high(fd, &cl_self_known.room);
		err = ask(fd, F_OFD_SETLK, &about);
		if (!err && fstat(fd, &st))
			err = -errno;
		if (!err && st.st_nlink)
			return fd;
		close(fd);
		if (!err)
			err = -ENOENT;
	}
	return err;
}

/* Puts the locked directory @fd into the queue of a socket, and returns that.  Or returns -errno, and @fd is as it was. */
static int queue(int fd)
{
	struct rlimit limit;
	int socket;

	if (getrlimit(RLIMIT_NOFILE, &limit) ||
	    limit.rlim_cur / PART <= atomic_load_explicit(&lock.forks, memory_order_relaxed))
		return -ETOOMANYREFS;
	socket = cl_last_closed_put(fd);
	return socket < 0 ? socket : cl_fd_move_high(socket, &cl_self_known.room);
}

/* Has this process keep @fd.  Returns false, and changes nothing, if it cannot.  *@former is what it had before. */
static bool keep(int fd, uint64_t *former)
{
	uint64_t file = word_of(fd);

	if (file)
		/* release: who sees it sees .byte */
		*former = atomic_exchange_explicit(&lock.file, file, memory_order_acq_rel);
	return file != 0;
}

static void close_former(uint64_t file)
{
	if (is_ours(file))
		close(number_of(file));
}

/* ------------------------------------------------------------------------ forks */
static bool take(void)
{
	/* what a parent without fork handlers had is about that one's contexts, and stays */
	bool others = atomic_load_explicit(&lock.pid, memory_order_acquire) && !cl_outlive_took();
	uint64_t stays = others ? atomic_load_explicit(&lock.file, memory_order_acquire) : 0, former;
	struct cl_identity self;
	int fd, socket;

	cl_identity_self(&self);
	atomic_store_explicit(&lock.byte, byte_of(&self), memory_order_relaxed);
	fd = lock_directory(byte_of(&self));
	if (fd < 0)
		return false;
	socket = queue(fd);
	if (!keep(socket < 0 ? fd : socket, &former))
		return false;
	/* of a directory that is gone, or of another thread that forks at the same time */
	if (former != stays)
		close_former(former);
	atomic_store_explicit(&lock.pid, getpid(), memory_order_release);
	return true;
}

/* Runs in any thread that forks, in a signal handler, too: system calls only, and no lock of ours. */
static void before_fork(void)
{
	CL_UNCANCELLED;

	if (!cl_options.disable.number && atomic_load_explicit(&initialized, memory_order_relaxed) == getpid() &&
	    atomic_load_explicit(&refused, memory_order_relaxed) != getpid() && !is_kept() && !take())
		/* not again at each fork */
		atomic_store_explicit(&refused, getpid(), memory_order_relaxed);
	if (atomic_load_explicit(&lock.file, memory_order_relaxed))
		atomic_fetch_add_explicit(&lock.forks, 1, memory_order_relaxed);
}

/*
 * The child has copies of the driver's descriptors and of ours.  It takes a lock of its own on the same byte: of a file
 * that several processes have, one of them closes the last copy, and another one may still be at work on the driver's.
 * If it can't, it keeps the copy.  The same rules as before_fork().
 */
static void in_child(void)
{
	uint64_t inherited = atomic_load_explicit(&lock.file, memory_order_acquire);
	int fd, socket;

	CL_UNCANCELLED;

	if (!is_ours(inherited))
		return;
	fd = lock_directory(atomic_load_explicit(&lock.byte, memory_order_relaxed));
	if (fd < 0)
		return;
	socket = queue(fd);
	if (socket < 0)
		close(fd);
	else if (keep(socket, &inherited))
		close_former(inherited);
}

void cl_outlive_watch_forks(void)
{
	static atomic_flag done = ATOMIC_FLAG_INIT;

	atomic_store_explicit(&initialized, getpid(), memory_order_relaxed);
	if (!atomic_flag_test_and_set_explicit(&done, memory_order_relaxed))
		pthread_atfork(before_fork, NULL, in_child);
}

bool cl_outlive_took(void)
{
	pid_t pid = atomic_load_explicit(&lock.pid, memory_order_acquire);

	return pid && pid == getpid();
}

void cl_outlive_keep(void)
{
	if (cl_outlive_took() && !is_kept())
		take();
}

/* ------------------------------------------------------------------ what others ask */
/* Opens the directory, if need be with the spare descriptor: then *@spare is true, and the caller restores it. */
static int open_dir(bool *spare)
{
	int fd = cl_self_open_dir(false);

	*spare = (fd == -EMFILE || fd == -ENFILE) && cl_self_spare_release();
	return *spare ? cl_self_open_dir(false) : fd;
}

int cl_outlive_is_outlived(const struct cl_identity *who)
{
	struct flock about = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte_of(who), .l_len = 1 };
	uint64_t file = atomic_load_explicit(&lock.file, memory_order_acquire);
	int fd = -EBADF, err, number = number_of(file);
	bool spare = false;

	if (!who->pid)
		return 0;
	/* our own lock does not count: @who may be this process as it was before it called exec */
	if (cl_outlive_took() && about.l_start == atomic_load_explicit(&lock.byte, memory_order_relaxed) && is_ours(file))
		fd = look(number);
	if (fd < 0) {
		number = -1;
		fd = open_dir(&spare);
	}
	err = fd < 0 ? fd : ask(fd, F_OFD_GETLK, &about);
	give_back(fd, number);
	if (spare)
		cl_self_spare_restore();
	if (!err)
		return about.l_type != F_UNLCK;
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM ? err : 0;
}

/* Returns true if another open file than that of @fd has a lock on one of @n bytes from @start on; 0: to the end. */
static bool is_locked(int fd, off_t start, off_t n)
{
	struct flock about = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = n };

	return !ask(fd, F_OFD_GETLK, &about) && about.l_type != F_UNLCK;
}

bool cl_outlive_uses(int dirfd)
{
	off_t own = atomic_load_explicit(&lock.byte, memory_order_relaxed);

	if (!cl_outlive_took())
		return is_locked(dirfd, 0, 0);
	return (own && is_locked(dirfd, 0, own)) || is_locked(dirfd, own + 1, 0);
}

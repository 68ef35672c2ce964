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
 * Each program that a process runs, until it calls exec, has IMAGE bytes; its identity says which.  The first one is for
 * the process itself, the others are for the children that it forks, and for theirs.
 */
#define IMAGE ((off_t)1 << 16)

/*
 * What this process keeps.  Two threads that fork at once may both take the lock, and the later one's file stays:
 * .file is whole in itself.
 */
enum { INHERITED = -1 };
static struct {
	_Atomic pid_t pid;     /* who took it; 0: nobody; INHERITED: this process was forked by the one that did */
	_Atomic off_t byte;    /* its first byte */
	_Atomic uint64_t file; /* see word_of(); 0: none */
} lock;

/*
 * The pid of the process that has called cuInit(), and of the one whose attempt to lock failed for good.  A forked child
 * has neither: it can have no contexts of its own.  What it locks, in in_child(), is for its parent's.
 */
static _Atomic pid_t initialized, refused;

/*
 * The kernel counts the files that a user has in the queues of sockets, and refuses more than RLIMIT_NOFILE of them.
 * The program may send files, too.  So the living children of one program use at most this part of that number; its own file
 * comes on top, and other programs of the user have as much.  A child looks at LOOKS bytes, at random, for one that nobody else
 * has.  If three of four are taken, one of 10,000 children finds none.
 */
enum { PART = 16, LOOKS = 32 };

/* The first byte of @who.  Two programs share theirs with a chance of 1 in 2^46: then one counts as outlived. */
static off_t first_byte_of(const struct cl_identity *who)
{
	uint64_t x = ((uint64_t)who->image << 32 | who->pid_ns) * 0x9e3779b97f4a7c15u ^ who->start_time;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = ((x ^ who->pid) ^ x >> 27) * 0x94d049bb133111ebu;
	return (off_t)((x ^ x >> 31) >> 18) * IMAGE;
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
/* Some bits that two files seldom share: of the device, the inode and the type. */
static uint64_t bits_of(const struct stat *st)
{
	return cl_mix(cl_mix(st->st_dev) ^ st->st_ino ^ (uint64_t)(st->st_mode & S_IFMT) << 48) >> 32;
}

/* Returns @fd and the bits of its file, or 0: then @fd is not open.  What own_fd.h has, in one word that threads can exchange. */
static uint64_t word_of(int fd)
{
	struct stat st;

	if (!fstat(fd, &st))
		return bits_of(&st) << 32 | ((uint32_t)fd + 1);
	/* EBADF: the program has closed it already */
	if (errno != EBADF)
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
	return bits_of(&st) == file >> 32;
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

/* A directory can only be opened for reading, so it can have only read locks: two may have the same byte. */
static int set(int fd, short type, off_t byte)
{
	return ask(fd, F_OFD_SETLK,
		   &(struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 });
}

/*
 * Returns 1 if another open file than that of @fd has a lock on one of the bytes from @start to before @end, else 0, or
 * -errno.
 */
static int is_locked(int fd, off_t start, off_t end)
{
	struct flock about = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = end - start };
	int err;

	if (start == end) /* to fcntl() that means all to the end */
		return 0;
	err = ask(fd, F_OFD_GETLK, &about);
	return err ? err : about.l_type != F_UNLCK;
}

/* Returns a descriptor of the directory with the lock of this process, on *@byte, or -errno. */
static int lock_directory(off_t *byte)
{
	int fd, err = -ENOENT;
	struct cl_identity self;
	struct stat st;

	cl_self_identify(&self);
	/* a second time if an ending process has removed the directory meanwhile */
	for (int i = 0; i < 2 && err == -ENOENT; i++) {
		fd = cl_self_open_dir(true);
		if (fd < 0) {
			err = fd;
			continue;
		}
		fd = cl_fd_move_high(fd, &cl_self_known.room);
		*byte = first_byte_of(&self);
		err = set(fd, F_RDLCK, *byte);
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

/* How many files of this process's family may be in queues at the same time. */
static rlim_t most_queued(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	return limit.rlim_cur / PART < (rlim_t)IMAGE ? limit.rlim_cur / PART : (rlim_t)IMAGE - 1;
}

/* Locks a byte for a child, by the directory @fd.  Returns false if it found none that nobody else has. */
static bool lock_for_child(int fd, off_t image)
{
	rlim_t most = most_queued();
	uint64_t x = (uint64_t)getpid();

	for (int i = 0; i < LOOKS && most; i++) {
		off_t byte = image + 1 + (off_t)((x = cl_mix(x)) % most);

		if (is_locked(fd, byte, byte + 1))
			continue;
		if (set(fd, F_RDLCK, byte))
			return false;
		/* two may have taken it at the same time: then each looks for another one */
		if (!is_locked(fd, byte, byte + 1))
			return true;
		set(fd, F_UNLCK, byte);
	}
	return false;
}

/* Puts the locked directory @fd into the queue of a socket, and returns that.  Or returns -errno, and @fd is as it was. */
static int queue(int fd)
{
	int socket = cl_last_closed_put(fd);

	return socket < 0 ? socket : cl_fd_move_high(socket, &cl_self_known.room);
}

/* Has this process keep @fd.  *@former is what it had before.  Returns false if it cannot: then @fd is closed. */
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
/* Returns 0 or -errno. */
static int take(void)
{
	/* a child without fork handlers may have a copy of its parent's: that one's contexts need it, so it stays open */
	bool others = atomic_load_explicit(&lock.pid, memory_order_acquire) && !cl_outlive_took();
	uint64_t stays = others ? atomic_load_explicit(&lock.file, memory_order_acquire) : 0, former;
	int fd, socket;
	off_t byte;

	fd = lock_directory(&byte);
	if (fd < 0)
		return fd;
	socket = most_queued() ? queue(fd) : -ETOOMANYREFS;
	atomic_store_explicit(&lock.byte, byte, memory_order_relaxed);
	if (!keep(socket < 0 ? fd : socket, &former))
		return -EBADF;
	/* of a directory that is gone, or of another thread that forks at the same time */
	if (former != stays)
		close_former(former);
	atomic_store_explicit(&lock.pid, getpid(), memory_order_release);
	return 0;
}

static bool may_pass(int err)
{
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -ENOLCK || err == -ENOSPC;
}

/* Runs in any thread that forks, in a signal handler, too: system calls only, and no lock of ours. */
static void before_fork(void)
{
	int err = 0;

	CL_UNCANCELLED;

	if (cl_options.disable.number || atomic_load_explicit(&initialized, memory_order_relaxed) != getpid() ||
	    atomic_load_explicit(&refused, memory_order_relaxed) == getpid())
		return;
	if (!is_kept())
		err = take();
	/* other errors are final: it is not tried again at each fork */
	if (err && !may_pass(err))
		atomic_store_explicit(&refused, getpid(), memory_order_relaxed);
}

/*
 * The child has copies of the driver's descriptors and of ours.  It locks another byte through an open file of its own
 * (outlive.h says why), and closes its copy.  If it can't, it keeps the copy.  It does not go by the path, which may lead
 * elsewhere after chroot().  The same rules as before_fork().
 */
static void in_child(void)
{
	uint64_t inherited = atomic_load_explicit(&lock.file, memory_order_acquire);
	int at, fd, socket;

	CL_UNCANCELLED;

	atomic_store_explicit(&initialized, 0, memory_order_relaxed);
	if (!inherited)
		return;
	atomic_store_explicit(&lock.pid, INHERITED, memory_order_relaxed);
	at = is_ours(inherited) ? look(number_of(inherited)) : -EBADF;
	if (at < 0)
		return;
	fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	give_back(at, number_of(inherited));
	if (fd < 0)
		return;
	fd = cl_fd_move_high(fd, &cl_self_known.room);
	socket = lock_for_child(fd, atomic_load_explicit(&lock.byte, memory_order_relaxed)) ? queue(fd) : -ETOOMANYREFS;
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

/* As is_locked(), but locks of this program, and of those that it has forked, do not count. */
static int is_locked_by_others(int fd, off_t start, off_t end)
{
	off_t own = atomic_load_explicit(&lock.byte, memory_order_relaxed);
	int is;

	if (!cl_outlive_took() || own < start || own >= end)
		return is_locked(fd, start, end);
	is = is_locked(fd, start, own);
	return is ? is : is_locked(fd, own + IMAGE, end);
}

int cl_outlive_is_outlived(const struct cl_identity *who)
{
	off_t start = first_byte_of(who);
	bool spare = false;
	int fd, is;

	if (!who->pid)
		return 0;
	fd = is = open_dir(&spare);
	if (fd >= 0) {
		is = is_locked_by_others(fd, start, start + IMAGE);
		close(fd);
	}
	if (spare)
		cl_self_spare_restore();
	return is >= 0 || may_pass(is) ? is : 0;
}

bool cl_outlive_uses(int dirfd)
{
	return is_locked_by_others(dirfd, 0, INT64_MAX) > 0;
}

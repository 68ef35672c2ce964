/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out whether descriptor 2 is the program's stderr: see stderr.h.  The system calls are made
 * directly, for the reasons at the head of log.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "shim/base/stderr.h"

enum { MEM_MAJOR = 1 }; /* /dev/null and similar devices */

/*
 * Which file descriptor 2 was when the process began to share; .known is set last.  The state is
 * here in base/ because the log asks before each line, also in a process that never shares.
 */
static struct {
	_Atomic bool known;
	_Atomic uint64_t dev, ino; /* zeros: descriptor 2 was not stderr then either */
} first;

/* On our 64-bit machines the kernel's struct stat is the same as libc's. */
static bool look_at(int fd, struct stat *st)
{
	return !syscall(SYS_fstat, fd, st);
}

static bool is_socket_of_this_host(int fd)
{
	int domain = 0;
	socklen_t size = sizeof domain;

	return !syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_UNIX;
}

/* Returns true for the controlling terminal.  TIOCGSID on another one, a serial line say, fails. */
static bool is_terminal_of_session(int fd)
{
	pid_t session = -1; /* memcheck does not know that TIOCGSID sets it */

	return !syscall(SYS_ioctl, fd, TIOCGSID, &session) && session == syscall(SYS_getsid, 0);
}

static bool is_terminal(int fd)
{
	char settings[256]; /* the kernel's struct termios is smaller */

	return !syscall(SYS_ioctl, fd, TCGETS, settings);
}

/* Returns true if a program can have been started with @st as its descriptor 2. */
static bool can_be_stderr(const struct stat *st)
{
	long flags = syscall(SYS_fcntl, STDERR_FILENO, F_GETFD);

	/* exec closes such a one and dup2() makes none: so the program opened it by accident */
	if (flags < 0 || (flags & FD_CLOEXEC))
		return false;
	switch (st->st_mode & S_IFMT) {
	case S_IFREG:
	case S_IFIFO:
		return true;
	case S_IFCHR:
		return major(st->st_rdev) == MEM_MAJOR || is_terminal(STDERR_FILENO);
	case S_IFSOCK:
		return is_socket_of_this_host(STDERR_FILENO);
	default: /* such as an eventfd, which would read our text as a number */
		return false;
	}
}

/* Returns true if the program has put another file there on purpose, false if maybe by accident. */
static bool was_put_there(const struct stat *st)
{
	struct stat low;

	if (is_terminal_of_session(STDERR_FILENO))
		return true;
	for (int fd = STDIN_FILENO; fd <= STDOUT_FILENO; fd++) {
		if (!look_at(fd, &low) || low.st_dev != st->st_dev || low.st_ino != st->st_ino)
			continue;
		/* other flags: opened separately, or the other end of the program's own pipe */
		if (syscall(SYS_fcntl, fd, F_GETFL) != syscall(SYS_fcntl, STDERR_FILENO, F_GETFL))
			return false;
		if (fd == STDOUT_FILENO)
			return true;
	}
	return S_ISFIFO(st->st_mode);
}

static bool is_there(void)
{
	struct stat st;

	if (!look_at(STDERR_FILENO, &st))
		return false;
	/* acquire: pairs with the release in cl_stderr_remember() */
	if (!atomic_load_explicit(&first.known, memory_order_acquire))
		return can_be_stderr(&st);
	if (st.st_dev == atomic_load_explicit(&first.dev, memory_order_relaxed) &&
	    st.st_ino == atomic_load_explicit(&first.ino, memory_order_relaxed))
		return true;
	return can_be_stderr(&st) && was_put_there(&st);
}

bool cl_stderr_is_there(void)
{
	int err = errno;
	bool there = is_there();

	errno = err;
	return there;
}

void cl_stderr_remember(void)
{
	struct stat st;
	int err = errno;
	bool is_it = look_at(STDERR_FILENO, &st) && can_be_stderr(&st);

	atomic_store_explicit(&first.dev, is_it ? st.st_dev : 0, memory_order_relaxed);
	atomic_store_explicit(&first.ino, is_it ? st.st_ino : 0, memory_order_relaxed);
	/* release: a thread that sees .known also sees .dev and .ino */
	atomic_store_explicit(&first.known, true, memory_order_release);
	errno = err;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes our log lines to stderr or to CULIMBO_LOG_FILE: culimbo[PID]: level: text
 *
 * The log runs inside somebody else's program.  So these rules always hold:
 *  - The log keeps no state but flags for messages that are written once.  So there is nothing to
 *    lock, and nothing goes stale over fork.  The log file is opened for each line: the program
 *    could close a descriptor that we kept and get its number for a file of its own, and we would
 *    write into that file.  Lines are rare.  The program can do the same with stderr: see stderr.h.
 *  - A line is one write(2), shorter than PIPE_BUF, so that lines of several
 *    processes don't mix.
 *  - The write raises no signal.  A write to a pipe without a reader raises SIGPIPE, and
 *    a write to a file at its size limit raises SIGXFSZ; both kill the program by default.
 *    A write to a terminal from the background raises SIGTTOU, which stops the program.
 *    These signals are blocked around the write, and one that the write raised
 *    is removed before they are unblocked.
 *  - The system calls are made directly: write(2) and open(2) of libc are
 *    cancellation points, and another preloaded library may interpose them.
 *  - A line that can't be written (no stderr, a full pipe, a full disk) is dropped.
 *    errno is kept.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/base/stderr.h"
#include "shim/base/utf8.h"

#define LINE_SIZE 1024
_Static_assert(LINE_SIZE <= PIPE_BUF, "a line must be one atomic write to a pipe");

#define CUT "..."

/* strerror() is no choice: it may allocate, and it answers in the program's language. */
static const char *error_text(int error)
{
#ifdef HAVE_STRERRORDESC_NP
	const char *text = strerrordesc_np(error);

	return text ? text : "unknown error";
#else
	switch (error) {
	case EACCES:
		return "Permission denied";
	case ENOENT:
		return "No such file or directory";
	case ENOSPC:
		return "No space left on device";
	default:
		return "it cannot be opened or written";
	}
#endif
}

/*
 * Makes @name, which a process may have chosen for itself, fit for a path: no slash, no control
 * characters, not empty.  Returns its length.
 */
static size_t name_for_path(char *name, ssize_t length)
{
	size_t n = length > 0 ? (size_t)length : 0;

	while (n && name[n - 1] == '\n')
		n--;
	for (size_t i = 0; i < n; i++)
		if (name[i] == '/' || (unsigned char)name[i] < ' ' || name[i] == 0x7f)
			name[i] = '_';
	if (!n)
		name[n++] = '_';
	name[n] = 0;
	return n;
}

/* noinline: few patterns have %e, and the other ones need not pay for this stack frame. */
__attribute__((noinline)) static size_t executable_name(char to[NAME_MAX + 1])
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	const char *slash;

	path[n > 0 ? n : 0] = 0;
	slash = strrchr(path, '/');
	return name_for_path(to, snprintf(to, NAME_MAX + 1, "%.*s", NAME_MAX, slash ? slash + 1 : path));
}

/* Writes what "%@letter" stands for to @to.  Returns its length, or 0 if the letter has no meaning. */
static size_t expand_letter(char to[NAME_MAX + 1], char letter)
{
	struct utsname host;
	ssize_t n;
	int fd;

	switch (letter) {
	case 'p':
		return (size_t)snprintf(to, NAME_MAX + 1, "%ld", (long)getpid());
	case 'n':
		fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/comm", O_RDONLY | O_CLOEXEC);
		n = fd < 0 ? 0 : syscall(SYS_read, fd, to, (size_t)NAME_MAX);
		if (fd >= 0)
			syscall(SYS_close, fd);
		return name_for_path(to, n);
	case 'e':
		return executable_name(to);
	case 'h':
		n = uname(&host) ? 0 : snprintf(to, NAME_MAX + 1, "%s", host.nodename);
		return name_for_path(to, n);
	case '%':
		to[0] = '%';
		return 1;
	default:
		return 0;
	}
}

/* noinline: a caller without a file to name must not pay for this stack frame. */
__attribute__((noinline)) int cl_path_expand(char *path, size_t size, const char *pattern)
{
	char part[NAME_MAX + 1];
	size_t n = 0;

	if (!size)
		return -ENAMETOOLONG;
	for (; *pattern; pattern++) {
		size_t length = *pattern == '%' ? expand_letter(part, pattern[1]) : 0;

		if (length) {
			pattern++;
		} else {
			part[0] = *pattern;
			length = 1;
		}
		if (length >= size - n) {
			path[n] = 0;
			return -ENAMETOOLONG;
		}
		memcpy(path + n, part, length);
		n += length;
	}
	path[n] = 0;
	return 0;
}

bool cl_path_has_pid(const char *pattern)
{
	for (; *pattern; pattern++)
		if (*pattern == '%' && pattern[1]) {
			if (pattern[1] == 'p')
				return true;
			pattern++;
		}
	return false;
}

long cl_write_quietly(int fd, const void *data, size_t length)
{
	static const struct timespec at_once;
	sigset_t ours, before, pending;
	bool was_pending_pipe, was_pending_size;
	long written;
	int error;

	sigemptyset(&ours);
	sigaddset(&ours, SIGPIPE);
	sigaddset(&ours, SIGXFSZ);
	sigaddset(&ours, SIGTTOU);
	if (pthread_sigmask(SIG_BLOCK, &ours, &before))
		return -EINVAL;
	/* a signal that is already pending is the program's own, and stays pending */
	sigemptyset(&pending);
	sigpending(&pending);
	was_pending_pipe = sigismember(&pending, SIGPIPE) == 1;
	was_pending_size = sigismember(&pending, SIGXFSZ) == 1;

	do
		written = syscall(SYS_write, fd, data, length);
	while (written < 0 && errno == EINTR);
	error = written < 0 ? errno : 0;

	sigemptyset(&ours);
	if (error == EPIPE && !was_pending_pipe)
		sigaddset(&ours, SIGPIPE);
	if (error == EFBIG && !was_pending_size)
		sigaddset(&ours, SIGXFSZ);
	/* a direct system call, because libc's sigtimedwait() is a cancellation point */
	if ((error == EPIPE && !was_pending_pipe) || (error == EFBIG && !was_pending_size))
		while (syscall(SYS_rt_sigtimedwait, &ours, NULL, &at_once, (size_t)(_NSIG / 8)) < 0 &&
		       errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error ? -error : written;
}

bool cl_is_writable(int fd, uint64_t wait)
{
	struct timespec left = { (time_t)(wait / 1000000000u), (long)(wait % 1000000000u) };
	struct pollfd poll = { .fd = fd, .events = POLLOUT };
	long n;

	/* after EINTR, @left is what remains: the kernel subtracts the time that has passed */
	do
		n = syscall(SYS_ppoll, &poll, 1, &left, NULL, (size_t)(_NSIG / 8));
	while (n < 0 && errno == EINTR);
	return n != 0;
}

/* Returns 0 or -errno. */
static int write_line(int fd, const char *line, size_t length)
{
	long written = cl_write_quietly(fd, line, length);

	return written < 0 ? (int)written : 0;
}

/* noinline: only a process with a log file or report file pays for this stack frame. */
__attribute__((noinline)) int cl_open_to_append(const char *pattern)
{
	char path[PATH_MAX];
	int fd, higher, error = cl_path_expand(path, sizeof(path), pattern);

	if (error)
		return error;
	/* O_NONBLOCK: a fifo that nobody reads must not stop the program */
	fd = (int)syscall(SYS_openat, AT_FDCWD, path,
			  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY |
				  O_NONBLOCK,
			  0600);
	if (fd < 0)
		return -errno;
	/* the program may have closed 0, 1 or 2: our file must not take such a number */
	if (fd <= STDERR_FILENO) {
		higher = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		error = higher < 0 ? -errno : 0;
		syscall(SYS_close, fd);
		if (error)
			return error;
		fd = higher;
	}
	return fd;
}

/* Returns 0 or -errno. */
static int write_to_file(const char *pattern, const char *line, size_t length)
{
	int fd = cl_open_to_append(pattern), error;

	if (fd < 0)
		return fd;
	error = write_line(fd, line, length);
	syscall(SYS_close, fd);
	return error;
}

/*
 * Replaces each control character and each invalid byte of @line by '?', from @start on.  Names of
 * files and processes in the text could else break the line or command the terminal.  Returns
 * the new length.
 */
static size_t make_harmless(char *line, size_t start)
{
	size_t to = start;
	uint32_t code;

	for (const char *from = line + start; *from;) {
		unsigned int n = cl_utf8((const unsigned char *)from, &code);

		if (!n || cl_is_control(code)) {
			line[to++] = '?';
			from += n ? n : 1;
			continue;
		}
		while (n--)
			line[to++] = *from++;
	}
	return to;
}

/* Writes one line with its newline to @line, cut if it is too long.  Returns its length. */
static __attribute__((format(printf, 3, 0))) size_t make_line(
	char line[LINE_SIZE], int level, const char *format, va_list args)
{
	static const char *const names[] = {
		[CL_LOG_ERROR] = "error", [CL_LOG_WARN] = "warning",
		[CL_LOG_INFO] = "info",	  [CL_LOG_DEBUG] = "debug",
	};
	int start, rest;
	size_t length;

	start = snprintf(line, LINE_SIZE, "culimbo[%ld]: %s: ", (long)getpid(), names[level]);
	rest = vsnprintf(line + start, LINE_SIZE - (size_t)start, format, args);
	if (rest < 0)
		rest = 0;
	length = (size_t)start + (size_t)rest;
	if (length > LINE_SIZE - 1) {
		length = LINE_SIZE - 1 - strlen(CUT);
		while ((line[length] & 0xc0) == 0x80) /* don't cut a UTF-8 character in half */
			length--;
		memcpy(line + length, CUT, strlen(CUT));
		length += strlen(CUT);
	}
	line[length] = 0;
	length = make_harmless(line, (size_t)start);
	line[length++] = '\n';
	return length;
}

static void line_to_stderr(const char *line, size_t length)
{
	if (cl_stderr_is_there() && cl_is_writable(STDERR_FILENO, 0))
		write_line(STDERR_FILENO, line, length);
}

static __attribute__((format(printf, 2, 3))) void to_stderr(int level, const char *format, ...)
{
	char line[LINE_SIZE];
	va_list args;
	size_t length;

	va_start(args, format);
	length = make_line(line, level, format, args);
	va_end(args);
	line_to_stderr(line, length);
}

void cl_log(int level, const char *format, ...)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const char *file = cl_options.log_file.text;
	char line[LINE_SIZE];
	va_list args;
	size_t length;
	int error, saved = errno;

	if (level < CL_LOG_ERROR || level > CL_LOG_DEBUG ||
	    (uint64_t)level > cl_options.log.number)
		return;
	va_start(args, format);
	length = make_line(line, level, format, args);
	va_end(args);
	if (file && *file) {
		error = write_to_file(file, line, length);
		if (!error)
			goto out;
		if (!atomic_flag_test_and_set_explicit(&said, memory_order_relaxed))
			to_stderr(CL_LOG_ERROR,
				  "cannot write to CULIMBO_LOG_FILE=\"%s\": %s; using stderr", file,
				  error_text(-error));
	}
	line_to_stderr(line, length);
out:
	errno = saved;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we say while the program runs: lines on stderr (or CULIMBO_LOG_FILE),
 * each one write(2), each "culimbo[PID]: level: text", never on stdout.
 *
 * May be called by any thread and in a signal handler's shadow: no malloc, no
 * stdio stream, no lock.  errno is kept.
 */
#ifndef CL_LOG_H
#define CL_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include "shim/base/options.h"

/*
 * @level: CL_LOG_ERROR ... CL_LOG_DEBUG.  The text has no newline at its end;
 * control characters in it, and bytes that are no letter, become '?', and it is cut at 1,024
 * bytes a line.
 */
void cl_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, once in the life of the process for each place in the code. */
#define cl_log_once(level, ...)                                           \
	do {                                                              \
		static atomic_flag said = ATOMIC_FLAG_INIT;               \
		if (!atomic_flag_test_and_set_explicit(&said,             \
						       memory_order_relaxed)) \
			cl_log(level, __VA_ARGS__);                       \
	} while (0)

/*
 * write(2) without its signals (SIGPIPE, SIGXFSZ, SIGTTOU): returns the number
 * of bytes written, or -errno.
 */
long cl_write_quietly(int fd, const void *data, size_t length);

/*
 * Whether a write of PIPE_BUF bytes to @fd would not wait, or comes to that within
 * @wait ns.  True where it cannot be told.
 */
bool cl_is_writable(int fd, uint64_t wait);

/*
 * Opens the file @pattern (see cl_path_expand) to append to, making it with mode
 * 0600; never waits, never follows a link, never gives 0, 1 or 2.  -errno.
 */
int cl_open_to_append(const char *pattern);

/*
 * Expands @pattern into @path of @size bytes.  Returns 0, or -ENAMETOOLONG.
 *   %p  process id             %n  the process's name (/proc/self/comm, as ps shows it)
 *   %h  the host's name        %e  base name of the executable file
 *   %%  a percent sign
 * (%q{VAR} was replaced when the options were read.)  In names '/' and control
 * bytes become '_'.  Another letter stays as it is, with its percent sign.
 */
int cl_path_expand(char *path, size_t size, const char *pattern);
/* Whether @pattern has a %p. */
bool cl_path_has_pid(const char *pattern);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: lines "culimbo[PID]: level: text" on stderr or in CULIMBO_LOG_FILE, never on stdout.
 * Each line is one write(2).
 *
 * Any thread may call these functions, also in a signal handler: they use no malloc, no
 * stdio stream and no lock.  cl_log() keeps errno.
 */
#ifndef CL_LOG_H
#define CL_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include "shim/base/options.h"

/*
 * Writes one line if CULIMBO_LOG asks for @level, which is CL_LOG_ERROR ... CL_LOG_DEBUG.
 * @format has no newline at its end.  Control characters in the text and bytes that are not UTF-8
 * become '?'.  A line is cut at 1,024 bytes.
 */
void cl_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, but each place in the code writes its line only once in the life of the process. */
#define cl_log_once(level, ...)                                           \
	do {                                                              \
		static atomic_flag said = ATOMIC_FLAG_INIT;               \
		if (!atomic_flag_test_and_set_explicit(&said,             \
						       memory_order_relaxed)) \
			cl_log(level, __VA_ARGS__);                       \
	} while (0)

/*
 * write(2) that raises no signal (SIGPIPE, SIGXFSZ, SIGTTOU).  Returns the number
 * of bytes written, or -errno.  It may change errno.
 */
long cl_write_quietly(int fd, const void *data, size_t length);

/*
 * Waits up to @wait ns until a write of PIPE_BUF bytes to @fd would not block.  Returns true if it
 * would not block, or if poll fails; false if the time ran out.
 */
bool cl_is_writable(int fd, uint64_t wait);

/*
 * Opens the file that @pattern names (see cl_path_expand()) for appending.  Creates it with mode
 * 0600.  Never blocks, and follows no symbolic link.  Returns a descriptor above 2, or -errno.
 */
int cl_open_to_append(const char *pattern);

/*
 * Expands @pattern into @path of @size bytes.  Returns 0, or -ENAMETOOLONG.
 *   %p  process id             %n  the process's name (/proc/self/comm, as ps shows it)
 *   %h  the host's name        %e  base name of the executable file
 *   %%  a percent sign
 * %q{VAR} needs no work here: cl_options_read() has replaced it.  In names '/' and control
 * bytes become '_'.  A percent sign before any other letter stays in the path, with the letter.
 */
int cl_path_expand(char *path, size_t size, const char *pattern);
/* Returns true if @pattern has a %p. */
bool cl_path_has_pid(const char *pattern);

#endif

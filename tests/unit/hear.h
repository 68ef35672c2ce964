/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the log and of stderr: children that read their own output.
 *
 * A test that may kill or stop the process runs in a child.  The child ends with 0 when all
 * checks hold, or with the line of the failed check.  child.h has the same for tests that need
 * no stderr of their own.
 */
#ifndef CL_TEST_HEAR_H
#define CL_TEST_HEAR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/base/log.h"

static char folder[] = "/tmp/culimbo-test-log-XXXXXX";

/* In the child: */
#define CHECK(what)                              \
	do {                                     \
		if (!(what))                     \
			_exit(__LINE__ % 255 + 1); \
	} while (0)

static inline void in_a_child(void (*body)(void))
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child) {
		alarm(20);
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status))
		fail_msg("killed by signal %d", WTERMSIG(status));
	if (WEXITSTATUS(status))
		fail_msg("a check near line %d (modulo 255) failed", WEXITSTATUS(status) - 1);
}

static inline void set_log_file(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s%s%s", *name ? folder : "", *name ? "/" : "", name);
	cl_options.log_file.text = path;
}

/* Makes stderr a socket where each write(2) is a message; returns the other end. */
static inline int hear_stderr(void)
{
	int ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends));
	CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	close(ends[1]);
	return ends[0];
}

static inline size_t hear(int fd, char *line, size_t size)
{
	ssize_t n = recv(fd, line, size - 1, 0);

	line[n > 0 ? n : 0] = 0;
	return n > 0 ? (size_t)n : 0;
}

static inline int make_folder(void **state)
{
	return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
	return rmdir(folder);
}

#endif

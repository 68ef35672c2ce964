/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log on stderr: it is written to stderr and never to a file that the program has in its place, and it
 * stops or kills no program.
 */
#include "tests/unit/hear.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/base/stderr.h"

static void closed_child(void)
{
	close(STDERR_FILENO);
	errno = ERANGE;
	cl_log(CL_LOG_ERROR, "nobody hears this");
	CHECK(errno == ERANGE);
}

static void without_stderr_nothing_happens(void **state)
{
	in_a_child(closed_child);
}

static int open_unlinked(int flags)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/own", folder);
	fd = open(path, O_CREAT | O_EXCL | O_RDWR | flags, 0600);
	CHECK(fd >= 0 && !unlink(path));
	return fd;
}

/* A file of the program at number 2, as a program that has closed stderr gets. */
static void own_file_at_2(int flags)
{
	close(STDERR_FILENO);
	CHECK(open_unlinked(flags) == STDERR_FILENO);
	CHECK(write(STDERR_FILENO, "data", 4) == 4);
}

static void nothing_in_own_file(void)
{
	struct stat st;

	errno = ERANGE;
	CHECK(!cl_stderr_is_there());
	cl_log(CL_LOG_ERROR, "this is not for the program's data");
	CHECK(errno == ERANGE);
	CHECK(!fstat(STDERR_FILENO, &st) && st.st_size == 4);
}

static void own_file_child(void)
{
	char line[4096];
	int fd = hear_stderr();

	cl_stderr_remember();
	cl_log(CL_LOG_ERROR, "one");
	CHECK(hear(fd, line, sizeof(line)));
	own_file_at_2(0);
	nothing_in_own_file();
	/* nor what is wrong with the log file */
	set_log_file("no/such/folder");
	nothing_in_own_file();
}

/* A descriptor from before the process shared: exec would have closed it. */
static void early_file_child(void)
{
	own_file_at_2(O_CLOEXEC);
	nothing_in_own_file();
	cl_stderr_remember();
	nothing_in_own_file();
	CHECK(!fcntl(STDERR_FILENO, F_SETFD, 0));
	nothing_in_own_file();
}

/* A socket, an eventfd, and a pipe whose other end the program has. */
static void others_child(void)
{
	int fd = hear_stderr(), ends[2];
	char line[4096];
	uint64_t number;

	cl_stderr_remember();
	close(STDERR_FILENO);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) && ends[0] == STDERR_FILENO);
	cl_log(CL_LOG_ERROR, "one");
	CHECK(recv(ends[1], line, sizeof(line), 0) < 0 && errno == EAGAIN);
	close(STDERR_FILENO);
	CHECK(eventfd(0, EFD_NONBLOCK) == STDERR_FILENO);
	cl_log(CL_LOG_ERROR, "one");
	CHECK(read(STDERR_FILENO, &number, sizeof(number)) < 0 && errno == EAGAIN);
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	CHECK(!pipe2(ends, O_NONBLOCK) && ends[1] == STDERR_FILENO);
	cl_log(CL_LOG_ERROR, "one");
	CHECK(read(ends[0], line, sizeof(line)) < 0 && errno == EAGAIN);
	close(fd);
}

/* A server that was started with its connection as 0, 1 and 2. */
static void connection_child(void)
{
	int listens = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), at;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(address);
	char line[4096];

	CHECK(!bind(listens, (struct sockaddr *)&address, size) && !listen(listens, 1));
	CHECK(!getsockname(listens, (struct sockaddr *)&address, &size));
	CHECK(!connect(fd, (struct sockaddr *)&address, size) || errno == EINPROGRESS);
	at = accept(listens, NULL, NULL);
	for (int to = 0; to <= 2; to++)
		CHECK(dup2(at, to) == to);
	cl_log(CL_LOG_ERROR, "one");
	cl_stderr_remember();
	cl_log(CL_LOG_ERROR, "one");
	CHECK(recv(fd, line, sizeof(line), 0) < 0 && errno == EAGAIN);
}

static void what_is_the_programs_own_gets_no_line(void **state)
{
	in_a_child(own_file_child);
	in_a_child(early_file_child);
	in_a_child(others_child);
	in_a_child(connection_child);
}

/* What the program puts in its place is its stderr from then on. */
static void another_child(void)
{
	char line[4096];
	struct stat st;
	int ends[2], fd = hear_stderr();

	cl_stderr_remember();
	CHECK(!pipe2(ends, O_NONBLOCK));
	CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	cl_log(CL_LOG_ERROR, "one");
	CHECK(read(ends[0], line, sizeof(line)) > 0);
	/* a log of both */
	fd = open_unlinked(O_APPEND);
	CHECK(dup2(fd, STDOUT_FILENO) == STDOUT_FILENO && dup2(fd, STDERR_FILENO) == STDERR_FILENO);
	close(fd);
	cl_log(CL_LOG_ERROR, "one");
	CHECK(!fstat(STDERR_FILENO, &st) && st.st_size > 0);
}

static void files_child(void)
{
	struct stat st;
	int fd = open_unlinked(0);

	CHECK(dup2(fd, STDERR_FILENO) == STDERR_FILENO);
	cl_stderr_remember();
	cl_log(CL_LOG_ERROR, "one");
	CHECK(!fstat(STDERR_FILENO, &st) && st.st_size > 0);
}

static void what_is_put_in_stderrs_place_is_stderr(void **state)
{
	in_a_child(another_child);
	in_a_child(files_child);
}

/* The terminal of a session, whatever number it had before; another terminal is a device. */
static void terminal_child(void)
{
	int fd = hear_stderr(), own, other;
	char line[256];

	cl_stderr_remember();
	CHECK(setsid() > 0);
	own = posix_openpt(O_RDWR | O_NOCTTY);
	other = posix_openpt(O_RDWR | O_NOCTTY);
	CHECK(own >= 0 && other >= 0 && !grantpt(own) && !unlockpt(own) && !grantpt(other) && !unlockpt(other));
	close(STDERR_FILENO);
	CHECK(open(ptsname(other), O_RDWR | O_NOCTTY) == STDERR_FILENO);
	CHECK(!cl_stderr_is_there());
	close(STDERR_FILENO);
	CHECK(open(ptsname(own), O_RDWR) == STDERR_FILENO); /* a session's first one is its own */
	CHECK(cl_stderr_is_there());
	cl_log(CL_LOG_ERROR, "one");
	CHECK(read(own, line, sizeof(line)) > 0);
	close(fd);
}

static void a_terminal_is_stderr_if_it_is_ours(void **state)
{
	in_a_child(terminal_child);
}

static void sigpipe_child(void)
{
	sigset_t pending, ours;
	int ends[2];

	signal(SIGPIPE, SIG_DFL);
	CHECK(!pipe(ends));
	close(ends[0]);
	CHECK(dup2(ends[1], STDERR_FILENO) >= 0);
	errno = ERANGE;
	cl_log(CL_LOG_ERROR, "nobody reads this");
	CHECK(errno == ERANGE);
	sigpending(&pending);
	CHECK(!sigismember(&pending, SIGPIPE));
	sigprocmask(SIG_BLOCK, NULL, &ours);
	CHECK(!sigismember(&ours, SIGPIPE)); /* and the mask is as it was */

	/* a signal that was pending before is the program's, and stays pending */
	sigemptyset(&ours);
	sigaddset(&ours, SIGPIPE);
	sigprocmask(SIG_BLOCK, &ours, NULL);
	raise(SIGPIPE);
	cl_log(CL_LOG_ERROR, "nobody reads this");
	sigpending(&pending);
	CHECK(sigismember(&pending, SIGPIPE));
}

static void a_broken_pipe_kills_nobody(void **state)
{
	in_a_child(sigpipe_child);
}

static void full_pipe_child(void)
{
	char filler[4096] = { 0 };
	int ends[2];

	CHECK(!pipe2(ends, O_NONBLOCK));
	while (write(ends[1], filler, sizeof(filler)) > 0)
		;
	CHECK(dup2(ends[1], STDERR_FILENO) >= 0);
	errno = 0;
	cl_log(CL_LOG_ERROR, "there is no room for this");
	CHECK(!errno);
}

static void a_full_pipe_that_does_not_block_does_not_block(void **state)
{
	in_a_child(full_pipe_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_stderr_nothing_happens),
		cmocka_unit_test(what_is_the_programs_own_gets_no_line),
		cmocka_unit_test(what_is_put_in_stderrs_place_is_stderr),
		cmocka_unit_test(a_terminal_is_stderr_if_it_is_ours),
		cmocka_unit_test(a_broken_pipe_kills_nobody),
		cmocka_unit_test(a_full_pipe_that_does_not_block_does_not_block),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

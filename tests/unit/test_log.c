/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: lines that help, and a program that is never harmed by them.
 *
 * What may kill or stop a process is done in a child, which leaves with 0 when
 * it finds all well, or the line of the check that failed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/base/stderr.h"

static char folder[] = "/tmp/culimbo-test-log-XXXXXX";

/* In the child: */
#define CHECK(what)                              \
	do {                                     \
		if (!(what))                     \
			_exit(__LINE__ % 255 + 1); \
	} while (0)

static void in_a_child(void (*body)(void))
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

static void set_log_file(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s%s%s", *name ? folder : "", *name ? "/" : "", name);
	cl_options.log_file.text = path;
}

/* Makes stderr a socket where each write(2) is a message; returns the other end. */
static int hear_stderr(void)
{
	int ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends));
	CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	close(ends[1]);
	return ends[0];
}

static size_t hear(int fd, char *line, size_t size)
{
	ssize_t n = recv(fd, line, size - 1, 0);

	line[n > 0 ? n : 0] = 0;
	return n > 0 ? (size_t)n : 0;
}

static void one_write_child(void)
{
	char line[4096], expected[128];
	int fd = hear_stderr();

	cl_log(CL_LOG_WARN, "block %d of %s", 7, "P");
	snprintf(expected, sizeof(expected), "culimbo[%ld]: warning: block 7 of P\n", (long)getpid());
	CHECK(hear(fd, line, sizeof(line)));
	CHECK(!strcmp(line, expected));
	CHECK(!hear(fd, line, sizeof(line)));
}

static void a_line_is_one_write(void **state)
{
	in_a_child(one_write_child);
}

static void levels_child(void)
{
	char line[4096];
	int fd = hear_stderr();

	cl_log(CL_LOG_INFO, "not this");
	CHECK(!hear(fd, line, sizeof(line)));
	cl_options.log.number = CL_LOG_DEBUG;
	cl_log(CL_LOG_DEBUG, "this");
	CHECK(hear(fd, line, sizeof(line)));
	CHECK(strstr(line, ": debug: this\n"));
	cl_options.log.number = CL_LOG_OFF;
	cl_log(CL_LOG_ERROR, "not this");
	cl_log(CL_LOG_OFF, "never this");
	cl_log(99, "nor this");
	CHECK(!hear(fd, line, sizeof(line)));
}

static void levels_are_kept(void **state)
{
	in_a_child(levels_child);
}

static void cut_child(void)
{
	static char text[5000];
	char line[4096];
	int fd = hear_stderr();
	size_t length, start;

	memset(text, 'x', sizeof(text) - 1);
	cl_log(CL_LOG_WARN, "%s", text);
	length = hear(fd, line, sizeof(line));
	CHECK(length == 1024);
	CHECK(!strcmp(line + length - 5, "x...\n"));
	CHECK(!hear(fd, line, sizeof(line)));

	/* exactly full: not cut */
	snprintf(line, sizeof(line), "culimbo[%ld]: warning: ", (long)getpid());
	start = strlen(line);
	text[1024 - start - 1] = 0;
	cl_log(CL_LOG_WARN, "%s", text);
	length = hear(fd, line, sizeof(line));
	CHECK(length == 1024);
	CHECK(!strcmp(line + length - 3, "xx\n"));

	/* a letter of UTF-8 is not cut in two, wherever the cut falls */
	for (int shift = 0; shift < 3; shift++) {
		memset(text, 'x', (size_t)shift);
		for (size_t i = (size_t)shift; i + 3 < 3000; i += 3)
			memcpy(text + i, "\xe2\x82\xac", 4);
		cl_log(CL_LOG_WARN, "%s", text);
		length = hear(fd, line, sizeof(line));
		CHECK(length > 1000 && !strcmp(line + length - 7, "\xe2\x82\xac...\n"));
	}
}

static void a_long_line_is_cut_cleanly(void **state)
{
	in_a_child(cut_child);
}

static void printable_child(void)
{
	char line[4096];
	int fd = hear_stderr();

	cl_log(CL_LOG_WARN, "a\nb\033[2Jc\x7f\xc3\xa9");
	hear(fd, line, sizeof(line));
	CHECK(strstr(line, "warning: a?b?[2Jc?\xc3\xa9\n"));
	/* the same commands as letters of UTF-8 (CSI is U+009B), as a byte, and what turns the line around */
	cl_log(CL_LOG_WARN, "%s", "a\xc2\x9b" "31mb\xc2\x80" "c\xc2\x9f" "d\x9b" "e\xe2\x80\xae"
				  "f\xe2\x80\xa8" "g\xc2\xa0" "h\xc2");
	hear(fd, line, sizeof(line));
	CHECK(strstr(line, "warning: a?31mb?c?d?e?f?g\xc2\xa0" "h?\n"));
}

static void hostile_names_make_no_lines_and_no_terminal_commands(void **state)
{
	in_a_child(printable_child);
}

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

/* ------------------------------------------- whose descriptor 2 is not stderr */
static int open_unlinked(int flags)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/own", folder);
	fd = open(path, O_CREAT | O_EXCL | O_RDWR | flags, 0600);
	CHECK(fd >= 0 && !unlink(path));
	return fd;
}

/* A file of the program's at number 2, as who has closed stderr gets it. */
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

/* One that was there before the process shared: exec would have closed it. */
static void early_file_child(void)
{
	own_file_at_2(O_CLOEXEC);
	nothing_in_own_file();
	cl_stderr_remember();
	nothing_in_own_file();
	CHECK(!fcntl(STDERR_FILENO, F_SETFD, 0));
	nothing_in_own_file();
}

/* A socket, an eventfd, and a pipe whose other end is the program's own. */
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

/* One that the program puts in its place is its stderr from then on. */
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

	/* one that waited before is the program's, and goes on waiting */
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

static void file_child(void)
{
	char path[PATH_MAX], line[4096], heard[4096];
	int fd, err = hear_stderr(), lowest = dup(0), after;
	struct stat st;

	close(lowest);
	set_log_file("log.%p.%%");
	umask(0);
	errno = ERANGE;
	cl_log(CL_LOG_WARN, "one");
	cl_log(CL_LOG_WARN, "two");
	CHECK(errno == ERANGE);
	CHECK(!hear(err, heard, sizeof(heard)));
	snprintf(path, sizeof(path), "%s/log.%ld.%%", folder, (long)getpid());
	CHECK(!stat(path, &st));
	CHECK((st.st_mode & 07777) == 0600);
	fd = open(path, O_RDONLY);
	memset(line, 0, sizeof(line));
	CHECK(read(fd, line, sizeof(line) - 1) > 0);
	CHECK(strstr(line, ": warning: one\n"));
	CHECK(strstr(line, ": warning: two\n"));
	close(fd);
	unlink(path);
	after = dup(0); /* no descriptor is kept that a program could close or reuse */
	CHECK(after == lowest);
}

static void the_log_file_is_private_appended_and_not_held(void **state)
{
	in_a_child(file_child);
}

static void no_descriptors_child(void)
{
	struct rlimit limit, three;
	char path[PATH_MAX], line[64];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/low", folder);
	set_log_file("low");
	close(0);
	close(1);
	close(2);
	/* where there is no other number it is left, rather than used as stdin */
	getrlimit(RLIMIT_NOFILE, &limit);
	three = limit;
	three.rlim_cur = 3;
	setrlimit(RLIMIT_NOFILE, &three);
	cl_log(CL_LOG_WARN, "one");
	CHECK(!stat(path, &st) && !st.st_size);
	setrlimit(RLIMIT_NOFILE, &limit);
	cl_log(CL_LOG_WARN, "one");
	CHECK(fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0);
	fd = open(path, O_RDONLY);
	CHECK(read(fd, line, sizeof(line)) > 0);
	unlink(path);
}

static void the_log_file_never_becomes_stdout(void **state)
{
	in_a_child(no_descriptors_child);
}

static void fallback(const char *name)
{
	char line[4096];
	int fd = hear_stderr();

	set_log_file(name);
	cl_log(CL_LOG_WARN, "one");
	CHECK(hear(fd, line, sizeof(line)));
	CHECK(strstr(line, ": error: cannot write to CULIMBO_LOG_FILE=\""));
	CHECK(strstr(line, "; using stderr\n"));
	CHECK(hear(fd, line, sizeof(line)));
	CHECK(strstr(line, ": warning: one\n"));
	/* said once */
	cl_log(CL_LOG_WARN, "two");
	CHECK(hear(fd, line, sizeof(line)));
	CHECK(strstr(line, ": warning: two\n"));
	CHECK(!hear(fd, line, sizeof(line)));
}

static void missing_folder_child(void)
{
	fallback("no/such/folder");
}

static void link_child(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/link", folder);
	CHECK(!symlink("target", path));
	fallback("link");
	unlink(path);
	snprintf(path, sizeof(path), "%s/target", folder);
	CHECK(access(path, F_OK)); /* nothing was made through the link */
}

static void fifo_child(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/fifo", folder);
	CHECK(!mkfifo(path, 0600));
	fallback("fifo");
	unlink(path);
}

static void file_limit_child(void)
{
	struct rlimit none = { 0, RLIM_INFINITY };
	char path[PATH_MAX];
	sigset_t pending;

	signal(SIGXFSZ, SIG_DFL);
	setrlimit(RLIMIT_FSIZE, &none);
	fallback("limit");
	sigpending(&pending);
	CHECK(!sigismember(&pending, SIGXFSZ));
	snprintf(path, sizeof(path), "%s/limit", folder);
	unlink(path);
}

static void a_log_file_that_fails_is_told_once_and_stderr_used(void **state)
{
	in_a_child(missing_folder_child);
	in_a_child(link_child);
	in_a_child(fifo_child);
	in_a_child(file_limit_child);
}

static void *cancelled(void *reached)
{
	pthread_cancel(pthread_self());
	cl_log(CL_LOG_ERROR, "one");
	*(int *)reached = 1;
	pthread_testcancel();
	return NULL;
}

static void cancel_child(void)
{
	pthread_t thread;
	int reached = 0;

	close(hear_stderr());
	CHECK(!pthread_create(&thread, NULL, cancelled, &reached));
	CHECK(!pthread_join(thread, NULL));
	CHECK(reached);
}

static void a_thread_is_not_cancelled_in_here(void **state)
{
	in_a_child(cancel_child);
}

static void once_child(void)
{
	char line[4096];
	int fd = hear_stderr();

	for (int i = 0; i < 3; i++)
		cl_log_once(CL_LOG_WARN, "round %d", i);
	CHECK(hear(fd, line, sizeof(line)));
	CHECK(strstr(line, "round 0\n"));
	CHECK(!hear(fd, line, sizeof(line)));
}

static void once_is_once(void **state)
{
	in_a_child(once_child);
}

static void paths_expand_and_never_overflow(void **state)
{
	char path[32], expected[32];

	assert_int_equal(cl_path_expand(path, sizeof(path), "/a/%p-%%-%x"), 0);
	snprintf(expected, sizeof(expected), "/a/%ld-%%-%%x", (long)getpid());
	assert_string_equal(path, expected);
	assert_int_equal(cl_path_expand(path, sizeof(path), "ends in %"), 0);
	assert_string_equal(path, "ends in %");
	assert_int_equal(cl_path_expand(path, 4, "abc"), 0);
	assert_int_equal(cl_path_expand(path, 4, "abcd"), -ENAMETOOLONG);
	assert_int_equal(cl_path_expand(path, 0, ""), -ENAMETOOLONG);
	path[1] = 'z';
	assert_int_equal(cl_path_expand(path, 1, "%p"), -ENAMETOOLONG);
	assert_int_equal(path[1], 'z');
}

static int make_folder(void **state)
{
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_is_one_write),
		cmocka_unit_test(levels_are_kept),
		cmocka_unit_test(a_long_line_is_cut_cleanly),
		cmocka_unit_test(hostile_names_make_no_lines_and_no_terminal_commands),
		cmocka_unit_test(without_stderr_nothing_happens),
		cmocka_unit_test(what_is_the_programs_own_gets_no_line),
		cmocka_unit_test(what_is_put_in_stderrs_place_is_stderr),
		cmocka_unit_test(a_terminal_is_stderr_if_it_is_ours),
		cmocka_unit_test(a_broken_pipe_kills_nobody),
		cmocka_unit_test(a_full_pipe_that_does_not_block_does_not_block),
		cmocka_unit_test(the_log_file_is_private_appended_and_not_held),
		cmocka_unit_test(the_log_file_never_becomes_stdout),
		cmocka_unit_test(a_log_file_that_fails_is_told_once_and_stderr_used),
		cmocka_unit_test(a_thread_is_not_cancelled_in_here),
		cmocka_unit_test(once_is_once),
		cmocka_unit_test(paths_expand_and_never_overflow),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/log.h"

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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: lines that help, and a program that is never harmed by them: what a line is,
 * which are written, and the log file.
 */
#include "tests/unit/hear.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/log.h"

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

	/* a UTF-8 character is not cut in two, wherever the cut falls */
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
	/* the same control codes as UTF-8 characters (CSI is U+009B) and as bytes, and characters that reverse the line */
	cl_log(CL_LOG_WARN, "%s", "a\xc2\x9b" "31mb\xc2\x80" "c\xc2\x9f" "d\x9b" "e\xe2\x80\xae"
				  "f\xe2\x80\xa8" "g\xc2\xa0" "h\xc2");
	hear(fd, line, sizeof(line));
	CHECK(strstr(line, "warning: a?31mb?c?d?e?f?g\xc2\xa0" "h?\n"));
}

static void hostile_names_make_no_lines_and_no_terminal_commands(void **state)
{
	in_a_child(printable_child);
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
	after = dup(0); /* the log keeps no descriptor that a program could close or reuse */
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
	/* where no other number is free the log file is not used, rather than used as stdin */
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
	/* reported once */
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
	CHECK(access(path, F_OK)); /* no file was created through the link */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_is_one_write),
		cmocka_unit_test(levels_are_kept),
		cmocka_unit_test(a_long_line_is_cut_cleanly),
		cmocka_unit_test(hostile_names_make_no_lines_and_no_terminal_commands),
		cmocka_unit_test(the_log_file_is_private_appended_and_not_held),
		cmocka_unit_test(the_log_file_never_becomes_stdout),
		cmocka_unit_test(a_log_file_that_fails_is_told_once_and_stderr_used),
		cmocka_unit_test(a_thread_is_not_cancelled_in_here),
		cmocka_unit_test(once_is_once),
		cmocka_unit_test(paths_expand_and_never_overflow),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

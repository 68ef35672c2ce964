/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For unit tests that need processes: test bodies that run in a child, checks for
 * such bodies, and waiting for a condition instead of sleeping.
 *
 * A child ends only by _exit(): with 0, with CHILD_SKIPS, or with 1 after printing
 * to stderr which check failed.  It has an alarm, so no test hangs.
 */
#ifndef CL_TEST_CHILD_H
#define CL_TEST_CHILD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* 40 s were not enough under AddressSanitizer on a busy machine */
enum { CHILD_SECONDS = 150, CHILD_SKIPS = 77 };

/*
 * True when thread @task of this process sleeps in a futex.  Reads the number of its system call, or
 * (under qemu-user, where that is the host's) the kernel function in which it waits.
 */
__attribute__((unused)) static bool sleeps_in_a_futex(pid_t task)
{
	static const char *const files[] = { "syscall", "wchan" };

	for (int i = 0; task && i < 2; i++) {
		char path[64], text[64] = "";
		int fd;

		snprintf(path, sizeof path, "/proc/self/task/%d/%s", (int)task, files[i]);
		fd = open(path, O_RDONLY);
		if (fd < 0)
			continue;
		if (read(fd, text, sizeof text - 1) < 0)
			text[0] = 0;
		close(fd);
		if (i ? !strncmp(text, "futex", 5) :
			text[0] >= '0' && text[0] <= '9' && atoi(text) == SYS_futex)
			return true;
	}
	return false;
}

/* Works in a child and in any of its threads, where CMocka's own checks do not. */
#define CHECK(what)                                                                    \
	do {                                                                           \
		if (!(what)) {                                                         \
			dprintf(2, "%s:%d: failed: %s\n", __FILE__, __LINE__, #what);  \
			_exit(1);                                                      \
		}                                                                      \
	} while (0)
#define CHECK_EQUAL(a, b)                                                              \
	do {                                                                           \
		long long a_ = (long long)(a), b_ = (long long)(b);                    \
		if (a_ != b_) {                                                        \
			dprintf(2, "%s:%d: failed: %s is %lld, %s is %lld\n", __FILE__, \
				__LINE__, #a, a_, #b, b_);                             \
			_exit(1);                                                      \
		}                                                                      \
	} while (0)
#define CHILD_SKIP(...)                                                                \
	do {                                                                           \
		dprintf(2, "skipped: " __VA_ARGS__);                                   \
		dprintf(2, "\n");                                                      \
		_exit(CHILD_SKIPS);                                                    \
	} while (0)

static inline uint64_t test_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void test_moment(void)
{
	struct timespec moment = { 0, 300000 };

	nanosleep(&moment, NULL);
}

/* True when @condition becomes true within @ms; checks every 0.3 ms. */
#define COMES_TRUE(condition, ms)                                                      \
	__extension__({                                                                \
		uint64_t end_ = test_now() + (uint64_t)(ms) * 1000000u;                \
		bool true_;                                                            \
		while (!(true_ = (condition)) && test_now() < end_)                    \
			test_moment();                                                 \
		true_;                                                                 \
	})

/* True in a child: CMocka's jumps would continue with the parent's tests there. */
static bool child_am_one;

static inline void child_judge(pid_t child)
{
	int status;

	if (child_am_one) {
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status));
		if (WEXITSTATUS(status))
			_exit(WEXITSTATUS(status)); /* the child has printed why */
		return;
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status))
		fail_msg("killed by signal %d", WTERMSIG(status));
	if (WEXITSTATUS(status) == CHILD_SKIPS)
		skip();
	if (WEXITSTATUS(status))
		fail_msg("a check failed in the child (see its stderr)");
}

/* At the start of a child. */
static inline void child_begins(void)
{
	static const int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS };

	/* CMocka's handlers would continue with the parent's tests */
	for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
		signal(fatal[i], SIG_DFL);
	alarm(CHILD_SECONDS);
	child_am_one = true;
}

static inline void in_a_child(void (*body)(void))
{
	pid_t child = fork();

	if (!child) {
		child_begins();
		body();
		_exit(0);
	}
	child_judge(child);
}

/* A test whose body, which follows, runs in a child. */
#define IN_A_CHILD(name)                                                               \
	static void name##_(void);                                                     \
	static void name(void **state)                                                 \
	{                                                                              \
		in_a_child(name##_);                                                   \
	}                                                                              \
	static void name##_(void)

/*
 * For such a body: starts another process, at the other end of *line.  The line carries messages; a read of 0
 * bytes means that the other side has closed it.  Returns as fork() does.
 */
static inline pid_t fork_with_line(int *line)
{
	int ends[2];
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	child = fork();
	CHECK(child >= 0);
	if (!child)
		alarm(CHILD_SECONDS);
	close(ends[child ? 1 : 0]);
	*line = ends[child ? 0 : 1];
	return child;
}

static inline unsigned int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned int n = 0;

	if (!dir)
		return 0;
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

/* Makes a folder of a new name on a tmpfs, or else in /tmp.  Its path is written to @path.  Returns -1 if there is none. */
static inline int make_folder_at(char path[64])
{
	snprintf(path, 64, "/dev/shm/culimbo-unit-XXXXXX");
	if (mkdtemp(path))
		return 0;
	snprintf(path, 64, "/tmp/culimbo-unit-XXXXXX");
	return mkdtemp(path) ? 0 : -1;
}

/* Removes @path and the files in it, but no deeper folders. */
static inline int remove_folder_at(const char *path)
{
	DIR *dir = opendir(path);

	if (!dir)
		return -1;
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			if (unlinkat(dirfd(dir), entry->d_name, 0))
				unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
	closedir(dir);
	return rmdir(path);
}
/* A test with a folder of its own, by the make_folder() and remove_folder() of its program. */
#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

#endif

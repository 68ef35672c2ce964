/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of whether CUDA contexts outlive their process: processes that have loaded the driver, and fork.
 * The kernel must decide there (forks, exec, kills), so these are real processes.
 */
#ifndef TEST_OUTLIVE_H
#define TEST_OUTLIVE_H

#include "tests/unit/child.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "shim/base/options.h"
#include "shim/self/outlive.h"
#include "shim/self/self.h"

enum { SOON = 5000, SLOW_BYTES = 128 << 20 };
static char folder[64], fifo[80], other_folder[80];

/* What a process tells of itself and of its child. */
struct told {
	struct cl_identity who;
	pid_t child;
};

enum child { PAUSES, EXECS, CLOSES, FORKS_TOO, NO_HANDLERS, PARENT_IS_SLOW, IS_SLOW, OTHER_PATH };

static inline __attribute__((noreturn)) void pause_for_ever(void)
{
	for (;;)
		pause();
}

/* Opens a file that the kernel is slow to close, as the driver's are: it gives much memory back.  Its number is above @line. */
static inline void open_slow_file(int line)
{
	int low = memfd_create("slow", MFD_CLOEXEC), fd = fcntl(low, F_DUPFD_CLOEXEC, line + 1);
	char *at;

	CHECK(fd >= 0 && !ftruncate(fd, SLOW_BYTES));
	close(low);
	at = mmap(NULL, SLOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	memset(at, 1, SLOW_BYTES);
	munmap(at, SLOW_BYTES);
}

static inline void be_the_child(enum child how)
{
	int line;

	prctl(PR_SET_PDEATHSIG, 0);
	alarm(CHILD_SECONDS);
	if (how == EXECS)
		execlp("sleep", "sleep", "1000", (char *)NULL);
	if (how == CLOSES)
		syscall(SYS_close_range, 3, ~0u, 0);
	if (how == FORKS_TOO && fork())
		_exit(0); /* the grandchild stays; its group is killed at the end */
	if (how == IS_SLOW) {
		line = open(fifo, O_WRONLY);
		open_slow_file(line);
		CHECK_EQUAL(write(line, "", 1), 1);
	}
	pause_for_ever();
}

static inline void fork_and_wait(void)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	CHECK_EQUAL(waitpid(child, NULL, 0), child);
}

/* A process that has loaded the driver, and forks. */
static inline void fork_one(int line, enum child how)
{
	struct told told = { 0 };

	setpgid(0, 0);
	cl_outlive_watch_forks();
	cl_self_identify(&told.who);
	if (how == OTHER_PATH) {
		fork_and_wait();
		snprintf(other_folder, sizeof other_folder, "%s/other", folder);
		cl_options.dir.text = other_folder;
	}
	told.child = how == NO_HANDLERS ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, NULL, NULL, 0) : fork();
	if (!told.child)
		be_the_child(how);
	if (how == FORKS_TOO)
		waitpid(told.child, NULL, 0);
	if (how == PARENT_IS_SLOW)
		open_slow_file(line);
	CHECK_EQUAL(write(line, &told, sizeof told), sizeof told);
	pause_for_ever();
}

static inline struct told start_with(int *line, pid_t *pid, enum child how)
{
	struct told told;

	cl_options.dir.text = folder;
	*pid = fork_with_line(line);
	if (!*pid)
		fork_one(*line, how);
	CHECK_EQUAL(read(*line, &told, sizeof told), sizeof told);
	return told;
}
static inline struct told start(pid_t *pid, enum child how)
{
	return start_with(&(int){ 0 }, pid, how);
}

/* Ends the process alone, not its child. */
static inline void end(pid_t pid)
{
	CHECK(!kill(pid, SIGKILL));
	CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
}

static inline struct told start_and_end(pid_t *pid, enum child how)
{
	struct told told = start(pid, how);

	end(*pid);
	return told;
}

/*
 * Asks in another process: a lock of its own open file does not count.  That process has run no fork handlers, which would
 * take the lock that is asked for.
 */
static inline int another_sees(const struct cl_identity *who)
{
	pid_t other = (pid_t)syscall(SYS_clone, SIGCHLD, 0, NULL, NULL, 0);
	int status;

	if (!other)
		_exit(cl_outlive_is_outlived(who) & 0x7f);
	CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* One for each test: the locks of killed processes go a moment later, and no other test must see them. */
static inline int make_folder(void **state)
{
	return make_folder_at(folder);
}
static inline int remove_folder(void **state)
{
	return remove_folder_at(folder);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether CUDA contexts outlive their process: the lock of outlive.h lasts as long as copies of the driver's
 * descriptors would.  The kernel must decide here (forks, exec, kills), so these are real processes.
 */
#include "tests/unit/child.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "shim/base/last_closed.h"
#include "shim/base/options.h"
#include "shim/self/outlive.h"
#include "shim/self/self.h"

enum { SOON = 5000, SLOW_BYTES = 128 << 20 };
static char folder[64], fifo[80];

/* NO_SOCKET fails each call, EVERY_OTHER one each second call. */
static enum { SOCKETS, NO_SOCKET, EVERY_OTHER } sockets;
static _Atomic unsigned int asked; /* how often */
int __real_cl_last_closed_put(int fd);
int __wrap_cl_last_closed_put(int fd);
int __wrap_cl_last_closed_put(int fd)
{
	unsigned int before = atomic_fetch_add(&asked, 1);
	bool fails = sockets == NO_SOCKET || (sockets == EVERY_OTHER && before % 2);

	return fails ? -ETOOMANYREFS : __real_cl_last_closed_put(fd);
}

/* What a process tells of itself and of its child. */
struct told {
	struct cl_identity who;
	pid_t child;
};

enum child { PAUSES, EXECS, CLOSES, FORKS_TOO, NO_HANDLERS, PARENT_IS_SLOW, IS_SLOW };

static __attribute__((noreturn)) void pause_for_ever(void)
{
	for (;;)
		pause();
}

/* Opens a file that the kernel is slow to close, as the driver's are: it gives much memory back.  Its number is above @line. */
static void open_slow_file(int line)
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

static void be_the_child(enum child how)
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

/* A process that has loaded the driver, and forks. */
static void fork_one(int line, enum child how)
{
	struct told told = { 0 };
	char byte;

	setpgid(0, 0);
	cl_outlive_watch_forks();
	cl_identity_self(&told.who);
	told.child = how == NO_HANDLERS ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, NULL, NULL, 0) : fork();
	if (!told.child)
		be_the_child(how);
	if (how == FORKS_TOO)
		waitpid(told.child, NULL, 0);
	if (how == PARENT_IS_SLOW)
		open_slow_file(line);
	CHECK_EQUAL(write(line, &told, sizeof told), sizeof told);
	CHECK(read(line, &byte, 1) <= 0);
	pause_for_ever();
}

static struct told start_with(int *line, pid_t *pid, enum child how)
{
	struct told told;

	cl_options.dir.text = folder;
	*pid = fork_with_line(line);
	if (!*pid)
		fork_one(*line, how);
	CHECK_EQUAL(read(*line, &told, sizeof told), sizeof told);
	return told;
}
static struct told start(pid_t *pid, enum child how)
{
	return start_with(&(int){ 0 }, pid, how);
}

/* Ends the process alone, not its child. */
static void end(pid_t pid)
{
	CHECK(!kill(pid, SIGKILL));
	CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
}

static struct told start_and_end(pid_t *pid, enum child how)
{
	struct told told = start(pid, how);

	end(*pid);
	return told;
}

IN_A_CHILD(a_killed_process_is_outlived_while_its_child_lives)
{
	struct cl_identity other;
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, PAUSES);
	CHECK(cl_outlive_is_outlived(&told.who));
	other = told.who;
	other.pid++; /* another process is not */
	CHECK(!cl_outlive_is_outlived(&other));
	other = told.who;
	other.start_time++; /* nor is one that had the same pid */
	CHECK(!cl_outlive_is_outlived(&other));
	CHECK(!kill(-pid, SIGKILL));
	CHECK(COMES_TRUE(!cl_outlive_is_outlived(&told.who), SOON));
}

/* Returns true if process @pid has ended, and its parent has not asked for its status. */
static bool is_zombie(pid_t pid)
{
	char path[32], line[256] = "";
	const char *state;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	CHECK(file);
	state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
	fclose(file);
	return state && !strncmp(state, ") Z", 3);
}

/* Without a pause: a slow file is closed after some 20 ms. */
static void spin_while_outlived(const struct cl_identity *who)
{
	uint64_t until = test_now() + SOON * UINT64_C(1000000);

	while (cl_outlive_is_outlived(who))
		CHECK(test_now() < until);
}

/*
 * The slow file has a higher number than the line to this test.  The kernel finishes it before the line, and our lock must
 * be the last of the three.
 */
IN_A_CHILD(the_lock_lasts_until_all_other_files_are_closed)
{
	struct told told;
	pid_t pid;
	int line;
	char byte;

	told = start_with(&line, &pid, PARENT_IS_SLOW);
	CHECK(!kill(told.child, SIGKILL));
	CHECK(COMES_TRUE(is_zombie(told.child), SOON));
	CHECK(cl_outlive_is_outlived(&told.who));
	kill(pid, SIGKILL);
	spin_while_outlived(&told.who);
	CHECK_EQUAL(recv(line, &byte, 1, MSG_DONTWAIT), 0);
	CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
}

/*
 * The child has a slow file of its own, as one has the driver's files that drops their last copies.  Its parent is
 * killed while the child is at work on it, and drops the last copy of what both have.
 */
IN_A_CHILD(a_forked_child_has_a_lock_of_its_own_that_lasts_as_long_as_its_files)
{
	struct told told;
	pid_t pid;
	char byte;
	int end_of_child;

	snprintf(fifo, sizeof fifo, "%s/fifo", folder);
	CHECK(!mkfifo(fifo, 0600));
	end_of_child = open(fifo, O_RDONLY | O_NONBLOCK);
	told = start(&pid, IS_SLOW);
	CHECK(COMES_TRUE(read(end_of_child, &byte, 1) == 1, SOON));
	CHECK(!kill(told.child, SIGKILL) && !kill(pid, SIGKILL));
	spin_while_outlived(&told.who);
	CHECK_EQUAL(read(end_of_child, &byte, 1), 0);
	CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
	CHECK(!unlink(fifo));
}

IN_A_CHILD(a_child_that_called_exec_does_not_count)
{
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, EXECS);
	CHECK(COMES_TRUE(!cl_outlive_is_outlived(&told.who), SOON));
	CHECK(!kill(told.child, 0));
	kill(-pid, SIGKILL);
}

IN_A_CHILD(nor_does_one_that_has_closed_its_descriptors)
{
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, CLOSES);
	CHECK(COMES_TRUE(!cl_outlive_is_outlived(&told.who), SOON));
	CHECK(!kill(told.child, 0));
	kill(-pid, SIGKILL);
}

IN_A_CHILD(a_grandchild_counts)
{
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, FORKS_TOO);
	CHECK(cl_outlive_is_outlived(&told.who));
	CHECK(!kill(-pid, SIGKILL));
	CHECK(COMES_TRUE(!cl_outlive_is_outlived(&told.who), SOON));
}

/* clone() runs no fork handler, so it takes no lock: the child of a later fork has it then. */
IN_A_CHILD(a_process_that_never_calls_fork_has_no_lock_and_makes_no_directory)
{
	struct told told;
	char none[80];
	pid_t pid;

	snprintf(none, sizeof none, "%s/none", folder);
	cl_options.dir.text = none;
	cl_outlive_watch_forks();
	CHECK(!cl_outlive_took());
	CHECK(access(none, F_OK) && errno == ENOENT);
	told = start_and_end(&pid, NO_HANDLERS);
	CHECK(!cl_outlive_is_outlived(&told.who));
	kill(-pid, SIGKILL);
}

IN_A_CHILD(with_culimbo_disabled_nothing_is_locked)
{
	struct told told;
	pid_t pid;

	cl_options.disable.number = 1;
	told = start_and_end(&pid, PAUSES);
	CHECK(!cl_outlive_is_outlived(&told.who));
	kill(-pid, SIGKILL);
}

static void fork_and_wait(void)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	CHECK_EQUAL(waitpid(child, NULL, 0), child);
}

static unsigned int descriptors(void)
{
	return count_entries("/proc/self/fd");
}

/* This process forks some times, for which it needs one descriptor.  Returns the directory, of which nobody else makes use. */
static int fork_with_a_lock(void)
{
	unsigned int before = descriptors();
	int dirfd;

	cl_outlive_watch_forks();
	for (int i = 0; i < 3; i++)
		fork_and_wait();
	CHECK(cl_outlive_took());
	CHECK_EQUAL(descriptors(), before + 1);
	dirfd = open(folder, O_RDONLY | O_DIRECTORY);
	CHECK(!cl_outlive_uses(dirfd));
	return dirfd;
}

IN_A_CHILD(the_directory_is_in_use_by_others_alone_and_one_descriptor_is_enough)
{
	pid_t pid, child;
	int dirfd;

	cl_options.dir.text = folder;
	dirfd = fork_with_a_lock();
	start(&pid, PAUSES);
	CHECK(cl_outlive_uses(dirfd));
	CHECK(!kill(-pid, SIGKILL));
	CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
	CHECK(COMES_TRUE(!cl_outlive_uses(dirfd), SOON));
	/* nor do our own children */
	child = fork();
	if (!child)
		pause_for_ever();
	CHECK(!cl_outlive_uses(dirfd));
	CHECK(!kill(child, SIGKILL));
}

/* Then the lock is gone while the other files are being closed, but not before. */
IN_A_CHILD(without_a_socket_the_lock_is_there_all_the_same)
{
	struct told told;
	pid_t pid;

	sockets = NO_SOCKET;
	told = start_and_end(&pid, PAUSES);
	CHECK(cl_outlive_is_outlived(&told.who));
	CHECK(!kill(-pid, SIGKILL));
	CHECK(COMES_TRUE(!cl_outlive_is_outlived(&told.who), SOON));
	fork_with_a_lock();
}

static void limit_descriptors(rlim_t limit)
{
	struct rlimit both;

	CHECK(!getrlimit(RLIMIT_NOFILE, &both));
	both.rlim_cur = limit;
	CHECK(!setrlimit(RLIMIT_NOFILE, &both));
}

/* Whether this process has a lock of its own or not. */
IN_A_CHILD(without_a_free_descriptor_nobody_can_tell)
{
	struct cl_identity other;
	struct rlimit before;
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, PAUSES);
	other = told.who;
	other.pid++;
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	for (int i = 0; i < 2; i++) {
		CHECK(!prlimit(0, RLIMIT_NOFILE, &(struct rlimit){ 0, before.rlim_max }, NULL));
		CHECK_EQUAL(cl_outlive_is_outlived(&told.who), -EMFILE);
		CHECK_EQUAL(cl_outlive_is_outlived(&other), -EMFILE);
		CHECK(!setrlimit(RLIMIT_NOFILE, &before));
		CHECK_EQUAL(cl_outlive_is_outlived(&told.who), 1);
		CHECK_EQUAL(cl_outlive_is_outlived(&other), 0);
		cl_outlive_watch_forks();
		fork_and_wait();
		CHECK(cl_outlive_took());
	}
	CHECK(!kill(-pid, SIGKILL));
}

IN_A_CHILD(the_spare_descriptor_is_used_to_ask)
{
	struct cl_identity other;
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, PAUSES);
	other = told.who;
	other.pid++;
	cl_self_spare_restore();
	limit_descriptors(4096);
	while (dup(0) >= 0)
		;
	CHECK_EQUAL(errno, EMFILE);
	CHECK_EQUAL(cl_outlive_is_outlived(&told.who), 1);
	CHECK_EQUAL(cl_outlive_is_outlived(&other), 0);
	CHECK(cl_self_spare_release());
	CHECK(!kill(-pid, SIGKILL));
}

/* Returns how often a forked child asks for a socket. */
static int asked_by_a_child(void)
{
	unsigned int before = asked;
	pid_t child = fork();
	int status;

	if (!child)
		_exit((int)(asked - before));
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	return WEXITSTATUS(status);
}

/* The program may send files of its own through sockets, and the kernel counts them all. */
IN_A_CHILD(few_files_are_put_into_queues)
{
	cl_options.dir.text = folder;
	limit_descriptors(64);
	cl_outlive_watch_forks();
	CHECK_EQUAL(asked_by_a_child(), 2); /* it counts the call of its parent before the fork */
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(asked_by_a_child(), 1);
	CHECK_EQUAL(asked_by_a_child(), 0);
	CHECK(cl_outlive_took());
}

/* Asks in another process: a lock of its own open file does not count. */
static bool another_sees(const struct cl_identity *who)
{
	int line;
	pid_t other = fork_with_line(&line);
	int seen;

	if (!other) {
		seen = cl_outlive_is_outlived(who);
		CHECK_EQUAL(write(line, &seen, sizeof seen), sizeof seen);
		_exit(0);
	}
	CHECK_EQUAL(read(line, &seen, sizeof seen), sizeof seen);
	CHECK_EQUAL(waitpid(other, NULL, 0), other);
	close(line);
	return seen;
}

/* It has the pid of the program that it was before an exec, whose contexts are gone. */
IN_A_CHILD(a_process_does_not_outlive_itself)
{
	struct cl_identity self;

	cl_options.dir.text = folder;
	cl_outlive_watch_forks();
	fork_and_wait();
	cl_identity_self(&self);
	CHECK(cl_outlive_took());
	CHECK(!cl_outlive_is_outlived(&self));
	CHECK(another_sees(&self));
}

static pthread_barrier_t both;
static void *forks_at_once(void *unused)
{
	pthread_barrier_wait(&both);
	fork_and_wait();
	return unused;
}

/* Only one of them gets a socket, and the file of either may stay. */
static void fork_in_two_threads(void)
{
	struct cl_identity self;
	pthread_t thread;

	cl_outlive_watch_forks();
	CHECK(!pthread_barrier_init(&both, NULL, 2));
	CHECK(!pthread_create(&thread, NULL, forks_at_once, NULL));
	forks_at_once(NULL);
	CHECK(!pthread_join(thread, NULL));
	cl_identity_self(&self);
	CHECK(another_sees(&self));
	CHECK_EQUAL(cl_outlive_is_outlived(&self), 0);
	_exit(0);
}
IN_A_CHILD(two_threads_fork_at_once)
{
	pid_t child;
	int status;

	cl_options.dir.text = folder;
	sockets = EVERY_OTHER;
	for (unsigned int i = 0; i < 50; i++) {
		asked = i;
		child = fork();
		if (!child)
			fork_in_two_threads();
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
}

/* It has none of its parent's contexts, and can have none of its own. */
IN_A_CHILD(a_child_that_forks_takes_no_lock_of_its_own)
{
	unsigned int before;
	pid_t child;
	int status;

	cl_options.dir.text = folder;
	cl_outlive_watch_forks();
	fork_and_wait();
	child = fork();
	if (!child) {
		before = descriptors();
		fork_and_wait();
		CHECK(!cl_outlive_took());
		CHECK_EQUAL(descriptors(), before);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Nothing can be locked there: that is found out once, and not at each fork. */
IN_A_CHILD(without_a_directory_it_is_not_tried_again)
{
	char path[80];

	snprintf(path, sizeof path, "%s/no/way", folder);
	cl_options.dir.text = path;
	cl_outlive_watch_forks();
	fork_and_wait();
	CHECK(!cl_outlive_took());
	cl_options.dir.text = folder;
	fork_and_wait();
	CHECK(!cl_outlive_took());
}

IN_A_CHILD(a_directory_that_was_removed_and_made_again_is_locked_again)
{
	struct cl_identity self;
	char path[80];

	snprintf(path, sizeof path, "%s/deeper", folder);
	cl_options.dir.text = path;
	cl_outlive_watch_forks();
	cl_outlive_keep(); /* there is no lock yet, so it takes none */
	CHECK(!cl_outlive_took());
	fork_and_wait();
	CHECK(!rmdir(path));
	CHECK(!mkdir(path, 0700));
	cl_outlive_keep();
	cl_identity_self(&self);
	CHECK(another_sees(&self));
	/* and at a fork as well */
	CHECK(!rmdir(path));
	fork_and_wait();
	CHECK(another_sees(&self));
	CHECK(!rmdir(path));
}

static int make_folder(void **state)
{
	snprintf(folder, sizeof folder, "/dev/shm/culimbo-unit-XXXXXX");
	if (mkdtemp(folder))
		return 0;
	snprintf(folder, sizeof folder, "/tmp/culimbo-unit-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state)
{
	return remove_folder_at(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_killed_process_is_outlived_while_its_child_lives),
		cmocka_unit_test(the_lock_lasts_until_all_other_files_are_closed),
		cmocka_unit_test(a_forked_child_has_a_lock_of_its_own_that_lasts_as_long_as_its_files),
		cmocka_unit_test(without_a_socket_the_lock_is_there_all_the_same),
		cmocka_unit_test(without_a_free_descriptor_nobody_can_tell),
		cmocka_unit_test(the_spare_descriptor_is_used_to_ask),
		cmocka_unit_test(few_files_are_put_into_queues),
		cmocka_unit_test(two_threads_fork_at_once),
		cmocka_unit_test(a_child_that_called_exec_does_not_count),
		cmocka_unit_test(nor_does_one_that_has_closed_its_descriptors),
		cmocka_unit_test(a_grandchild_counts),
		cmocka_unit_test(a_process_that_never_calls_fork_has_no_lock_and_makes_no_directory),
		cmocka_unit_test(with_culimbo_disabled_nothing_is_locked),
		cmocka_unit_test(the_directory_is_in_use_by_others_alone_and_one_descriptor_is_enough),
		cmocka_unit_test(a_process_does_not_outlive_itself),
		cmocka_unit_test(a_child_that_forks_takes_no_lock_of_its_own),
		cmocka_unit_test(without_a_directory_it_is_not_tried_again),
		cmocka_unit_test(a_directory_that_was_removed_and_made_again_is_locked_again),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

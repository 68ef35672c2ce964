/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether CUDA contexts outlive their process: what the lock of outlive.h costs, and where it can't be had.
 */
#include "tests/unit/outlive.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "shim/base/last_closed.h"

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

static unsigned int descriptors(void)
{
	return count_entries("/proc/self/fd");
}

/* Forks three times; that costs one descriptor.  Returns the directory, which no other process uses. */
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

/* Forks a child that pauses, and waits until it has its lock.  *@puts: it has put a file into a queue. */
static pid_t fork_one_that_stays(bool *puts)
{
	unsigned int before = asked, after;
	int line;
	pid_t child = fork_with_line(&line);

	if (!child) {
		after = asked;
		CHECK_EQUAL(write(line, &after, sizeof after), sizeof after);
		pause_for_ever();
	}
	CHECK_EQUAL(read(line, &after, sizeof after), sizeof after);
	close(line);
	*puts = after != before;
	return child;
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
	/* our own children do not count either */
	child = fork_one_that_stays(&(bool){ 0 });
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
	CHECK_EQUAL(cl_outlive_is_outlived(&told.who), 1);
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

/* Starts and ends a process whose child stays, and returns who it was.  *@other is nobody. */
static struct cl_identity one_that_is_outlived(pid_t *pid, struct cl_identity *other)
{
	struct told told = start_and_end(pid, PAUSES);

	*other = told.who;
	other->pid++;
	return told.who;
}

/* With and without a lock of this process. */
IN_A_CHILD(without_a_free_descriptor_nobody_can_tell_and_no_lock_is_taken)
{
	struct cl_identity one, other;
	struct rlimit before;
	pid_t pid;

	one = one_that_is_outlived(&pid, &other);
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	for (int i = 0; i < 2; i++) {
		CHECK(!prlimit(0, RLIMIT_NOFILE, &(struct rlimit){ 0, before.rlim_max }, NULL));
		CHECK_EQUAL(cl_outlive_is_outlived(&one), -EMFILE);
		CHECK_EQUAL(cl_outlive_is_outlived(&other), -EMFILE);
		/* nor can a lock be taken, which is tried again at the next fork */
		cl_outlive_watch_forks();
		fork_and_wait();
		CHECK(!setrlimit(RLIMIT_NOFILE, &before));
		CHECK_EQUAL(cl_outlive_is_outlived(&one), 1);
		CHECK_EQUAL(cl_outlive_is_outlived(&other), 0);
		fork_and_wait();
		CHECK(cl_outlive_took());
	}
	CHECK(!kill(-pid, SIGKILL));
}

IN_A_CHILD(the_spare_descriptor_is_used_to_ask)
{
	struct cl_identity one, other;
	pid_t pid;

	one = one_that_is_outlived(&pid, &other);
	cl_self_spare_restore();
	limit_descriptors(4096);
	while (dup(0) >= 0)
		;
	CHECK_EQUAL(errno, EMFILE);
	CHECK_EQUAL(cl_outlive_is_outlived(&one), 1);
	CHECK_EQUAL(cl_outlive_is_outlived(&other), 0);
	CHECK(cl_self_spare_release());
	CHECK(!kill(-pid, SIGKILL));
}

/* The program may send files of its own through sockets, and the kernel counts them all.  Children that have ended do not count. */
IN_A_CHILD(few_files_are_put_into_queues)
{
	unsigned int queued = 0;
	pid_t child[8];
	bool puts;

	cl_options.dir.text = folder;
	limit_descriptors(64);
	cl_outlive_watch_forks();
	for (int i = 0; i < 64; i++)
		fork_and_wait();
	for (int i = 0; i < 8; i++) {
		child[i] = fork_one_that_stays(&puts);
		queued += puts;
	}
	CHECK_EQUAL(queued, 4);
	CHECK(cl_outlive_took());
	for (int i = 0; i < 8; i++)
		CHECK(!kill(child[i], SIGKILL));
}

/* It has the pid of the program that it was before an exec, whose contexts are gone. */
IN_A_CHILD(a_process_does_not_outlive_itself)
{
	struct cl_identity self;
	pid_t child;

	cl_options.dir.text = folder;
	cl_outlive_watch_forks();
	fork_and_wait();
	cl_self_identify(&self);
	CHECK(cl_outlive_took());
	CHECK_EQUAL(another_sees(&self), 1);
	/* its child is not one of the former program's */
	child = fork_one_that_stays(&(bool){ 0 });
	CHECK(!cl_outlive_is_outlived(&self));
	CHECK(!kill(child, SIGKILL));
}

static void exec_self(const struct cl_identity *was, pid_t child)
{
	char image[16], pid[16];

	snprintf(image, sizeof image, "%u", was->image);
	snprintf(pid, sizeof pid, "%d", (int)child);
	execl("/proc/self/exe", "test", folder, image, pid, (char *)NULL);
	CHECK(!"exec");
}

/* The first program forks a child that stays, and calls exec.  The second one, with @image of the first, forks, too. */
static int be_a_program(unsigned int image, pid_t child)
{
	struct cl_identity self, former;

	cl_options.dir.text = folder;
	cl_outlive_watch_forks();
	fork_and_wait();
	cl_self_identify(&self);
	if (!image)
		exec_self(&self, fork_one_that_stays(&(bool){ 0 }));
	former = self;
	former.image = image;
	CHECK(image != self.image);
	CHECK_EQUAL(another_sees(&self), 1);
	CHECK_EQUAL(another_sees(&former), 1);
	CHECK_EQUAL(cl_outlive_is_outlived(&former), 1);
	CHECK(!kill(child, SIGKILL));
	CHECK_EQUAL(waitpid(child, NULL, 0), child);
	/* what the second one has locked does not keep what the first one held */
	CHECK(COMES_TRUE(!another_sees(&former), SOON));
	CHECK_EQUAL(another_sees(&self), 1);
	CHECK_EQUAL(cl_outlive_is_outlived(&former), 0);
	return 0;
}

IN_A_CHILD(a_program_after_exec_is_not_the_one_before)
{
	const struct cl_identity nobody = { .image = 0 };
	pid_t child = fork();
	int status;

	if (!child)
		exec_self(&nobody, 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* 64 children may have a file in a queue.  32 stay; each of 100 others comes, finds a place, and goes. */
IN_A_CHILD(half_of_the_places_are_taken_and_each_child_finds_one)
{
	pid_t child[32 + 100];
	bool puts;

	cl_options.dir.text = folder;
	limit_descriptors(1024);
	cl_outlive_watch_forks();
	fork_and_wait(); /* for the file of this process itself */
	for (int i = 0; i < 32 + 100; i++) {
		child[i] = fork_one_that_stays(&puts);
		CHECK(puts);
		if (i >= 32) {
			CHECK(!kill(child[i], SIGKILL));
			CHECK_EQUAL(waitpid(child[i], NULL, 0), child[i]);
		}
	}
	for (int i = 0; i < 32; i++)
		CHECK(!kill(child[i], SIGKILL));
}

/* An ending process may remove the directory at any time. */
static unsigned int removals;
int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
	int err = __real_mkdir(path, mode);

	if (removals && removals--)
		rmdir(path);
	return err;
}
IN_A_CHILD(a_directory_that_goes_while_it_is_made_is_made_again)
{
	char path[80];

	snprintf(path, sizeof path, "%s/deeper", folder);
	cl_options.dir.text = path;
	cl_outlive_watch_forks();
	removals = 1;
	fork_and_wait();
	CHECK(cl_outlive_took());
	CHECK(!rmdir(path));
}

static pthread_barrier_t both;
static void *forks_at_once(void *unused)
{
	pthread_barrier_wait(&both);
	fork_and_wait();
	/* ThreadSanitizer reports a child that is forked beside an ended thread which nobody has joined yet */
	pthread_barrier_wait(&both);
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
	cl_self_identify(&self);
	CHECK_EQUAL(another_sees(&self), 1);
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
IN_A_CHILD(a_child_that_forks_locks_nothing_for_contexts_of_its_own)
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
	cl_self_identify(&self);
	CHECK_EQUAL(another_sees(&self), 1);
	/* and at a fork as well */
	CHECK(!rmdir(path));
	fork_and_wait();
	CHECK_EQUAL(another_sees(&self), 1);
	CHECK(!rmdir(path));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		IN_A_FOLDER(the_directory_is_in_use_by_others_alone_and_one_descriptor_is_enough),
		IN_A_FOLDER(without_a_socket_the_lock_is_there_all_the_same),
		IN_A_FOLDER(without_a_free_descriptor_nobody_can_tell_and_no_lock_is_taken),
		IN_A_FOLDER(the_spare_descriptor_is_used_to_ask),
		IN_A_FOLDER(few_files_are_put_into_queues),
		IN_A_FOLDER(a_process_does_not_outlive_itself),
		IN_A_FOLDER(a_program_after_exec_is_not_the_one_before),
		IN_A_FOLDER(half_of_the_places_are_taken_and_each_child_finds_one),
		IN_A_FOLDER(a_directory_that_goes_while_it_is_made_is_made_again),
		IN_A_FOLDER(two_threads_fork_at_once),
		IN_A_FOLDER(a_child_that_forks_locks_nothing_for_contexts_of_its_own),
		IN_A_FOLDER(without_a_directory_it_is_not_tried_again),
		IN_A_FOLDER(a_directory_that_was_removed_and_made_again_is_locked_again),
	};

	if (argc == 4) {
		snprintf(folder, sizeof folder, "%s", argv[1]);
		return be_a_program((unsigned int)strtoul(argv[2], NULL, 10), atoi(argv[3]));
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}

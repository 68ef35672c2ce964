/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether CUDA contexts outlive their process: the lock of outlive.h lasts as long as copies of the driver's
 * descriptors would.
 */
#include "tests/unit/outlive.h"

IN_A_CHILD(a_killed_process_is_outlived_while_its_child_lives)
{
	struct cl_identity other;
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, PAUSES);
	CHECK_EQUAL(cl_outlive_is_outlived(&told.who), 1);
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
	CHECK_EQUAL(cl_outlive_is_outlived(&told.who), 1);
	kill(pid, SIGKILL);
	spin_while_outlived(&told.who);
	CHECK_EQUAL(recv(line, &byte, 1, MSG_DONTWAIT), 0);
	CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
}

/*
 * The child's slow file stands for the driver's files, whose last copies it closes.  While the kernel closes that, the
 * parent is killed, and closes the last copy of what both have.
 */
IN_A_CHILD(a_forked_child_has_a_lock_of_its_own_that_lasts_as_long_as_its_files)
{
	struct told told;
	pid_t pid;
	char byte;
	int end_of_child;

	snprintf(fifo, sizeof fifo, "%s/fifo", folder);
	CHECK(!mkfifo(fifo, 0600));
	/* without that lock every second round or so is right by chance */
	for (int i = 0; i < 8; i++) {
		end_of_child = open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		told = start(&pid, IS_SLOW);
		CHECK(COMES_TRUE(read(end_of_child, &byte, 1) == 1, SOON));
		CHECK(!kill(told.child, SIGKILL) && !kill(pid, SIGKILL));
		spin_while_outlived(&told.who);
		CHECK_EQUAL(read(end_of_child, &byte, 1), 0);
		CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
		close(end_of_child);
	}
}

/* In the child its path may lead elsewhere, after setuid() or chroot(). */
IN_A_CHILD(a_child_locks_the_directory_that_its_parent_has_locked)
{
	struct told told;
	pid_t pid;

	told = start_and_end(&pid, OTHER_PATH);
	CHECK_EQUAL(cl_outlive_is_outlived(&told.who), 1);
	snprintf(other_folder, sizeof other_folder, "%s/other", folder);
	CHECK(access(other_folder, F_OK) && errno == ENOENT);
	CHECK(!kill(-pid, SIGKILL));
	CHECK(COMES_TRUE(!cl_outlive_is_outlived(&told.who), SOON));
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
	CHECK_EQUAL(cl_outlive_is_outlived(&told.who), 1);
	CHECK(!kill(-pid, SIGKILL));
	CHECK(COMES_TRUE(!cl_outlive_is_outlived(&told.who), SOON));
}

/* clone() runs no fork handler, so it takes no lock. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_A_FOLDER(a_killed_process_is_outlived_while_its_child_lives),
		IN_A_FOLDER(the_lock_lasts_until_all_other_files_are_closed),
		IN_A_FOLDER(a_forked_child_has_a_lock_of_its_own_that_lasts_as_long_as_its_files),
		IN_A_FOLDER(a_child_locks_the_directory_that_its_parent_has_locked),
		IN_A_FOLDER(a_child_that_called_exec_does_not_count),
		IN_A_FOLDER(nor_does_one_that_has_closed_its_descriptors),
		IN_A_FOLDER(a_grandchild_counts),
		IN_A_FOLDER(a_process_that_never_calls_fork_has_no_lock_and_makes_no_directory),
		IN_A_FOLDER(with_culimbo_disabled_nothing_is_locked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

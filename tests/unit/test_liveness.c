/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory of a process says of a file (shim/shm/liveness.h): any of its threads, and at what price. */
#include "tests/unit/importers.h"

#include <stdarg.h>

#include "tests/namespaces/own_mounts.h"

/* ------------------------------------------------------ who has left its file */
static bool has_left(pid_t pid, uint32_t file_id)
{
	struct cl_identity of;

	cl_identity_self(&of);
	of.pid = (uint32_t)pid;
	return cl_liveness_has_left(&of, file_id);
}

/* A process's maps file is empty once its first thread has ended. */
static bool is_empty(const char *path)
{
	int fd = open(path, O_RDONLY);
	char c;
	bool empty = fd >= 0 && read(fd, &c, 1) == 0;

	if (fd >= 0)
		close(fd);
	return empty;
}
static unsigned int links_of(pid_t pid)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	return stat(path, &st) ? 0 : (unsigned int)st.st_nlink;
}

/* An importer maps the file as an exporter does. */
static void who_maps_a_file_in_any_thread_has_not_left_it(void **state)
{
	static void (*const stays[])(void) = { then_wait, then_close_all, then_leader_ends };
	struct cl_region r = make_region_with(HELD);
	struct cl_identity elsewhere;
	struct importer importer;

	for (unsigned int i = 0; i < sizeof stays / sizeof *stays; i++) {
		importer = start_importer(r.file_id, HELD, stays[i]);
		for (uint64_t until = test_now() + 50 * MS; test_now() < until; test_moment()) {
			assert_false(has_left(importer.pid, r.file_id));
			assert_true(cl_liveness_is_exporter((uint32_t)importer.pid, r.file_id, false));
		}
		kill(importer.pid, SIGKILL);
		assert_true(COMES_TRUE(has_left(importer.pid, r.file_id), 5000)); /* a zombie */
		end_importer(&importer);
		assert_true(has_left(importer.pid, r.file_id));
	}
	importer = start_importer(r.file_id, HELD, then_exec);
	assert_true(COMES_TRUE(has_left(importer.pid, r.file_id), 5000));
	assert_int_equal(kill(importer.pid, 0), 0);
	/* of another namespace's process with its number nothing is known */
	cl_identity_self(&elsewhere);
	elsewhere.pid = (uint32_t)importer.pid;
	elsewhere.pid_ns++;
	assert_false(cl_liveness_has_left(&elsewhere, r.file_id));
	end_importer(&importer);
	drop_region(&r);
}

/* Threads that end while /proc is read have left nothing, as long as others come. */
static void who_maps_a_file_in_new_threads_has_not_left_it(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_threads_take_turns);
	unsigned int wrong = 0;

	for (uint64_t until = test_now() + 200 * MS; test_now() < until;)
		wrong += has_left(importer.pid, r.file_id);
	assert_int_equal(kill(importer.pid, 0), 0);
	assert_int_equal(wrong, 0);
	kill(importer.pid, SIGKILL);
	assert_true(COMES_TRUE(has_left(importer.pid, r.file_id), 5000));
	end_importer(&importer);
	drop_region(&r);
}

/* A task that has just ended hides those behind it in the list (linked in by --wrap). */
static bool hides;
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
/* It passes on six arguments, as the C library's does; callers have fewer, so AddressSanitizer must not check it. */
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...)
{
	va_list list;
	long a[6], n;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	n = __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number == SYS_getdents64 && hides && n > 0) {
		const unsigned char *entries = (const unsigned char *)a[1];
		long at = 0;

		/* the two dots and the first task */
		for (int i = 0; i < 3 && at < n; i++)
			at += entries[at + 16] | entries[at + 17] << 8;
		return at;
	}
	return n;
}
static void a_list_of_threads_that_ends_too_early_says_nothing(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_leader_ends);
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/maps", (int)importer.pid);
	assert_true(COMES_TRUE(is_empty(path), 5000));
	hides = true;
	assert_false(has_left(importer.pid, r.file_id));
	assert_true(cl_liveness_is_exporter((uint32_t)importer.pid, r.file_id, true));
	hides = false;
	end_importer(&importer);
	drop_region(&r);
}

/* Its first thread has ended, and another one has closed all descriptors: it has no lock, but its memory. */
static void *close_all(void *unused)
{
	/* the first thread opens a library for its end */
	CHECK(COMES_TRUE(is_empty("/proc/self/maps"), 5000));
	close_range(0, ~0u, 0);
	return sit(unused);
}
static void then_leader_ends_and_closes(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, close_all, NULL));
	pthread_exit(NULL);
}
static void who_lives_on_without_its_first_thread_is_alive(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_leader_ends_and_closes);
	struct cl_identity who = r.slot[importer.said].who;
	uint64_t since = 0;
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/maps", (int)importer.pid);
	assert_true(COMES_TRUE(is_empty(path), 5000));
	assert_true(COMES_TRUE(!r.locks->is_locked(&r, CL_LOCK_SLOT(importer.said)), 5000));
	assert_int_equal(cl_liveness_judge(&r, CL_LOCK_SLOT(importer.said), &who, &since, cl_now(), 50 * MS), CL_ALIVE);
	kill(importer.pid, SIGKILL);
	assert_true(COMES_TRUE(cl_liveness_judge(&r, CL_LOCK_SLOT(importer.said), &who, &since, cl_now(), 3600000 * MS) ==
				       CL_DEAD,
			       5000));
	end_importer(&importer);
	drop_region(&r);
}

/* Each has all mappings of the process in its file: to read them all took seconds. */
static unsigned int maps_read;
static bool no_such; /* opening the maps file of a process, but of no task, says that there is none */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	va_list list;
	int mode;

	va_start(list, flags);
	mode = va_arg(list, int);
	va_end(list);
	maps_read += strstr(path, "/maps") != NULL;
	if (no_such && strstr(path, "/maps") && !strstr(path, "/task/")) {
		errno = ESRCH;
		return -1;
	}
	return __real_open(path, flags, mode);
}
static void then_many_threads(void)
{
	pthread_t thread;

	cl_region_close(&importer_region);
	for (int i = 0; i < 50; i++)
		CHECK(!pthread_create(&thread, NULL, sit, NULL));
	sit(NULL);
}
static void one_thread_speaks_for_all(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_many_threads);

	assert_true(COMES_TRUE(has_left(importer.pid, r.file_id), 5000));
	assert_true(COMES_TRUE(links_of(importer.pid) == 2 + 51, 5000));
	maps_read = 0;
	assert_true(has_left(importer.pid, r.file_id));
	assert_false(cl_liveness_is_exporter((uint32_t)importer.pid, r.file_id, true));
	assert_int_equal(maps_read, 2);
	end_importer(&importer);
	drop_region(&r);
}

/* A kernel may say of the maps file of a first thread that has ended that there is no such process. */
static void a_first_thread_that_is_gone_says_nothing(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_leader_ends);

	no_such = true;
	assert_true(cl_liveness_is_exporter((uint32_t)importer.pid, r.file_id, false));
	assert_false(has_left(importer.pid, r.file_id));
	kill(importer.pid, SIGKILL);
	assert_true(COMES_TRUE(has_left(importer.pid, r.file_id), 5000));
	no_such = false;
	end_importer(&importer);
	drop_region(&r);
}

/* With hidepid=2, /proc has no folder of a process that this one may not look into. */
static void whom_proc_hides_has_not_left(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_wait);
	pid_t child = fork_checked();
	char path[32];
	int status;

	if (!child) {
		child_begins();
		snprintf(path, sizeof path, "/proc/%d", (int)importer.pid);
		if (own_mounts() || mount("none", path, "tmpfs", 0, ""))
			_exit(77);
		CHECK(!has_left(importer.pid, r.file_id));
		kill(importer.pid, SIGKILL);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	end_importer(&importer);
	drop_region(&r);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("# skipped: nothing may be mounted\n");
		skip();
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_maps_a_file_in_any_thread_has_not_left_it),
		cmocka_unit_test(who_maps_a_file_in_new_threads_has_not_left_it),
		cmocka_unit_test(a_list_of_threads_that_ends_too_early_says_nothing),
		cmocka_unit_test(who_lives_on_without_its_first_thread_is_alive),
		cmocka_unit_test(one_thread_speaks_for_all),
		cmocka_unit_test(a_first_thread_that_is_gone_says_nothing),
		cmocka_unit_test(whom_proc_hides_has_not_left),
	};

	return cmocka_run_group_tests(tests, make_importers_folder, remove_folder);
}

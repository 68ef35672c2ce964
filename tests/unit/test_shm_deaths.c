/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: dead importers, and only they, are reaped, and dead exporters' files removed: the part
 * of promise 3 that a dead process leaves to others.  The kernel must decide here (locks, /proc,
 * kills), so these are real processes.
 */
#include "tests/unit/region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shim/shm/gc.h"
#include "shim/shm/liveness.h"
#include "shim/shm/slot.h"
#include "tests/namespaces/own_mounts.h"

/* ----------------------------------------------------------- real processes */
/* Claims a slot in @file_id and holds its first @holds records; never returns. */
struct importer {
	pid_t pid;
	int said; /* a pipe from it: its slot */
};

static struct cl_region importer_region;
static void import_or_die(uint32_t file_id, uint32_t holds, int tell)
{
	struct cl_identity self;
	int slot;

	child_begins();
	CHECK_EQUAL(cl_region_open(&importer_region, folder_fd, file_id, NULL), 0);
	cl_identity_self(&self);
	slot = cl_holder_claim(&importer_region, &self, cl_now(), 50 * MS);
	CHECK(slot >= 0);
	for (uint32_t i = 0; i < holds; i++)
		CHECK_EQUAL(hold(&importer_region, (unsigned int)slot, i, 0, 1), 0);
	CHECK(write(tell, &slot, sizeof slot) == sizeof slot);
}
static void *sit(void *unused)
{
	for (;;)
		pause();
	return unused;
}
static void then_wait(void)
{
	sit(NULL);
}
static void then_close_all(void)
{
	close_range(0, ~0u, 0);
	then_wait();
}
static void then_exec(void)
{
	int ends[2];

	if (pipe(ends) || dup2(ends[0], 0) < 0)
		_exit(1);
	/* it keeps the writing end of its own stdin, so it waits until it is killed */
	execlp("cat", "cat", (char *)NULL);
	_exit(127);
}
static void then_leader_ends(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, sit, NULL));
	pthread_exit(NULL);
}
/* Each thread starts the next one and ends. */
static void *hand_on(void *unused)
{
	pthread_t thread;

	pthread_detach(pthread_self());
	CHECK(!pthread_create(&thread, NULL, hand_on, NULL));
	return unused;
}
static void then_threads_take_turns(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, hand_on, NULL));
	pthread_exit(NULL);
}
static void then_new_namespace(void)
{
	then_wait();
}

static pid_t *inner_pid; /* shared with children */

static struct importer start_importer(uint32_t file_id, uint32_t holds, void (*then)(void))
{
	struct importer importer;
	int ends[2], slot = -1;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	importer.pid = fork();
	assert_true(importer.pid >= 0);
	if (!importer.pid) {
		pid_t inner = 0;

		if (then == then_new_namespace) {
			if (unshare(CLONE_NEWPID) || (inner = fork()) < 0) {
				slot = -2;
				CHECK(write(ends[1], &slot, sizeof slot) == sizeof slot);
				_exit(0);
			}
			if (inner) {
				*inner_pid = inner;
				waitpid(inner, NULL, 0);
				_exit(0);
			}
			close(ends[0]);
		}
		import_or_die(file_id, holds, ends[1]);
		then();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &slot, sizeof slot), sizeof slot);
	close(ends[0]);
	importer.said = slot;
	return importer;
}
static void end_importer(struct importer *importer)
{
	kill(importer->pid, SIGKILL);
	kill(importer->pid, SIGCONT);
	waitpid(importer->pid, NULL, 0);
}

enum { HELD = 100 };

static struct cl_region make_region_with(uint32_t exported)
{
	struct cl_region r = make_region();

	for (uint32_t i = 0; i < exported; i++)
		publish(&r, i, 1);
	memset(watch, 0, sizeof watch);
	return r;
}
static struct cl_reaped look(struct cl_region *r, uint64_t settle)
{
	return cl_holder_reap(r, watch, cl_now(), settle, NULL, NULL);
}

static void the_killed_are_reaped_zombie_or_not(void **state)
{
	for (int wait_for_it = 0; wait_for_it < 2; wait_for_it++) {
		struct cl_region r = make_region_with(HELD);
		struct importer importer = start_importer(r.file_id, HELD, then_wait);
		struct cl_reaped sum = { 0 };
		uint64_t killed, took;

		assert_int_equal(look(&r, 50 * MS).alive, 1);
		for (uint32_t i = 0; i < HELD; i++)
			cl_record_to_limbo(&r, i, 1);
		assert_false(cl_record_try_release(&r, HELD - 1));
		kill(importer.pid, SIGKILL);
		killed = test_now();
		if (wait_for_it)
			waitpid(importer.pid, NULL, 0);
		/* where /proc tells who is dead, the settle time does not matter, not even an hour */
		assert_true(COMES_TRUE((sum = look(&r, 3600000 * MS)).slots == 1, 5000));
		took = test_now() - killed;
		print_message("# a killed importer%s was reaped after %.1f ms\n",
			      wait_for_it ? "" : ", a zombie,", (double)took / 1e6);
		assert_true(took < 500 * MS);
		assert_int_equal(sum.holds, HELD);
		for (uint32_t i = 0; i < HELD; i++)
			assert_true(cl_record_try_release(&r, i));
		assert_int_equal(cl_life_state(r.slot[importer.said].claim), CL_SLOT_FREE);
		end_importer(&importer);
		drop_region(&r);
	}
}

/* Checks for longer than the settle time, at least 20 times, that nothing is reaped. */
static void assert_lives(struct cl_region *r)
{
	uint64_t until = test_now() + 150 * MS;
	int looks = 0;

	while (test_now() < until || looks < 20) {
		struct cl_reaped sum = look(r, 50 * MS);

		assert_int_equal(sum.slots, 0);
		assert_int_equal(sum.alive, 1);
		looks++;
		test_moment();
	}
	assert_int_equal(cl_record_holders(r, HELD - 1, NULL, 0), 1);
}

static void the_stopped_are_not_reaped(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_wait);
	int status;

	assert_int_equal(kill(importer.pid, SIGSTOP), 0);
	assert_int_equal(waitpid(importer.pid, &status, WUNTRACED), importer.pid);
	assert_true(WIFSTOPPED(status));
	assert_lives(&r);
	end_importer(&importer);
	drop_region(&r);
}

/* A process that is ending still has its file mapped for a moment. */
static void who_has_ended_its_file_is_no_exporter_of_it(void **state)
{
	int dir = open(folder, O_RDONLY | O_DIRECTORY);
	struct cl_region ended = make_region_with(1), removed = make_region_with(1);
	uint32_t pid = (uint32_t)getpid();

	assert_true(cl_liveness_is_exporter(pid, ended.file_id, false));
	assert_int_equal(cl_region_end(&ended, dir), 0);
	assert_false(cl_liveness_is_exporter(pid, ended.file_id, false));
	/* it is still the exporter of a file that another process removed */
	assert_int_equal(cl_region_unlink(&removed, dir), 0);
	assert_true(cl_liveness_is_exporter(pid, removed.file_id, false));
	cl_region_close(&ended);
	cl_region_close(&removed);
	close(dir);
}

static void who_closed_all_descriptors_is_not_reaped(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_close_all);

	assert_true(COMES_TRUE(!r.locks->is_locked(&r, CL_LOCK_SLOT(importer.said)), 5000));
	assert_lives(&r);
	kill(importer.pid, SIGKILL);
	assert_true(COMES_TRUE(look(&r, 50 * MS).slots == 1, 5000));
	end_importer(&importer);
	drop_region(&r);
}

static void whose_first_thread_ended_is_not_reaped(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_leader_ends);
	char path[64], line[256];

	snprintf(path, sizeof path, "/proc/%d/stat", (int)importer.pid);
	assert_true(COMES_TRUE(({
		FILE *f = fopen(path, "r");
		bool zombie = f && fgets(line, sizeof line, f) && strstr(line, ") Z ");

		if (f)
			fclose(f);
		zombie;
	}), 5000));
	assert_lives(&r);
	end_importer(&importer);
	drop_region(&r);
}

static void who_called_exec_is_reaped_after_settling(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_exec);
	struct cl_reaped sum;
	uint64_t settling_from = 0;

	while (!settling_from || test_now() < settling_from + 10000 * MS) {
		uint64_t now = cl_now();

		sum = cl_holder_reap(&r, watch, now, 80 * MS, NULL, NULL);
		if (sum.slots)
			break;
		if (sum.settling && !settling_from)
			settling_from = now;
		test_moment();
	}
	assert_int_equal(sum.slots, 1);
	assert_int_equal(sum.holds, HELD);
	assert_true(cl_now() >= settling_from + 80 * MS);
	assert_int_equal(kill(importer.pid, 0), 0); /* and it lives on */
	end_importer(&importer);
	drop_region(&r);
}

static void another_pid_namespace_is_judged_by_lock_and_settling(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_new_namespace);
	struct cl_reaped sum = { 0 };
	uint64_t from = 0;

	if (importer.said == -2) {
		print_message("# skipped: no PID namespace may be made\n");
		end_importer(&importer);
		drop_region(&r);
		skip();
	}
	assert_int_equal(r.slot[importer.said].who.pid, 1);
	assert_lives(&r);
	assert_true(*inner_pid > 0);
	assert_int_equal(kill(*inner_pid, SIGKILL), 0);
	assert_int_equal(waitpid(importer.pid, NULL, 0), importer.pid);
	while (!from || test_now() < from + 5000 * MS) {
		uint64_t now = cl_now();

		sum = cl_holder_reap(&r, watch, now, 80 * MS, NULL, NULL);
		if (sum.slots)
			break;
		if (sum.settling && !from)
			from = now;
		test_moment();
	}
	assert_int_equal(sum.slots, 1);
	assert_true(cl_now() >= from + 80 * MS);
	drop_region(&r);
}

/* The reaper may be killed anywhere: it clears bits first and the slot last, so another run completes it. */
static void die_at_the_50th(void *data, unsigned int slot, uint32_t record)
{
	if (++*(int *)data == 50)
		_exit(0);
}
static void a_reaper_that_was_killed_is_run_again(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_wait);
	struct cl_reaped sum = { 0 };
	uint32_t left = 0;
	pid_t child;

	for (uint32_t i = 0; i < HELD; i++)
		cl_record_to_limbo(&r, i, 1);
	end_importer(&importer);
	child = fork_checked();
	if (!child) {
		struct cl_region mine;
		int told = 0;

		CHECK_EQUAL(cl_region_open(&mine, folder_fd, r.file_id, NULL), 0);
		COMES_TRUE(cl_holder_reap(&mine, watch, cl_now(), 50 * MS, die_at_the_50th,
					  &told).slots, 5000);
		CHECK(!"the reaper was to die");
	}
	child_judge(child);
	for (uint32_t i = 0; i < HELD; i++)
		left += cl_record_holders(&r, i, NULL, 0);
	assert_int_equal(left, HELD - 49);
	assert_true(COMES_TRUE((sum = look(&r, 50 * MS)).slots == 1, 5000));
	assert_int_equal(sum.holds, HELD - 49);
	for (uint32_t i = 0; i < HELD; i++)
		assert_true(cl_record_try_release(&r, i));
	drop_region(&r);
}

/* --------------------------------------------------------- what the dead left */
static void a_dead_exporters_file_is_taken_away_a_live_ones_is_not(void **state)
{
	struct cl_region live = make_region(), seen;
	unsigned int files = count_entries(folder);
	uint32_t id;
	int ends[2];
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork_checked();
	if (!child) {
		struct cl_region r;
		struct cl_identity self;

		cl_identity_self(&self);
		CHECK_EQUAL(cl_region_create(&r, folder_fd, &self), 0);
		CHECK(write(ends[1], &r.file_id, sizeof id) == sizeof id);
		then_wait();
	}
	assert_int_equal(read(ends[0], &id, sizeof id), sizeof id);
	assert_int_equal(cl_region_open(&seen, folder_fd, id, NULL), 0);
	assert_int_equal(cl_gc_file(&seen, folder_fd), -EBUSY);
	kill(child, SIGKILL);
	assert_true(COMES_TRUE(cl_gc_file(&seen, folder_fd) == 0, 5000));
	waitpid(child, NULL, 0);
	cl_region_close(&seen);
	assert_int_equal(count_entries(folder), files);
	child = fork_checked();
	if (!child) {
		struct cl_region r;
		struct cl_identity self;

		cl_identity_self(&self);
		CHECK_EQUAL(cl_region_create(&r, folder_fd, &self), 0);
		_exit(0); /* ends without removing it, as killed processes do */
	}
	child_judge(child);
	child = fork_checked();
	if (!child) {
		/* in another process: closing the live one's file here would drop its lock */
		CHECK_EQUAL(cl_gc_directory(folder_fd, NULL), 1);
		CHECK_EQUAL(cl_gc_directory(folder_fd, NULL), 0);
		_exit(0);
	}
	child_judge(child);
	assert_int_equal(count_entries(folder), files);
	close(ends[0]);
	close(ends[1]);
	drop_region(&live);
}

/* An unfinished file has this name.  That of a live process stays, that of a dead one is removed. */
static void an_unfinished_file_goes_with_its_maker(void **state)
{
	unsigned int files = count_entries(folder);
	char name[16], unfinished[16] = "";
	int ends[2];
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork_checked();
	if (!child) {
		struct cl_region r;
		struct cl_identity self;

		cl_identity_self(&self);
		CHECK_EQUAL(cl_region_create(&r, folder_fd, &self), 0);
		cl_region_name(name, r.file_id);
		snprintf(unfinished, sizeof unfinished, "new-%s", name + strlen("exporter-"));
		CHECK_EQUAL(renameat(folder_fd, name, folder_fd, unfinished), 0);
		CHECK(write(ends[1], unfinished, sizeof unfinished) == sizeof unfinished);
		then_wait();
	}
	assert_int_equal(read(ends[0], unfinished, sizeof unfinished), sizeof unfinished);
	assert_int_equal(cl_region_name_id(unfinished), 0); /* no process imports from it */
	assert_true(cl_region_unfinished_id(unfinished) != 0);
	assert_int_equal(cl_gc_directory(folder_fd, NULL), 0);
	assert_int_equal(count_entries(folder), files + 1);
	kill(child, SIGKILL);
	assert_true(COMES_TRUE(cl_gc_directory(folder_fd, NULL) == 1, 5000));
	waitpid(child, NULL, 0);
	assert_int_equal(count_entries(folder), files);
	close(ends[0]);
	close(ends[1]);
	/* an empty file is left alone, because its process may be about to write it */
	close(openat(folder_fd, "new-00002a", O_CREAT | O_EXCL | O_WRONLY, 0600));
	assert_int_equal(cl_gc_directory(folder_fd, NULL), 0);
	assert_int_equal(unlinkat(folder_fd, "new-00002a", 0), 0);
}

/* ------------------------------------------------------ who has left its file */
static bool has_left(pid_t pid, uint32_t file_id)
{
	struct cl_identity of;

	cl_identity_self(&of);
	of.pid = (uint32_t)pid;
	return cl_liveness_has_left(&of, file_id);
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

static int set_up(void **state)
{
	inner_pid = mmap(NULL, CL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return inner_pid == MAP_FAILED ? -1 : make_folder(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_killed_are_reaped_zombie_or_not),
		cmocka_unit_test(the_stopped_are_not_reaped),
		cmocka_unit_test(who_has_ended_its_file_is_no_exporter_of_it),
		cmocka_unit_test(who_closed_all_descriptors_is_not_reaped),
		cmocka_unit_test(whose_first_thread_ended_is_not_reaped),
		cmocka_unit_test(who_called_exec_is_reaped_after_settling),
		cmocka_unit_test(another_pid_namespace_is_judged_by_lock_and_settling),
		cmocka_unit_test(a_reaper_that_was_killed_is_run_again),
		cmocka_unit_test(a_dead_exporters_file_is_taken_away_a_live_ones_is_not),
		cmocka_unit_test(an_unfinished_file_goes_with_its_maker),
		cmocka_unit_test(who_maps_a_file_in_any_thread_has_not_left_it),
		cmocka_unit_test(who_maps_a_file_in_new_threads_has_not_left_it),
		cmocka_unit_test(whom_proc_hides_has_not_left),
	};

	return cmocka_run_group_tests(tests, set_up, remove_folder);
}

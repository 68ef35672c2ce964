/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: dead importers, and only they, are reaped, and dead exporters' files removed: the part
 * of promise 3 that a dead process leaves to others.  The kernel must decide here (locks, /proc,
 * kills), so these are real processes.
 */
#include "tests/unit/importers.h"

#include "shim/shm/gc.h"

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

static int nobody_can_tell(const struct cl_identity *who)
{
	(void)who;
	return -EMFILE;
}

/* Whether a process that it has forked keeps its contexts alive cannot be asked now: it is asked again when all are. */
static void in_doubt_the_killed_keep_their_holds(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_wait);
	struct cl_reaped sum;

	r.is_outlived = nobody_can_tell;
	kill(importer.pid, SIGKILL);
	waitpid(importer.pid, NULL, 0);
	sum = look(&r, 0);
	assert_int_equal(sum.outlived, 0);
	assert_int_equal(sum.slots, 0);
	r.is_outlived = NULL;
	assert_int_equal(look(&r, 0).slots, 1);
	end_importer(&importer);
	drop_region(&r);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_killed_are_reaped_zombie_or_not),
		cmocka_unit_test(in_doubt_the_killed_keep_their_holds),
		cmocka_unit_test(the_stopped_are_not_reaped),
		cmocka_unit_test(who_has_ended_its_file_is_no_exporter_of_it),
		cmocka_unit_test(who_closed_all_descriptors_is_not_reaped),
		cmocka_unit_test(whose_first_thread_ended_is_not_reaped),
		cmocka_unit_test(who_called_exec_is_reaped_after_settling),
		cmocka_unit_test(another_pid_namespace_is_judged_by_lock_and_settling),
		cmocka_unit_test(a_reaper_that_was_killed_is_run_again),
		cmocka_unit_test(a_dead_exporters_file_is_taken_away_a_live_ones_is_not),
		cmocka_unit_test(an_unfinished_file_goes_with_its_maker),
	};

	return cmocka_run_group_tests(tests, make_importers_folder, remove_folder);
}

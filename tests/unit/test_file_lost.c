/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody removes our exporter file, or puts another in its place.  Importers that come after that may have a block open
 * unseen, so a free must keep it.  Each test is a process that has shared nothing yet; the importer is another process; the
 * driver is a fake one that counts calls.  One block fills the budget of the grace, so a free gives any other one back at
 * once if it may.
 */
#include "tests/unit/budget.h"

/* The path of our exporter file, or of its folder if @of_folder. */
static void path_of_ours(char path[128], bool of_folder)
{
	char name[16] = "";

	if (!of_folder)
		cl_region_name(name, cl_own.file_id);
	snprintf(path, 128, "%s/%s", folder, name);
	if (of_folder)
		path[strlen(folder)] = 0;
}

static void make_file(const char *path)
{
	int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && !close(fd));
}

/* Waits until a change of our file would have another time than the last one has, however coarse these times are. */
static void await_next_tick(void)
{
	struct timespec tick;
	struct stat st;

	CHECK(cl_region_stat(&cl_own, &st));
	CHECK(COMES_TRUE(!clock_gettime(CLOCK_REALTIME_COARSE, &tick) &&
				 (tick.tv_sec > st.st_ctim.tv_sec ||
				  (tick.tv_sec == st.st_ctim.tv_sec && tick.tv_nsec > st.st_ctim.tv_nsec)),
			 10000));
}

/* Nobody has the block, and its grace is refused.  If our file is gone, an importer may have it unseen. */
static bool goes_straight_to_the_driver(struct other *other)
{
	CUipcMemHandle handle;
	CUdeviceptr p = share(PAGE, &handle);

	visit(other, handle);
	free_block(p);
	return frees_of(p) == 1;
}

IN_A_CHILD(a_file_that_is_removed_is_noticed_at_the_next_free)
{
	struct other other = start_other(HOUR);
	char path[128];

	start_with_budget(PAGE);
	free_block(share(PAGE, NULL));
	CHECK(goes_straight_to_the_driver(&other)); /* the file may have grown */
	await_next_tick();
	CHECK(goes_straight_to_the_driver(&other));
	path_of_ours(path, false);
	CHECK(!unlink(path));
	CHECK(!goes_straight_to_the_driver(&other));
}

IN_A_CHILD(a_file_in_whose_place_another_is_put_is_noticed_at_the_next_free)
{
	struct other other = start_other(HOUR);
	char path[128], aside[140];

	start_with_budget(PAGE);
	free_block(share(PAGE, NULL));
	path_of_ours(path, false);
	snprintf(aside, sizeof aside, "%s.aside", path);
	CHECK(goes_straight_to_the_driver(&other)); /* the file may have grown */
	await_next_tick();
	CHECK(goes_straight_to_the_driver(&other));
	CHECK(!rename(path, aside));
	await_next_tick();
	CHECK(goes_straight_to_the_driver(&other)); /* importers that do not find it are refused */
	make_file(path);
	CHECK(!goes_straight_to_the_driver(&other));
	/* it is back */
	CHECK(!rename(aside, path));
	CHECK(goes_straight_to_the_driver(&other));
}

/* The file itself does not change then. */
IN_A_CHILD(a_folder_in_whose_place_another_is_put_is_noticed_within_100_ms)
{
	struct other other = start_other(HOUR);
	char path[128], its_folder[128], aside[140];

	start_with_budget(PAGE);
	free_block(share(PAGE, NULL));
	path_of_ours(path, false);
	path_of_ours(its_folder, true);
	snprintf(aside, sizeof aside, "%s.aside", its_folder);
	CHECK(goes_straight_to_the_driver(&other)); /* the file may have grown */
	await_next_tick();
	CHECK(goes_straight_to_the_driver(&other));
	CHECK(!rename(its_folder, aside) && !mkdir(its_folder, 0700));
	make_file(path);
	turn_clock(100000000);
	CHECK(!goes_straight_to_the_driver(&other));
	CHECK(!remove_folder_at(its_folder) && !rename(aside, its_folder));
	CHECK(goes_straight_to_the_driver(&other));
}

/* In one tick of the clock two changes of a file may have the same time: so the first one says nothing. */
IN_A_CHILD(a_change_of_the_tick_that_has_just_begun_is_not_remembered)
{
	struct other other = start_other(HOUR);
	uint64_t looked = 0;
	char path[128];
	int tries;

	start_with_budget(PAGE);
	free_block(share(PAGE, NULL));
	path_of_ours(path, false);
	CHECK(goes_straight_to_the_driver(&other)); /* the file may have grown */
	await_next_tick();
	CHECK(goes_straight_to_the_driver(&other));
	CHECK(cl_exporter.limbo.name.looked);
	/* mostly the free comes in the same tick as the change */
	for (tries = 0; tries < 100; tries++) {
		CUipcMemHandle handle;
		CUdeviceptr p = share(PAGE, &handle);

		visit(&other, handle);
		looked = cl_exporter.limbo.name.looked;
		CHECK(!chmod(path, 0600));
		free_block(p);
		CHECK_EQUAL(frees_of(p), 1);
		if (cl_exporter.limbo.name.looked == looked)
			break;
	}
	CHECK(tries < 100);
	/* later it is */
	await_next_tick();
	CHECK(goes_straight_to_the_driver(&other));
	CHECK(cl_exporter.limbo.name.looked > looked);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_that_is_removed_is_noticed_at_the_next_free),
		cmocka_unit_test(a_file_in_whose_place_another_is_put_is_noticed_at_the_next_free),
		cmocka_unit_test(a_folder_in_whose_place_another_is_put_is_noticed_within_100_ms),
		cmocka_unit_test(a_change_of_the_tick_that_has_just_begun_is_not_remembered),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

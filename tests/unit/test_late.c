/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exporter that lacks something at its first export gets it later: a moment without descriptors, space
 * or a directory does not affect it to the end of the process.  Nor does one process's umask affect all
 * processes of the user.
 */
#include "tests/unit/fake_driver.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/namespaces/own_mounts.h"

enum { SOON = 20000, DESCRIPTORS = 128 };

/* A low limit, so that a test can use up all descriptors. */
static void few_descriptors(void)
{
	struct rlimit few = { DESCRIPTORS, DESCRIPTORS };

	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
}

static void use_up(void)
{
	while (dup(0) >= 0)
		;
	CHECK_EQUAL(errno, EMFILE);
}

static void give_back(void)
{
	for (int fd = 3; fd < DESCRIPTORS; fd++)
		if (fcntl(fd, F_GETFD) == 0) /* culimbo's descriptors are close-on-exec */
			close(fd);
}

/* Exports and frees @n blocks, which no process opens.  Returns how many the driver got back. */
static unsigned int cycle(unsigned int n)
{
	unsigned int back = 0;

	while (n--) {
		CUdeviceptr p = exported_block();

		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		back += frees_of(p);
	}
	return back;
}

/* Another process finds the file by its name, and sees by its lock that the exporter lives. */
static void others_find_it(void)
{
	uint32_t id = cl_own.file_id;
	pid_t self = getpid(), child = fork();

	if (!child) {
		int dir = open(folder, O_RDONLY | O_DIRECTORY);
		struct cl_region region;

		child_begins();
		CHECK(cl_liveness_is_exporter((uint32_t)self, id, false));
		CHECK_EQUAL(cl_region_open(&region, dir, id, NULL), 0);
		CHECK_EQUAL(region.locks->is_locked(&region, CL_LOCK_EXPORTER), 1);
		CHECK_EQUAL(region.header->exporter.pid, self);
		_exit(0);
	}
	child_judge(child);
}

IN_A_CHILD(a_directory_that_is_made_later_is_used_then)
{
	char parent[100], path[128];
	CUdeviceptr early, late;

	start_with(0, CL_COLLECTOR_THREAD);
	snprintf(parent, sizeof parent, "%s/parent", folder);
	snprintf(path, sizeof path, "%s/limbo", parent);
	cl_options.dir.text = path;
	early = exported_block();
	CHECK_EQUAL(logged("cannot make this process's exporter file"), 1);
	CHECK(!mkdir(parent, 0700));
	late = early;
	CHECK(COMES_TRUE((late = exported_block(), cl_own.file_id), SOON));
	CHECK_EQUAL(logged("exporter file could be made now"), 1);
	CHECK_EQUAL(cl_memory_free(late), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(late), 1);
	/* it is not known who has opened that one */
	CHECK_EQUAL(cl_memory_free(early), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(early), 0);
	CHECK_EQUAL(cycle(100), 100);
	CHECK_EQUAL(logged("exporter file"), 2);
	CHECK(!remove_folder_at(path) && !remove_folder_at(parent));
}

/* Writes until the file system of @path is full. */
static void fill_up(const char *path)
{
	static const char page[4096];
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	while (write(fd, page, sizeof page) > 0)
		;
	CHECK_EQUAL(errno, ENOSPC);
	CHECK(!close(fd));
}

/* Before the exporter has its file, and while it has one and needs room for more records. */
IN_A_CHILD(a_file_system_that_is_full_and_has_room_later_is_used_then)
{
	enum { MORE = 4 * CL_CHUNK };
	char full[100], filler[128];
	CUdeviceptr early, late, without[MORE];
	unsigned int back = 0;

	snprintf(full, sizeof full, "%s/full-%d", folder, (int)getpid());
	snprintf(filler, sizeof filler, "%s/filler", full);
	CHECK(!mkdir(full, 0700));
	if (own_mounts() || mount("full", full, "tmpfs", 0, "size=4m,mode=0700"))
		CHILD_SKIP("no file system of its own may be had");
	start_with(0, CL_COLLECTOR_THREAD);
	cl_options.dir.text = full;
	fill_up(filler);
	early = exported_block();
	CHECK(!cl_own.file_id);
	CHECK_EQUAL(logged("cannot make this process's exporter file"), 1);
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_EQUAL(count_entries(full), 1); /* no half-made file stays */
	CHECK(!unlink(filler));
	CHECK(COMES_TRUE((late = exported_block(), cl_own.file_id), SOON));
	CHECK_EQUAL(logged("exporter file could be made now"), 1);
	CHECK_EQUAL(cl_memory_free(late), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(late), 1);
	CHECK_EQUAL(cl_memory_free(early), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(early), 0);
	CHECK_EQUAL(cycle(100), 100);
	/* full again: exports beyond the first chunk of records have none */
	fill_up(filler);
	for (unsigned int i = 0; i < MORE; i++)
		without[i] = exported_block();
	CHECK_EQUAL(logged("no room for one more export"), 1);
	CHECK(!unlink(filler));
	for (unsigned int i = 0; i < MORE; i++) {
		CHECK_EQUAL(cl_memory_free(without[i]), CUDA_SUCCESS);
		back += frees_of(without[i]);
	}
	CHECK(back && back < MORE);
	for (unsigned int i = 0; i < MORE; i++)
		without[i] = exported_block();
	for (unsigned int i = 0; i < MORE; i++) {
		CHECK_EQUAL(cl_memory_free(without[i]), CUDA_SUCCESS);
		CHECK_EQUAL(frees_of(without[i]), 1);
	}
	CHECK_EQUAL(cl_process_end(0), 0);
	CHECK_EQUAL(count_entries(full), 0);
	CHECK(!umount2(full, MNT_DETACH) && !rmdir(full)); /* it is mapped still */
}

/* However long the directory is missing, culimbo finds it later and does not retry all the time. */
IN_A_CHILD(a_directory_that_is_missing_for_long_is_looked_for_now_and_then)
{
	char parent[100], path[128];
	uint64_t end;

	start_with(0, CL_COLLECTOR_THREAD);
	snprintf(parent, sizeof parent, "%s/parent", folder);
	snprintf(path, sizeof path, "%s/limbo", parent);
	cl_options.dir.text = path;
	for (end = test_now() + 50 * MS; test_now() < end;)
		cycle(1);
	CHECK(!cl_own.file_id);
	CHECK_EQUAL(logged("cannot make this process's exporter file"), 1);
	CHECK(!mkdir(parent, 0700));
	CHECK(COMES_TRUE((cycle(1), cl_own.file_id), SOON));
	CHECK_EQUAL(cycle(100), 100);
	CHECK(!remove_folder_at(path) && !remove_folder_at(parent));
}

IN_A_CHILD(with_one_descriptor_in_hand_there_is_a_file_at_once)
{
	start_with(0, CL_COLLECTOR_THREAD);
	few_descriptors();
	CHECK(cl_self_start());
	use_up();
	CHECK_EQUAL(cycle(100), 100);
	CHECK(cl_own.file_id);
	CHECK_EQUAL(logged("exporter file"), 0);
	give_back();
	others_find_it();
}

IN_A_CHILD(without_a_descriptor_there_is_a_file_as_soon_as_there_is_one)
{
	start_with(0, CL_COLLECTOR_THREAD);
	few_descriptors();
	use_up();
	CHECK_EQUAL(cycle(1), 0);
	CHECK(!cl_own.file_id);
	give_back();
	CHECK_EQUAL(cycle(100), 100);
	CHECK_EQUAL(logged("exporter file could be made now"), 1);
	others_find_it();
}

/* A directory that others may write to is not used by its path either. */
IN_A_CHILD(with_one_descriptor_in_hand_the_directory_is_looked_at_too)
{
	char path[128];

	start_with(0, CL_COLLECTOR_THREAD);
	snprintf(path, sizeof path, "%s/open", folder);
	CHECK(!mkdir(path, 0700) && !chmod(path, 0777));
	cl_options.dir.text = path;
	few_descriptors();
	CHECK(cl_self_start());
	use_up();
	CHECK_EQUAL(cycle(1), 0);
	CHECK(!cl_own.file_id);
	give_back();
	CHECK_EQUAL(count_entries(path), 0);
	CHECK(!remove_folder_at(path));
}

/* ------------------------------------------------------------------------ umask */
enum { NOBODY = 65534 };

/* Root needs no rights: acts as another user, in a parent directory of that user.  Returns its path. */
static const char *as_an_ordinary_user(void)
{
	static char parent[100];

	snprintf(parent, sizeof parent, "%s-%d", folder, (int)getpid());
	CHECK(!mkdir(parent, 0700));
	if (!geteuid()) {
		CHECK(!chown(parent, NOBODY, NOBODY));
		CHECK(!setresgid(NOBODY, NOBODY, NOBODY) && !setresuid(NOBODY, NOBODY, NOBODY));
	}
	return parent;
}

/* Creates the directory with that umask; a process with an ordinary umask shares there, too. */
static void with_umask(mode_t mask)
{
	const char *parent = as_an_ordinary_user();
	char path[128];
	struct stat st;
	pid_t child;

	start_with(0, CL_COLLECTOR_THREAD);
	snprintf(path, sizeof path, "%s/limbo", parent);
	cl_options.dir.text = path;
	cl_options.log_file.text = "";
	umask(mask);
	CHECK_EQUAL(cycle(10), 10);
	CHECK(!stat(path, &st));
	CHECK_EQUAL(st.st_mode & 07777, 0700);
	child = fork();
	if (!child) {
		child_begins();
		umask(022);
		CHECK_EQUAL(cycle(10), 10);
		_exit(cl_process_end(0));
	}
	child_judge(child);
	CHECK_EQUAL(cl_process_end(0), 0);
	CHECK(!rmdir(path) && !rmdir(parent));
}

IN_A_CHILD(a_umask_that_forbids_searching_is_no_matter)
{
	with_umask(0177);
}

IN_A_CHILD(a_umask_that_forbids_all_is_no_matter)
{
	with_umask(0777);
}

/* A program has left the directory without the right to search it. */
IN_A_CHILD(a_directory_that_cannot_be_searched_is_mended)
{
	const char *parent = as_an_ordinary_user();
	char path[128];
	struct stat st;

	start_with(0, CL_COLLECTOR_THREAD);
	snprintf(path, sizeof path, "%s/limbo", parent);
	cl_options.dir.text = path;
	cl_options.log_file.text = "";
	CHECK(!mkdir(path, 0700) && !chmod(path, 0600));
	CHECK_EQUAL(cycle(10), 10);
	CHECK(!stat(path, &st));
	CHECK_EQUAL(st.st_mode & 07777, 0700);
	CHECK_EQUAL(cl_process_end(0), 0);
	CHECK(!rmdir(path) && !rmdir(parent));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_directory_that_is_made_later_is_used_then),
		cmocka_unit_test(a_file_system_that_is_full_and_has_room_later_is_used_then),
		cmocka_unit_test(a_directory_that_is_missing_for_long_is_looked_for_now_and_then),
		cmocka_unit_test(with_one_descriptor_in_hand_there_is_a_file_at_once),
		cmocka_unit_test(without_a_descriptor_there_is_a_file_as_soon_as_there_is_one),
		cmocka_unit_test(with_one_descriptor_in_hand_the_directory_is_looked_at_too),
		cmocka_unit_test(a_umask_that_forbids_searching_is_no_matter),
		cmocka_unit_test(a_umask_that_forbids_all_is_no_matter),
		cmocka_unit_test(a_directory_that_cannot_be_searched_is_mended),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

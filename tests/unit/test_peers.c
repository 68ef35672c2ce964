/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An importer opens blocks of many exporters, one after the other or all at once.  Each exporter costs the
 * same as the first, and the importer does not keep all exporters that it has closed.
 *
 * One process acts as all exporters: it has as many files, each with a block.  An importer sees no
 * difference.
 */
#include "tests/unit/fake_driver.h"

#include <sys/resource.h>

#include "shim/importer/peers.h"
#include "shim/self/outlive.h"

enum { MANY = 200, MOST_IDLE = 64, HELD = 3 };

static struct exporters {
	pid_t pid;
	int line;
	CUipcMemHandle handle[MANY];
} exporters;

/* What was asked about exporters that may have ended. */
static unsigned int judged, judged_by_proc;
enum cl_liveness __real_cl_gc_judge(struct cl_region *region);
enum cl_liveness __wrap_cl_gc_judge(struct cl_region *region);
enum cl_liveness __wrap_cl_gc_judge(struct cl_region *region)
{
	judged++;
	return __real_cl_gc_judge(region);
}
enum cl_liveness __real_cl_liveness_judge(struct cl_region *region, off_t lock_byte, const struct cl_identity *identity,
					  uint64_t *free_since, uint64_t now, uint64_t settle);
enum cl_liveness __wrap_cl_liveness_judge(struct cl_region *region, off_t lock_byte, const struct cl_identity *identity,
					  uint64_t *free_since, uint64_t now, uint64_t settle);
enum cl_liveness __wrap_cl_liveness_judge(struct cl_region *region, off_t lock_byte, const struct cl_identity *identity,
					  uint64_t *free_since, uint64_t now, uint64_t settle)
{
	judged_by_proc++;
	return __real_cl_liveness_judge(region, lock_byte, identity, free_since, now, settle);
}

/* Has all the files; ends when @line is closed. */
static void be_exporters(int line)
{
	static struct cl_region region[MANY];
	struct cl_identity me;
	int dir = open(folder, O_RDONLY | O_DIRECTORY), n;
	char byte;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_identity_self(&me);
	for (n = 0; n < MANY; n++) {
		uint64_t base = DEVICE_BASE + (uint64_t)n * DEVICE_STEP;
		CUipcMemHandle *handle = &exporters.handle[n];
		struct cl_export what = { .kind = CL_MEMORY, .base = base, .size = 1024,
					  .handle = (uint8_t *)handle->reserved, .now = 1 };
		pid_t pid = getpid();

		CHECK_EQUAL(cl_region_create(&region[n], dir, &me), 0);
		memcpy(handle->reserved + 24, &pid, sizeof pid);
		memcpy(handle->reserved + 32, &base, sizeof base);
		cl_handle_put_stamp(handle->reserved, CL_MEMORY,
				    cl_region_stamp(&region[n], 0, cl_record_publish(&region[n], 0, &what)));
	}
	CHECK_EQUAL(write(line, exporters.handle, sizeof exporters.handle), sizeof exporters.handle);
	CHECK(read(line, &byte, 1) <= 0);
	for (n = 0; n < MANY; n++)
		cl_region_unlink(&region[n], dir);
	_exit(0);
}

static void start(void)
{
	exporters.pid = fork_with_line(&exporters.line);
	if (!exporters.pid)
		be_exporters(exporters.line);
	CHECK_EQUAL(read(exporters.line, exporters.handle, sizeof exporters.handle),
		    sizeof exporters.handle);
	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.stack.number = 0;
}

static void finish(void)
{
	close(exporters.line);
	CHECK(waitpid(exporters.pid, NULL, 0) == exporters.pid);
}

static CUdeviceptr open_from(int n)
{
	CUdeviceptr p;

	CHECK_EQUAL(cl_memory_import(&p, exporters.handle[n], 0, fake_open), CUDA_SUCCESS);
	return p;
}

/* By our own mapping of its file; 0 where there is none. */
static unsigned int holders_of(int n)
{
	bool own;
	const struct cl_region *region = cl_peer_has_open(stamp_of(&exporters.handle[n]).file_id, &own);

	return region ? cl_record_held(region, 0) : 0;
}

static bool is_kept_open(int n)
{
	bool own;

	return cl_peer_has_open(stamp_of(&exporters.handle[n]).file_id, &own) != NULL;
}

/* True when a slot of that file is claimed, as another process sees it. */
static bool has_a_slot(int n)
{
	uint32_t id = stamp_of(&exporters.handle[n]).file_id;
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		int dir = open(folder, O_RDONLY | O_DIRECTORY);
		struct cl_region region;

		CHECK_EQUAL(cl_region_open(&region, dir, id, NULL), 0);
		_exit(atomic_load(&region.slot[0].claim) & CL_SLOT_CLAIMED ? 42 : 43);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	CHECK(WEXITSTATUS(status) == 42 || WEXITSTATUS(status) == 43);
	return WEXITSTATUS(status) == 42;
}

static unsigned int descriptors(void)
{
	return count_entries("/proc/self/fd");
}

/* Each open checks a few other exporters, however many were opened before. */
IN_A_CHILD(opening_from_the_last_of_many_costs_what_the_first_did)
{
	unsigned int most = 0;

	start();
	for (int n = 0; n < MANY; n++) {
		unsigned int before = judged;

		cl_memory_close(open_from(n));
		most = judged - before > most ? judged - before : most;
	}
	CHECK(most <= 6);
	/* for live exporters only their lock is checked */
	CHECK_EQUAL(judged_by_proc, 0);
	finish();
}

IN_A_CHILD(of_what_is_closed_not_all_is_kept)
{
	CUdeviceptr held[HELD];
	unsigned int before;

	start();
	cl_memory_close(open_from(0));
	before = descriptors();
	for (int n = 0; n < HELD; n++)
		held[n] = open_from(n);
	for (int n = HELD; n < MANY; n++)
		cl_memory_close(open_from(n));
	CHECK(descriptors() <= before + MOST_IDLE + HELD);
	/* the last ones are still kept, and the first have given their slot back */
	CHECK(is_kept_open(MANY - 1) && is_kept_open(MANY - MOST_IDLE / 2));
	CHECK(!is_kept_open(HELD) && !has_a_slot(HELD));
	/* held blocks stay held */
	for (int n = 0; n < HELD; n++)
		CHECK_EQUAL(holders_of(n), 1);
	/* one that was closed is opened again as at first */
	held[0] = open_from(HELD);
	CHECK_EQUAL(holders_of(HELD), 1);
	for (int n = 0; n < HELD; n++)
		CHECK_EQUAL(cl_memory_close(held[n]), CUDA_SUCCESS);
	CHECK_EQUAL(holders_of(HELD), 0);
	CHECK(has_a_slot(HELD));
	finish();
}

/* An exporter that is opened and closed all the time is not among the oldest. */
IN_A_CHILD(who_is_used_again_stays)
{
	start();
	for (int n = 0; n < MANY; n++) {
		cl_memory_close(open_from(n));
		cl_memory_close(open_from(0));
		CHECK(is_kept_open(0));
	}
	finish();
}

/* All exporters held at once have a descriptor each; after the closes they are dropped like others. */
IN_A_CHILD(what_is_held_is_never_closed)
{
	static CUdeviceptr held[MANY];
	unsigned int before = descriptors();

	start();
	for (int n = 0; n < MANY; n++)
		held[n] = open_from(n);
	for (int n = 0; n < MANY; n++)
		CHECK_EQUAL(holders_of(n), 1);
	for (int n = 0; n < MANY; n++)
		CHECK_EQUAL(cl_memory_close(held[n]), CUDA_SUCCESS);
	/* the others are the line, our own file, and what is kept in hand */
	CHECK(descriptors() <= before + MOST_IDLE + 3);
	finish();
}

IN_A_CHILD(the_last_descriptor_goes_after_those_that_are_not_needed)
{
	struct rlimit few = { 128, 128 };
	CUdeviceptr p;

	start();
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	for (int n = 0; n < MOST_IDLE / 2; n++)
		cl_memory_close(open_from(n));
	while (dup(0) >= 0)
		;
	CHECK_EQUAL(errno, EMFILE);
	p = open_from(MOST_IDLE);
	CHECK_EQUAL(holders_of(MOST_IDLE), 1);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(holders_of(MOST_IDLE), 0);
	finish();
}

static const struct cl_region *get(int n)
{
	int err = 0;
	struct cl_peer *peer;

	cl_lock(&cl_imports_lock);
	peer = cl_peer_get(stamp_of(&exporters.handle[n]).file_id, &err);
	cl_unlock(&cl_imports_lock);
	CHECK(peer);
	return &peer->region;
}

/* With the last descriptor the file is opened by its path, and has none. */
IN_A_CHILD(each_file_can_tell_who_is_outlived)
{
	struct rlimit few = { 4096, 4096 };

	start();
	CHECK(get(0)->fd >= 0 && get(0)->is_outlived == cl_outlive_is_outlived);
	/* it stays open, so that it has no descriptor to give */
	open_from(1);
	cl_self_spare_restore();
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	while (dup(0) >= 0)
		;
	for (int n = 2; get(n)->fd >= 0; n++)
		CHECK(n < MOST_IDLE && get(n)->is_outlived == cl_outlive_is_outlived);
	for (int n = 2; n < MOST_IDLE; n++)
		if (is_kept_open(n))
			CHECK(get(n)->fd == -1 && get(n)->is_outlived == cl_outlive_is_outlived);
	finish();
}

/* The program has used up its descriptors, and has closed none of ours: the log says that, and the block is kept for it. */
IN_A_CHILD(without_a_descriptor_the_log_says_so)
{
	struct rlimit few = { 4096, 4096 };
	int n = 2, last = -1, log;

	start();
	/* the log's file cannot be opened then, and its lines go to stderr */
	log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	CHECK(log >= 0 && dup2(log, 2) == 2);
	close(log);
	open_from(1);
	cl_self_spare_restore();
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	for (int fd; (fd = dup(0)) >= 0;)
		last = fd;
	while (get(n)->fd >= 0)
		n++;
	CHECK(open_from(n));
	close(last);
	CHECK_EQUAL(logged("no descriptor is left for exporter file"), 1);
	CHECK_EQUAL(logged("no descriptor is to be had for the exporter file of process"), 1);
	CHECK_EQUAL(logged("the program closed"), 0);
	finish();
}

/* This process maps the file from then on, so that the exporter takes it for the owner of that slot. */
IN_A_CHILD(what_a_former_program_held_goes_as_soon_as_a_file_is_opened)
{
	int dir = open(folder, O_RDONLY | O_DIRECTORY);
	struct cl_identity former;
	struct cl_region region;
	uint8_t handle[64];

	start();
	/* before this process has the file among its peers: a close drops all its locks on a file */
	CHECK_EQUAL(cl_memory_close(open_from(1)), CUDA_SUCCESS);
	former = cl_self.identity;
	former.image++;
	CHECK(former.start_time);
	CHECK_EQUAL(cl_region_open(&region, dir, stamp_of(&exporters.handle[0]).file_id, NULL), 0);
	CHECK_EQUAL(cl_holder_claim(&region, &former, cl_now(), 0), 0);
	cl_record_handle(&region, 0, handle);
	CHECK_EQUAL(cl_record_hold(&region, 0, 0, 0, handle), 0);
	cl_region_close(&region);
	get(0);
	CHECK_EQUAL(holders_of(0), 0);
	finish();
}

/* A program that may have few descriptors gets back nearly all, whether it asked for that before or later. */
IN_A_CHILD(where_descriptors_are_few_few_are_kept)
{
	enum { FEW = 128, SHARE = 16, EXPORTERS = 40 };
	struct rlimit few = { FEW, FEW };
	static CUdeviceptr held[EXPORTERS];
	unsigned int before;

	start();
	cl_memory_close(open_from(0));
	before = descriptors();
	for (int n = 1; n < EXPORTERS; n++)
		cl_memory_close(open_from(n));
	CHECK_EQUAL(descriptors(), before + EXPORTERS - 1);
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	for (int n = 0; n < EXPORTERS; n++)
		held[n] = open_from(EXPORTERS + n);
	for (int n = 0; n < EXPORTERS; n++) {
		CHECK_EQUAL(holders_of(EXPORTERS + n), 1);
		CHECK_EQUAL(cl_memory_close(held[n]), CUDA_SUCCESS);
	}
	CHECK(descriptors() < before + FEW / SHARE);
	/* and the last ones are still kept */
	CHECK(is_kept_open(2 * EXPORTERS - 1));
	finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opening_from_the_last_of_many_costs_what_the_first_did),
		cmocka_unit_test(of_what_is_closed_not_all_is_kept),
		cmocka_unit_test(who_is_used_again_stays),
		cmocka_unit_test(what_is_held_is_never_closed),
		cmocka_unit_test(the_last_descriptor_goes_after_those_that_are_not_needed),
		cmocka_unit_test(each_file_can_tell_who_is_outlived),
		cmocka_unit_test(without_a_descriptor_the_log_says_so),
		cmocka_unit_test(what_a_former_program_held_goes_as_soon_as_a_file_is_opened),
		cmocka_unit_test(where_descriptors_are_few_few_are_kept),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: a held block stays.  It is released when its last importer has closed it or died, and not
 * before.  A held block whose context has ended is watched until then.
 */
#include "tests/unit/limbo.h"

#include <signal.h>

IN_A_CHILD(own_opens_are_counted)
{
	CUipcMemHandle handle;
	CUdeviceptr p, own = 0, again = 0, late = 0;

	start_with(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	handle = export_block(p);
	/* a stamp in a handle that the driver did not make does not count */
	handle.reserved[8] ^= 1;
	CHECK_EQUAL(open_own(&own, handle), CUDA_ERROR_INVALID_VALUE);
	handle.reserved[8] ^= 1;
	/* nor does culimbo open one where the driver would refuse any */
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(open_own(&own, handle), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(open_own(&own, handle), CUDA_SUCCESS);
	CHECK_EQUAL(open_own(&again, handle), CUDA_SUCCESS);
	CHECK(own == p && again == p);
	CHECK_EQUAL(atomic_load(&fake.open_calls), 0);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(open_own(&late, handle), CUDA_SUCCESS); /* it is still there */
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 0);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK(freed_soon(p));
	CHECK(COMES_TRUE(!cl_own.header->limbo_blocks, SOON));
	CHECK_EQUAL(atomic_load(&fake.close_calls), 0);
	CHECK_EQUAL(open_own(&late, handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_memory_close(p), CUDA_ERROR_INVALID_VALUE); /* one too many: the driver's */
	CHECK_EQUAL(atomic_load(&fake.close_calls), 1);
}

/* The thread of ours in this process: cl_thread_begin() gives it its name. */
static pid_t collector_task(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	pid_t task = 0;

	CHECK(tasks);
	while (!task && (entry = readdir(tasks))) {
		char path[300], name[16] = "";
		int fd;

		snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
		fd = open(path, O_RDONLY);
		if (fd < 0)
			continue;
		if (read(fd, name, sizeof name - 1) > 0 && !strcmp(name, "culimbo\n"))
			task = atoi(entry->d_name);
		close(fd);
	}
	closedir(tasks);
	return task;
}

/* Freed while @other has it open; returns when the driver has it back, in nanoseconds after @ends ended that. */
static uint64_t back_after(struct other *other, void (*ends)(struct other *other, uint64_t mapped))
{
	CUdeviceptr p = fake_alloc(1024, CONTEXT_A);
	uint64_t mapped = others_open(other, export_block(p)), began;

	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 0);
	/* else the collector may just be looking, without being woken */
	CHECK(COMES_TRUE(atomic_load(&cl_own.header->sleeping) && sleeps_in_a_futex(collector_task()), SOON));
	began = cl_now();
	ends(other, mapped);
	CHECK(freed_soon(p));
	return freed_at(p) - began;
}

static void by_close(struct other *other, uint64_t mapped)
{
	others_close(other, mapped);
}

static void by_death(struct other *other, uint64_t mapped)
{
	(void)mapped;
	kill(other->pid, SIGKILL);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

IN_A_CHILD(an_importer_keeps_a_block_until_it_closes_or_dies)
{
	enum { ROUNDS = 3 }; /* of a busy machine one may be late; what waits for something is late each time */
	struct other other = start_other(0), dying[ROUNDS];
	CUipcMemHandle handle;
	CUdeviceptr p;
	uint64_t mapped, again, closed = UINT64_MAX, killed = UINT64_MAX;

	for (int i = 0; i < ROUNDS; i++)
		dying[i] = start_other(0);
	start_with(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	handle = export_block(p);
	mapped = others_open(&other, handle);
	again = others_open(&other, handle);
	CHECK(mapped == again && mapped != p);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 0);
	others_close(&other, mapped);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 0);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 1);
	others_close(&other, mapped);
	CHECK(freed_soon(p));

	for (int i = 0; i < ROUNDS; i++)
		closed = least(closed, back_after(&other, by_close));
	dprintf(2, "freed %.2f ms after the last close was asked for\n", (double)closed / 1e6);
	CHECK(closed < CL_REAP_EVERY / 2); /* by the close, not by the next search for dead processes */
	for (int i = 0; i < ROUNDS; i++)
		killed = least(killed, back_after(&dying[i], by_death));
	dprintf(2, "freed %.2f ms after its importer was killed\n", (double)killed / 1e6);
	CHECK(killed < 500 * MS);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_HOLD_RECLAIMED]), ROUNDS);
}

IN_A_CHILD(who_holds_what_is_no_more_is_waited_for)
{
	struct other other = start_other(0);
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	others_open(&other, export_block(p));
	CHECK(!cl_limbo_collect(&cl_exporter, false).held);
	CHECK(!cl_limbo_collect(&cl_exporter, false).held); /* by what the first collection has found */
	cl_driver.cuIpcGetMemHandle = get_other_handle;
	export_block(p);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	CHECK(cl_limbo_collect(&cl_exporter, false).held); /* a collection must notice when the holder dies */
	CHECK(cl_limbo_collect(&cl_exporter, false).held);
	kill(other.pid, SIGKILL);
	CHECK(COMES_TRUE((cl_limbo_reap(&cl_exporter), !cl_limbo_collect(&cl_exporter, false).held), SOON));
}

static void what_is_gone_is_watched(bool in_a_free, bool kills)
{
	struct other other = start_other(0);
	uint64_t import;
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	import = others_open(&other, export_block(p));
	if (in_a_free) { /* its context ends meanwhile, in another thread of the program */
		fake.in_sync = end_meanwhile;
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	} else {
		cl_driver.cuIpcGetMemHandle = get_other_handle;
		export_block(p);
	}
	CHECK_EQUAL(cl_life_state(cl_record_life(&cl_own, 0)), CL_ORPHANED);
	if (kills)
		kill(other.pid, SIGKILL);
	else
		others_close(&other, import);
	if (!COMES_TRUE(cl_life_state(cl_record_life(&cl_own, 0)) == CL_FREE, SOON)) {
		dprintf(2, "nothing waits for the holder of an ended block\n");
		_exit(1);
	}
}
IN_A_CHILD(the_collector_sees_who_closes_what_is_no_more)
{
	what_is_gone_is_watched(false, false);
}
IN_A_CHILD(the_collector_sees_who_dies_with_what_is_no_more)
{
	what_is_gone_is_watched(false, true);
}
IN_A_CHILD(the_collector_sees_who_dies_with_what_went_in_a_free)
{
	what_is_gone_is_watched(true, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_opens_are_counted),
		cmocka_unit_test(an_importer_keeps_a_block_until_it_closes_or_dies),
		cmocka_unit_test(who_holds_what_is_no_more_is_waited_for),
		cmocka_unit_test(the_collector_sees_who_closes_what_is_no_more),
		cmocka_unit_test(the_collector_sees_who_dies_with_what_is_no_more),
		cmocka_unit_test(the_collector_sees_who_dies_with_what_went_in_a_free),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two exporters in one process: each has its own exporter file, blocks, limbo and collector, and sees
 * nothing of the other's.  They share the process's contexts, and the lock of all exports.
 * ThreadSanitizer checks what they do without that lock.
 */
#include "tests/unit/other.h"

#include "shim/exporter/export.h"
#include "shim/exporter/free.h"
#include "shim/exporter/own_open.h"

enum { EXPORTERS = 2, EACH = 8, ROUNDS = 40 };

static struct cl_exporter exporter[EXPORTERS];
static struct cl_exporter_room room[EXPORTERS];
static struct cl_region region[EXPORTERS];
static _Atomic uint32_t file_id[EXPORTERS];
static CUdeviceptr address[EXPORTERS][EACH];

static bool has(const struct cl_exporter *ex, CUdeviceptr p)
{
	bool has;

	cl_lock(&cl_exports_lock);
	has = cl_block_find(&ex->blocks, CL_MEMORY, p) != NULL;
	cl_unlock(&cl_exports_lock);
	return has;
}

static uint64_t count_in_limbo(unsigned int i)
{
	return atomic_load(&region[i].header->limbo_blocks);
}

static void start_two(uint64_t collector)
{
	int dir = open(folder, O_RDONLY | O_DIRECTORY);

	start_with(HOUR, collector);
	cl_options.stack.number = 0; /* stacks are recorded in the process's file */
	CHECK(cl_self_start_to_share());
	for (unsigned int i = 0; i < EXPORTERS; i++) {
		CHECK_EQUAL(cl_region_create(&region[i], dir, &cl_self.identity), 0);
		region[i].header->grace = HOUR;
		cl_exporter_begin(&exporter[i], &region[i], &file_id[i], &room[i]);
		atomic_store(&file_id[i], region[i].file_id);
		for (unsigned int n = 0; n < EACH; n++)
			address[i][n] = fake_alloc(MIB, CONTEXT_A);
	}
	close(dir);
}

/* Stops the collectors, which would otherwise run during this process's end. */
static void end_two(void)
{
	for (unsigned int i = 0; i < EXPORTERS; i++)
		CHECK(cl_collector_stop(&exporter[i], SOON * MS));
}

/* Exports the block at @p by @ex, which opens its own handle: it holds the block until it closes that. */
static void export_and_open(struct cl_exporter *ex, CUdeviceptr p)
{
	CUipcMemHandle handle;
	struct cl_stamp stamp;
	CUdeviceptr opened;

	CHECK_EQUAL(cl_export_carefully(ex, &handle, p), CUDA_SUCCESS);
	stamp = stamp_of(&handle);
	CHECK_EQUAL(stamp.file_id, ex->blocks.region->file_id);
	CHECK(cl_region_has_stamped(ex->blocks.region, &stamp));
	cl_handle_put_stamp(handle.reserved, CL_MEMORY, 0);
	CHECK_EQUAL(cl_own_open(ex, stamp, handle.reserved, &opened), 0);
	CHECK(opened == p);
	CHECK(cl_block_may_be(&ex->blocks.filter, p));
}

static void *share_free_collect(void *number)
{
	const unsigned int i = (unsigned int)(uintptr_t)number;
	struct cl_exporter *mine = &exporter[i], *others = &exporter[!i];
	CUresult result;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		for (unsigned int n = 0; n < EACH; n++) {
			const CUdeviceptr p = address[i][n];

			export_and_open(mine, p);
			CHECK(has(mine, p) && !has(others, p));
			CHECK(!cl_own_has(others, CL_MEMORY, p) && !cl_own_close(others, p));
			CHECK(!cl_free_memory(others, p, &result));
			CHECK(cl_free_memory(mine, p, &result));
			CHECK_EQUAL(result, CUDA_SUCCESS);
		}
		CHECK(!cl_limbo_is_empty(mine));
		CHECK_EQUAL(count_in_limbo(i), EACH);
		/* what the other gives back or presses is its own */
		cl_limbo_collect(others, false);
		CHECK_EQUAL(count_in_limbo(i), EACH);
		for (unsigned int n = 0; n < EACH; n++) {
			CHECK_EQUAL(frees_of(address[i][n]), 0);
			CHECK(cl_own_close(mine, address[i][n]));
		}
		CHECK(COMES_TRUE((cl_limbo_collect(mine, true), !count_in_limbo(i)), SOON));
		for (unsigned int n = 0; n < EACH; n++) {
			CHECK_EQUAL(frees_of(address[i][n]), 1);
			CHECK(!has(mine, address[i][n]));
			fake_alloc_again(address[i][n], CONTEXT_A);
		}
	}
	return NULL;
}

static void run_two(void)
{
	pthread_t thread[EXPORTERS];

	for (uintptr_t i = 0; i < EXPORTERS; i++)
		CHECK(!pthread_create(&thread[i], NULL, share_free_collect, (void *)i));
	for (unsigned int i = 0; i < EXPORTERS; i++) {
		CHECK(!pthread_join(thread[i], NULL));
		CHECK_EQUAL(atomic_load(&region[i].header->live_blocks), 0);
		CHECK(cl_limbo_is_empty(&exporter[i]));
		/* each counted its own records, and used each again */
		CHECK_EQUAL(cl_block_records_locked(&exporter[i].blocks), EACH);
	}
	/* the one of this process has exported nothing */
	CHECK_EQUAL(cl_block_records_locked(&cl_exporter.blocks), 0);
	CHECK(cl_limbo_is_empty(&cl_exporter));
	end_two();
}

IN_A_CHILD(two_exporters_see_nothing_of_each_other)
{
	start_two(CL_COLLECTOR_INLINE);
	run_two();
}

IN_A_CHILD(two_collectors_see_nothing_of_each_other)
{
	start_two(CL_COLLECTOR_THREAD);
	run_two();
}

/* It forgets everything and starts as the first time; its file and its room are used again. */
IN_A_CHILD(an_exporter_that_begins_anew_knows_nothing)
{
	CUdeviceptr p;
	CUresult result;

	start_two(CL_COLLECTOR_INLINE);
	p = address[0][0];
	export_and_open(&exporter[0], p);
	CHECK(cl_free_memory(&exporter[0], p, &result));
	CHECK(cl_own_close(&exporter[0], p));
	export_and_open(&exporter[1], address[1][0]);
	cl_exporter_begin(&exporter[0], &region[0], &file_id[0], &room[0]);
	CHECK(!has(&exporter[0], p));
	CHECK(!cl_block_may_be(&exporter[0].blocks.filter, p));
	CHECK(cl_limbo_is_empty(&exporter[0]));
	CHECK_EQUAL(exporter[0].grace.waiting, 0);
	CHECK_EQUAL(cl_limbo_collect(&exporter[0], true).blocks, 0);
	CHECK_EQUAL(frees_of(p), 0);
	/* the other's are unchanged */
	CHECK(has(&exporter[1], address[1][0]));
	end_two();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_exporters_see_nothing_of_each_other),
		cmocka_unit_test(two_collectors_see_nothing_of_each_other),
		cmocka_unit_test(an_exporter_that_begins_anew_knows_nothing),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

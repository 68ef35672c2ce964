/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budgets of the limbo: blocks that wait only for their grace period take at most CULIMBO_GRACE_BYTES
 * of each device, and held blocks at most CULIMBO_HELD_BYTES.  No two blocks share a page here; test_grace_pages.c has
 * those that do.  Each test is a process that has
 * shared nothing yet; importers are separate processes; the driver is a fake one that counts calls.
 */
#include "tests/unit/budget.h"

#include "shim/limbo/press.h"

IN_A_CHILD(over_the_budget_the_oldest_goes_before_the_free_returns)
{
	CUdeviceptr p[5];

	start_with_budget(3 * PAGE);
	for (int i = 0; i < 5; i++)
		p[i] = share(PAGE, NULL);
	for (int i = 0; i < 3; i++)
		free_block(p[i]);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	free_block(p[3]);
	CHECK_EQUAL(frees_of(p[0]), 1);
	CHECK_EQUAL(frees_of(p[1]), 0);
	free_block(p[4]);
	CHECK_EQUAL(frees_of(p[1]), 1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 2);
	CHECK_EQUAL(cl_own.header->limbo_bytes, 3 * PAGE);
	CHECK_EQUAL(cl_count_get(graces_cut), 2);
	CHECK_EQUAL(cl_count_get(graces_cut_bytes), 2 * PAGE);
}

IN_A_CHILD(what_was_opened_as_often_as_exported_goes_first)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle[4];
	CUdeviceptr p[4];

	start_with_budget(3 * PAGE);
	for (int i = 0; i < 4; i++)
		p[i] = share(PAGE, &handle[i]);
	export_block(p[1]);
	visit(&other, handle[1]); /* once of two times */
	visit(&other, handle[2]);
	for (int i = 0; i < 4; i++)
		free_block(p[i]);
	CHECK_EQUAL(frees_of(p[2]), 1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 1);
	/* also opened while it is in the limbo */
	visit(&other, handle[3]);
	free_block(share(PAGE, NULL));
	CHECK_EQUAL(frees_of(p[3]), 1);
	CHECK_EQUAL(frees_of(p[0]), 0);
	/* then the oldest */
	free_block(share(PAGE, NULL));
	CHECK_EQUAL(frees_of(p[0]), 1);
}

/* So a program that shares in a loop pays only for the driver's own free. */
IN_A_CHILD(a_block_that_would_go_first_goes_straight_to_the_driver)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle;
	CUdeviceptr p;

	start_with_budget(2 * PAGE);
	for (int i = 0; i < 2; i++)
		free_block(share(PAGE, NULL));
	CHECK_EQUAL(atomic_load(&fake.syncs), 2);
	for (uint32_t i = 1; i <= 20; i++) {
		p = share(PAGE, &handle);
		visit(&other, handle);
		free_block(p);
		CHECK_EQUAL(frees_of(p), 1);
		CHECK_EQUAL(cl_count_get(graces_cut), i);
	}
	CHECK_EQUAL(atomic_load(&fake.syncs), 2); /* the driver's free itself waits */
	CHECK_EQUAL(cl_own.header->limbo_bytes, 2 * PAGE);
	/* the driver refuses: nothing was released */
	p = share(PAGE, &handle);
	visit(&other, handle);
	fake.free_result = CUDA_ERROR_ILLEGAL_ADDRESS;
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_ILLEGAL_ADDRESS);
	fake.free_result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_count_get(graces_cut), 20);
}

IN_A_CHILD(a_block_larger_than_the_budget_has_no_grace)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle, held;
	CUdeviceptr p, q, small;
	uint64_t there;

	start_with_budget(2 * MIB);
	small = share(MIB, NULL);
	free_block(small);
	p = share(3 * MIB, &handle);
	free_block(p);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = handle }).result,
		    CUDA_ERROR_INVALID_VALUE);
	/* a held block waits only for its holder */
	q = share(3 * MIB, &held);
	there = others_open(&other, held);
	free_block(q);
	CHECK_EQUAL(state_of(q), CL_BLOCK_HELD);
	others_close(&other, there);
	cl_collector_wake(&cl_exporter);
	CHECK_EQUAL(frees_of(q), 1);
	CHECK_EQUAL(frees_of(small), 0);
}

IN_A_CHILD(within_the_budget_a_handle_under_way_opens)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle;
	CUdeviceptr p;

	start_with_budget(2 * MIB);
	p = share(2 * MIB, &handle);
	free_block(p);
	visit(&other, handle);
	CHECK_EQUAL(frees_of(p), 0);
	/* over the budget its handle is stale */
	free_block(share(MIB, NULL));
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = handle }).result,
		    CUDA_ERROR_INVALID_VALUE);
}

IN_A_CHILD(what_is_held_is_no_matter_of_the_grace)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle[3];
	CUdeviceptr p[3];
	uint64_t there[3];

	start_with_budget(2 * PAGE);
	for (int i = 0; i < 3; i++) {
		p[i] = share(PAGE, &handle[i]);
		there[i] = others_open(&other, handle[i]);
	}
	for (int i = 0; i < 3; i++)
		free_block(p[i]);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	CHECK_EQUAL(state_of(p[0]), CL_BLOCK_HELD);
	CHECK_EQUAL(state_of(p[1]), CL_BLOCK_GRACE);
	others_close(&other, there[0]);
	cl_collector_wake(&cl_exporter);
	CHECK_EQUAL(frees_of(p[0]), 1);
	CHECK_EQUAL(frees_of(p[1]), 0);
}

IN_A_CHILD(each_device_has_a_budget)
{
	CUdeviceptr p[6];

	start_with_budget(2 * PAGE);
	for (int i = 0; i < 6; i++) {
		fake.block_device = i % 2 ? 63 : 0;
		p[i] = share(PAGE, NULL);
	}
	for (int i = 0; i < 4; i++)
		free_block(p[i]);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	free_block(p[5]);
	CHECK_EQUAL(frees_of(p[1]), 1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 1);
	free_block(p[4]);
	CHECK_EQUAL(frees_of(p[0]), 1);
}

IN_A_CHILD(by_itself_the_budget_is_at_most_a_part_of_the_device)
{
	CUdeviceptr p;

	fake.device_size = 128 * MIB;
	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(cl_options.grace_bytes.number, 256 * MIB);
	p = share(2 * MIB, NULL);
	free_block(p);
	CHECK_EQUAL(frees_of(p), 0);
	free_block(share(1, NULL));
	CHECK_EQUAL(frees_of(p), 1);
	/* an explicit setting is not reduced */
	cl_options.grace_bytes.from_environment = true;
	p = share(4 * MIB, NULL);
	free_block(p);
	CHECK_EQUAL(frees_of(p), 0);
}

IN_A_CHILD(a_free_in_a_streams_order_waits_for_its_stream_when_it_goes_early)
{
	CUdeviceptr p;

	start_with_budget(2 * MIB);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	p = share(2 * MIB, NULL);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	free_block(share(MIB, NULL));
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(state_of(p), CL_BLOCK_FENCED);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_collector_wake(&cl_exporter);
	CHECK_EQUAL(frees_of(p), 1);
}

IN_A_CHILD(events_take_nothing_of_the_budget)
{
	CUipcEventHandle handle;

	start_with_budget(0);
	for (int i = 0; i < 3; i++) {
		CUevent event = fake_event();

		cl_shareable_event_created(event);
		CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
		CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	}
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 3);
}

IN_A_CHILD(opens_are_counted_until_there_are_many)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle;
	struct cl_record *r;
	uint64_t there;
	CUdeviceptr own;

	start_with_budget(HOUR);
	share(MIB, &handle);
	r = &cl_own.record[stamp_of(&handle).record];
	CHECK_EQUAL(r->opens, 0);
	there = others_open(&other, handle);
	CHECK_EQUAL(r->opens, 1);
	/* the same again in this process */
	CHECK_EQUAL(others_open(&other, handle), there);
	CHECK_EQUAL(r->opens, 2);
	CHECK_EQUAL(cl_memory_import(&own, handle, 0, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(r->opens, 3);
	r->opens = CL_MANY - 1;
	for (int i = 0; i < 2; i++) {
		others_open(&other, handle);
		CHECK_EQUAL(r->opens, CL_MANY);
	}
	for (uint32_t i = 1; i < CL_MANY + 2u; i++)
		export_block(DEVICE_BASE);
	CHECK_EQUAL(r->exports, CL_MANY);
}

IN_A_CHILD(what_goes_for_somebodys_need_is_not_counted_as_over_the_budget)
{
	CUdeviceptr p;

	start_with_budget(4 * MIB);
	p = share(MIB, NULL);
	cl_limbo_press(&cl_exporter, CL_ANY_DEVICE, cl_now() + HOUR);
	free_block(p);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_count_get(graces_cut), 0);
}

/* ----------------------------------------------------------- CULIMBO_HELD_BYTES */
IN_A_CHILD(beyond_a_limit_the_oldest_held_block_goes_and_its_holder_is_named)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle[3];
	CUdeviceptr p[3], again;
	uint64_t there[3];
	char words[64];

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.held_bytes.number = 2 * MIB;
	for (int i = 0; i < 3; i++) {
		p[i] = share(MIB, &handle[i]);
		there[i] = others_open(&other, handle[i]);
	}
	for (int i = 0; i < 2; i++)
		free_block(p[i]);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	free_block(p[2]);
	CHECK_EQUAL(frees_of(p[0]), 1);
	CHECK_EQUAL(frees_of(p[1]), 0);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_HELD_FORCED_OUT]), 1);
	CHECK_EQUAL(cl_own.header->finding_counts[CL_FINDING_HELD_FORCED_OUT], 1);
	CHECK_EQUAL(cl_own.header->limbo_bytes, 2 * MIB);
	snprintf(words, sizeof words, "although process %d (", (int)other.pid);
	CHECK_EQUAL(logged(words), 1);
	CHECK_EQUAL(logged("CULIMBO_HELD_BYTES"), 1);
	/* its handle is stale, another block at its address is unaffected, and the holder may close */
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = handle[1] }).result, CUDA_SUCCESS);
	fake_alloc_again(p[0], CONTEXT_A);
	again = p[0];
	export_block(again);
	CHECK_EQUAL(cl_memory_free(again), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(again), 1);
	others_close(&other, there[0]);
	cl_collector_wake(&cl_exporter);
	CHECK_EQUAL(frees_of(again), 1);
	/* the record is free again */
	CHECK_EQUAL(cl_life_state(cl_record_life(&cl_own, stamp_of(&handle[0]).record)), CL_FREE);
}

/* @n blocks that @other holds, freed. */
static void hold(struct other *other, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		CUipcMemHandle handle;
		CUdeviceptr p = share(MIB, &handle);

		others_open(other, handle);
		free_block(p);
	}
}

/* Thousands of blocks that one call forces out, or many calls one each, do not make thousands of lines. */
IN_A_CHILD(beyond_a_limit_the_log_names_20_blocks_and_counts_the_rest)
{
	struct other other = start_other(HOUR);

	start_with(0, CL_COLLECTOR_INLINE);
	hold(&other, 49);
	cl_options.held_bytes.number = 1;
	hold(&other, 1);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_HELD_FORCED_OUT]), 50);
	CHECK_EQUAL(logged("maps it: freed blocks that other processes map"), 20);
	CHECK_EQUAL(logged(": 30 more freed blocks go back to the driver although"), 1);
	/* each by a call of its own */
	hold(&other, 30);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_HELD_FORCED_OUT]), 80);
	CHECK_EQUAL(logged("maps it: freed blocks that other processes map"), 20);
	CHECK_EQUAL(logged("more freed blocks go back to the driver although"), 1);
	/* when the burst is over, the next call tells how many these were */
	turn_clock(CL_BURST_TIME);
	hold(&other, 1);
	CHECK_EQUAL(logged("maps it: freed blocks that other processes map"), 21);
	CHECK_EQUAL(logged(": 30 more freed blocks go back to the driver although"), 2);
	CHECK_EQUAL(logged("more freed blocks go back to the driver although"), 2);
}

/* The process may do nothing more with the memory that it shares. */
IN_A_CHILD(how_many_more_were_forced_out_is_told_though_no_other_is)
{
	struct other other = start_other(HOUR);
	struct cl_collected collected;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.held_bytes.number = 1;
	hold(&other, CL_BURST_NAMED + 30);
	CHECK_EQUAL(logged(": 1 more freed blocks go back to the driver although"), 1);
	CHECK_EQUAL(logged("more freed blocks go back to the driver although"), 1);
	collected = cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(collected.next, cl_exporter.limbo.forced.until);
	turn_clock(CL_BURST_TIME);
	collected = cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(logged(": 29 more freed blocks go back to the driver although"), 1);
	CHECK_EQUAL(collected.next, UINT64_MAX);
}

/* A process that pinned it has no slot and no name. */
IN_A_CHILD(beyond_a_limit_a_holder_that_is_not_known_has_no_name)
{
	CUipcMemHandle handle;
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.held_bytes.number = MIB;
	p = share(2 * MIB, &handle);
	cl_own.record[stamp_of(&handle).record].pinned = 1;
	free_block(p);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(logged("a process that is not known may map it"), 1);
	CHECK_EQUAL(logged("process 0"), 0);
}

IN_A_CHILD(beyond_a_limit_a_block_that_the_driver_refuses_is_said)
{
	CUipcMemHandle handle;
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.held_bytes.number = MIB;
	p = share(2 * MIB, &handle);
	cl_own.record[stamp_of(&handle).record].pinned = 1;
	fake.free_result = CUDA_ERROR_ILLEGAL_ADDRESS;
	free_block(p);
	CHECK_EQUAL(logged("the driver refused to take block"), 1);
}

/* While a process ends, its driver may be gone before our thread is: it has freed everything by itself. */
IN_A_CHILD(a_driver_that_shuts_down_has_refused_nothing)
{
	const CUresult results[] = { CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_ILLEGAL_ADDRESS };
	CUipcMemHandle handle;
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_INLINE);
	for (unsigned int i = 0; i < 2; i++) {
		/* one that goes as one of a batch */
		p = share(2 * MIB, &handle);
		cl_own.record[stamp_of(&handle).record].pinned = 1;
		free_block(p);
		cl_own.record[stamp_of(&handle).record].pinned = 0;
		fake.free_result = results[i];
		cl_limbo_look_again_locked(&cl_exporter, cl_block_find(&cl_exporter.blocks, CL_MEMORY, p));
		CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 1);
		CHECK_EQUAL(logged("the driver refused to take block"), i);
		/* and one alone */
		fake.free_result = CUDA_SUCCESS;
		p = share(2 * MIB, &handle);
		cl_own.record[stamp_of(&handle).record].pinned = 1;
		cl_options.held_bytes.number = MIB;
		fake.free_result = results[i];
		free_block(p);
		CHECK_EQUAL(logged("the driver refused to take block"), i);
		cl_options.held_bytes.number = 0;
		fake.free_result = CUDA_SUCCESS;
	}
}

static CUresult none_is_current(CUcontext *ctx)
{
	*ctx = NULL;
	return CUDA_ERROR_INVALID_CONTEXT;
}
static CUresult no_device(CUdevice *device)
{
	(void)device;
	return CUDA_ERROR_INVALID_CONTEXT;
}

/* It is not known whether the stream has reached the free: work on it may use the block. */
IN_A_CHILD(what_is_kept_for_its_stream_does_not_go_beyond_a_limit)
{
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_INLINE);
	p = share(2 * MIB, NULL);
	cl_options.held_bytes.number = MIB;
	cl_options.grace.number = HOUR; /* Otherwise it would be freed in the driver at once. */
	cl_options.grace_bytes.number = 4 * MIB;
	cl_driver.cuCtxGetCurrent = none_is_current;
	cl_driver.cuCtxGetDevice = no_device;
	cl_driver.cuStreamGetCtx = NULL;
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 0);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(state_of(p), CL_BLOCK_HELD);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_HELD_FORCED_OUT]), 0);
}

static int set_up(void **state)
{
	return make_folder(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(over_the_budget_the_oldest_goes_before_the_free_returns),
		cmocka_unit_test(what_was_opened_as_often_as_exported_goes_first),
		cmocka_unit_test(a_block_that_would_go_first_goes_straight_to_the_driver),
		cmocka_unit_test(a_block_larger_than_the_budget_has_no_grace),
		cmocka_unit_test(within_the_budget_a_handle_under_way_opens),
		cmocka_unit_test(what_is_held_is_no_matter_of_the_grace),
		cmocka_unit_test(each_device_has_a_budget),
		cmocka_unit_test(by_itself_the_budget_is_at_most_a_part_of_the_device),
		cmocka_unit_test(a_free_in_a_streams_order_waits_for_its_stream_when_it_goes_early),
		cmocka_unit_test(events_take_nothing_of_the_budget),
		cmocka_unit_test(opens_are_counted_until_there_are_many),
		cmocka_unit_test(what_goes_for_somebodys_need_is_not_counted_as_over_the_budget),
		cmocka_unit_test(beyond_a_limit_the_oldest_held_block_goes_and_its_holder_is_named),
		cmocka_unit_test(beyond_a_limit_the_log_names_20_blocks_and_counts_the_rest),
		cmocka_unit_test(how_many_more_were_forced_out_is_told_though_no_other_is),
		cmocka_unit_test(beyond_a_limit_a_holder_that_is_not_known_has_no_name),
		cmocka_unit_test(beyond_a_limit_a_block_that_the_driver_refuses_is_said),
		cmocka_unit_test(a_driver_that_shuts_down_has_refused_nothing),
		cmocka_unit_test(what_is_kept_for_its_stream_does_not_go_beyond_a_limit),
	};

	return cmocka_run_group_tests(tests, set_up, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: the grace period.  An exported and freed block is released when its grace period ends,
 * neither before nor much later.  A block that was never exported does not wait.
 *
 * Promises 1 and 3 as far as one exporter keeps them, and 6 (a process that does not share gets no
 * thread).
 */
#include "tests/unit/limbo.h"

static void grace_with(uint64_t collector)
{
	uint64_t exported, freed;
	CUdeviceptr p;

	start_with(GRACE, collector);
	p = fake_alloc(1024, CONTEXT_A);
	export_block(p);
	exported = cl_now();
	export_block(p); /* the grace period starts at the last export */
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	freed = cl_now();
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	if (collector == CL_COLLECTOR_THREAD)
		CHECK(freed_soon(p));
	else
		CHECK(COMES_TRUE((cl_collector_wake(&cl_exporter), frees_of(p) == 1), SOON));
	CHECK(freed_at(p) >= exported + GRACE);
	dprintf(2, "freed %.1f ms after its grace of %.0f ms\n",
		(double)(freed_at(p) - exported - GRACE) / 1e6, (double)GRACE / 1e6);
	CHECK(freed_at(p) < freed + GRACE + 1000 * MS);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 1);
	/* its address is free in the driver; culimbo does not care what the program does with it */
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 2);
	CHECK(!is_known(p));
}
IN_A_CHILD(a_block_goes_back_when_its_grace_is_over_not_before)
{
	grace_with(CL_COLLECTOR_THREAD);
}
IN_A_CHILD(without_a_collector_the_programs_calls_do_its_work)
{
	grace_with(CL_COLLECTOR_INLINE);
	CHECK_TASKS(1);
}

IN_A_CHILD(without_grace_an_unopened_block_goes_at_once_and_starts_nothing)
{
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_THREAD);
	for (int i = 0; i < 100; i++) {
		p = exported_block();
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		CHECK_EQUAL(frees_of(p), 1);
	}
	CHECK_TASKS(1);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	CHECK_EQUAL(cl_own.header->record_chunks, 1);
}

IN_A_CHILD(what_was_never_exported_is_the_drivers_matter)
{
	CUdeviceptr p, q;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(64, CONTEXT_A);
	q = fake_alloc(64, CONTEXT_A);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(atomic_load(&fake.syncs), 0);
	exported_block();
	CHECK_EQUAL(cl_memory_free(q), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(q), 1);
	CHECK_EQUAL(cl_memory_free(q), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_memory_free(0), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(DEVICE_BASE + 7), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_memory_free_async(fake_alloc(64, CONTEXT_A), SOME_STREAM, true), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.free_async_calls), 1);
	CHECK_TASKS(1);
	CHECK_EQUAL(cl_memory_close(DEVICE_BASE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(atomic_load(&fake.close_calls), 1);
}

IN_A_CHILD(freed_is_freed)
{
	CUipcMemHandle handle;
	CUdeviceptr p;
	uint32_t asked;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	asked = atomic_load(&fake.handle_calls);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_ERROR_INVALID_VALUE);
	/* an error of the driver comes first with culimbo, too */
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(atomic_load(&fake.handle_calls), asked);
	CHECK_EQUAL(cl_memory_export(&handle, p + 8), CUDA_ERROR_INVALID_VALUE); /* inside it */
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	CHECK_EQUAL(atomic_load(&fake.free_async_calls), 0);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_FREED_TWICE]), 4);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EXPORTED_AFTER_FREE]), 2);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 1);
}

static void a_grace_late(uint64_t collector)
{
	const uint64_t tick = 5 * GRACE / 64; /* the tick of the timer wheel, see cl_grace_tick() */
	uint64_t exported, begun = cl_now() / tick;
	CUdeviceptr first, second;

	start_with(5 * GRACE, collector);
	while (cl_now() / tick == begun)
		;
	begun++;
	first = exported_block();
	CHECK_EQUAL(cl_memory_free(first), CUDA_SUCCESS);
	/* a thread sleeps until then; without a thread nothing has looked for longer than that */
	if (collector == CL_COLLECTOR_THREAD)
		CHECK(COMES_TRUE(atomic_load(&cl_own.header->sleeping), SOON));
	turn_clock((collector == CL_COLLECTOR_THREAD ? 64 : 70) * tick);
	second = fake_alloc(1024, CONTEXT_A);
	exported = cl_now();
	export_block(second);
	CHECK_EQUAL(cl_memory_free(second), CUDA_SUCCESS);
	wake_sleepers();
	while (!frees_of(second)) {
		turn_clock(tick / 4);
		cl_collector_wake(&cl_exporter);
		sched_yield();
	}
	if (freed_at(second) < exported + 5 * GRACE) {
		dprintf(2, "its grace of %.0f ms ended after %.1f ms\n", (double)(5 * GRACE) / 1e6,
			(double)(freed_at(second) - exported) / 1e6);
		_exit(1);
	}
}
IN_A_CHILD(the_grace_is_whole_though_the_collector_sleeps)
{
	a_grace_late(CL_COLLECTOR_THREAD);
}
IN_A_CHILD(the_grace_is_whole_though_nobody_called_for_long)
{
	a_grace_late(CL_COLLECTOR_INLINE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_goes_back_when_its_grace_is_over_not_before),
		cmocka_unit_test(without_a_collector_the_programs_calls_do_its_work),
		cmocka_unit_test(without_grace_an_unopened_block_goes_at_once_and_starts_nothing),
		cmocka_unit_test(what_was_never_exported_is_the_drivers_matter),
		cmocka_unit_test(freed_is_freed),
		cmocka_unit_test(the_grace_is_whole_though_the_collector_sleeps),
		cmocka_unit_test(the_grace_is_whole_though_nobody_called_for_long),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

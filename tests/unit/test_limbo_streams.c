/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: stream-ordered frees.  Such a block waits for its stream by a fence, an event that is recorded
 * behind the free.  The stream may belong to another context than the block; then the fence ends with the
 * stream's context.
 */
#include "tests/unit/limbo.h"

#include "shim/driver/green.h"
#include "shim/limbo/forced.h"

IN_A_CHILD(a_free_on_a_stream_waits_for_its_stream)
{
	CUdeviceptr p;
	uint64_t exported;

	start_with(GRACE, CL_COLLECTOR_THREAD);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	p = exported_block();
	exported = cl_now();
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.syncs), 0); /* in the stream's order, not now */
	CHECK(fake.recorded_on == SOME_STREAM);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
	/* long after its grace period it is still allocated, although collections ran */
	CHECK(COMES_TRUE(state_of(p) == CL_BLOCK_FENCED && cl_now() > exported + 2 * GRACE, SOON));
	CHECK_EQUAL(frees_of(p), 0);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	CHECK(freed_soon(p));
	CHECK_EQUAL(atomic_load(&fake.free_async_calls), 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), atomic_load(&fake.event_n)); /* the fence was destroyed */
}

IN_A_CHILD(a_stream_that_never_gets_there_is_asked_about_less_and_less)
{
	CUdeviceptr p[2];
	uint64_t start;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	for (int i = 0; i < 2; i++) {
		p[i] = exported_block();
		start = cl_now();
		CHECK_EQUAL(cl_memory_free_async(p[i], SOME_STREAM, false), CUDA_SUCCESS);
		cl_limbo_collect(&cl_exporter, true);
		CHECK_EQUAL(state_of(p[i]), CL_BLOCK_FENCED);
		check_that_it_asks_less_and_less(start);
	}
}

/* The collector looks while a thread of the program queries in its place. */
static uint64_t next_meanwhile;
static CUresult query_and_collect(CUevent event)
{
	cl_driver.cuEventQuery = fake_event_query;
	next_meanwhile = cl_limbo_collect(&cl_exporter, false).next;
	return fake_event_query(event);
}
IN_A_CHILD(who_asks_about_a_stream_does_not_hide_it_from_the_collector)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(state_of(p), CL_BLOCK_FENCED);
	cl_driver.cuEventQuery = query_and_collect;
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(state_of(p), CL_BLOCK_FENCED);
	CHECK(next_meanwhile && next_meanwhile < UINT64_MAX); /* or it would sleep forever */
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
}

IN_A_CHILD(a_free_on_a_stream_that_can_not_be_fenced_or_captures)
{
	CUdeviceptr p;

	start_with(GRACE, CL_COLLECTOR_THREAD);
	p = exported_block();
	/* a free needs no event and succeeds without; an error of the context makes it fail */
	fake.event_create_result = CUDA_ERROR_OUT_OF_MEMORY;
	fake.none_result = CUDA_ERROR_ILLEGAL_ADDRESS;
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQUAL(state_of(p), CL_BLOCK_LIVE);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(state_of(p), CL_BLOCK_HELD);
	CHECK_EQUAL(logged("no host memory for the fence of a stream-ordered free"), 1);
	fake.event_create_result = CUDA_SUCCESS;
	p = exported_block();
	/* another stream of the thread captures: the driver refuses such a free, so this one is refused */
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(state_of(p), CL_BLOCK_LIVE);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), atomic_load(&fake.event_n)); /* the fence was destroyed */
	CHECK_EQUAL(atomic_load(&fake.recorded_n), 0);
	/* the same on the NULL stream, which a capturing blocking stream forbids */
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	CHECK_EQUAL(cl_memory_free_async(p, NULL, false), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	fake.none_result = CUDA_SUCCESS;
	fake.capturing_result = CUDA_ERROR_INVALID_HANDLE;
	CHECK_EQUAL(cl_memory_free_async(p, NULL, false), CUDA_ERROR_INVALID_HANDLE);
	fake.capturing_result = CUDA_SUCCESS;
	CHECK_EQUAL(state_of(p), CL_BLOCK_LIVE);
	/* a capturing stream does not run: the driver decides about it */
	fake.capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	fake.free_result = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, true), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(atomic_load(&fake.free_async_calls), 1);
	CHECK_EQUAL(state_of(p), CL_BLOCK_LIVE);
	CHECK_EQUAL(atomic_load(&fake.recorded_n), 0);
	fake.capturing = CU_STREAM_CAPTURE_STATUS_NONE;
	fake.free_result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, true), CUDA_SUCCESS);
	CHECK(freed_soon(p));
}

/* A stream-ordered free waits for its stream while the context ends. */
static void context_ends_before_its_stream(bool gone)
{
	CUdeviceptr p;
	uint32_t asked;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(state_of(p), CL_BLOCK_FENCED);
	CHECK(cl_limbo_collect(&cl_exporter, false).next < UINT64_MAX); /* its stream is queried again */
	context_ends(CONTEXT_A, 0);
	asked = atomic_load(&fake.queries);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
	CHECK_EQUAL(atomic_load(&fake.queries), asked);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	context_ended(CONTEXT_A, 0, gone);
	cl_limbo_collect(&cl_exporter, false);
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(frees_of(p), !gone);
	CHECK(!is_known(p));
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	/* nothing is left to be queried */
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
}
IN_A_CHILD(who_waits_for_a_stream_is_asked_about_no_more_when_its_context_did_not_end)
{
	context_ends_before_its_stream(false);
}
IN_A_CHILD(who_waits_for_a_stream_is_asked_about_no_more_when_its_context_ended)
{
	context_ends_before_its_stream(true);
}

/* Which has not got there yet; the other context is CONTEXT_B, the primary one is A. */
static CUdeviceptr freed_in_a_stream_of_b(void)
{
	CUdeviceptr p = exported_block();

	fake.stream_ctx = CONTEXT_B;
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(state_of(p), CL_BLOCK_FENCED);
	return p;
}
/* Its fence cannot be queried any more. */
static void b_has_ended(void)
{
	atomic_store(&fake.dead_b, true);
	context_ended(CONTEXT_B, -1, true);
}

IN_A_CHILD(a_fence_goes_with_the_context_of_its_stream)
{
	CUdeviceptr p, waits;
	uint32_t asked;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = freed_in_a_stream_of_b();
	waits = exported_block(); /* in its grace period when that happens */
	CHECK_EQUAL(cl_memory_free_async(waits, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(state_of(waits), CL_BLOCK_GRACE);
	asked = atomic_load(&fake.queries);
	CHECK(asked > 0);
	context_ends(CONTEXT_B, -1);
	/* it may be gone already: it is not queried */
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 0);
	CHECK_EQUAL(atomic_load(&fake.queries), asked);
	CHECK_EQUAL(frees_of(p) + frees_of(waits), 0);
	b_has_ended();
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(frees_of(waits), 1);
	CHECK_EQUAL(atomic_load(&fake.queries), asked);
}

IN_A_CHILD(a_fence_is_asked_about_when_its_context_has_not_ended)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = freed_in_a_stream_of_b();
	context_ends(CONTEXT_B, -1);
	cl_limbo_collect(&cl_exporter, true);
	context_ended(CONTEXT_B, -1, false);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	/* another context's end does not matter */
	context_ends(NULL, 1);
	context_ended(NULL, 1, true);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	/* its fence is forgotten: nothing of it is left to end with that context */
	context_ends(CONTEXT_B, -1);
	b_has_ended();
}

IN_A_CHILD(a_fence_that_outlives_its_block_is_destroyed)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = freed_in_a_stream_of_b();
	end_context_a(true);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	context_ends(CONTEXT_B, -1);
	b_has_ended();
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	CHECK_EQUAL(frees_of(p), 0);
}

IN_A_CHILD(a_fence_that_outlives_its_block_goes_with_its_context)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	freed_in_a_stream_of_b();
	context_ends(CONTEXT_B, -1);
	end_context_a(true);
	cl_limbo_collect(&cl_exporter, true); /* it may be gone */
	b_has_ended();
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 0);
}

/* A green context could not be recorded, so any context may be one: the end of a fence could not be known. */
IN_A_CHILD(without_knowing_whose_stream_it_is_a_block_is_kept)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = exported_block();
	fake.stream_ctx = CONTEXT_B;
	atomic_fetch_or(&cl_green_known, CL_GREEN_INCOMPLETE);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(logged("no host memory for the fence of a stream-ordered free"), 1);
	cl_limbo_collect(&cl_exporter, true);
	context_ends(CONTEXT_B, -1);
	b_has_ended();
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
}

static _Atomic bool in_query, stall_query;
static CUresult query_that_stalls(CUevent event)
{
	CUresult result = fake_event_query(event);

	atomic_store(&in_query, true);
	while (atomic_load(&stall_query))
		usleep(100);
	return result;
}
static void *end_b_beside(void *unused)
{
	atomic_store(&thread_task, gettid());
	context_ends(CONTEXT_B, -1);
	atomic_store(&thread_done, true);
	b_has_ended();
	return unused;
}
IN_A_CHILD(a_context_does_not_end_while_a_fence_of_it_is_asked_about)
{
	pthread_t asks, ends;
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = freed_in_a_stream_of_b();
	cl_driver.cuEventQuery = query_that_stalls;
	atomic_store(&stall_query, true);
	CHECK(!pthread_create(&asks, NULL, collect_beside, NULL));
	CHECK(COMES_TRUE(atomic_load(&in_query), SOON));
	ends = starts_and_waits(end_b_beside);
	atomic_store(&stall_query, false);
	CHECK(!pthread_join(asks, NULL) && !pthread_join(ends, NULL));
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
}

/* Without a record a large block is freed in the driver at once, in the order of the program's stream. */
IN_A_CHILD(without_a_record_a_large_block_is_freed_by_the_driver_in_stream_order)
{
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.dir.text = "/proc/nowhere/culimbo";
	p = fake_alloc(2 * MIB, CONTEXT_A);
	export_block(p);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_free_on_a_stream_waits_for_its_stream),
		cmocka_unit_test(a_stream_that_never_gets_there_is_asked_about_less_and_less),
		cmocka_unit_test(who_asks_about_a_stream_does_not_hide_it_from_the_collector),
		cmocka_unit_test(a_free_on_a_stream_that_can_not_be_fenced_or_captures),
		cmocka_unit_test(who_waits_for_a_stream_is_asked_about_no_more_when_its_context_did_not_end),
		cmocka_unit_test(who_waits_for_a_stream_is_asked_about_no_more_when_its_context_ended),
		cmocka_unit_test(a_fence_goes_with_the_context_of_its_stream),
		cmocka_unit_test(a_fence_is_asked_about_when_its_context_has_not_ended),
		cmocka_unit_test(a_fence_that_outlives_its_block_is_destroyed),
		cmocka_unit_test(a_fence_that_outlives_its_block_goes_with_its_context),
		cmocka_unit_test(without_knowing_whose_stream_it_is_a_block_is_kept),
		cmocka_unit_test(a_context_does_not_end_while_a_fence_of_it_is_asked_about),
		cmocka_unit_test(without_a_record_a_large_block_is_freed_by_the_driver_in_stream_order),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

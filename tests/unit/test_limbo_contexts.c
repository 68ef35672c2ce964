/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: what ends with its context is forgotten, in exporter and importer, and is not freed,
 * queried or destroyed any more; what belongs to another context stays.
 */
#include "tests/unit/limbo.h"

/* A is the primary context of device 0: such an end names only the device */
IN_A_CHILD(what_goes_with_its_primary_context_is_forgotten)
{
	CUdeviceptr of_a, of_b;

	start_with(0, CL_COLLECTOR_INLINE);
	of_a = exported_block();
	of_b = fake_alloc(1024, CONTEXT_B);
	export_block(of_b);
	CHECK_EQUAL(cl_own.header->live_blocks, 2);
	context_ends(NULL, 1); /* another device's */
	context_ended(NULL, 1, true);
	CHECK_EQUAL(cl_own.header->live_blocks, 2);
	context_ends(NULL, 0);
	fake_stack[0] = CONTEXT_B;
	context_ended(NULL, 0, true);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	CHECK(!cl_block_find(&cl_exporter.blocks, CL_MEMORY, of_a) && cl_block_find(&cl_exporter.blocks, CL_MEMORY, of_b));
	CHECK(!none_belongs_to_a_context());
	CHECK_EQUAL(cl_memory_free(of_b), CUDA_SUCCESS);
	CHECK(none_belongs_to_a_context());
}

/* Forgets the stream for frees, too: a stream that is forgotten in a live context leaks. */
IN_A_CHILD(no_stream_is_made_again_for_the_end_of_another_devices_context)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (int i = 0; i < 3; i++) {
		CUdeviceptr p = exported_block();

		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		cl_limbo_collect(&cl_exporter, true);
		CHECK(freed_soon(p));
		CHECK_EQUAL(fake.streams_made, 1);
		context_ends(NULL, 1);
		context_ended(NULL, 1, true);
	}
}

/* With any number of contexts: cuMemFree() waits for all streams, and other calls wait for it. */
static uint32_t plain_frees;
static CUresult free_plainly(CUdeviceptr p)
{
	plain_frees += p != STAND_IN;
	return fake_free(p);
}
IN_A_CHILD(each_context_has_a_stream_to_free_on)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuMemFree_v2 = free_plainly;
	for (uintptr_t i = 1; i <= 40; i++) {
		CUdeviceptr p = fake_alloc(1024, (CUcontext)(0x1000 + 16 * i));

		export_block(p);
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		cl_limbo_collect(&cl_exporter, true);
		CHECK_EQUAL(frees_of(p), 1);
		CHECK_EQUAL(plain_frees, 0);
		CHECK_EQUAL(fake.streams_made, i);
	}
}

static unsigned int waits;
static CUresult count_a_wait(CUstream stream)
{
	waits++;
	return fake_stream_sync(stream);
}

/* Each context is waited for once a batch, in whatever order its blocks were freed. */
IN_A_CHILD(blocks_of_contexts_in_turn_go_in_few_batches)
{
	enum { PAIRS = 40 };
	static const CUcontext of[2] = { (CUcontext)0x1010, (CUcontext)0x1020 };
	CUdeviceptr p[2 * PAIRS];

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuStreamSynchronize = count_a_wait;
	for (int i = 0; i < 2 * PAIRS; i++) {
		p[i] = fake_alloc(1024, of[i % 2]);
		export_block(p[i]);
	}
	for (int i = 0; i < 2 * PAIRS; i++)
		CHECK_EQUAL(cl_memory_free(p[i]), CUDA_SUCCESS);
	waits = 0;
	cl_limbo_collect(&cl_exporter, true);
	for (int i = 0; i < 2 * PAIRS; i++)
		CHECK_EQUAL(frees_of(p[i]), 1);
	CHECK_EQUAL(waits, 2);
}

/* A thread that ends a context may wait for a host function that frees: neither may wait for the other forever. */
static _Atomic bool freed_beside;
static void *free_beside(void *p)
{
	CHECK_EQUAL(cl_memory_free((CUdeviceptr)(uintptr_t)p), CUDA_SUCCESS);
	freed_beside = true;
	return NULL;
}
IN_A_CHILD(a_free_does_not_wait_for_ever_for_the_end_of_its_context)
{
	pthread_t frees, turns;
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = exported_block();
	context_ends(CONTEXT_A, 0);
	turns = turn_clock_beside();
	CHECK(!pthread_create(&frees, NULL, free_beside, (void *)(uintptr_t)p));
	CHECK(COMES_TRUE(freed_beside, SOON));
	CHECK(!pthread_join(frees, NULL));
	turn_no_more(turns);
	CHECK(is_known(p));
	atomic_store(&fake.dead_a, true);
	context_ended(CONTEXT_A, 0, true);
	CHECK(!is_known(p));
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK(none_belongs_to_a_context());
}

IN_A_CHILD(what_goes_with_its_context_is_forgotten)
{
	struct other other = start_other(0);
	CUdeviceptr freed, live, held, of_b;
	CUipcMemHandle handle;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	freed = exported_block();
	live = exported_block();
	held = fake_alloc(1024, CONTEXT_A);
	handle = export_block(held);
	others_open(&other, handle);
	of_b = fake_alloc(1024, CONTEXT_B);
	export_block(of_b);
	CHECK_EQUAL(cl_memory_free(freed), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(held), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(of_b), CUDA_SUCCESS);
	end_context_a(false); /* the driver refused: nothing has changed */
	CHECK_EQUAL(cl_own.header->limbo_blocks, 3);
	CHECK_EQUAL(cl_memory_free(freed), CUDA_ERROR_INVALID_VALUE);
	end_context_a(true);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 1);
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(freed) + frees_of(live) + frees_of(held), 0);
	CHECK(freed_soon(of_b));
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = handle }).result,
		    CUDA_SUCCESS); /* it has it open: the driver still maps it */
	/* from now on the addresses belong to other blocks */
	fake_alloc_again(freed, CONTEXT_B);
	fake_alloc_again(held, CONTEXT_B);
	CHECK_EQUAL(cl_memory_free(freed), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(freed), 1);
	handle = export_block(held);
	CHECK_EQUAL(cl_memory_free(held), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(held), 0);
}

static void context_ends_in_a_free(CUresult result)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = exported_block();
	fake.in_sync = end_meanwhile; /* as by another thread of the program */
	fake.sync_result = result;
	CHECK_EQUAL(cl_memory_free(p), result);
	CHECK(!is_known(p));
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
}
IN_A_CHILD(a_block_whose_context_ends_while_it_is_freed_is_forgotten)
{
	context_ends_in_a_free(CUDA_SUCCESS);
}
IN_A_CHILD(a_block_whose_context_ends_while_its_free_fails_is_forgotten)
{
	context_ends_in_a_free(CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static CUresult record_and_end_a(CUevent event, CUstream stream)
{
	CUresult result = fake_event_record(event, stream);

	cl_limbo_collect(&cl_exporter, true);
	end_context_a(true);
	cl_limbo_collect(&cl_exporter, true);
	return result;
}

/* Freed on a stream of context B while the block's context A ends: B lives on, and the event in it is destroyed. */
IN_A_CHILD(the_event_in_another_context_goes_with_the_block)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = exported_block();
	fake.stream_ctx = CONTEXT_B;
	cl_driver.cuEventRecord = record_and_end_a;
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK(!is_known(p));
	cl_limbo_collect(&cl_exporter, true);
	/* the collector's thread may be in the driver with it */
	CHECK(COMES_TRUE(atomic_load(&fake.destroyed_n) == 1, SOON));
}

IN_A_CHILD(events_are_left_to_a_context_that_ends)
{
	start_with(HOUR, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(cl_event_destroy(exported_event(NULL), fake_event_destroy), CUDA_SUCCESS);
	end_context_a(true);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
}

/* The context of an event may not be known: the end of any context waits while such an event is destroyed. */
static _Atomic bool stall_destroy, in_destroy, b_has_begun_to_end;
static atomic_int ender_id;
static CUresult stalled_destroy(CUevent event)
{
	in_destroy = true;
	CHECK(COMES_TRUE(!stall_destroy, SOON));
	return fake_event_destroy(event);
}
static void *collects(void *unused)
{
	cl_limbo_collect(&cl_exporter, true);
	return unused;
}
static void *ends_b(void *unused)
{
	ender_id = gettid();
	context_ends(CONTEXT_B, -1);
	b_has_begun_to_end = true;
	context_ended(CONTEXT_B, -1, true);
	return unused;
}
IN_A_CHILD(who_ends_a_context_waits_for_events_of_an_unknown_one)
{
	pthread_t collector, ender;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuEventDestroy_v2 = stalled_destroy;
	CHECK_EQUAL(cl_event_destroy(exported_event(NULL), fake_event_destroy), CUDA_SUCCESS);
	stall_destroy = true;
	CHECK(!pthread_create(&collector, NULL, collects, NULL));
	CHECK(COMES_TRUE(in_destroy, SOON));
	CHECK(!pthread_create(&ender, NULL, ends_b, NULL));
	CHECK(COMES_TRUE(b_has_begun_to_end || sleeps_in_a_futex(ender_id), SOON));
	CHECK(!b_has_begun_to_end);
	stall_destroy = false;
	CHECK(!pthread_join(collector, NULL) && !pthread_join(ender, NULL));
	CHECK(none_belongs_to_a_context());
}

IN_A_CHILD(without_a_file_too_what_goes_with_its_context_is_forgotten)
{
	CUdeviceptr freed, live;

	start_with(0, CL_COLLECTOR_THREAD);
	cl_options.dir.text = "/proc/nowhere/culimbo";
	freed = exported_block();
	live = exported_block();
	CHECK_EQUAL(cl_memory_free(freed), CUDA_SUCCESS);
	end_context_a(true);
	/* their addresses belong to new blocks now, which the program frees like any other */
	fake_alloc_again(freed, CONTEXT_B);
	fake_alloc_again(live, CONTEXT_B);
	CHECK_EQUAL(cl_memory_free(freed), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(freed), 1);
	CHECK_EQUAL(cl_memory_free(live), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(live), 1);
}

/*
 * Another thread has ended a context, and has not forgotten yet what belonged to it.  The driver has given the addresses
 * to new blocks, and nobody waits for that thread.
 */
IN_A_CHILD(the_addresses_of_a_dead_context_are_new_blocks)
{
	CUdeviceptr freed, live, unshared;
	struct cl_list dead = { 0 };
	struct cl_context_end end;
	pthread_t turns;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	freed = exported_block();
	unshared = exported_block();
	live = exported_block();
	CHECK_EQUAL(cl_memory_free(freed), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(unshared), CUDA_SUCCESS);
	end = cl_context_end_begin(CONTEXT_A, 0);
	end_blocks_of_a();
	cl_context_open(&end, true, &dead);
	fake_alloc_again(freed, CONTEXT_B);
	fake_alloc_again(unshared, CONTEXT_B);
	fake_alloc_again(live, CONTEXT_B);
	turns = turn_clock_beside();
	export_block(freed);
	CHECK_EQUAL(cl_memory_free(unshared), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(unshared), 1);
	CHECK_EQUAL(cl_memory_free(live), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(live), 1);
	turn_no_more(turns);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	CHECK(!CL_LIST_FIRST(&dead, struct cl_context, node)->blocks.n);
}

/* Nobody has told us that B ended: the address of its block may be another block's. */
static CUresult push_unless_b(CUcontext ctx)
{
	return ctx == CONTEXT_B ? CUDA_ERROR_CONTEXT_IS_DESTROYED : fake_push(ctx);
}
IN_A_CHILD(nothing_of_a_context_that_ended_past_our_hooks_is_given_back)
{
	CUdeviceptr of_b;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	of_b = fake_alloc(1024, CONTEXT_B);
	export_block(of_b);
	CHECK_EQUAL(cl_memory_free(of_b), CUDA_SUCCESS);
	fake_stack[0] = CONTEXT_B;
	fake.stream_ctx = CONTEXT_B;
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(exported_block(), SOME_STREAM, false), CUDA_SUCCESS);
	fake_stack[0] = CONTEXT_A;
	atomic_store(&fake.dead_b, true);
	cl_driver.cuCtxPushCurrent_v2 = push_unless_b;
	cl_limbo_collect(&cl_exporter, true);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(of_b), 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
}

/* A block of B that is in the limbo. */
static CUdeviceptr freed_of_b(void)
{
	CUdeviceptr of_b = fake_alloc(1024, CONTEXT_B);

	export_block(of_b);
	CHECK_EQUAL(cl_memory_free(of_b), CUDA_SUCCESS);
	return of_b;
}

/* A push that fails for another reason says nothing of the context: the driver is asked to take the block. */
static CUresult push_fails_for_b(CUcontext ctx)
{
	return ctx == CONTEXT_B ? CUDA_ERROR_LAUNCH_FAILED : fake_push(ctx);
}
IN_A_CHILD(what_a_context_has_that_cannot_be_pushed_is_given_back)
{
	CUdeviceptr of_b;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	of_b = freed_of_b();
	cl_driver.cuCtxPushCurrent_v2 = push_fails_for_b;
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(of_b), 1);
	CHECK_EQUAL(fake.streams_made, 0);
}

/* Nobody has told us that B ended, and another context has got its handle. */
static unsigned long long id_of_b = 7;
static CUresult id_of(CUcontext ctx, unsigned long long *id)
{
	*id = ctx == CONTEXT_B ? id_of_b : 1;
	return CUDA_SUCCESS;
}
IN_A_CHILD(nothing_of_a_context_is_given_back_in_another_with_its_handle)
{
	CUdeviceptr of_b;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuCtxGetId = id_of;
	of_b = freed_of_b();
	atomic_store(&fake.dead_b, true);
	id_of_b++;
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(of_b), 0);
	CHECK_EQUAL(fake.streams_made, 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	/* the new one's own blocks */
	atomic_store(&fake.dead_b, false);
	of_b = freed_of_b();
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(of_b), 1);
}

/* UCX retains and releases the primary context around each open and each close. */
IN_A_CHILD(a_release_that_ends_no_context_starts_and_wakes_nobody)
{
	uint32_t woken;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	exported_block();
	woken = cl_own.header->wake;
	context_ends(NULL, 0);
	context_ended(NULL, 0, false);
	CHECK_EQUAL(cl_own.header->wake, woken);
	CHECK_TASKS(1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_goes_with_its_context_is_forgotten),
		cmocka_unit_test(what_goes_with_its_primary_context_is_forgotten),
		cmocka_unit_test(no_stream_is_made_again_for_the_end_of_another_devices_context),
		cmocka_unit_test(each_context_has_a_stream_to_free_on),
		cmocka_unit_test(blocks_of_contexts_in_turn_go_in_few_batches),
		cmocka_unit_test(a_free_does_not_wait_for_ever_for_the_end_of_its_context),
		cmocka_unit_test(a_block_whose_context_ends_while_it_is_freed_is_forgotten),
		cmocka_unit_test(a_block_whose_context_ends_while_its_free_fails_is_forgotten),
		cmocka_unit_test(the_event_in_another_context_goes_with_the_block),
		cmocka_unit_test(events_are_left_to_a_context_that_ends),
		cmocka_unit_test(who_ends_a_context_waits_for_events_of_an_unknown_one),
		cmocka_unit_test(without_a_file_too_what_goes_with_its_context_is_forgotten),
		cmocka_unit_test(the_addresses_of_a_dead_context_are_new_blocks),
		cmocka_unit_test(nothing_of_a_context_that_ended_past_our_hooks_is_given_back),
		cmocka_unit_test(nothing_of_a_context_is_given_back_in_another_with_its_handle),
		cmocka_unit_test(what_a_context_has_that_cannot_be_pushed_is_given_back),
		cmocka_unit_test(a_release_that_ends_no_context_starts_and_wakes_nobody),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

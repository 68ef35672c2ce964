/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context ends past our hooks, and the driver gives its addresses to new memory: whoever finds that out has all that
 * belonged to it forgotten, and the new memory is the program's like any other.
 */
#include "tests/unit/limbo.h"

/* B ends past our hooks.  Without ids its handle is refused; with ids another context has it. */
static unsigned long long id_of_b = 7;
static _Atomic CUresult push_of_b;
static CUresult push(CUcontext ctx)
{
	return ctx == CONTEXT_B && push_of_b ? push_of_b : fake_push(ctx);
}
static CUresult id_of(CUcontext ctx, unsigned long long *id)
{
	driver_entered();
	*id = ctx == CONTEXT_B ? id_of_b : 1;
	return CUDA_SUCCESS;
}

static void start(uint64_t collector, bool ids)
{
	start_with(HOUR, collector);
	cl_driver.cuCtxPushCurrent_v2 = push;
	if (ids)
		cl_driver.cuCtxGetId = id_of;
}

static void b_ends(bool ids)
{
	for (unsigned int i = 0; i < fake.n; i++)
		if (fake.block[i].ctx == CONTEXT_B)
			atomic_store(&fake.block[i].live, false);
	if (ids) {
		id_of_b++;
		return;
	}
	atomic_store(&fake.dead_b, true);
	push_of_b = CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUdeviceptr block_of_b(void)
{
	CUdeviceptr p = fake_alloc(1024, CONTEXT_B);

	export_block(p);
	return p;
}
static CUdeviceptr freed_of_b(void)
{
	CUdeviceptr p = block_of_b();

	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	return p;
}

static bool has_object(CUcontext handle)
{
	const struct cl_context *context;
	bool has = false;

	cl_lock(&cl_exports_lock);
	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
		has |= context->handle == handle;
	cl_unlock(&cl_exports_lock);
	return has;
}

static uint64_t misuses(void)
{
	return cl_count_get(findings[CL_FINDING_FREED_TWICE]) + cl_count_get(findings[CL_FINDING_EVENT_DESTROYED_TWICE]) +
	       cl_count_get(findings[CL_FINDING_EXPORTED_AFTER_FREE]);
}

static void check_that_nothing_of_b_is_left(void)
{
	CHECK(!has_object(CONTEXT_B));
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK(none_belongs_to_a_context());
	CHECK_EQUAL(cl_contexts_lost, 0);
}

/* LIVE, in grace, READY, held, and a fence in B of a block of A. */
static void a_round_reports(uint64_t collector, bool ids)
{
	struct other other = start_other(0);
	CUipcMemHandle handle;
	CUdeviceptr held, of_a;

	start(collector, ids);
	block_of_b();
	freed_of_b();
	held = fake_alloc(1024, CONTEXT_B);
	handle = export_block(held);
	others_open(&other, handle);
	CHECK_EQUAL(cl_memory_free(held), CUDA_SUCCESS);
	fake_stack[0] = CONTEXT_B;
	fake.stream_ctx = CONTEXT_B;
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	of_a = exported_block();
	CHECK_EQUAL(cl_memory_free_async(of_a, SOME_STREAM, false), CUDA_SUCCESS);
	fake_stack[0] = CONTEXT_A;
	b_ends(ids);
	if (ids) /* the fence's event is B's as well */
		atomic_store(&fake.dead_b, true);
	cl_limbo_collect(&cl_exporter, true);
	CHECK(COMES_TRUE(!has_object(CONTEXT_B), SOON));
	CHECK(freed_soon(of_a) || (cl_limbo_collect(&cl_exporter, true), frees_of(of_a) == 1));
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 0);
	CHECK(COMES_TRUE(!cl_own.header->limbo_blocks, SOON));
	check_that_nothing_of_b_is_left();
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = handle }).result, CUDA_SUCCESS);
}
IN_A_CHILD(a_round_of_the_collector_reports_a_refused_context)
{
	a_round_reports(CL_COLLECTOR_THREAD, false);
}
IN_A_CHILD(a_round_of_the_collector_reports_a_context_with_another_id)
{
	a_round_reports(CL_COLLECTOR_THREAD, true);
}
IN_A_CHILD(a_round_within_a_call_reports_it)
{
	a_round_reports(CL_COLLECTOR_INLINE, false);
}

/* One report makes a round that finds the next. */
static CUresult push_none(CUcontext ctx)
{
	return ctx == CONTEXT_A ? fake_push(ctx) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
IN_A_CHILD(hundreds_of_contexts_are_reported_at_once)
{
	CUdeviceptr p[400];

	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (uintptr_t i = 0; i < 400; i++) {
		p[i] = fake_alloc(1024, (CUcontext)(0x1000 + 16 * i));
		export_block(p[i]);
		export_block(fake_alloc(1024, (CUcontext)(0x1000 + 16 * i)));
		CHECK_EQUAL(cl_memory_free(p[i]), CUDA_SUCCESS);
	}
	cl_driver.cuCtxPushCurrent_v2 = push_none;
	for (int i = 0; i < 400; i++)
		cl_limbo_collect(&cl_exporter, true);
	CHECK(!has_object((CUcontext)0x1000) && !has_object((CUcontext)(0x1000 + 16 * 399)));
	check_that_nothing_of_b_is_left();
}

/* The address of a LIVE block of B is another block's, which the program frees. */
static void new_memory_is_freed(bool ids, bool async)
{
	CUdeviceptr p, other;

	start(CL_COLLECTOR_INLINE, ids);
	p = block_of_b();
	other = block_of_b();
	b_ends(ids);
	fake_alloc_again(p, ids ? CONTEXT_B : CONTEXT_A);
	CHECK_EQUAL(async ? cl_memory_free_async(p, SOME_STREAM, false) : cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK(!is_known(p) && !is_known(other));
	check_that_nothing_of_b_is_left();
	/* and now it is free */
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
}
IN_A_CHILD(new_memory_at_a_live_blocks_address_is_freed)
{
	new_memory_is_freed(false, false);
}
IN_A_CHILD(new_memory_of_another_context_with_the_handle_is_freed)
{
	new_memory_is_freed(true, false);
}
IN_A_CHILD(new_memory_of_another_context_with_the_handle_is_freed_in_a_stream)
{
	new_memory_is_freed(true, true);
}

/* A driver without ids makes the ended context current, and then refuses all calls there. */
IN_A_CHILD(a_wait_that_says_that_the_context_has_ended_is_believed)
{
	CUdeviceptr p;

	start(CL_COLLECTOR_INLINE, false);
	p = block_of_b();
	b_ends(false);
	push_of_b = CUDA_SUCCESS;
	fake_alloc_again(p, CONTEXT_A);
	fake.sync_result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	check_that_nothing_of_b_is_left();
}

/* The old block has been freed, and waits in the limbo. */
static void new_memory_is_not_freed_twice(bool ids, bool async)
{
	CUdeviceptr p;

	start(CL_COLLECTOR_INLINE, ids);
	p = freed_of_b();
	block_of_b();
	b_ends(ids);
	fake_alloc_again(p, ids ? CONTEXT_B : CONTEXT_A);
	CHECK_EQUAL(async ? cl_memory_free_async(p, SOME_STREAM, false) : cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK(!is_known(p));
	CHECK_EQUAL(misuses(), 0);
	check_that_nothing_of_b_is_left();
}
IN_A_CHILD(new_memory_at_a_freed_blocks_address_is_not_freed_twice)
{
	new_memory_is_not_freed_twice(false, false);
}
IN_A_CHILD(new_memory_of_another_context_with_the_handle_is_not_freed_twice)
{
	new_memory_is_not_freed_twice(true, false);
}
IN_A_CHILD(new_memory_at_a_freed_blocks_address_is_not_freed_twice_in_a_stream)
{
	new_memory_is_not_freed_twice(false, true);
}

/* A program that does free twice, or frees in a context that has failed, is told so as before. */
IN_A_CHILD(what_lives_or_has_failed_is_not_lost)
{
	CUdeviceptr live, freed;

	start(CL_COLLECTOR_INLINE, false);
	live = block_of_b();
	freed = freed_of_b();
	CHECK_EQUAL(cl_memory_free(freed), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(misuses(), 1);
	push_of_b = CUDA_ERROR_LAUNCH_FAILED;
	CHECK_EQUAL(cl_memory_free(freed), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(misuses(), 2);
	CHECK_EQUAL(cl_memory_free(live), CUDA_ERROR_LAUNCH_FAILED);
	CHECK(is_known(live) && is_known(freed) && has_object(CONTEXT_B));
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 1);
}

static void new_memory_is_exported(bool ids, size_t offset)
{
	CUipcMemHandle handle;
	CUdeviceptr p;

	start(CL_COLLECTOR_INLINE, ids);
	p = freed_of_b();
	b_ends(ids);
	fake_alloc_again(p, ids ? CONTEXT_B : CONTEXT_A);
	CHECK_EQUAL(cl_memory_export(&handle, p + offset), CUDA_SUCCESS);
	CHECK_EQUAL(misuses(), 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
}
IN_A_CHILD(new_memory_at_a_freed_blocks_address_is_exported)
{
	new_memory_is_exported(false, 0);
}
IN_A_CHILD(new_memory_of_another_context_with_the_handle_is_exported)
{
	new_memory_is_exported(true, 0);
}
IN_A_CHILD(a_pointer_into_new_memory_at_a_freed_blocks_address_is_exported)
{
	new_memory_is_exported(false, 16);
}

/* The driver has given the CUevent of @n to another event. */
static void event_is_another(CUevent event, CUcontext ctx)
{
	uintptr_t n = ((uintptr_t)event - 0x1000) / 16;

	fake.event_ctx[n] = ctx;
	atomic_store(&fake.event_live[n], true);
}
static void new_event_is_destroyed(bool ids, bool freed)
{
	CUevent event;

	start(CL_COLLECTOR_INLINE, ids);
	fake_stack[0] = CONTEXT_B;
	event = event_of_context(NULL);
	if (freed)
		CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	fake_stack[0] = CONTEXT_A;
	b_ends(ids);
	event_is_another(event, ids ? CONTEXT_B : CONTEXT_A);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	CHECK_EQUAL(misuses(), 0);
	check_that_nothing_of_b_is_left();
}
IN_A_CHILD(a_new_event_at_a_live_ones_address_is_destroyed)
{
	new_event_is_destroyed(true, false);
}
IN_A_CHILD(a_new_event_at_a_destroyed_ones_address_is_destroyed)
{
	new_event_is_destroyed(false, true);
}
IN_A_CHILD(a_new_event_at_a_destroyed_ones_address_is_exported)
{
	CUipcEventHandle handle;
	CUevent event;

	start(CL_COLLECTOR_INLINE, false);
	fake_stack[0] = CONTEXT_B;
	event = event_of_context(NULL);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	fake_stack[0] = CONTEXT_A;
	b_ends(false);
	event_is_another(event, CONTEXT_A);
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	CHECK_EQUAL(misuses(), 0);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
}

/* While the program's thread is in the driver with a block, a round reports the end. */
static void a_round_meanwhile(void)
{
	pthread_t thread;

	fake.in_sync = NULL;
	b_ends(false);
	fake_alloc_again(DEVICE_BASE, CONTEXT_A);
	CHECK(!pthread_create(&thread, NULL, collect_beside, NULL) && !pthread_join(thread, NULL));
	CHECK(!has_object(CONTEXT_B));
}
IN_A_CHILD(a_round_reports_it_while_a_block_is_freed)
{
	CUdeviceptr p;

	start(CL_COLLECTOR_INLINE, false);
	p = block_of_b();
	CHECK_EQUAL(p, DEVICE_BASE);
	freed_of_b();
	fake.in_sync = a_round_meanwhile;
	fake.sync_result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	check_that_nothing_of_b_is_left();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_round_of_the_collector_reports_a_refused_context),
		cmocka_unit_test(a_round_of_the_collector_reports_a_context_with_another_id),
		cmocka_unit_test(a_round_within_a_call_reports_it),
		cmocka_unit_test(hundreds_of_contexts_are_reported_at_once),
		cmocka_unit_test(new_memory_at_a_live_blocks_address_is_freed),
		cmocka_unit_test(new_memory_of_another_context_with_the_handle_is_freed),
		cmocka_unit_test(new_memory_of_another_context_with_the_handle_is_freed_in_a_stream),
		cmocka_unit_test(a_wait_that_says_that_the_context_has_ended_is_believed),
		cmocka_unit_test(new_memory_at_a_freed_blocks_address_is_not_freed_twice),
		cmocka_unit_test(new_memory_of_another_context_with_the_handle_is_not_freed_twice),
		cmocka_unit_test(new_memory_at_a_freed_blocks_address_is_not_freed_twice_in_a_stream),
		cmocka_unit_test(what_lives_or_has_failed_is_not_lost),
		cmocka_unit_test(new_memory_at_a_freed_blocks_address_is_exported),
		cmocka_unit_test(new_memory_of_another_context_with_the_handle_is_exported),
		cmocka_unit_test(a_pointer_into_new_memory_at_a_freed_blocks_address_is_exported),
		cmocka_unit_test(a_new_event_at_a_live_ones_address_is_destroyed),
		cmocka_unit_test(a_new_event_at_a_destroyed_ones_address_is_destroyed),
		cmocka_unit_test(a_new_event_at_a_destroyed_ones_address_is_exported),
		cmocka_unit_test(a_round_reports_it_while_a_block_is_freed),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

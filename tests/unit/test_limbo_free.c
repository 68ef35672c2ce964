/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: frees.  A free that puts a block into the limbo waits as the driver's free would, in the block's
 * context, and changes nothing when that fails.  A free that meets an export, another thread's free, or
 * the end of the context waits for it where necessary, then continues and learns what happened to the block.
 */
#include "shim/driver/wait.h"
#include "tests/unit/limbo.h"

/* The program's other thread frees the block while this thread asks the driver for its handle. */
static CUdeviceptr freed_meanwhile;
static CUresult get_handle_and_free(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = fake_get_handle(handle, p);

	if (freed_meanwhile)
		CHECK_EQUAL(cl_memory_free(freed_meanwhile), CUDA_SUCCESS);
	freed_meanwhile = 0;
	return result;
}
IN_A_CHILD(an_export_that_meets_a_free_gives_no_handle)
{
	static const CUipcMemHandle nothing;
	CUipcMemHandle first, again;
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_driver.cuIpcGetMemHandle = get_handle_and_free;
	p = fake_alloc(1024, CONTEXT_A);
	first = export_block(p);
	CHECK_EQUAL(atomic_load(&fake.handle_calls), 1);
	again = export_block(p);
	CHECK(!memcmp(&first, &again, sizeof first));
	CHECK_EQUAL(atomic_load(&fake.handle_calls), 2); /* asked once each time */
	CHECK_EQUAL(cl_own.record[0].exports, 2);
	freed_meanwhile = p;
	CHECK_EQUAL(cl_memory_export(&again, p), CUDA_ERROR_INVALID_VALUE);
	CHECK(!memcmp(&again, &nothing, sizeof again));
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EXPORTED_AFTER_FREE]), 1);
	CHECK_EQUAL(cl_count_get(exports), 2);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 1);
	/* also with a block in the limbo */
	p = fake_alloc(1024, CONTEXT_A);
	first = export_block(p);
	again = export_block(p);
	CHECK(!memcmp(&first, &again, sizeof first));
}

IN_A_CHILD(a_free_that_fails_keeps_the_block)
{
	CUdeviceptr p, own;
	CUipcMemHandle handle;

	start_with(GRACE, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	handle = export_block(p);
	fake.sync_result = CUDA_ERROR_ILLEGAL_ADDRESS;
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK_TASKS(1);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_ILLEGAL_ADDRESS);
	fake.sync_result = CUDA_SUCCESS;
	handle = export_block(p);
	CHECK_EQUAL(open_own(&own, handle), CUDA_SUCCESS);
	CHECK_EQUAL(own, p);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK(freed_soon(p));
}

/* A free that fails only for a while: in a thread that captures, it is an error. */
IN_A_CHILD(a_free_that_the_driver_refuses_leaves_its_handles_good)
{
	CUdeviceptr p, own = 0;
	CUipcMemHandle handle;

	start_with(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	handle = export_block(p);
	fake.free_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	fake.free_result = CUDA_SUCCESS;
	/* bare, the block is still allocated, and its handle opens */
	CHECK_EQUAL(open_own(&own, handle), CUDA_SUCCESS);
	CHECK_EQUAL(own, p);
}

IN_A_CHILD(a_free_waits_in_the_blocks_context)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_B);
	export_block(p);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.syncs), 1);
	CHECK(atomic_load(&fake.sync_ctx) == CONTEXT_B);
	CHECK_EQUAL(fake_depth, 0);
	CHECK_EQUAL(fake_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* ---------------------------------------------------------------- the byte by which a free waits */
/* So many pinned bytes are there, so many were made, and so often has the driver waited.  No piece is held by more. */
#define CHECK_BYTES(there, made, waited)                                      \
	do {                                                                  \
		CHECK_EQUAL(atomic_load(&fake_bytes.pinned), there);          \
		CHECK_EQUAL(atomic_load(&fake_bytes.pinned_made), made);      \
		CHECK_EQUAL(atomic_load(&fake.syncs), waited);                \
		CHECK_EQUAL(atomic_load(&fake_bytes.rests), 0);               \
		CHECK_EQUAL(atomic_load(&fake_bytes.device), 0);              \
	} while (0)

static CUdeviceptr exported_in(CUcontext ctx)
{
	CUdeviceptr p = fake_alloc(1024, ctx);

	fake_stack[fake_depth] = ctx;
	export_block(p);
	return p;
}

/* So that the driver keeps the piece for the bytes of later frees.  Each free waits once. */
IN_A_CHILD(each_context_keeps_a_pinned_byte)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (uint32_t i = 1; i <= 3; i++) {
		CHECK_EQUAL(cl_memory_free(exported_in(CONTEXT_A)), CUDA_SUCCESS);
		CHECK_BYTES(1, i, i);
		CHECK(atomic_load(&fake.sync_ctx) == CONTEXT_A);
	}
	CHECK_EQUAL(cl_memory_free(exported_in(CONTEXT_B)), CUDA_SUCCESS);
	CHECK_BYTES(2, 4, 4);
	CHECK_EQUAL(cl_memory_free(exported_in(CONTEXT_B)), CUDA_SUCCESS);
	CHECK_BYTES(2, 5, 5);
	CHECK(atomic_load(&fake.sync_ctx) == CONTEXT_B);
	CHECK_EQUAL(atomic_load(&fake_bytes.device_made), 0);
}

/* The driver ends the byte with its context. */
IN_A_CHILD(a_new_context_at_the_same_address_keeps_a_byte_of_its_own)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (uint32_t i = 1; i <= 2; i++) {
		CHECK_EQUAL(cl_memory_free(exported_in(CONTEXT_A)), CUDA_SUCCESS);
		CHECK_EQUAL(cl_memory_free(exported_in(CONTEXT_A)), CUDA_SUCCESS);
		CHECK_BYTES(1, 2 * i, 2 * i);
		context_ends(CONTEXT_A, 0);
		context_ended(CONTEXT_A, 0, true);
		atomic_store(&fake_bytes.pinned, 0);
	}
}

enum { FREED_BY_A_THREAD = 20 };
static void *free_many(void *blocks)
{
	for (int i = 0; i < FREED_BY_A_THREAD; i++)
		CHECK_EQUAL(cl_memory_free(((CUdeviceptr *)blocks)[i]), CUDA_SUCCESS);
	return NULL;
}
/* Whoever comes while another one makes the byte waits by a byte of the device. */
IN_A_CHILD(threads_that_free_at_once_keep_one_byte)
{
	CUdeviceptr block[4][FREED_BY_A_THREAD];
	pthread_t thread[4];

	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (int i = 0; i < 4 * FREED_BY_A_THREAD; i++)
		block[i % 4][i / 4] = exported_block();
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&thread[i], NULL, free_many, block[i]));
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	CHECK_BYTES(1, 80 - atomic_load(&fake_bytes.device_made), 80);
}

/* A context ends while a free in it makes its byte, and another one at its index has made its own by then. */
static bool in_nested;
static void end_and_begin_again(void)
{
	if (in_nested)
		return;
	in_nested = true;
	end_meanwhile();
	atomic_store(&fake.dead_a, false);
	atomic_store(&fake_bytes.pinned, 0);
	CHECK_EQUAL(cl_memory_free(exported_in(CONTEXT_A)), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake_bytes.pinned), 1);
}
IN_A_CHILD(a_context_that_ends_meanwhile_takes_no_byte_from_the_next_one)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = exported_block();
	fake.in_sync = end_and_begin_again;
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake_bytes.pinned), 1);
	fake.in_sync = NULL;
	CHECK_EQUAL(cl_memory_free(exported_in(CONTEXT_A)), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake_bytes.pinned), 1);
	CHECK_EQUAL(atomic_load(&fake_bytes.device_made), 0);
}

/* Whatever the reason is.  It is not asked again at each free: that costs, where memory is short. */
IN_A_CHILD(without_pinned_memory_a_free_waits_by_a_byte_of_the_device)
{
	static const CUresult none[] = { CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN };

	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (uint32_t i = 0; i < 3; i++) {
		CUcontext ctx = (CUcontext)(0x1000 + 16 * (uintptr_t)(i + 1));

		fake_bytes.pinned_result = none[i];
		CHECK_EQUAL(cl_memory_free(exported_in(ctx)), CUDA_SUCCESS);
		fake_bytes.pinned_result = CUDA_SUCCESS;
		CHECK_EQUAL(cl_memory_free(exported_in(ctx)), CUDA_SUCCESS);
		CHECK_BYTES(0, 0, 2 * i + 2);
		CHECK_EQUAL(atomic_load(&fake_bytes.device_made), 2 * i + 2);
	}
}
IN_A_CHILD(what_was_made_of_a_piece_without_a_byte_is_ended)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	fake_bytes.small_result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_BYTES(0, 0, 1);
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_BYTES(0, 0, 2);
	CHECK_EQUAL(atomic_load(&fake_bytes.device_made), 1);
}

/* There the program could see it, and free it. */
IN_A_CHILD(no_byte_is_kept_where_memory_of_the_program_was)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	fake_bytes.misplaced = true;
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_BYTES(0, 1, 2);
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_BYTES(0, 1, 3);
}

static unsigned int context_syncs;
static CUresult sync_context(void)
{
	driver_entered();
	CHECK(fake_stack[fake_depth] == CONTEXT_A);
	context_syncs++;
	return CUDA_SUCCESS;
}
IN_A_CHILD(without_a_byte_a_free_waits_for_the_whole_context)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuCtxSynchronize = sync_context;
	fake_bytes.pinned_result = fake_bytes.device_result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_EQUAL(context_syncs, 1);
	CHECK_BYTES(0, 0, 0);
}

IN_A_CHILD(on_a_full_device_a_free_waits_as_on_any_other)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuCtxSynchronize = sync_context;
	fake_bytes.device_result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_BYTES(1, 1, 1);
	CHECK_EQUAL(context_syncs, 0);
}

/*
 * The driver refuses a call with an error of the capture, and the capture is spoilt, as by a free: no more is asked.  What
 * was made before that is ended.  The capture begins at any of the calls that a free makes.
 */
static void free_while_a_capture_begins(bool first)
{
	static unsigned int contexts;
	CUdeviceptr p;

	for (int calls = 0, most = first ? 3 : 2; calls < most; calls++) {
		CUcontext ctx = (CUcontext)(0x1000 + 16 * (uintptr_t)++contexts);
		uint32_t kept;

		p = exported_in(ctx);
		if (!first) {
			CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
			p = exported_in(ctx);
		}
		kept = atomic_load(&fake_bytes.pinned);
		atomic_store(&fake_bytes.let_through, calls + 1);
		CHECK_EQUAL(cl_memory_free(p), fake_bytes.refusal);
		CHECK_EQUAL(state_of(p), CL_BLOCK_LIVE);
		CHECK_EQUAL(fake_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
		/* the byte that is made before the rest of its piece ends is kept */
		CHECK_EQUAL(atomic_load(&fake_bytes.pinned), kept + (first && calls == 2));
		atomic_store(&fake_bytes.let_through, 0);
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		CHECK_EQUAL(state_of(p), CL_BLOCK_GRACE);
		CHECK_EQUAL(atomic_load(&fake_bytes.pinned), kept + first);
		CHECK_EQUAL(atomic_load(&fake_bytes.rests), 0);
		CHECK_EQUAL(atomic_load(&fake_bytes.device_made), 0);
	}
}
IN_A_CHILD(a_capture_refuses_a_free_at_any_of_its_calls)
{
	static const CUresult refusals[] = { CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
					     CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD };

	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (int i = 0; i < 6; i++) {
		fake_bytes.refusal = refusals[i / 2];
		fake_bytes.once = i % 2;
		free_while_a_capture_begins(true);
		free_while_a_capture_begins(false);
	}
}
IN_A_CHILD(a_capture_that_refuses_the_end_of_the_devices_byte_leaves_none_behind)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	fake_bytes.refusal = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	atomic_store(&fake_bytes.let_through, 2);
	CHECK_EQUAL(cl_wait_as_a_free(cl_wait_in(NULL)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQUAL(atomic_load(&fake_bytes.device_made), 1);
	CHECK_EQUAL(atomic_load(&fake_bytes.device), 0);
}

/* Nobody knows whether the same context comes again, so none is kept. */
IN_A_CHILD(in_an_unknown_context_no_byte_is_kept)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(cl_wait_as_a_free(cl_wait_in(&cl_context_unknown)), CUDA_SUCCESS);
	CHECK_EQUAL(cl_wait_as_a_free(cl_wait_in(NULL)), CUDA_SUCCESS);
	CHECK_BYTES(0, 0, 2);
	CHECK_EQUAL(atomic_load(&fake_bytes.device_made), 2);
	fake_bytes.device_result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK_EQUAL(cl_wait_as_a_free(cl_wait_in(NULL)), CUDA_SUCCESS);
	CHECK_BYTES(0, 1, 3);
}

/* Whoever closes virtual memory does not know the object of the current context.  None is made: that may take a second. */
IN_A_CHILD(the_current_context_keeps_its_byte_if_it_is_known)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(cl_wait_as_a_free_here(), CUDA_SUCCESS);
	CHECK_BYTES(0, 0, 1);
	CHECK_EQUAL(cl_context_last(), 0);
	p = exported_block();
	for (uint32_t i = 1; i <= 2; i++) {
		CHECK_EQUAL(cl_wait_as_a_free_here(), CUDA_SUCCESS);
		CHECK_BYTES(1, i, 1 + i);
	}
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_BYTES(1, 3, 4);
}

/* A pointer into a block of the limbo, which is released while it is exported. */
static CUresult get_handle_of_what_goes(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = fake_get_handle(handle, p);

	cl_limbo_collect(&cl_exporter, true);
	return result;
}
static CUresult range_of_what_lives(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	struct fake_block *block = fake_find(p);

	return block && !atomic_load(&block->live) ? CUDA_ERROR_NOT_FOUND : fake_range(base, size, p);
}
IN_A_CHILD(a_pointer_into_what_has_just_gone_gives_no_handle)
{
	CUipcMemHandle handle;
	CUdeviceptr goes;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuMemGetAddressRange_v2 = range_of_what_lives;
	goes = exported_block();
	CHECK_EQUAL(cl_memory_free(goes), CUDA_SUCCESS);
	cl_driver.cuIpcGetMemHandle = get_handle_of_what_goes;
	CHECK_EQUAL(cl_memory_export(&handle, goes + 512), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(frees_of(goes), 1);
	CHECK_EQUAL(cl_count_get(unmanaged_exports), 0);
}

/* Freed in the driver, and its address given to another thread at once, which waits until this free is recorded. */
static CUdeviceptr raced;

static CUresult thread_result;
static void *export_it(void *unused)
{
	CUipcMemHandle handle;

	atomic_store(&thread_task, gettid());
	thread_result = cl_memory_export(&handle, raced);
	atomic_store(&thread_done, true);
	return unused;
}
static void *free_it(void *unused)
{
	atomic_store(&thread_task, gettid());
	thread_result = cl_memory_free(raced);
	atomic_store(&thread_done, true);
	return unused;
}
IN_A_CHILD(an_address_on_its_way_back_is_waited_for)
{
	pthread_t thread;

	start_with(GRACE, CL_COLLECTOR_THREAD);
	raced = exported_block();
	atomic_store(&fake.stall_free, true);
	CHECK_EQUAL(cl_memory_free(raced), CUDA_SUCCESS);
	CHECK(COMES_TRUE(atomic_load(&fake.in_free), SOON));
	CHECK(!pthread_create(&thread, NULL, export_it, NULL));
	CHECK(COMES_TRUE(sleeps_in_a_futex(atomic_load(&thread_task)), SOON));
	CHECK(!atomic_load(&thread_done));
	atomic_store(&fake.stall_free, false);
	CHECK(freed_soon(raced));
	pthread_join(thread, NULL);
	CHECK_EQUAL(thread_result, CUDA_ERROR_INVALID_VALUE); /* the driver's own error: it is free */
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EXPORTED_AFTER_FREE]), 0);
	fake_alloc_again(raced, CONTEXT_A);
	export_block(raced);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
}

static void *end_it(void *unused)
{
	atomic_store(&thread_task, gettid());
	context_ends(CONTEXT_A, 0);
	atomic_store(&thread_done, true);
	CHECK_EQUAL(frees_of(raced), 1);
	context_ended(CONTEXT_A, 0, false);
	return unused;
}
IN_A_CHILD(a_context_does_not_end_while_a_block_of_it_is_freed)
{
	pthread_t thread;

	start_with(GRACE, CL_COLLECTOR_THREAD);
	raced = exported_block();
	atomic_store(&fake.stall_free, true);
	CHECK_EQUAL(cl_memory_free(raced), CUDA_SUCCESS);
	CHECK(COMES_TRUE(atomic_load(&fake.in_free), SOON));
	CHECK(!pthread_create(&thread, NULL, end_it, NULL));
	CHECK(COMES_TRUE(sleeps_in_a_futex(atomic_load(&thread_task)), SOON));
	CHECK(!atomic_load(&thread_done));
	atomic_store(&fake.stall_free, false);
	CHECK(COMES_TRUE(atomic_load(&thread_done), SOON));
	pthread_join(thread, NULL);
}

static void nothing_of_a_is_freed_while_it_ends(bool gone)
{
	CUipcMemHandle handle;
	pthread_t thread;
	CUdeviceptr own;

	start_with(0, CL_COLLECTOR_THREAD);
	raced = fake_alloc(1024, CONTEXT_A);
	handle = export_block(raced);
	CHECK_EQUAL(open_own(&own, handle), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(raced), CUDA_SUCCESS);
	context_ends(CONTEXT_A, 0);
	CHECK_EQUAL(cl_memory_close(raced), CUDA_SUCCESS);
	/* ready, but its release is blocked */
	CHECK(COMES_TRUE(state_of(raced) == CL_BLOCK_BLOCKED, SOON));
	CHECK_EQUAL(frees_of(raced), 0);
	/* another thread uses the block, and waits */
	CHECK(!pthread_create(&thread, NULL, free_it, NULL));
	CHECK(COMES_TRUE(sleeps_in_a_futex(atomic_load(&thread_task)), SOON));
	CHECK(!atomic_load(&thread_done));
	if (gone) {
		atomic_store(&fake.dead_a, true);
		atomic_store(&fake_at(raced)->live, false);
		fake_stack[0] = CONTEXT_B;
	}
	context_ended(CONTEXT_A, 0, gone);
	if (!COMES_TRUE(atomic_load(&thread_done), SOON)) {
		dprintf(2, "the thread that waited for a block of the ended context waits forever\n");
		_exit(1);
	}
	pthread_join(thread, NULL);
	CHECK_EQUAL(thread_result, CUDA_ERROR_INVALID_VALUE);
	/* the waiter may still have found it in the limbo */
	if (!gone)
		CHECK(COMES_TRUE(frees_of(raced) == 1, SOON));
	CHECK_EQUAL(frees_of(raced), !gone);
}
IN_A_CHILD(who_waits_for_a_block_goes_on_when_its_context_did_not_end)
{
	nothing_of_a_is_freed_while_it_ends(false);
}
IN_A_CHILD(who_waits_for_a_block_goes_on_when_its_context_ended)
{
	nothing_of_a_is_freed_while_it_ends(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_export_that_meets_a_free_gives_no_handle),
		cmocka_unit_test(a_free_that_fails_keeps_the_block),
		cmocka_unit_test(a_free_that_the_driver_refuses_leaves_its_handles_good),
		cmocka_unit_test(a_free_waits_in_the_blocks_context),
		cmocka_unit_test(each_context_keeps_a_pinned_byte),
		cmocka_unit_test(a_new_context_at_the_same_address_keeps_a_byte_of_its_own),
		cmocka_unit_test(threads_that_free_at_once_keep_one_byte),
		cmocka_unit_test(a_context_that_ends_meanwhile_takes_no_byte_from_the_next_one),
		cmocka_unit_test(without_pinned_memory_a_free_waits_by_a_byte_of_the_device),
		cmocka_unit_test(what_was_made_of_a_piece_without_a_byte_is_ended),
		cmocka_unit_test(no_byte_is_kept_where_memory_of_the_program_was),
		cmocka_unit_test(without_a_byte_a_free_waits_for_the_whole_context),
		cmocka_unit_test(on_a_full_device_a_free_waits_as_on_any_other),
		cmocka_unit_test(a_capture_refuses_a_free_at_any_of_its_calls),
		cmocka_unit_test(a_capture_that_refuses_the_end_of_the_devices_byte_leaves_none_behind),
		cmocka_unit_test(in_an_unknown_context_no_byte_is_kept),
		cmocka_unit_test(the_current_context_keeps_its_byte_if_it_is_known),
		cmocka_unit_test(a_pointer_into_what_has_just_gone_gives_no_handle),
		cmocka_unit_test(an_address_on_its_way_back_is_waited_for),
		cmocka_unit_test(a_context_does_not_end_while_a_block_of_it_is_freed),
		cmocka_unit_test(who_waits_for_a_block_goes_on_when_its_context_did_not_end),
		cmocka_unit_test(who_waits_for_a_block_goes_on_when_its_context_ended),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

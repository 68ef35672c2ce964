/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a pool of which blocks were shared: the driver destroys it after it has got those blocks back. */
#include "tests/unit/pools.h"

/* The driver 580.159.04 crashes, now and then, where it gets a block back after its pool was destroyed. */
IN_A_CHILD(a_pool_is_destroyed_after_the_blocks_that_were_freed_before)
{
	CUmemPoolPtrExportData data, held_data;
	CUdeviceptr p, held, import;

	start_pools();
	p = shared(&data);
	held = shared(&held_data);
	import = imported(&held_data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(held), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	CHECK_EQUAL(pool.destroys, 0);
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_ERROR_INVALID_VALUE); /* destroyed twice */
	CHECK_EQUAL(pool.destroys, 0);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(pool.destroys, 0); /* one is held */
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(held), 1);
	CHECK_EQUAL(pool.destroys, 1);
	CHECK(pool.destroyed == OWN_POOL && pool.frees_before == pool.frees);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.destroys, 1);
	/* another pool has got the handle of the one before */
	shared(&data);
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	CHECK_EQUAL(pool.destroys, 2);
}

IN_A_CHILD(the_end_of_a_pool_waits_for_no_other_blocks)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, live;

	start_pools();
	p = shared(&data);
	pool.handle = (CUmemoryPool)0x710;
	live = shared(&data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	/* of another pool; and a block that the program has not freed */
	CHECK_EQUAL(cl_pool_destroy(pool.handle), CUDA_SUCCESS);
	CHECK_EQUAL(pool.destroys, 1);
	/* which comes after the end of its pool, as bare */
	CHECK_EQUAL(cl_memory_free(live), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(live), 1);
	CHECK_EQUAL(pool.destroys, 1);
	/* what the driver refuses to destroy goes on as before */
	pool.handle = NULL;
	p = shared(&data);
	pool.destroy_result = CUDA_ERROR_INVALID_CONTEXT;
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_ERROR_INVALID_CONTEXT);
	pool.destroy_result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	CHECK_EQUAL(pool.destroys, 1);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.destroys, 2);
}

/* The destroy that waits is refused in a capture, and spoils it, as the driver's is and does. */
IN_A_CHILD(a_pools_end_that_waits_is_refused_in_a_capture)
{
	CUmemPoolPtrExportData data;

	start_pools();
	CHECK_EQUAL(cl_memory_free(shared(&data)), CUDA_SUCCESS);
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	/* a destroy needs no context: such an error is the export's own */
	fake.none_result = CUDA_ERROR_INVALID_CONTEXT;
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(pool.destroys, 0);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.destroys, 1);
	/* where nothing waits, the driver is asked for the destroy and for nothing else */
	shared(&data);
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	CHECK_EQUAL(pool.destroys, 2);
}

IN_A_CHILD(a_pool_that_ends_later_is_not_allocated_from)
{
	CUmemPoolPtrExportData data;

	start_pools();
	CHECK_EQUAL(cl_memory_free(shared(&data)), CUDA_SUCCESS);
	pool.current = POOL;
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	CHECK(pool.current == POOL);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(cl_memory_free(shared(&data)), CUDA_SUCCESS);
	pool.current = OWN_POOL;
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	CHECK(pool.current == DEFAULT_POOL);
}

IN_A_CHILD(a_driver_that_shuts_down_has_refused_no_pools_end)
{
	CUmemPoolPtrExportData data;

	start_pools();
	for (unsigned int i = 0; i < 2; i++) {
		pool.destroy_result = CUDA_SUCCESS;
		CHECK_EQUAL(cl_memory_free(shared(&data)), CUDA_SUCCESS);
		CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
		pool.destroy_result = i ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_DEINITIALIZED;
		CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 1);
		CHECK_EQUAL(logged("the driver refused to destroy memory pool"), i);
	}
}

/* Its imports are freed, but for a stream that has not reached that: the driver destroys it after unmapping them. */
IN_A_CHILD(an_imported_pool_is_destroyed_when_the_last_import_is_unmapped)
{
	CUmemPoolPtrExportData data[2];
	CUdeviceptr import[2];

	start_pools();
	for (int i = 0; i < 2; i++) {
		shared(&data[i]);
		import[i] = imported(&data[i]);
		imported(&data[i]);
	}
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_ERROR_INVALID_VALUE); /* the program has some */
		CHECK_EQUAL(cl_memory_free_async(import[i], SOME_STREAM, false), CUDA_SUCCESS);
		CHECK_EQUAL(cl_memory_free(import[i]), CUDA_SUCCESS);
	}
	pool.refusals = 0;
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_SUCCESS);
	CHECK_EQUAL(pool.refusals, 1);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_ERROR_INVALID_VALUE); /* destroyed twice */
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.refusals, 1); /* it is not asked in vain */
	CHECK_EQUAL(pool.destroys, 0);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.unmaps, 2);
	CHECK(pool.destroys == 1 && pool.destroyed == POOL);
	CHECK_EQUAL(pool.refusals, 1);
	/* another pool has got its handle */
	imported(&data[0]);
	CHECK_EQUAL(cl_memory_free(import[0]), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_SUCCESS);
	CHECK_EQUAL(pool.destroys, 2);
}

static struct {
	CUdeviceptr freed[4]; /* in our own stream */
	CUcontext failed; /* no free succeeds there */
	unsigned int frees, frees_waited; /* waited: how many frees there were at the last wait for that stream */
} own_stream;
static CUresult free_in_own_stream(CUdeviceptr p, CUstream stream)
{
	if (p != CL_NO_MEMORY && stream == OWN_STREAM) {
		if (own_stream.failed && fake_stack[fake_depth] == own_stream.failed)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		own_stream.freed[own_stream.frees++ % 4] = p;
	}
	return pool_free_async(p, stream);
}
static CUresult wait_for_own_stream(CUstream stream)
{
	own_stream.frees_waited = own_stream.frees;
	return fake_stream_sync(stream);
}

/* Exports memory of @ctx, so that culimbo knows that context. */
static void know(CUcontext ctx)
{
	cl_driver.cuPointerGetAttribute = fake_attribute;
	export_block(fake_alloc(1024, ctx));
	cl_driver.cuPointerGetAttribute = pool_attribute;
}

/*
 * The driver never takes what cuMemFree() has freed from a pool's USED_MEM_CURRENT, and a pool that may not use memory
 * again across streams does so only after a wait (both measured).
 */
IN_A_CHILD(a_block_of_a_pool_goes_back_in_a_streams_order)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, of_destroyed;

	start_pools();
	cl_driver.cuMemFreeAsync = free_in_own_stream;
	cl_driver.cuStreamSynchronize = wait_for_own_stream;
	know(CONTEXT_A); /* the program has a context of that device */
	/* the first of a batch decides nothing for the others */
	of_destroyed = shared(&data);
	CHECK_EQUAL(cl_memory_free_async(of_destroyed, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	pool.handle = (CUmemoryPool)0x710;
	p = shared(&data);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	own_stream.frees = own_stream.frees_waited = 0;
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(frees_of(of_destroyed), 1);
	CHECK_EQUAL(own_stream.frees, 1);
	CHECK_EQUAL(own_stream.freed[0], p);
	CHECK_EQUAL(own_stream.frees_waited, 1);
	CHECK_EQUAL(pool.destroys, 1);
}

static bool is_destroyed;
static void *destroy_pool(void *unused)
{
	(void)unused;
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	return NULL;
}
static CUresult exchange_when_destroyed(CUstreamCaptureMode *mode)
{
	pthread_t thread;

	if (!is_destroyed) {
		is_destroyed = true;
		CHECK_EQUAL(pthread_create(&thread, NULL, destroy_pool, NULL), 0);
		pthread_join(thread, NULL);
	}
	return fake_exchange(mode);
}

/* Who gives a block back holds no lock meanwhile: which way it goes is decided before. */
IN_A_CHILD(a_pool_that_is_destroyed_while_its_block_goes_back_waits_for_that)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p;

	start_pools();
	cl_driver.cuMemFreeAsync = free_in_own_stream;
	cl_driver.cuStreamSynchronize = wait_for_own_stream;
	know(CONTEXT_A);
	p = shared(&data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	own_stream.frees = own_stream.frees_waited = 0;
	is_destroyed = false;
	cl_driver.cuThreadExchangeStreamCaptureMode = exchange_when_destroyed;
	cl_limbo_collect(&cl_exporter, true);
	CHECK(is_destroyed);
	CHECK_EQUAL(own_stream.frees, 1);
	CHECK_EQUAL(own_stream.frees_waited, 1);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(pool.destroys, 1);
	CHECK_EQUAL(pool.frees_before, pool.frees);
}

IN_A_CHILD(a_context_that_fails_or_is_of_another_device_keeps_no_block_of_a_pool)
{
	CUmemPoolPtrExportData data;

	start_pools();
	cl_driver.cuMemFreeAsync = free_in_own_stream;
	cl_driver.cuStreamSynchronize = wait_for_own_stream;
	know(CONTEXT_A);
	know(CONTEXT_B);
	for (int i = 0; i < 3; i++) {
		CUdeviceptr p;

		own_stream.failed = i == 0 ? CONTEXT_A : i == 1 ? CONTEXT_B : NULL;
		pool.device = i == 2;
		p = shared(&data);
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		own_stream.frees = own_stream.frees_waited = 0;
		cl_limbo_collect(&cl_exporter, true);
		CHECK_EQUAL(frees_of(p), 1);
		CHECK_EQUAL(own_stream.frees, 1);
		CHECK_EQUAL(own_stream.frees_waited, 1);
	}
}

/* The program imports the pool again while its end waits, and gets its handle.  What it imports then is not waited for. */
IN_A_CHILD(a_later_import_does_not_end_the_pool_early)
{
	CUmemPoolPtrExportData data[2];
	CUdeviceptr x, y;

	start_pools();
	shared(&data[0]);
	shared(&data[1]);
	x = imported(&data[0]);
	imported(&data[0]);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(x, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(x), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_SUCCESS);
	pool.refusals = 0;
	y = imported(&data[1]);
	CHECK_EQUAL(cl_memory_free(y), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.refusals, 0);
	CHECK_EQUAL(logged("the driver refused to destroy memory pool"), 0);
	CHECK_EQUAL(pool.destroys, 0);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.destroys, 1);
}

static CUcontext ended;
static CUresult free_if_there(CUdeviceptr p)
{
	return fake_stack[fake_depth] == ended ? CUDA_ERROR_CONTEXT_IS_DESTROYED : pool_free(p);
}

/* The program's thread collects, and its own context has ended.  The pool has been destroyed. */
IN_A_CHILD(a_thread_whose_context_has_ended_gives_a_block_of_a_pool_back)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p;

	start_pools();
	know(CONTEXT_B);
	cl_driver.cuMemFree_v2 = free_if_there;
	p = shared(&data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	ended = CONTEXT_A;
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(pool.destroys, 1);
	CHECK_EQUAL(pool.frees_before, pool.frees);
	CHECK(fake_stack[fake_depth] == CONTEXT_A);
	CHECK_EQUAL(logged("the driver refused to take block"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pool_is_destroyed_after_the_blocks_that_were_freed_before),
		cmocka_unit_test(the_end_of_a_pool_waits_for_no_other_blocks),
		cmocka_unit_test(a_pools_end_that_waits_is_refused_in_a_capture),
		cmocka_unit_test(a_pool_that_ends_later_is_not_allocated_from),
		cmocka_unit_test(a_driver_that_shuts_down_has_refused_no_pools_end),
		cmocka_unit_test(an_imported_pool_is_destroyed_when_the_last_import_is_unmapped),
		cmocka_unit_test(a_later_import_does_not_end_the_pool_early),
		cmocka_unit_test(a_block_of_a_pool_goes_back_in_a_streams_order),
		cmocka_unit_test(a_pool_that_is_destroyed_while_its_block_goes_back_waits_for_that),
		cmocka_unit_test(a_context_that_fails_or_is_of_another_device_keeps_no_block_of_a_pool),
		cmocka_unit_test(a_thread_whose_context_has_ended_gives_a_block_of_a_pool_back),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

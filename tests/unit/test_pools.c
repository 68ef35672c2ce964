/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pool blocks shared by pointer: the stamp in their export data, the limbo, and counted imports.
 * Exporter and importer are one process here: CUDA lets a process import its own pointers, at another
 * address.  tests/e2e/ has two processes.
 */
#include "tests/unit/pools.h"

#include "shim/importer/mappings.h"
#include "shim/limbo/press.h"
#include "shim/reclaim/reclaim.h"
#include "shim/shm/live.h"

IN_A_CHILD(a_block_of_a_pool_is_stamped_and_waits_in_the_limbo)
{
	CUmemPoolPtrExportData data, again;
	CUdeviceptr p;
	uint32_t pid;
	bool told = false;

	start_pools();
	p = shared(&data);
	CHECK_EQUAL(cl_pool_stamp_version(data.reserved, cl_pool_fingerprint(data.reserved), &pid), CL_POOL_VERSION);
	CHECK_EQUAL(pid, (uint32_t)getpid());
	CHECK_EQUAL(cl_pool_pointer_export(&again, p), CUDA_SUCCESS);
	CHECK(!memcmp(&data, &again, sizeof data));
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.syncs), 0); /* the driver's free of it would not wait */
	CHECK_EQUAL(state_in_pool(p), CL_BLOCK_GRACE);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
	memset(&again, 0xee, sizeof again);
	CHECK_EQUAL(cl_pool_pointer_export(&again, p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(again.reserved[0], 0xee); /* and writes nothing */
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* a stream captures */
	CHECK_EQUAL(cl_pool_pointer_export(&again, p), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	fake.none_result = CUDA_SUCCESS;
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(atomic_load(&fake.streams_made), 0);
	/* the driver gives the same data for the next block there */
	fake_alloc_again(p, NULL);
	CHECK_EQUAL(cl_pool_pointer_export(&again, p), CUDA_SUCCESS);
	CHECK(!memcmp(&data, &again, CL_POOL_DRIVERS) && memcmp(&data, &again, sizeof data));
	CHECK_EQUAL(cl_pool_pointer_import(&p, POOL, &data, &told), CUDA_ERROR_INVALID_VALUE);
	CHECK(told);
	CHECK_EQUAL(pool.imports, 0);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_STALE_REFUSED]), 1);
}

/* The sum of the limbo over all devices, as another process that lacks memory sees it. */
static uint64_t limbo_of_devices(void)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
		sum += atomic_load(&cl_own.header->device[i].entered);
	return sum;
}

IN_A_CHILD(a_block_of_a_pool_on_the_host_counts_for_no_device)
{
	CUmemPoolPtrExportData data;
	const struct cl_record *record;
	CUdeviceptr p, of_device;

	start_pools();
	of_device = shared(&data);
	CHECK_EQUAL(cl_memory_free(of_device), CUDA_SUCCESS);
	CHECK_EQUAL(limbo_of_devices(), 2 << 20);
	pool.on_host = true;
	p = shared(&data);
	record = &cl_own.record[cl_block_find(&cl_exporter.blocks, CL_POOL, p)->record];
	CHECK_EQUAL(record->device, CL_NO_DEVICE);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(limbo_of_devices(), 2 << 20);
	/* a process that needs device memory gets nothing from it */
	cl_limbo_press(&cl_exporter, cl_limbo_moved(&cl_exporter, 0).device, 0);
	CHECK(state_in_pool(of_device) != CL_BLOCK_GRACE);
	CHECK_EQUAL(state_in_pool(p), CL_BLOCK_GRACE);
}

/* A full pool may be on the host: culimbo cannot ask the driver. */
IN_A_CHILD(a_pool_on_the_host_that_is_full_gets_its_freed_blocks_back)
{
	CUmemPoolPtrExportData data;
	struct cl_retry retry;
	CUdeviceptr p, after;

	start_pools();
	pool.on_host = true;
	p = shared(&data);
	after = shared(&data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_exporter.grace.wheels_n, 2); /* a collection looks through so many wheels */
	cl_retry_begin(&retry, CL_RETRY_MEMORY, (struct cl_need){ .bytes = 4096, .device = CL_OF_ANY });
	CHECK(cl_retry_again(&retry));
	CHECK_EQUAL(frees_of(p), 1);
	/* a block that is freed during the retry does not wait either */
	CHECK_EQUAL(cl_memory_free(after), CUDA_SUCCESS);
	CHECK(state_in_pool(after) != CL_BLOCK_GRACE);
	cl_retry_end(&retry);
	/* it does not help other processes */
	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
		CHECK_EQUAL(atomic_load(&cl_own.header->device[i].entered), 0);
}

IN_A_CHILD(what_is_freed_in_a_capture_is_not_freed)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	p = shared(&data);
	import = imported(&data);
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(state_in_pool(p), CL_BLOCK_LIVE);
	CHECK_EQUAL(pool.unmaps, 0);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
}

IN_A_CHILD(imports_are_counted)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	p = shared(&data);
	import = imported(&data);
	CHECK_EQUAL(import, p + IMPORTED);
	CHECK(!memcmp(pool.came, &data, CL_POOL_DRIVERS) && !pool.came[48] && !pool.came[63]);
	CHECK_EQUAL(imported(&data), import);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 0);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_memory_free(import), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_CLOSED_TWICE]), 1);
}

IN_A_CHILD(an_import_stays_until_all_streams_are_there)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	p = shared(&data);
	import = imported(&data);
	imported(&data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.unmaps, 0);
	CHECK_EQUAL(cl_memory_free(import), CUDA_ERROR_INVALID_VALUE);
	/* it is imported once more meanwhile, and freed again */
	CHECK_EQUAL(imported(&data), import);
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 0);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.unmaps, 1);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_count_get(imports), 3);
	CHECK_EQUAL(cl_count_get(closes), 3);
	CHECK_EQUAL(cl_live_get(&cl_own, CL_LIVE_CLOSES), 3);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), atomic_load(&fake.event_n));
}

IN_A_CHILD(a_driver_that_shuts_down_has_refused_to_unmap_nothing)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr import;

	start_pools();
	for (unsigned int i = 0; i < 2; i++) {
		shared(&data);
		import = imported(&data);
		imported(&data);
		atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
		CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
		CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
		pool.unmap_result = i ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_DEINITIALIZED;
		atomic_store(&fake.query_result, CUDA_SUCCESS);
		cl_limbo_collect(&cl_exporter, true);
		pool.unmap_result = CUDA_SUCCESS;
		CHECK(!cl_mapping_find_locked(CL_POOL, import));
		CHECK_EQUAL(logged("the driver refused to unmap"), i);
	}
}

/* A single stream-ordered free goes to the driver at once, and the hold stays until the stream is there. */
IN_A_CHILD(a_context_that_ends_ends_the_wait_for_its_streams)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	p = shared(&data);
	import = imported(&data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(state_in_pool(p), CL_BLOCK_HELD);
	end_context_a(true);
	cl_limbo_collect(&cl_exporter, true);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
}

IN_A_CHILD(without_an_event_what_was_imported_stays)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	p = shared(&data);
	import = imported(&data);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	fake.event_create_result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
	CHECK_EQUAL(logged("fence of a stream-ordered free of an imported block"), 1);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(state_in_pool(p), CL_BLOCK_HELD);
}

static CUresult export_anything(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	const uint64_t size = 4096;

	memset(data->reserved, 0x22, CL_POOL_DRIVERS);
	memcpy(data->reserved + 24, &p, sizeof p);
	memcpy(data->reserved + 32, &size, sizeof size);
	return CUDA_SUCCESS;
}
static CUresult no_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	(void)base, (void)size, (void)p;
	return CUDA_ERROR_NOT_FOUND;
}

/* The program has unmapped the import past our hooks, and its own next block is there. */
IN_A_CHILD(what_is_exported_at_the_address_of_an_import_is_no_import)
{
	CUmemPoolPtrExportData data, of_next;
	CUdeviceptr at;

	start_pools();
	shared(&data);
	at = imported(&data);
	cl_driver.cuMemPoolExportPointer = export_anything;
	cl_driver.cuMemGetAddressRange_v2 = no_range;
	CHECK_EQUAL(cl_pool_pointer_export(&of_next, at), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	CHECK_EQUAL(state_in_pool(at), CL_BLOCK_GRACE);
	CHECK_EQUAL(pool.unmaps, 0);
	/* and imported again it is an import again, without what was imported there before */
	cl_driver.cuMemPoolExportPointer = pool_export;
	CHECK_EQUAL(imported(&data), at);
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
	CHECK_EQUAL(cl_memory_free(at), CUDA_ERROR_INVALID_VALUE);
}

static void add_import(CUdeviceptr at, const struct cl_opening *o, uint64_t key)
{
	struct cl_pool_importing importing = { .ex = &cl_exporter, .pool = POOL };
	struct cl_mapping *mapping;

	cl_lock(&cl_imports_lock);
	cl_turn_begin_locked(&importing.turn, key);
	mapping = cl_mapping_add_locked(CL_POOL, at, cl_mapping_find_locked(CL_POOL, at), o, 0);
	cl_pool_import_added_locked(mapping, &importing);
	cl_unlock(&cl_imports_lock);
}

/* The older one was unmapped past the hooks, or the driver could not have mapped another there. */
IN_A_CHILD(a_free_is_of_the_newest_import_at_its_address)
{
	struct cl_opening older = { .device = 0 }, newer = { .device = 0, .context = &cl_context_unknown };
	const struct cl_mapping *left;
	CUdeviceptr at;

	start_pools();
	CHECK(cl_self_start());
	at = fake_alloc(4096, NULL) + IMPORTED;
	add_import(at, &older, 1);
	add_import(at, &newer, 3);
	pool.mapped[(at - IMPORTED - DEVICE_BASE) / DEVICE_STEP] = true;
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	left = cl_mapping_find_locked(CL_POOL, at);
	CHECK(left && !left->of.context);
	CHECK_EQUAL(left->opens, 1);
}

IN_A_CHILD(frees_of_thousands_of_imports_are_found)
{
	enum { MANY = 60 };
	CUmemPoolPtrExportData data;
	CUdeviceptr import[MANY];

	start_pools();
	for (int round = 0; round < 100; round++) {
		for (int i = 0; i < MANY; i++) {
			if (!round) {
				shared(&data);
			} else {
				memset(&data, 0, sizeof data);
				CHECK_EQUAL(cl_pool_pointer_export(&data, DEVICE_BASE + (uint64_t)i * DEVICE_STEP), CUDA_SUCCESS);
			}
			import[i] = imported(&data);
		}
		for (int i = 0; i < MANY; i++) {
			CHECK_EQUAL(imported(&data), import[MANY - 1]);
			CHECK_EQUAL(cl_memory_free(import[MANY - 1]), CUDA_SUCCESS); /* counted */
		}
		for (int i = 0; i < MANY; i++)
			CHECK_EQUAL(cl_memory_free(import[i]), CUDA_SUCCESS);
	}
	CHECK_EQUAL(pool.unmaps, 100 * MANY);
}

/* ------------------------------------------------- a free that is with the driver */
static CUmemPoolPtrExportData of_next;
static CUdeviceptr next_at;
static void *import_next(void *nothing)
{
	next_at = imported(&of_next);
	return nothing;
}
/* Before the thread that frees knows that the driver has unmapped, another imports at the same address. */
static CUresult free_and_import_next(CUdeviceptr p)
{
	CUresult result = pool_free(p);
	pthread_t thread;

	cl_driver.cuMemFree_v2 = pool_free;
	CHECK(!pthread_create(&thread, NULL, import_next, NULL));
	CHECK(!pthread_join(thread, NULL));
	return result;
}
static CUresult refuse_free(CUdeviceptr p)
{
	return p ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static uint64_t opens_at(CUdeviceptr at)
{
	const struct cl_mapping *mapping;
	uint64_t opens = 0;

	cl_lock(&cl_imports_lock);
	CL_CHAIN_EACH (mapping, cl_mapping_find_locked(CL_POOL, at), const struct cl_mapping, node)
		opens += mapping->opens;
	cl_unlock(&cl_imports_lock);
	return opens;
}

/* Imports without a stamp have no hold, which would tell the two apart. */
IN_A_CHILD(what_is_imported_where_a_free_is_with_the_driver_is_another)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr at;

	start_pools();
	shared(&data);
	memset(data.reserved + CL_POOL_DRIVERS, 0xee, sizeof data.reserved - CL_POOL_DRIVERS);
	of_next = data;
	of_next.reserved[40] ^= 1;
	at = imported(&data);
	cl_driver.cuMemFree_v2 = free_and_import_next;
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	CHECK_EQUAL(next_at, at);
	CHECK_EQUAL(opens_at(at), 1);
	CHECK_EQUAL(imported(&of_next), at);
	CHECK_EQUAL(opens_at(at), 2);
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 2);
	CHECK_EQUAL(opens_at(at), 0);
}

IN_A_CHILD(an_import_whose_free_the_driver_refuses_stays)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr at;

	start_pools();
	shared(&data);
	at = imported(&data);
	cl_driver.cuMemFree_v2 = refuse_free;
	CHECK_EQUAL(cl_memory_free(at), CUDA_ERROR_UNKNOWN);
	CHECK_EQUAL(opens_at(at), 1);
	CHECK_EQUAL(imported(&data), at);
	cl_driver.cuMemFree_v2 = pool_free;
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 0);
	CHECK_EQUAL(cl_memory_free(at), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
}

static int device_of_import(CUdeviceptr at)
{
	const struct cl_mapping *mapping;
	int device;

	cl_lock(&cl_imports_lock);
	mapping = cl_mapping_find_locked(CL_POOL, at);
	device = mapping ? mapping->device : -1;
	cl_unlock(&cl_imports_lock);
	return device;
}

/* The driver is asked once for a pool, and again when another pool may have got its handle. */
IN_A_CHILD(an_import_is_of_the_device_of_its_pool)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr import;

	start_pools();
	pool.device = 3;
	shared(&data);
	import = imported(&data);
	CHECK_EQUAL(device_of_import(import), 3);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_SUCCESS);
	pool.device = 5;
	shared(&data);
	CHECK_EQUAL(device_of_import(imported(&data)), 5);
}

/* ------------------------------------ who completes pending frees, and when */
IN_A_CHILD(a_stream_that_never_gets_there_is_asked_about_less_and_less)
{
	CUmemPoolPtrExportData data, other;
	CUdeviceptr import;
	uint64_t start;

	start_pools();
	shared(&data);
	shared(&other);
	import = imported(&data);
	imported(&other);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	start = cl_now();
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
	check_that_it_asks_less_and_less(start);
	start = cl_now();
	CHECK_EQUAL(cl_memory_free_async(import + DEVICE_STEP, SOME_STREAM, false), CUDA_SUCCESS);
	check_that_it_asks_less_and_less(start);
}

/* A process that can have no file has no thread; any call of the program completes pending frees. */
IN_A_CHILD(without_a_file_each_call_does_what_frees_have_left)
{
	CUmemPoolPtrExportData data = { { 0 } };
	CUdeviceptr p = 0, import;

	start_pools();
	cl_options.collector.number = CL_COLLECTOR_THREAD;
	cl_options.dir.text = "/proc/nothing";
	p = fake_alloc(4096, NULL);
	memcpy(data.reserved + 24, &p, sizeof p);
	import = imported(&data);
	CHECK_EQUAL(imported(&data), import);
	CHECK(!cl_own_has_file());
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	cl_memory_allocates();
	CHECK_EQUAL(pool.unmaps, 0);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_memory_allocates();
	CHECK_EQUAL(pool.unmaps, 1);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), atomic_load(&fake.event_n));
	cl_memory_allocates();
	CHECK(!cl_collector_is_inline(&cl_exporter.collector));
}

/* ------------------------------------------------------------------ threads */
static CUmemPoolPtrExportData of_all;
static _Atomic bool go_on_freeing;

/* Imports, checks that it is mapped, and frees, in all ways. */
static void *import_and_free(void *seed)
{
	for (unsigned int i = *(const unsigned int *)seed; go_on_freeing; i++) {
		CUdeviceptr p = imported(&of_all);

		CHECK(pool.mapped[0]);
		if (i % 3)
			CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
		else
			CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	}
	return NULL;
}

/* EVENTS is what the fake driver has: of these threads none asks for more than a few at a time. */
static CUresult any_event(CUevent *event, unsigned int flags)
{
	(void)flags;
	*event = (CUevent)malloc(1);
	return CUDA_SUCCESS;
}
static CUresult no_event(CUevent event)
{
	free(event);
	return CUDA_SUCCESS;
}
static CUresult record(CUevent event, CUstream stream)
{
	return event && stream == SOME_STREAM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
static CUresult query(CUevent event)
{
	static _Atomic uint32_t asked;

	/* later all are reached */
	return event && (!go_on_freeing || atomic_fetch_add(&asked, 1) % 3) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

IN_A_CHILD(threads_import_and_free_one_pointer)
{
	static const unsigned int seed[4] = { 0, 1, 2, 3 };
	pthread_t thread[4];
	CUdeviceptr p;

	start_pools();
	cl_options.collector.number = CL_COLLECTOR_THREAD;
	cl_driver.cuEventCreate = any_event;
	cl_driver.cuEventDestroy_v2 = no_event;
	cl_driver.cuEventRecord = record;
	cl_driver.cuEventQuery = query;
	p = shared(&of_all);
	go_on_freeing = true;
	for (unsigned int i = 0; i < 4; i++)
		CHECK(!pthread_create(&thread[i], NULL, import_and_free, (void *)(uintptr_t)&seed[i]));
	usleep(200000);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	usleep(50000);
	go_on_freeing = false;
	for (unsigned int i = 0; i < 4; i++)
		CHECK(!pthread_join(thread[i], NULL));
	cl_limbo_press(&cl_exporter, CL_ANY_DEVICE, 0);
	CHECK(COMES_TRUE(!pool.mapped[0] &&
				 (cl_limbo_collect(&cl_exporter, true), frees_of(p) == 1),
			 SOON));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_of_a_pool_is_stamped_and_waits_in_the_limbo),
		cmocka_unit_test(a_block_of_a_pool_on_the_host_counts_for_no_device),
		cmocka_unit_test(a_pool_on_the_host_that_is_full_gets_its_freed_blocks_back),
		cmocka_unit_test(what_is_freed_in_a_capture_is_not_freed),
		cmocka_unit_test(imports_are_counted),
		cmocka_unit_test(an_import_stays_until_all_streams_are_there),
		cmocka_unit_test(a_driver_that_shuts_down_has_refused_to_unmap_nothing),
		cmocka_unit_test(a_context_that_ends_ends_the_wait_for_its_streams),
		cmocka_unit_test(without_an_event_what_was_imported_stays),
		cmocka_unit_test(what_is_exported_at_the_address_of_an_import_is_no_import),
		cmocka_unit_test(a_free_is_of_the_newest_import_at_its_address),
		cmocka_unit_test(frees_of_thousands_of_imports_are_found),
		cmocka_unit_test(what_is_imported_where_a_free_is_with_the_driver_is_another),
		cmocka_unit_test(an_import_whose_free_the_driver_refuses_stays),
		cmocka_unit_test(an_import_is_of_the_device_of_its_pool),
		cmocka_unit_test(a_stream_that_never_gets_there_is_asked_about_less_and_less),
		cmocka_unit_test(without_a_file_each_call_does_what_frees_have_left),
		cmocka_unit_test(threads_import_and_free_one_pointer),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

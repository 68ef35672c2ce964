/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses an imported pool: the driver gives all of them one handle, and counts. */
#include "tests/unit/pools.h"

#include "shim/descriptors/ask.h"
#include "shim/importer/imported_pools.h"
#include "shim/importer/pool_uses.h"
#include "shim/importer/virtual.h"

static struct {
	_Atomic unsigned int imports, destroys;
	_Atomic unsigned int live; /* imports that are not destroyed */
	CUresult refuses;
} given;

static void in_driver(void)
{
	driver_entered();
	sched_yield();
}

static CUresult give(CUmemoryPool *handle, void *shareable, CUmemAllocationHandleType type, unsigned long long flags)
{
	in_driver();
	*handle = (CUmemoryPool)((uintptr_t)POOL + (uintptr_t)shareable);
	given.live++;
	given.imports++;
	return CUDA_SUCCESS;
}

static CUresult destroy(CUmemoryPool handle)
{
	in_driver();
	if (given.refuses)
		return given.refuses;
	CHECK(given.live-- > 0);
	given.destroys++;
	return CUDA_SUCCESS;
}

static void start(void)
{
	start_pools();
	memset(&given, 0, sizeof given);
	cl_driver.cuMemPoolImportFromShareableHandle = give;
	cl_driver.cuMemPoolDestroy = destroy;
}

static void begin(enum cl_pool_user user)
{
	CUmemoryPool handle;

	CHECK_EQUAL(cl_pool_use_begin(user, &handle, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
	CHECK(handle == POOL);
}

static CUresult end(enum cl_pool_user user)
{
	bool refused;
	CUresult result = cl_pool_use_end(user, POOL, &refused);

	CHECK_EQUAL(refused, given.refuses != 0 && result == given.refuses);
	return result;
}

IN_A_CHILD(what_one_user_imports_its_destroy_ends)
{
	start();
	for (unsigned int i = 1; i <= 4; i++) {
		begin(i % 2 ? CL_POOL_OPENS : CL_POOL_PROGRAM);
		CHECK_EQUAL(end(i % 2 ? CL_POOL_OPENS : CL_POOL_PROGRAM), CUDA_SUCCESS);
		CHECK_EQUAL(given.destroys, i);
	}
	/* as without culimbo: the program destroys each of its imports */
	begin(CL_POOL_PROGRAM);
	begin(CL_POOL_PROGRAM);
	CHECK(!cl_pool_use_ends_without_driver(POOL));
	CHECK_EQUAL(end(CL_POOL_PROGRAM), CUDA_SUCCESS);
	CHECK_EQUAL(given.destroys, 5);
	CHECK(cl_pool_use_is_programs(POOL));
	CHECK_EQUAL(end(CL_POOL_PROGRAM), CUDA_SUCCESS);
	CHECK_EQUAL(given.destroys, 6);
	CHECK(!given.live);
}

IN_A_CHILD(neither_user_destroys_what_the_other_uses)
{
	for (int first = 0; first < 2; first++)
		for (int order = 0; order < 2; order++) {
			start();
			cl_pool_uses_forget();
			begin(first ? CL_POOL_PROGRAM : CL_POOL_OPENS);
			begin(first ? CL_POOL_OPENS : CL_POOL_PROGRAM);
			CHECK(cl_pool_use_ends_without_driver(POOL));
			CHECK_EQUAL(end(order ? CL_POOL_PROGRAM : CL_POOL_OPENS), CUDA_SUCCESS);
			/* while our opens use the pool, the driver would refuse */
			CHECK_EQUAL(given.live, order ? 2 : 1);
			CHECK_EQUAL(cl_pool_use_is_programs(POOL), !order);
			if (order) /* the program has ended its use: a second destroy is refused, and not the driver's */
				CHECK_EQUAL(end(CL_POOL_PROGRAM), CUDA_ERROR_INVALID_VALUE);
			CHECK_EQUAL(end(order ? CL_POOL_OPENS : CL_POOL_PROGRAM), CUDA_SUCCESS);
			CHECK_EQUAL(given.destroys, 2);
			begin(CL_POOL_PROGRAM);
			CHECK_EQUAL(end(CL_POOL_PROGRAM), CUDA_SUCCESS);
			CHECK_EQUAL(given.destroys, 3);
		}
}

static bool postpone(enum cl_pool_user user)
{
	bool is;

	cl_lock(&cl_imports_lock);
	is = cl_pool_use_postpone_locked(user, POOL);
	cl_unlock(&cl_imports_lock);
	return is;
}

IN_A_CHILD(a_refused_destroy_loses_nothing)
{
	start();
	begin(CL_POOL_PROGRAM);
	given.refuses = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(end(CL_POOL_PROGRAM), CUDA_ERROR_INVALID_VALUE);
	CHECK(cl_pool_use_is_programs(POOL));
	/* it ends later, unless it is imported again */
	CHECK(postpone(CL_POOL_PROGRAM));
	CHECK(!postpone(CL_POOL_PROGRAM));
	CHECK(!cl_pool_use_is_programs(POOL));
	given.refuses = CUDA_SUCCESS;
	/* nobody but destroy_postponed() destroys it */
	CHECK_EQUAL(cl_pool_use_destroy_owed(POOL), CUDA_SUCCESS);
	CHECK_EQUAL(given.destroys, 0);
	CHECK_EQUAL(cl_pool_use_destroy_postponed(POOL), CUDA_SUCCESS);
	CHECK_EQUAL(given.destroys, 1);
	begin(CL_POOL_OPENS);
	given.refuses = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(end(CL_POOL_OPENS), CUDA_ERROR_INVALID_VALUE);
	given.refuses = CUDA_SUCCESS;
	begin(CL_POOL_PROGRAM);
	/* ours is owed, the program's stays */
	CHECK_EQUAL(cl_pool_use_destroy_owed(POOL), CUDA_SUCCESS);
	CHECK_EQUAL(given.destroys, 2);
	CHECK_EQUAL(given.live, 1);
	CHECK_EQUAL(end(CL_POOL_PROGRAM), CUDA_SUCCESS);
	CHECK_EQUAL(given.live, 0);
}

static void *use_often(void *program)
{
	enum cl_pool_user user = program ? CL_POOL_PROGRAM : CL_POOL_OPENS;

	for (int i = 0; i < 2000; i++) {
		begin(user);
		CHECK(given.live);
		CHECK_EQUAL(end(user), CUDA_SUCCESS);
	}
	return NULL;
}

/* destroy() above checks that none is destroyed once too often */
IN_A_CHILD(threads_that_use_one_pool_destroy_each_import_once)
{
	pthread_t thread[4];

	start();
	for (int i = 0; i < 4; i++)
		CHECK_EQUAL(pthread_create(&thread[i], NULL, use_often, i % 2 ? &given : NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	CHECK_EQUAL(given.imports, 8000);
	CHECK_EQUAL(given.destroys, 8000);
	CHECK_EQUAL(given.live, 0);
}

/* The program destroys a pool whose last free waits for its stream, and imports it again before the stream is there. */
IN_A_CHILD(a_pool_that_ends_later_and_is_imported_again_stays)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool handle;
	CUdeviceptr import;

	start_pools();
	memset(&given, 0, sizeof given);
	cl_driver.cuMemPoolImportFromShareableHandle = give;
	CHECK_EQUAL(cl_pool_import(&handle, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
	shared(&data);
	import = imported(&data);
	imported(&data);
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	CHECK_EQUAL(cl_memory_free_async(import, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_pool_import(&handle, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
	atomic_store(&fake.query_result, CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.unmaps, 1);
	CHECK_EQUAL(pool.destroys, 1); /* of two imports */
	import = imported(&data);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_ERROR_INVALID_VALUE); /* a block is imported */
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_SUCCESS);
}

/* Our opens use the pool as well, so the driver is not asked; but a capture must not tell the difference. */
IN_A_CHILD(a_capture_refuses_the_destroy_of_a_pool_that_opens_use)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool handle;

	start_pools();
	memset(&given, 0, sizeof given);
	cl_driver.cuMemPoolImportFromShareableHandle = give;
	shared(&data); /* it shares */
	CHECK_EQUAL(cl_pool_import(&handle, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
	begin(CL_POOL_OPENS);
	fake.none_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK(cl_pool_use_is_programs(POOL));
	fake.none_result = CUDA_ERROR_ILLEGAL_ADDRESS; /* an error of the export's own */
	CHECK_EQUAL(cl_pool_destroy(POOL), CUDA_SUCCESS);
	CHECK(!cl_pool_use_is_programs(POOL));
	CHECK_EQUAL(pool.destroys, 0);
}

/* --------------------------------------------------- pools that opens of handles import */
enum { STALLED = 4, OTHER = 5, MOST = 20000 /* ms */ }; /* numbers of pools that differ in the last bit */
static _Atomic bool stalls, came;

/* Returns true once @it is true, or false if it is not within MOST. */
static bool becomes(const _Atomic bool *it)
{
	const struct timespec moment = { 0, 1000000 };

	for (int i = 0; i < MOST && !*it; i++)
		nanosleep(&moment, NULL);
	return *it;
}

/* The exporter of both pools answers for the one only when the other one has come.  A record has its pool's number here. */
CUresult __wrap_cl_virtual_ask(struct cl_asking *asking, struct cl_peer *peer, uint32_t pid, uint64_t since);
CUresult __wrap_cl_virtual_ask(struct cl_asking *asking, struct cl_peer *peer, uint32_t pid, uint64_t since)
{
	struct cl_piece piece = { .record = asking->record };

	if (asking->record == STALLED) {
		stalls = true;
		CHECK(becomes(&came));
	}
	CHECK_EQUAL(asking->take(asking->arg, &piece, (int)asking->record), 0);
	return CUDA_SUCCESS;
}

static struct cl_imported_pool *get_pool(uint32_t number)
{
	static struct cl_header header = { .created = 1 };
	static struct cl_peer peer = { .region.header = &header };
	struct cl_pool_resolved resolved = { .handle.pool = number, .stamp = { .file_id = 1, .record = number },
					     .peer = &peer };
	struct cl_imported_pool *got = NULL;

	CHECK_EQUAL(cl_imported_pool_get(&resolved, 0, &got), CUDA_SUCCESS);
	return got;
}

static void *get_stalled(void *unused)
{
	(void)unused;
	return get_pool(STALLED);
}

IN_A_CHILD(a_pool_whose_import_hangs_holds_back_no_other_of_its_exporter)
{
	struct cl_imported_pool *one, *other;
	pthread_t thread;
	void *got;

	start();
	CHECK_EQUAL(pthread_create(&thread, NULL, get_stalled, NULL), 0);
	CHECK(becomes(&stalls));
	other = get_pool(OTHER);
	came = true;
	CHECK_EQUAL(pthread_join(thread, &got), 0);
	one = got;
	CHECK(one != other);
	CHECK_EQUAL(given.imports, 2);
	CHECK(!cl_imported_pool_put(one) && !cl_imported_pool_put(other));
	CHECK_EQUAL(given.live, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_user_imports_its_destroy_ends),
		cmocka_unit_test(neither_user_destroys_what_the_other_uses),
		cmocka_unit_test(a_refused_destroy_loses_nothing),
		cmocka_unit_test(threads_that_use_one_pool_destroy_each_import_once),
		cmocka_unit_test(a_pool_that_ends_later_and_is_imported_again_stays),
		cmocka_unit_test(a_capture_refuses_the_destroy_of_a_pool_that_opens_use),
		cmocka_unit_test(a_pool_whose_import_hangs_holds_back_no_other_of_its_exporter),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools that are made exportable (exporter/async.h), with a fake driver: what drivers before 535 are asked for, and
 * that the program reads and keeps its own release threshold at every moment, also while another thread makes the
 * pool's first handle.  The driver's calls can be interrupted: then another thread runs in the middle of one.
 */
#include "tests/unit/limbo.h"

#include "shim/descriptors/flight.h"
#include "shim/exporter/async.h"
#include "shim/virtual.h"
#include "shim/pool_handles.h"

enum { FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };
#define THRESHOLD CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
#define OUR_MOST UINT64_MAX
#define ITS 0x10000
#define DEFAULT_POOL ((CUmemoryPool)0x800)
#define NEW_POOL ((CUmemoryPool)0x900)

/* ------------------------------------------------------------------ the driver */
static struct {
	_Atomic uint64_t threshold;
	unsigned int made, types; /* pools, and what the last one was asked for */
	_Atomic(CUmemoryPool) current;
	int version;
	uint16_t usage; /* of the last pool */
	bool no_usage;	/* a usage and a handle type are refused together */
	CUresult export_result, raise_result;
	/* called once, in the middle of a call: before or after the driver does its work */
	_Atomic(void (*)(void)) before_get, before_set, after_set, in_export;
} drv;

static void once(_Atomic(void (*)(void)) *what)
{
	void (*call)(void) = atomic_exchange(what, NULL);

	if (call)
		call();
}

static CUresult make_pool(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	driver_entered();
	/* CUDA 12.8 has named that field */
	memcpy(&drv.usage, (const char *)&props->win32SecurityAttributes + sizeof(void *) + sizeof(size_t), sizeof drv.usage);
	if (drv.no_usage && drv.usage && props->handleTypes)
		return CUDA_ERROR_NOT_SUPPORTED;
	drv.types = (unsigned int)props->handleTypes;
	drv.made++;
	*handle = NEW_POOL;
	return CUDA_SUCCESS;
}
static CUresult end_pool(CUmemoryPool handle)
{
	driver_entered();
	return CUDA_SUCCESS;
}
static CUresult get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	driver_entered();
	CHECK(attribute == THRESHOLD && handle == NEW_POOL);
	once(&drv.before_get);
	*(cuuint64_t *)value = atomic_load(&drv.threshold);
	return CUDA_SUCCESS;
}
static CUresult set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	driver_entered();
	CHECK(attribute == THRESHOLD && handle == NEW_POOL);
	if (*(cuuint64_t *)value == OUR_MOST && drv.raise_result) {
		once(&drv.after_set);
		return drv.raise_result;
	}
	once(&drv.before_set);
	atomic_store(&drv.threshold, *(cuuint64_t *)value);
	once(&drv.after_set);
	return CUDA_SUCCESS;
}
static CUresult export_pool(void *fd, CUmemoryPool handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	int its = open("/dev/null", O_RDONLY);

	driver_entered();
	once(&drv.in_export);
	if (drv.export_result)
		close(its);
	else
		memcpy(fd, &its, sizeof its);
	return drv.export_result;
}
static CUresult export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	return CUDA_ERROR_INVALID_VALUE;
}
static CUresult default_pool(CUmemoryPool *handle, CUdevice of)
{
	*handle = DEFAULT_POOL;
	return CUDA_SUCCESS;
}
static CUresult current_pool(CUmemoryPool *handle, CUdevice of)
{
	*handle = drv.current;
	return CUDA_SUCCESS;
}
static CUresult set_pool(CUdevice of, CUmemoryPool handle)
{
	drv.current = handle;
	return CUDA_SUCCESS;
}
static CUresult one_device(int *n)
{
	*n = 1;
	return CUDA_SUCCESS;
}
static CUresult from_pool(CUdeviceptr *p, size_t size, CUmemoryPool handle, CUstream stream)
{
	return CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult version(int *number)
{
	*number = drv.version;
	return CUDA_SUCCESS;
}

static void start(void)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.share.number = CL_SHARE_ALL;
	memset(&drv, 0, sizeof drv);
	drv.current = DEFAULT_POOL;
	drv.version = 12020;
	cl_driver.cuMemPoolCreate = make_pool;
	cl_driver.cuMemPoolDestroy = end_pool;
	cl_driver.cuMemPoolGetAttribute = get_attribute;
	cl_driver.cuMemPoolSetAttribute = set_attribute;
	cl_driver.cuMemPoolExportToShareableHandle = export_pool;
	cl_driver.cuMemPoolExportPointer = export_pointer;
	cl_driver.cuDeviceGetDefaultMemPool = default_pool;
	cl_driver.cuDeviceGetMemPool = current_pool;
	cl_driver.cuDeviceSetMemPool = set_pool;
	cl_driver.cuDeviceGetCount = one_device;
	cl_driver.cuMemAllocFromPoolAsync = from_pool;
	cl_driver.cuDriverGetVersion = version;
}

/* ---------------------------------------------------------------- old drivers */
static void make_one(unsigned int made, unsigned int types)
{
	const CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemoryPool pool;

	cl_async_need();
	CHECK_EQUAL(drv.made, made);
	CHECK(cl_async_shown(DEFAULT_POOL) == (made ? NEW_POOL : DEFAULT_POOL));
	CHECK(drv.current == (made ? NEW_POOL : DEFAULT_POOL));
	CHECK_EQUAL(cl_async_create(&pool, &props), CUDA_SUCCESS);
	CHECK_EQUAL(drv.made, made + 1);
	CHECK_EQUAL(drv.types, types);
	CHECK_EQUAL(cl_async_is_shareable(pool), types == FD);
}

IN_A_CHILD(a_driver_of_535_is_asked_for_exportable_pools)
{
	start();
	make_one(1, FD);
	CHECK_EQUAL(logged("older than 535"), 0);
}
IN_A_CHILD(a_pool_with_a_usage_is_shareable_where_the_driver_makes_such)
{
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	const uint16_t usage = 2; /* hardware decompression */
	CUmemoryPool pool;

	start();
	memcpy((char *)&props.win32SecurityAttributes + sizeof(void *) + sizeof(size_t), &usage, sizeof usage);
	for (int refuses = 0; refuses < 2; refuses++) {
		drv.no_usage = refuses;
		CHECK_EQUAL(cl_async_create(&pool, &props), CUDA_SUCCESS);
		CHECK_EQUAL(drv.types, refuses ? 0 : FD);
		CHECK_EQUAL(drv.usage, usage);
	}
}
IN_A_CHILD(an_older_driver_keeps_its_pools_and_that_is_said_once)
{
	start();
	drv.version = 12010;
	make_one(0, 0);
	CHECK_EQUAL(logged("older than 535"), 1);
	CHECK_EQUAL(logged("memory of cudaMallocAsync is not shared"), 1);
}
IN_A_CHILD(an_older_driver_has_exportable_pools_by_force)
{
	start();
	drv.version = 12010;
	cl_options.share.number = CL_SHARE_ALL_FORCE;
	make_one(1, FD);
	CHECK_EQUAL(logged("older than 535"), 0);
}
IN_A_CHILD(without_the_option_no_driver_is_asked_for_anything)
{
	start();
	drv.version = 12010;
	cl_options.share.number = CL_SHARE_CUDA;
	make_one(0, 0);
	CHECK_EQUAL(logged("older than 535"), 0);
}

/* --------------------------------------------------------------- the threshold */
static uint64_t threshold(void)
{
	cuuint64_t value = 77;

	CHECK_EQUAL(cl_async_get_attribute(NEW_POOL, THRESHOLD, &value), CUDA_SUCCESS);
	return value;
}
static void set_threshold(uint64_t to)
{
	cuuint64_t value = to;

	CHECK_EQUAL(cl_async_set_attribute(NEW_POOL, THRESHOLD, &value), CUDA_SUCCESS);
}

static void *read_its(void *arg)
{
	CHECK_EQUAL(threshold(), ITS);
	return NULL;
}
static void *set_another(void *arg)
{
	set_threshold(ITS + 1);
	CHECK_EQUAL(threshold(), ITS + 1);
	return NULL;
}
static void *export_first(void *arg)
{
	CHECK(cl_async_hand_out(NEW_POOL));
	return NULL;
}

/* Runs @body in a thread, to its end. */
static void in_a_thread(void *(*body)(void *))
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, body, NULL));
	CHECK(!pthread_join(thread, NULL));
}
static void another_reads(void)
{
	in_a_thread(read_its);
}
static void another_sets(void)
{
	in_a_thread(set_another);
}
static void another_exports(void)
{
	in_a_thread(export_first);
}

static void start_with_a_pool(void)
{
	start();
	cl_async_need();
	CHECK(cl_async_is_shareable(NEW_POOL));
	set_threshold(ITS);
	CHECK_EQUAL(drv.threshold, ITS);
}

IN_A_CHILD(a_thread_reads_the_programs_threshold_while_another_raises_it)
{
	start_with_a_pool();
	drv.in_export = another_reads;
	drv.after_set = another_reads;
	CHECK(cl_async_hand_out(NEW_POOL));
	CHECK(!drv.in_export && !drv.after_set);
	CHECK_EQUAL(drv.threshold, OUR_MOST);
	CHECK_EQUAL(threshold(), ITS);
}
IN_A_CHILD(a_read_in_whose_middle_another_thread_raises_it_gives_the_programs)
{
	start_with_a_pool();
	drv.before_get = another_exports;
	CHECK_EQUAL(threshold(), ITS);
	CHECK_EQUAL(drv.threshold, OUR_MOST);
}

static pthread_t exporter;
static void another_begins_to_export(void)
{
	struct timespec until;

	CHECK(!pthread_create(&exporter, NULL, export_first, NULL));
	/* it can only end now if it does not wait for the call that it is in the middle of */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 200 * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	if (!pthread_timedjoin_np(exporter, NULL, &until))
		exporter = 0;
}
IN_A_CHILD(an_export_in_the_middle_of_a_set_waits_for_it)
{
	start_with_a_pool();
	drv.before_set = another_begins_to_export;
	set_threshold(ITS + 1);
	if (exporter)
		CHECK(!pthread_join(exporter, NULL));
	CHECK_EQUAL(drv.threshold, OUR_MOST);
	CHECK_EQUAL(threshold(), ITS + 1);
}
IN_A_CHILD(what_is_set_while_another_thread_exports_is_kept)
{
	start_with_a_pool();
	drv.in_export = another_sets;
	CHECK(cl_async_hand_out(NEW_POOL));
	CHECK_EQUAL(drv.threshold, OUR_MOST);
	CHECK_EQUAL(threshold(), ITS + 1);
}
IN_A_CHILD(the_driver_has_it_again_where_the_export_fails)
{
	for (int how = 0; how < 2; how++) {
		start_with_a_pool();
		*(how ? &drv.raise_result : &drv.export_result) = CUDA_ERROR_NOT_SUPPORTED;
		*(how ? &drv.after_set : &drv.in_export) = another_sets;
		CHECK_EQUAL(cl_async_hand_out(NEW_POOL), 0);
		CHECK_EQUAL(drv.threshold, ITS + 1);
		CHECK_EQUAL(threshold(), ITS + 1);
		set_threshold(ITS + 2);
		CHECK_EQUAL(drv.threshold, ITS + 2);
		cl_async_forget();
	}
}

/* Threads read all the time; another one sets, then the pool is shared. */
static _Atomic bool shared;
static void *read_always(void *arg)
{
	uint64_t last = 0, now;

	do {
		now = threshold();
		CHECK(now >= last && now < OUR_MOST);
		last = now;
	} while (!atomic_load(&shared));
	return NULL;
}
static void *set_more(void *arg)
{
	for (uint64_t i = 1; i <= 20; i++)
		set_threshold(ITS + i);
	return NULL;
}
IN_A_CHILD(threads_that_read_and_set_it_see_no_other_while_it_is_raised)
{
	for (int round = 0; round < 300; round++) {
		pthread_t reader[2], setter;

		start_with_a_pool();
		atomic_store(&shared, false);
		for (int i = 0; i < 2; i++)
			CHECK(!pthread_create(&reader[i], NULL, read_always, NULL));
		CHECK(!pthread_create(&setter, NULL, set_more, NULL));
		CHECK(cl_async_hand_out(NEW_POOL));
		CHECK(!pthread_join(setter, NULL));
		atomic_store(&shared, true);
		for (int i = 0; i < 2; i++)
			CHECK(!pthread_join(reader[i], NULL));
		CHECK_EQUAL(drv.threshold, OUR_MOST);
		CHECK_EQUAL(threshold(), ITS + 20);
		cl_async_forget();
	}
}

/* --------------------------------------------------------------- the descriptors */
/* Returns the number of a file that the program opens now. */
static int number_of_a_file(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	close(fd);
	return fd;
}
IN_A_CHILD(descriptors_of_a_pool_take_no_number_of_the_programs)
{
	int lowest, fd;

	start_with_a_pool();
	lowest = number_of_a_file();
	CHECK(cl_async_hand_out(NEW_POOL));
	CHECK_EQUAL(number_of_a_file(), lowest);
	fd = cl_async_descriptor((uint64_t)(uintptr_t)NEW_POOL, cl_async_hand_out(NEW_POOL));
	CHECK(fd > lowest && cl_flight_is_ours(fd));
	CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
	CHECK_EQUAL(number_of_a_file(), lowest);
	/* a child that forgets what is in flight has closed it */
	cl_flights_forget();
	CHECK(fcntl(fd, F_GETFD) < 0);
}

static CUresult shuts_down(CUdevice device, unsigned int *flags, int *active)
{
	return CUDA_ERROR_DEINITIALIZED;
}

/* A process in exit() has a service for a moment longer than a driver. */
IN_A_CHILD(while_the_driver_shuts_down_a_handle_is_stale)
{
	const uint64_t pool = (uint64_t)(uintptr_t)NEW_POOL;
	uint64_t number;

	start_with_a_pool();
	number = cl_async_hand_out(NEW_POOL);
	drv.export_result = CUDA_ERROR_OPERATING_SYSTEM;
	CHECK_EQUAL(cl_async_descriptor(pool, number), -EMFILE);
	drv.export_result = CUDA_ERROR_NOT_SUPPORTED;
	CHECK_EQUAL(cl_async_descriptor(pool, number), -EIO);
	drv.export_result = CUDA_ERROR_DEINITIALIZED;
	CHECK_EQUAL(cl_async_descriptor(pool, number), -ESTALE);
	/* whatever it says of the pool */
	drv.export_result = CUDA_ERROR_INVALID_VALUE;
	cl_driver.cuDevicePrimaryCtxGetState = shuts_down;
	CHECK_EQUAL(cl_async_descriptor(pool, number), -ESTALE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptors_of_a_pool_take_no_number_of_the_programs),
		cmocka_unit_test(a_driver_of_535_is_asked_for_exportable_pools),
		cmocka_unit_test(a_pool_with_a_usage_is_shareable_where_the_driver_makes_such),
		cmocka_unit_test(an_older_driver_keeps_its_pools_and_that_is_said_once),
		cmocka_unit_test(an_older_driver_has_exportable_pools_by_force),
		cmocka_unit_test(without_the_option_no_driver_is_asked_for_anything),
		cmocka_unit_test(a_thread_reads_the_programs_threshold_while_another_raises_it),
		cmocka_unit_test(a_read_in_whose_middle_another_thread_raises_it_gives_the_programs),
		cmocka_unit_test(an_export_in_the_middle_of_a_set_waits_for_it),
		cmocka_unit_test(what_is_set_while_another_thread_exports_is_kept),
		cmocka_unit_test(the_driver_has_it_again_where_the_export_fails),
		cmocka_unit_test(while_the_driver_shuts_down_a_handle_is_stale),
		cmocka_unit_test(threads_that_read_and_set_it_see_no_other_while_it_is_raised),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

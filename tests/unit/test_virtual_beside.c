/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An unmap and a release of virtual memory that was not shared (exporter/ranges.h), with a fake driver: what other threads
 * do while the driver has the call, and what it refuses.
 */
#include "tests/unit/virtual_handle_of.h"

#include "shim/exporter/ranges.h"
#include "shim/exporter/service.h"
#include "shim/exporter/virtual.h"
#include "shim/exporter/virtual_own.h"
#include "shim/virtual.h"

enum { SIZE = 2 * MIB };
#define AT UINT64_C(0x600000000000)

/* ------------------------------------------------------------------ the driver */
static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	driver_entered();
	*handle = 101;
	return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle handle)
{
	driver_entered();
	return CUDA_SUCCESS;
}
static CUresult refuse_release(CUmemGenericAllocationHandle handle)
{
	driver_entered();
	return CUDA_ERROR_INVALID_VALUE;
}
static CUresult refuse(CUipcMemHandle *handle, CUdeviceptr p)
{
	driver_entered();
	return CUDA_ERROR_INVALID_VALUE;
}
static CUresult no_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	driver_entered();
	return CUDA_ERROR_NOT_FOUND;
}

static struct {
	CUresult result;
	int device;	    /* cl_virtual_find() says it of the piece, while the driver unmaps it */
	void (*amid)(void); /* called then */
} alone;

static int device_at(CUdeviceptr p)
{
	struct cl_virtual_found found;

	CHECK(cl_virtual_find(&cl_exporter, p, &found));
	return found.device;
}
static CUresult unmap_alone(CUdeviceptr p, size_t size)
{
	driver_entered();
	alone.device = device_at(p);
	if (alone.amid)
		alone.amid();
	return alone.result;
}
static bool is_mapped(CUdeviceptr p)
{
	return cl_range_at_locked(p);
}

/* Maps one allocation twice, with room before, between and behind. */
static void start(void)
{
	const CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					       .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemGenericAllocationHandle memory;

	/* without a thread for it an unmap has no fast half */
	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.share.number = CL_SHARE_ALL;
	cl_driver.cuMemCreate = create;
	cl_driver.cuMemUnmap = unmap_alone;
	cl_driver.cuMemRelease = release;
	cl_driver.cuIpcGetMemHandle = refuse;
	cl_driver.cuMemGetAddressRange_v2 = no_range;
	CHECK_EQUAL(cl_virtual_create(&memory, SIZE, &property, 0), CUDA_SUCCESS);
	cl_virtual_reserved(AT, 5 * (uint64_t)SIZE);
	cl_virtual_mapped(AT + SIZE, SIZE, 0, memory);
	cl_virtual_mapped(AT + 3 * (uint64_t)SIZE, SIZE, 0, memory);
}

IN_A_CHILD(a_mapping_that_was_not_shared_is_known_until_the_driver_has_unmapped_it)
{
	CUipcMemHandle handle;

	start();
	CHECK_EQUAL(device_at(AT + SIZE), 0);
	/* refused: no handle meanwhile, and as before afterwards */
	alone.result = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(alone.device, -1);
	CHECK(is_mapped(AT + SIZE));
	CHECK_EQUAL(cl_memory_export(&handle, AT + SIZE), CUDA_SUCCESS);
	CHECK(is_live(&handle));
	/* unmapped: the other one */
	alone.result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + 3 * SIZE, SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(alone.device, -1);
	CHECK(!is_mapped(AT + 3 * SIZE) && is_mapped(AT + SIZE) && is_live(&handle));
	cl_service_end(SOON);
}

/* What another thread does while the driver is asked to unmap the piece. */
static void unmap_it_beside(void)
{
	alone.amid = NULL;
	alone.result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_SUCCESS);
	alone.result = CUDA_ERROR_INVALID_VALUE;
}
static CUipcMemHandle shared_beside;
static void fail_to_unmap_it_and_share_it_beside(void)
{
	CUdeviceptr opened = 0;

	alone.amid = NULL;
	alone.result = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_memory_export(&shared_beside, AT + SIZE), CUDA_SUCCESS);
	CHECK(is_live(&shared_beside));
	CHECK_EQUAL(cl_memory_import(&opened, shared_beside, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, fake_open), CUDA_SUCCESS);
	CHECK(opened == AT + SIZE && cl_virtual_own_is_open(opened));
	alone.result = CUDA_SUCCESS;
}
static void retain_it_beside(void)
{
	cl_virtual_retained(101, AT + SIZE);
}

IN_A_CHILD(of_two_threads_that_unmap_a_mapping_the_one_that_is_refused_brings_nothing_back)
{
	start();
	alone.amid = unmap_it_beside;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK(!is_mapped(AT + SIZE) && is_mapped(AT + 3 * SIZE));
}

IN_A_CHILD(what_another_thread_shares_while_the_driver_unmaps_it_ends_with_that)
{
	start();
	alone.amid = fail_to_unmap_it_and_share_it_beside;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_SUCCESS);
	CHECK(!is_mapped(AT + SIZE) && !is_live(&shared_beside));
	CHECK(!cl_virtual_own_is_open(AT + SIZE));
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	cl_service_end(SOON);
}

IN_A_CHILD(a_handle_that_the_program_gets_while_the_driver_unmaps_is_counted)
{
	start();
	CHECK_EQUAL(cl_virtual_unmap_now(AT + 3 * SIZE, SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(cl_virtual_release(101), CUDA_SUCCESS);
	alone.amid = retain_it_beside;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(cl_physical_find_locked(101)->handles, 1);
}

static void be_cancelled(void)
{
	pthread_cancel(pthread_self());
	pthread_testcancel(); /* the driver makes system calls */
}
static void *unmap_and_be_cancelled(void *unused)
{
	alone.amid = be_cancelled;
	cl_virtual_unmap_now(AT + SIZE, SIZE);
	pthread_testcancel();
	return unused;
}

IN_A_CHILD(a_thread_that_is_cancelled_while_the_driver_unmaps_leaves_no_mapping)
{
	pthread_t thread;
	void *result;

	start();
	CHECK_EQUAL(pthread_create(&thread, NULL, unmap_and_be_cancelled, NULL), 0);
	CHECK_EQUAL(pthread_join(thread, &result), 0);
	CHECK_EQUAL(result, PTHREAD_CANCELED);
	CHECK(!is_mapped(AT + SIZE) && is_mapped(AT + 3 * SIZE));
}

IN_A_CHILD(a_release_that_the_driver_refuses_changes_nothing)
{
	start();
	cl_driver.cuMemRelease = refuse_release;
	CHECK_EQUAL(cl_virtual_release(101), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_physical_find_locked(101)->handles, 1);
	CHECK_EQUAL(cl_virtual_release(99), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(cl_virtual_unmap_now(AT + 3 * SIZE, SIZE), CUDA_SUCCESS);
	/* nothing else leads to it */
	CHECK_EQUAL(cl_virtual_release(101), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_physical_find_locked(101)->handles, 1);
	cl_driver.cuMemRelease = release;
	CHECK_EQUAL(cl_virtual_release(101), CUDA_SUCCESS);
	CHECK(!cl_physical_find_locked(101));
	cl_service_end(SOON);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_mapping_that_was_not_shared_is_known_until_the_driver_has_unmapped_it),
		cmocka_unit_test(of_two_threads_that_unmap_a_mapping_the_one_that_is_refused_brings_nothing_back),
		cmocka_unit_test(what_another_thread_shares_while_the_driver_unmaps_it_ends_with_that),
		cmocka_unit_test(a_handle_that_the_program_gets_while_the_driver_unmaps_is_counted),
		cmocka_unit_test(a_thread_that_is_cancelled_while_the_driver_unmaps_leaves_no_mapping),
		cmocka_unit_test(a_release_that_the_driver_refuses_changes_nothing),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

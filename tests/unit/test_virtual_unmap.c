/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An unmap of virtual memory while the service has the driver make descriptors of it (exporter/virtual.h): it waits
 * for them, but not for long.  The driver is a fake one.  This process is its own importer.
 */
#include "tests/unit/limbo.h"

#include "shim/descriptors/ask.h"
#include "shim/descriptors/server.h"
#include "shim/exporter/ranges.h"
#include "shim/exporter/service.h"
#include "shim/exporter/virtual.h"
#include "shim/virtual.h"

enum { SIZE = 2 * MIB, PIECES = 4, LACKING = PIECES - 1 /* the importer has the first one */ };
#define AT UINT64_C(0x600000000000)
/* Where piece @i is mapped, which counts from 1: nothing is mapped at the reservation's beginning. */
#define PIECE(i) (AT + (i) * (uint64_t)SIZE)

static struct {
	CUmemGenericAllocationHandle memory;
	_Atomic unsigned int made; /* descriptors */
	void (*amid)(void);	   /* called while the driver makes the first one */
	_Atomic unsigned int unmaps, made_before; /* the second: when the driver's last unmap began */
	_Atomic bool live[PIECES + 1];		  /* then, by piece */
	struct cl_stamp stamp[PIECES + 1];
	uint64_t unmapped; /* by the thread that unmaps one */
	pthread_t unmapper;
	CUresult of_range;
} drv;

/* ------------------------------------------------------------------ the driver */
static bool is_live(unsigned int piece)
{
	return cl_serve_is_live(&cl_own, drv.stamp[piece].record, drv.stamp[piece].generation);
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	*handle = 101;
	return CUDA_SUCCESS;
}
static CUresult retain(CUmemGenericAllocationHandle *handle, void *address)
{
	*handle = 101;
	return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle handle)
{
	return CUDA_SUCCESS;
}
static CUresult refuse(CUipcMemHandle *handle, CUdeviceptr p)
{
	return CUDA_ERROR_INVALID_VALUE;
}
static CUresult no_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	return drv.of_range ? drv.of_range : CUDA_ERROR_NOT_FOUND;
}
static CUresult unmap(CUdeviceptr p, size_t size)
{
	driver_entered();
	drv.made_before = drv.made;
	for (unsigned int i = 1; i <= PIECES; i++)
		drv.live[i] = is_live(i);
	drv.unmaps++;
	return CUDA_SUCCESS;
}
static CUresult make_fd(void *fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
			unsigned long long flags)
{
	int its = (int)syscall(SYS_memfd_create, "piece", 0u);

	driver_entered();
	CHECK(its >= 0);
	if (!drv.made)
		drv.amid();
	drv.made++;
	memcpy(fd, &its, sizeof its);
	return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- the two sides */
static int take(void *arg, const struct cl_piece *piece, int fd)
{
	return 0;
}

/* The process asks itself here, and a process's own lock does not show that it lives. */
static int is_locked(struct cl_region *region, off_t byte)
{
	return 1;
}
static const struct cl_lock_ops of_another = { .is_locked = is_locked };

static struct cl_stamp stamp_at(uint64_t address)
{
	CUipcMemHandle handle = export_block(address);
	struct cl_stamp stamp = cl_stamp_unpack(cl_handle_stamp(handle.reserved, CL_VIRTUAL));

	CHECK(cl_region_has_stamped(&cl_own, &stamp));
	return stamp;
}

/* Shares all pieces, and asks for those that the importer lacks: one batch.  @amid happens in the midst of it. */
static void hand_over(void (*amid)(void))
{
	CUmemAllocationProp prop = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
				     .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	const struct cl_serve_run first = { SIZE, 2 * (uint64_t)SIZE };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = UINT64_MAX, .take = take, .run = &first, .runs = 1 };

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.share.number = CL_SHARE_ALL;
	cl_virtual_batch_time = UINT32_MAX;
	cl_driver.cuMemCreate = create;
	cl_driver.cuMemUnmap = unmap;
	cl_driver.cuMemRelease = release;
	cl_driver.cuMemRetainAllocationHandle = retain;
	cl_driver.cuMemExportToShareableHandle = make_fd;
	cl_driver.cuIpcGetMemHandle = refuse;
	cl_driver.cuMemGetAddressRange_v2 = no_range;
	drv.amid = amid;
	CHECK_EQUAL(cl_virtual_create(&drv.memory, SIZE, &prop, 0), CUDA_SUCCESS);
	cl_virtual_reserved(AT, (PIECES + 1) * (uint64_t)SIZE);
	for (unsigned int i = 1; i <= PIECES; i++) {
		cl_virtual_mapped(PIECE(i), SIZE, 0, drv.memory);
		drv.stamp[i] = stamp_at(PIECE(i));
	}
	drv.stamp[0] = stamp_at(AT);
	asking.record = drv.stamp[0].record;
	asking.generation = drv.stamp[0].generation;
	region = cl_own;
	region.locks = &of_another;
	/* a piece whose generation is over by then is not sent, and the importer asks anew */
	cl_ask(&asking);
}

static void *unmap_one(void *unused)
{
	atomic_store(&thread_task, (pid_t)syscall(SYS_gettid));
	CHECK_EQUAL(cl_virtual_unmap_now(drv.unmapped, SIZE), CUDA_SUCCESS);
	atomic_store(&thread_done, true);
	return unused;
}
static bool is_ending(uint64_t address)
{
	const struct cl_range *range;
	bool is;

	cl_lock(&cl_exports_lock);
	range = cl_range_at_locked(address);
	is = range && range->ending;
	cl_unlock(&cl_exports_lock);
	return is;
}
/* Has another thread unmap the piece at @address, and returns when it waits. */
static void begin_unmap(uint64_t address)
{
	drv.unmapped = address;
	CHECK(!pthread_create(&drv.unmapper, NULL, unmap_one, NULL));
	CHECK(COMES_TRUE(drv.unmaps || (is_ending(address) && sleeps_in_a_futex(atomic_load(&thread_task))), SOON));
	CHECK_EQUAL(drv.unmaps, 0);
}
static void check_unmapped_after_the_batch(unsigned int unmaps)
{
	CHECK(COMES_TRUE(atomic_load(&thread_done), SOON));
	CHECK(!pthread_join(drv.unmapper, NULL));
	CHECK_EQUAL(drv.unmaps, unmaps);
	CHECK_EQUAL(drv.made_before, LACKING);
	cl_service_end(SOON);
}

/* ------------------------------------------------------------------- the tests */
static void unmap_the_last(void)
{
	begin_unmap(PIECE(PIECES));
}
IN_A_CHILD(an_unmap_waits_while_descriptors_of_its_memory_are_made)
{
	cl_virtual_export_wait = HOUR;
	hand_over(unmap_the_last);
	/* also of a piece whose descriptor was not begun yet */
	check_unmapped_after_the_batch(1);
	CHECK(!drv.live[PIECES] && drv.live[PIECES - 1]);
}

/* What no descriptor is made of is unmapped at once.  The pieces behind it move up in the table. */
static void unmap_the_second_and_the_first(void)
{
	begin_unmap(PIECE(2));
	CHECK_EQUAL(cl_virtual_unmap_now(PIECE(1), SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(drv.unmaps, 1);
	CHECK_EQUAL(drv.made, 0);
	CHECK(!drv.live[1] && drv.live[2]);
}
IN_A_CHILD(an_unmap_that_has_waited_ends_its_own_memory)
{
	cl_virtual_export_wait = HOUR;
	hand_over(unmap_the_second_and_the_first);
	check_unmapped_after_the_batch(2);
	CHECK(!drv.live[2] && drv.live[3] && drv.live[4]);
	CHECK(!is_live(2) && is_live(3) && is_live(4));
}

/* Other memory comes to the same place, before the driver has made the descriptors. */
static void unmap_although_it_takes_long(void)
{
	CHECK_EQUAL(cl_virtual_unmap_now(PIECE(2), SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(drv.unmaps, 1);
	CHECK_EQUAL(drv.made_before, 0);
	CHECK(!drv.live[2] && drv.live[3]);
	cl_virtual_mapped(PIECE(2), SIZE, 0, drv.memory);
}
IN_A_CHILD(an_unmap_does_not_wait_for_ever_for_a_slow_driver)
{
	CHECK_EQUAL(cl_virtual_export_wait, 1000 * MS);
	cl_virtual_export_wait = MS;
	hand_over(unmap_although_it_takes_long);
	CHECK(drv.made >= LACKING);
	/* the other memory was not counted, so its unmap has nothing to wait for */
	cl_virtual_export_wait = HOUR;
	CHECK_EQUAL(cl_virtual_unmap_now(PIECE(2), SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(drv.unmaps, 2);
	cl_service_end(SOON);
}

static void do_nothing(void)
{
}
/* An open needs the device of the current context, and to know that this lives. */
IN_A_CHILD(an_open_needs_no_event)
{
	CUdeviceptr p = 0;
	CUdevice device;
	CUipcMemHandle handle;

	hand_over(do_nothing);
	handle = export_block(PIECE(1));
	fake.event_create_result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK_EQUAL(cl_virtual_current_device(&device), CUDA_SUCCESS);
	CHECK_EQUAL(device, 0);
	CHECK_EQUAL(cl_memory_import(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(p, PIECE(1));
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	/* the driver tells the device of a context that has ended, too */
	drv.of_range = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	CHECK_EQUAL(cl_virtual_current_device(&device), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	fake.event_create_result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	CHECK_EQUAL(cl_memory_import(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, fake_open),
		    CUDA_ERROR_CONTEXT_IS_DESTROYED);
	cl_service_end(SOON);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_unmap_waits_while_descriptors_of_its_memory_are_made),
		cmocka_unit_test(an_unmap_that_has_waited_ends_its_own_memory),
		cmocka_unit_test(an_unmap_does_not_wait_for_ever_for_a_slow_driver),
		cmocka_unit_test(an_open_needs_no_event),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

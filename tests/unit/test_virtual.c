/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory on the side of its exporter (exporter/virtual.h), with a fake driver: what the driver is
 * asked for, what a handle names, and that an unmap ends it before the driver is called.
 */
#include "tests/unit/virtual_handle_of.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include "shim/descriptors/ask.h"
#include "shim/driver/devices.h"
#include "shim/exporter/service.h"
#include "shim/exporter/virtual.h"
#include "shim/virtual.h"

enum { FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, FABRIC = 8, SIZE = 2 * MIB };
#define AT UINT64_C(0x600000000000)

/* ------------------------------------------------------------------ the driver */
static struct {
	unsigned int calls, types[4]; /* of cuMemCreate() */
	CUresult of_fd, of_all;
	CUresult unmap;
	uint64_t unmaps;
	bool live_in_unmap;
	CUipcMemHandle handle; /* whose record is looked at then */
	unsigned int refusals;
	/* what the driver says of any address, while .size is not 0 */
	CUdeviceptr base;
	size_t size;
	CUresult of_range;
	int legacy;
} drv;

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	driver_entered();
	CHECK(size % SIZE == 0 && !flags);
	drv.types[drv.calls++] = prop ? (unsigned int)prop->requestedHandleTypes : 99;
	if (drv.of_all)
		return drv.of_all;
	if (drv.of_fd && prop && (prop->requestedHandleTypes & FD))
		return drv.of_fd;
	*handle = 100 + drv.calls;
	return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr p, size_t size)
{
	driver_entered();
	drv.unmaps++;
	drv.live_in_unmap = is_live(&drv.handle);
	return drv.unmap;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	driver_entered();
	return CUDA_SUCCESS;
}

static CUresult refuse(CUipcMemHandle *handle, CUdeviceptr p)
{
	driver_entered();
	drv.refusals++;
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	driver_entered();
	if (!drv.size)
		return CUDA_ERROR_NOT_FOUND;
	*base = drv.base;
	*size = drv.size;
	return drv.of_range;
}

static CUresult attribute_of(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	driver_entered();
	if (!drv.size || attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(data, &drv.legacy, sizeof drv.legacy);
	return CUDA_SUCCESS;
}

static void start(void)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.share.number = CL_SHARE_ALL;
	memset(&drv, 0, sizeof drv);
	cl_driver.cuMemCreate = create;
	cl_driver.cuMemUnmap = unmap;
	cl_driver.cuMemRelease = release;
	cl_driver.cuIpcGetMemHandle = refuse;
	cl_driver.cuMemGetAddressRange_v2 = range;
	cl_driver.cuPointerGetAttribute = attribute_of;
}

/* Asks for memory with @types; returns how often the driver was asked. */
static unsigned int made(CUmemAllocationProp prop, CUresult expected)
{
	CUmemGenericAllocationHandle handle;

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	drv.calls = 0;
	CHECK_EQUAL(cl_virtual_create(&handle, SIZE, &prop, 0), expected);
	return drv.calls;
}
#define DEVICE .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE }

IN_A_CHILD(a_descriptor_is_asked_for_where_another_process_could_map_the_memory)
{
	start();
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], FD);
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE, .requestedHandleTypes = (CUmemAllocationHandleType)FABRIC },
			 CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], FD | FABRIC);
	/* as asked: it has a descriptor, or cannot be mapped elsewhere as it is */
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE, .requestedHandleTypes = (CUmemAllocationHandleType)FD },
			 CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], FD);
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE, .allocFlags.compressionType = 1 }, CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], 0);
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE, .allocFlags.usage = 1 }, CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], 0);
	CHECK_EQUAL(made((CUmemAllocationProp){ .location = { .type = CU_MEM_LOCATION_TYPE_INVALID } },
			 CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], 0);
	cl_options.mode.number = CL_MODE_OBSERVE;
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], 0);
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
	memset(uuid->bytes, device + 1, sizeof uuid->bytes);
	return CUDA_SUCCESS;
}

/* The service makes records of what is mapped in a reservation, under a lock, and they name the device. */
IN_A_CHILD(the_device_of_what_can_be_shared_is_known_from_its_making_on)
{
	struct cl_device_entries entries = { .n = 0 };
	struct cl_region region = { .header = &(struct cl_header){ .devices = 0 } };

	start();
	cl_driver.cuDeviceGetUuid_v2 = uuid_of;
	made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS);
	cl_lock(&cl_exports_lock);
	CHECK(cl_device_limbo_locked(&entries, &region, 0) != CL_ANY_DEVICE);
	cl_unlock(&cl_exports_lock);
}
IN_A_CHILD(where_the_driver_refuses_that_the_program_gets_what_it_asked_for)
{
	CUipcMemHandle handle;

	start();
	drv.of_fd = CUDA_ERROR_NOT_SUPPORTED;
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS), 2);
	CHECK(drv.types[0] == FD && drv.types[1] == 0);
	cl_virtual_reserved(AT, SIZE);
	cl_virtual_mapped(AT, SIZE, 0, 102);
	CHECK_EQUAL(cl_memory_export(&handle, AT), CUDA_ERROR_INVALID_VALUE);
	/* the driver's own error, for what the program asked for */
	drv.of_all = CUDA_ERROR_INVALID_DEVICE;
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_ERROR_INVALID_DEVICE), 2);
	/* no memory is no reason to ask again */
	drv.of_all = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_ERROR_OUT_OF_MEMORY), 1);
}

static CUresult old_version(int *version)
{
	*version = 12010;
	return CUDA_SUCCESS;
}

IN_A_CHILD(an_old_driver_is_asked_for_what_the_program_wants)
{
	start();
	cl_driver.cuDriverGetVersion = old_version;
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS), 1);
		CHECK_EQUAL(drv.types[0], 0);
	}
	CHECK_EQUAL(logged("older than 535"), 1);
}
IN_A_CHILD(an_old_driver_is_asked_for_more_by_force)
{
	static const uint64_t by_force[] = { CL_SHARE_ALL_FORCE, CL_SHARE_ALL_VISIBLE_FORCE };

	start();
	cl_driver.cuDriverGetVersion = old_version;
	for (int i = 0; i < 2; i++) {
		cl_options.share.number = by_force[i];
		CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS), 1);
		CHECK_EQUAL(drv.types[0], FD);
	}
	CHECK_EQUAL(logged("older than 535"), 0);
}
IN_A_CHILD(without_the_option_no_driver_is_asked_for_more)
{
	start();
	cl_driver.cuDriverGetVersion = old_version;
	cl_options.share.number = CL_SHARE_CUDA;
	CHECK_EQUAL(made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS), 1);
	CHECK_EQUAL(drv.types[0], 0);
	CHECK_EQUAL(logged("older than 535"), 0);
}

/* Two allocations of three pieces, which leave a hole between them. */
static void map_two(void)
{
	made((CUmemAllocationProp){ DEVICE }, CUDA_SUCCESS);
	cl_virtual_reserved(AT, 4 * SIZE);
	cl_virtual_mapped(AT + SIZE, SIZE, 0, 101);
	cl_virtual_mapped(AT + 3 * SIZE, SIZE, 0, 101);
}

static uint64_t offset_of(const CUipcMemHandle *handle)
{
	struct cl_virtual_handle its;

	memcpy(&its, handle, sizeof its);
	CHECK(cl_is_virtual_handle(handle) && its.size == 4 * SIZE && !its.bytes);
	return its.offset;
}

IN_A_CHILD(a_handle_names_the_allocation_or_the_reservation)
{
	CUipcMemHandle second, again, inside, start_of_all;
	uint32_t exports;

	start();
	map_two();
	CHECK_EQUAL(cl_memory_export(&second, AT + 3 * SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(offset_of(&second), 3 * SIZE);
	CHECK_EQUAL(cl_memory_export(&again, AT + 3 * SIZE), CUDA_SUCCESS);
	CHECK(!memcmp(&second, &again, sizeof again));
	CHECK_EQUAL(cl_memory_export(&inside, AT + 3 * SIZE + 77), CUDA_SUCCESS);
	CHECK(!memcmp(&second, &inside, sizeof inside));
	exports = cl_own.record[its_stamp(&second).record].exports;
	CHECK_EQUAL(exports, 3);
	/* nothing is mapped at the start; a hole has no handle */
	CHECK_EQUAL(cl_memory_export(&start_of_all, AT), CUDA_SUCCESS);
	CHECK_EQUAL(offset_of(&start_of_all), 0);
	CHECK(its_stamp(&start_of_all).record != its_stamp(&second).record);
	CHECK_EQUAL(cl_memory_export(&again, AT + 2 * SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_memory_export(&again, AT + 4 * SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_own.header->live_blocks, 2);
	cl_service_end(SOON);
}

/* Gets a handle of the second piece; returns how often the driver was asked to make one. */
static unsigned int refusals_of(CUipcMemHandle *handle)
{
	unsigned int before = drv.refusals;

	CHECK_EQUAL(cl_memory_export(handle, AT + SIZE), CUDA_SUCCESS);
	return drv.refusals - before;
}

IN_A_CHILD(for_a_handle_again_the_driver_is_asked_only_if_other_memory_may_be_there)
{
	CUipcMemHandle first, again;

	start();
	map_two();
	drv.base = AT + SIZE;
	drv.size = SIZE;
	CHECK_EQUAL(refusals_of(&first), 1);
	CHECK_EQUAL(refusals_of(&again), 0);
	CHECK(!memcmp(&first, &again, sizeof again));
	/* no context, or one that has ended: the error is the driver's */
	drv.of_range = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	CHECK_EQUAL(refusals_of(&again), 1);
	drv.of_range = CUDA_SUCCESS;
	/* past our hooks the memory became another's */
	drv.size = 2 * SIZE;
	CHECK_EQUAL(refusals_of(&again), 1);
	drv.size = SIZE;
	drv.base = AT;
	CHECK_EQUAL(refusals_of(&again), 1);
	drv.base = AT + SIZE;
	drv.legacy = 1;
	CHECK_EQUAL(refusals_of(&again), 1);
	drv.legacy = 0;
	CHECK_EQUAL(refusals_of(&again), 0);
	drv.handle = first;
	/* it is unmapped and mapped anew: a first handle, with a generation of its own */
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_SUCCESS);
	cl_virtual_mapped(AT + SIZE, SIZE, 0, 101);
	CHECK_EQUAL(refusals_of(&again), 1);
	CHECK(is_live(&again) && !is_live(&first) && memcmp(&first, &again, sizeof again));
	cl_service_end(SOON);
}

/* counts the call stacks (linked in by --wrap) */
static unsigned int stacks;
uint32_t __real_cl_stack_write(bool importer);
uint32_t __wrap_cl_stack_write(bool importer);
uint32_t __wrap_cl_stack_write(bool importer)
{
	stacks++;
	return __real_cl_stack_write(importer);
}

IN_A_CHILD(an_unmap_ends_the_handle_before_the_driver_is_called)
{
	CUipcMemHandle again;

	start();
	map_two();
	CHECK_EQUAL(cl_memory_export(&drv.handle, AT + SIZE), CUDA_SUCCESS);
	CHECK(is_live(&drv.handle));
	/* not a whole mapping: the driver refuses, and nothing has ended */
	drv.unmap = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE / 2), CUDA_ERROR_INVALID_VALUE);
	CHECK(is_live(&drv.handle) && drv.live_in_unmap);
	/* refused all the same: handles have ended, and it can be shared again */
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK(!is_live(&drv.handle) && !drv.live_in_unmap);
	CHECK_EQUAL(cl_memory_export(&again, AT + SIZE), CUDA_SUCCESS);
	CHECK(is_live(&again) && memcmp(&again, &drv.handle, sizeof again));
	drv.unmap = CUDA_SUCCESS;
	drv.handle = again;
	stacks = 0;
	CHECK_EQUAL(cl_virtual_unmap_now(AT + SIZE, SIZE), CUDA_SUCCESS);
	CHECK_EQUAL(stacks, 0); /* nobody holds it: nobody is told from where it was unmapped, and a stack takes time */
	CHECK(!is_live(&again) && !drv.live_in_unmap);
	CHECK_EQUAL(drv.unmaps, 3);
	CHECK_EQUAL(cl_memory_export(&again, AT + SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	cl_service_end(SOON);
}

/* 70 allocations, one of which moves to another end between two batches. */
enum { MANY = 70, BATCH = CL_SERVE_BATCH };
static struct {
	unsigned int times[MANY + 2], n;
	unsigned int unmapped, mapped; /* after the first batch */
	_Atomic unsigned int made;     /* descriptors */
	struct cl_serve_run run[2];    /* what the importer has */
	uint64_t runs;
	int number;		       /* of each, from the driver */
	CUmemGenericAllocationHandle memory, wide; /* .wide, if set, is mapped over the end of the last piece */
} moving;

static CUresult make_fd(void *fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
			unsigned long long flags)
{
	int its = (int)syscall(SYS_memfd_create, "piece", 0u);

	/* those that were made before have moved: the program gets the low numbers */
	CHECK(!moving.made++ || its == moving.number);
	moving.number = its;
	memcpy(fd, &its, sizeof its);
	return its < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
static CUresult retain(CUmemGenericAllocationHandle *handle, void *address)
{
	*handle = 1;
	return CUDA_SUCCESS;
}

static int take_moving(void *arg, const struct cl_piece *piece, int fd)
{
	CHECK(piece->size == SIZE && piece->offset / SIZE < MANY + 2);
	moving.times[piece->offset / SIZE]++;
	if (++moving.n == BATCH && moving.wide) {
		CHECK_EQUAL(cl_virtual_unmap_now(AT + BATCH * (uint64_t)SIZE, 2 * SIZE), CUDA_SUCCESS);
		cl_virtual_mapped(AT + BATCH * (uint64_t)SIZE, 2 * SIZE, 0, moving.wide);
	} else if (moving.n == BATCH) {
		CHECK_EQUAL(cl_virtual_unmap_now(AT + moving.unmapped * (uint64_t)SIZE, SIZE), CUDA_SUCCESS);
		cl_virtual_mapped(AT + moving.mapped * (uint64_t)SIZE, SIZE, 0, moving.memory);
	}
	return 0;
}

/* The process asks itself here, and a process's own lock does not show that it lives. */
static int is_locked(struct cl_region *region, off_t byte)
{
	return 1;
}
static const struct cl_lock_ops of_another = { .is_locked = is_locked };

/* Shares MANY allocations, and has this process ask for them.  Returns what cl_ask() does. */
static int share_many(int (*take)(void *arg, const struct cl_piece *piece, int fd))
{
	CUmemAllocationProp prop = { DEVICE, .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	struct cl_stamp stamp;
	int got;
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = UINT64_MAX, .take = take, .run = moving.run,
				    .runs = moving.runs };

	cl_driver.cuMemExportToShareableHandle = make_fd;
	cl_driver.cuMemRetainAllocationHandle = retain;
	CHECK_EQUAL(cl_virtual_create(&moving.memory, SIZE, &prop, 0), CUDA_SUCCESS);
	cl_virtual_reserved(AT, (MANY + 2) * (uint64_t)SIZE);
	for (unsigned int i = 1; i <= MANY; i++)
		cl_virtual_mapped(AT + i * (uint64_t)SIZE, SIZE, 0, moving.memory);
	CHECK_EQUAL(cl_memory_export(&drv.handle, AT), CUDA_SUCCESS);
	stamp = its_stamp(&drv.handle);
	asking.record = stamp.record;
	asking.generation = stamp.generation;
	region = cl_own;
	region.locks = &of_another;
	got = cl_ask(&asking);
	cl_service_end(SOON);
	if (got >= 0)
		CHECK_EQUAL(got, (int)moving.n);
	return got;
}

static int open_while_one_moves(unsigned int from, unsigned int to)
{
	CUmemAllocationProp prop = { DEVICE, .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	int got;

	start();
	cl_virtual_batch_time = UINT32_MAX; /* each batch is full, however slow this machine is */
	if (!from)
		CHECK_EQUAL(cl_virtual_create(&moving.wide, 2 * SIZE, &prop, 0), CUDA_SUCCESS);
	moving.unmapped = from;
	moving.mapped = to;
	got = share_many(take_moving);
	if (got < 0)
		return got;
	for (unsigned int i = 1; i <= MANY; i++)
		CHECK_EQUAL(moving.times[i], i <= BATCH || i != from);
	return 0;
}

IN_A_CHILD(what_stays_mapped_comes_once_while_another_goes_to_the_end)
{
	CHECK_EQUAL(open_while_one_moves(2, MANY + 1), 0);
	CHECK_EQUAL(moving.times[MANY + 1], 1);
}
IN_A_CHILD(what_stays_mapped_comes_once_while_another_goes_to_the_beginning)
{
	CHECK_EQUAL(open_while_one_moves(MANY, 0), 0);
	CHECK_EQUAL(moving.times[0], 0);
}
IN_A_CHILD(what_is_mapped_over_a_piece_that_came_begins_the_asking_anew)
{
	CHECK_EQUAL(open_while_one_moves(0, 0), -ESTALE);
	CHECK_EQUAL(moving.n, BATCH);
}

static int take_one(void *arg, const struct cl_piece *piece, int fd)
{
	CHECK_EQUAL(piece->offset / SIZE, ++moving.n);
	CHECK_EQUAL(moving.made, moving.n); /* the next one is not begun before this one is here */
	return 0;
}
IN_A_CHILD(a_batch_leaves_when_its_time_is_over_with_one_piece_at_least)
{
	start();
	cl_virtual_batch_time = 0;
	CHECK_EQUAL(share_many(take_one), MANY);
}

static int take_others(void *arg, const struct cl_piece *piece, int fd)
{
	moving.times[piece->offset / SIZE]++;
	moving.n++;
	return 0;
}
IN_A_CHILD(what_the_importer_has_gets_no_descriptor)
{
	start();
	moving.run[0] = (struct cl_serve_run){ 2 * (uint64_t)SIZE, 30 * (uint64_t)SIZE };
	/* one that covers a part of the last piece */
	moving.run[1] = (struct cl_serve_run){ 40 * (uint64_t)SIZE, MANY * (uint64_t)SIZE + SIZE / 2 };
	moving.runs = 2;
	CHECK_EQUAL(share_many(take_others), 12);
	CHECK_EQUAL(moving.made, 12);
	for (unsigned int i = 1; i <= MANY; i++)
		CHECK_EQUAL(moving.times[i], i < 2 || (i >= 30 && i < 40) || i == MANY);
}

/* The process may open some 44 more. */
static unsigned int most_at_once;
static int take_few(void *arg, const struct cl_piece *piece, int fd)
{
	unsigned int at_once = moving.made - moving.n++;

	if (at_once > most_at_once)
		most_at_once = at_once;
	return 0;
}
IN_A_CHILD(a_batch_takes_a_quarter_of_what_the_program_may_open)
{
	struct rlimit limit;
	int highest;

	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	start();
	limit.rlim_cur = 300;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	while ((highest = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0 && highest < 255)
		;
	cl_virtual_batch_time = UINT32_MAX;
	CHECK_EQUAL(share_many(take_few), MANY);
	CHECK(most_at_once > 1 && most_at_once <= 12);
}

/* ------------------------------------------------------------------ no memory */
static _Atomic bool callocs_fail;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	return atomic_load(&callocs_fail) ? NULL : __real_calloc(n, size);
}

IN_A_CHILD(an_own_open_without_memory_is_no_stale_handle)
{
	CUipcMemHandle handle;
	CUdeviceptr p = 0;

	start();
	map_two();
	CHECK_EQUAL(cl_memory_export(&handle, AT + SIZE), CUDA_SUCCESS);
	atomic_store(&callocs_fail, true);
	CHECK_EQUAL(cl_memory_import(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, fake_open),
		    CUDA_ERROR_OUT_OF_MEMORY);
	atomic_store(&callocs_fail, false);
	CHECK_EQUAL(p, 0);
	CHECK_EQUAL(logged("cannot be opened by its handle: Cannot allocate memory"), 1);
	CHECK_EQUAL(logged("stale"), 0);
	/* it is good all the same */
	CHECK_EQUAL(cl_memory_import(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(p, AT + SIZE);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	cl_service_end(SOON);
}

IN_A_CHILD(without_the_service_there_is_no_handle)
{
	CUipcMemHandle handle;

	start();
	map_two();
	cl_service_end(SOON);
	CHECK_EQUAL(cl_memory_export(&handle, AT + SIZE), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_descriptor_is_asked_for_where_another_process_could_map_the_memory),
		cmocka_unit_test(the_device_of_what_can_be_shared_is_known_from_its_making_on),
		cmocka_unit_test(where_the_driver_refuses_that_the_program_gets_what_it_asked_for),
		cmocka_unit_test(an_old_driver_is_asked_for_what_the_program_wants),
		cmocka_unit_test(an_old_driver_is_asked_for_more_by_force),
		cmocka_unit_test(without_the_option_no_driver_is_asked_for_more),
		cmocka_unit_test(a_handle_names_the_allocation_or_the_reservation),
		cmocka_unit_test(for_a_handle_again_the_driver_is_asked_only_if_other_memory_may_be_there),
		cmocka_unit_test(an_unmap_ends_the_handle_before_the_driver_is_called),
		cmocka_unit_test(what_stays_mapped_comes_once_while_another_goes_to_the_end),
		cmocka_unit_test(what_stays_mapped_comes_once_while_another_goes_to_the_beginning),
		cmocka_unit_test(what_is_mapped_over_a_piece_that_came_begins_the_asking_anew),
		cmocka_unit_test(a_batch_leaves_when_its_time_is_over_with_one_piece_at_least),
		cmocka_unit_test(what_the_importer_has_gets_no_descriptor),
		cmocka_unit_test(a_batch_takes_a_quarter_of_what_the_program_may_open),
		cmocka_unit_test(an_own_open_without_memory_is_no_stale_handle),
		cmocka_unit_test(without_the_service_there_is_no_handle),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

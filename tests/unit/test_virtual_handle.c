/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a virtual handle says of where its pointer lies and of what has changed there (shm/virtual_handle.h), with a
 * fake driver.
 */
#include "tests/unit/limbo.h"

#include "shim/exporter/ranges.h"
#include "shim/exporter/service.h"
#include "shim/shm/virtual_handle.h"
#include "shim/virtual.h"

enum { SIZE = 2 * MIB, PIECES = 4 };
#define AT UINT64_C(0x600000000000)
#define PIECE(i) (AT + (i) * (uint64_t)SIZE)

static CUmemGenericAllocationHandle memory;
static CUresult of_unmap;

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	*handle = 101;
	return CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr p, size_t size)
{
	return of_unmap;
}
static CUresult refuse(CUipcMemHandle *handle, CUdeviceptr p)
{
	return CUDA_ERROR_INVALID_VALUE;
}
static CUresult no_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	return CUDA_ERROR_NOT_FOUND;
}

static CUresult no_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	return CUDA_ERROR_INVALID_VALUE;
}

/* Reserves @size bytes at AT, and makes an allocation that can be mapped there. */
static void start(uint64_t size)
{
	CUmemAllocationProp prop = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
				     .type = CU_MEM_ALLOCATION_TYPE_PINNED };

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.share.number = CL_SHARE_ALL;
	cl_driver.cuMemCreate = create;
	cl_driver.cuMemUnmap = unmap;
	cl_driver.cuIpcGetMemHandle = refuse;
	cl_driver.cuMemGetAddressRange_v2 = no_range;
	cl_driver.cuPointerGetAttribute = no_attribute;
	CHECK_EQUAL(cl_virtual_create(&memory, SIZE, &prop, 0), CUDA_SUCCESS);
	cl_virtual_reserved(AT, size);
}

static struct cl_virtual_handle get(uint64_t address)
{
	struct cl_virtual_handle its;
	CUipcMemHandle handle;

	CHECK_EQUAL(cl_memory_export(&handle, address), CUDA_SUCCESS);
	CHECK(cl_is_virtual_handle(&handle));
	memcpy(&its, &handle, sizeof its);
	return its;
}

static bool same(struct cl_virtual_handle a, struct cl_virtual_handle b)
{
	return !memcmp(&a, &b, sizeof a);
}

IN_A_CHILD(the_offset_and_the_count_share_the_first_eight_bytes)
{
	const struct cl_virtual_handle handle = { .offset = UINT64_C(0x123456789abc), .changes = 0xdef0 };
	uint64_t first;

	memcpy(&first, &handle, sizeof first);
	CHECK_EQUAL(first, UINT64_C(0xdef0123456789abc));
	CHECK_EQUAL(offsetof(struct cl_virtual_handle, pid), sizeof first);
}

IN_A_CHILD(of_unchanged_memory_each_handle_has_the_same_bytes)
{
	struct cl_virtual_handle first;

	start(PIECES * SIZE);
	cl_virtual_mapped(PIECE(0), SIZE, 0, memory);
	cl_virtual_mapped(PIECE(1), SIZE, 0, memory);
	first = get(PIECE(0));
	get(PIECE(1));
	CHECK(same(get(PIECE(0)), first));
	/* another reservation has changed, not this one */
	cl_virtual_reserved(AT + 64 * MIB, SIZE);
	cl_virtual_mapped(AT + 64 * MIB, SIZE, 0, memory);
	get(AT + 64 * MIB);
	CHECK(same(get(PIECE(0)), first));
	cl_service_end(SOON);
}

IN_A_CHILD(of_changed_memory_a_handle_has_other_bytes)
{
	struct cl_virtual_handle before, after;

	start(PIECES * SIZE);
	cl_virtual_mapped(PIECE(0), SIZE, 0, memory);
	before = get(PIECE(0));
	/* it grows */
	cl_virtual_mapped(PIECE(1), SIZE, 0, memory);
	after = get(PIECE(0));
	CHECK(!same(before, after) && before.stamp == after.stamp);
	/* what is beside it is unmapped, mapped anew, and stays although the program has tried to unmap it */
	before = after;
	CHECK_EQUAL(cl_virtual_unmap_now(PIECE(1), SIZE), CUDA_SUCCESS);
	after = get(PIECE(0));
	CHECK(!same(before, after) && before.stamp == after.stamp);
	before = after;
	cl_virtual_mapped(PIECE(1), SIZE, 0, memory);
	after = get(PIECE(0));
	CHECK(!same(before, after) && before.stamp == after.stamp);
	before = after;
	of_unmap = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(cl_virtual_unmap_now(PIECE(1), SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK(!same(get(PIECE(0)), before));
	cl_service_end(SOON);
}

/* A program that maps and unmaps in a loop does not soon come back to the same bytes: only handles count. */
IN_A_CHILD(many_changes_between_two_handles_count_as_one)
{
	struct cl_virtual_handle before, after;

	start(PIECES * SIZE);
	cl_virtual_mapped(PIECE(0), SIZE, 0, memory);
	before = get(PIECE(0));
	for (unsigned int i = 0; i < (UINT16_MAX + 1) / 2; i++) {
		cl_virtual_mapped(PIECE(1), SIZE, 0, memory);
		cl_virtual_unmap_now(PIECE(1), SIZE);
	}
	after = get(PIECE(0));
	CHECK_EQUAL(after.changes, before.changes + 1);
	cl_service_end(SOON);
}

IN_A_CHILD(the_count_begins_anew_and_changes_nothing_else)
{
	struct cl_virtual_handle before, after;

	start(PIECES * SIZE);
	cl_virtual_mapped(PIECE(1), SIZE, 0, memory);
	before = get(PIECE(1));
	cl_lock(&cl_exports_lock);
	cl_reserved_at_locked(AT)->changes = UINT16_MAX;
	cl_reserved_at_locked(AT)->changed = true;
	cl_unlock(&cl_exports_lock);
	after = get(PIECE(1));
	CHECK_EQUAL(after.changes, 0);
	after.changes = before.changes;
	CHECK(same(before, after));
	cl_service_end(SOON);
}

IN_A_CHILD(what_lies_too_far_from_the_beginning_has_no_handle)
{
	const uint64_t limit = UINT64_C(1) << CL_VIRTUAL_OFFSET_BITS;
	CUipcMemHandle handle;

	start(2 * limit);
	cl_virtual_mapped(AT + limit - SIZE, SIZE, 0, memory);
	cl_virtual_mapped(AT + limit, SIZE, 0, memory);
	CHECK_EQUAL(get(AT + limit - SIZE).offset, limit - SIZE);
	CHECK_EQUAL(cl_memory_export(&handle, AT + limit), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(get(AT).offset, 0);
	cl_service_end(SOON);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_offset_and_the_count_share_the_first_eight_bytes),
		cmocka_unit_test(of_unchanged_memory_each_handle_has_the_same_bytes),
		cmocka_unit_test(of_changed_memory_a_handle_has_other_bytes),
		cmocka_unit_test(many_changes_between_two_handles_count_as_one),
		cmocka_unit_test(the_count_begins_anew_and_changes_nothing_else),
		cmocka_unit_test(what_lies_too_far_from_the_beginning_has_no_handle),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Mirrors (importer/mirror.h) when the driver refuses a call, each one in turn, or memory runs out. */
#include "tests/unit/mirrors.h"

/* -------------------------------------------------------------- failing allocations */
static unsigned int allocations_left = UINT32_MAX; /* so many succeed, and the next one fails */
static int allocations;
static bool allocation_fails(void)
{
	return allocations_left != UINT32_MAX && allocations_left-- == 0;
}
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void __wrap_free(void *p);
void *__wrap_malloc(size_t size)
{
	if (allocation_fails())
		return NULL;
	allocations++;
	return __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size)
{
	if (allocation_fails())
		return NULL;
	allocations++;
	return __real_calloc(n, size);
}
void *__wrap_realloc(void *old, size_t size)
{
	if (allocation_fails())
		return NULL;
	allocations += !old;
	return __real_realloc(old, size);
}
void __wrap_free(void *p)
{
	allocations -= p != NULL;
	__real_free(p);
}

/* ----------------------------------------------------------------------- failures */
static void check_nothing_is_left(void)
{
	CHECK_NOTHING_IS_LEFT();
	CHECK_EQUAL(allocations, 0);
}

IN_A_CHILD(an_open_that_fails_leaves_nothing)
{
	unsigned int n = 1, told;
	struct opening o;

	start_mirrors();
	allocations = 0;
	for (CUresult result = CUDA_ERROR_UNKNOWN; result; n++) {
		vm.fail_from = vm.fail_to = vm.calls + n;
		vm.failed = told = vm.told = 0;
		result = try_open(&o, 1, "AB.CC", 0);
		CHECK_EQUAL(result, vm.failed ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
		if (!result)
			break;
		for (uint64_t i = 0; i < o.want.pieces; i++)
			told += o.piece[i].mapped;
		CHECK_EQUAL(vm.told, told);
		check_nothing_is_left();
	}
	vm.fail_to = 0;
	CHECK_EQUAL(n, 1 + 3 * 3 + 2 + 1); /* each call has failed */
	CHECK_READS(o.p, "AB.CC");
}

IN_A_CHILD(an_open_that_fails_leaves_what_was_there)
{
	CUresult result = CUDA_ERROR_UNKNOWN;
	CUdeviceptr p, q;
	unsigned int n;
	struct opening o;

	start_mirrors();
	allocations = 0;
	p = opened(1, "A.C..F", 0);
	q = opened(1, "A.C..F", 2);
	for (n = 1; result; n++) {
		vm.fail_from = vm.fail_to = vm.calls + n;
		describe(&o, 1, "ABCD.F", 0);
		o.want.device = 1;
		result = cl_mirror_open(&o.want, &o.p);
		if (!result)
			break;
		CHECK_READS(p, "A.C..F");
		CHECK_EQUAL(vm.mapped, 3);
		CHECK_EQUAL(vm.reservations, 1);
		CHECK_EQUAL(vm.handles, 0);
		CHECK_RANGE(p, p, 6);
		CHECK_RANGE(q, q, 1);
	}
	vm.fail_to = 0;
	CHECK_EQUAL(n, 2 * 3 + 2 + 3 + 1); /* the new ones, two runs; three old runs for the new device */
	CHECK_READS(p, "ABCD.F");
	CHECK_EQUAL(devices_at(p), 3);
	CHECK_EQUAL(closed(q), CUDA_SUCCESS);
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_READS(p, "ABCD.F");
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	check_nothing_is_left();
}

IN_A_CHILD(a_close_that_fails_is_made_good_by_the_next_call)
{
	CUdeviceptr p;
	unsigned int n;

	start_mirrors();
	allocations = 0;
	for (n = 1;; n++) {
		p = opened(1, "AB.C", 0);
		vm.fail_from = vm.fail_to = vm.calls + n;
		if (!closed(p))
			break;
		CHECK(!is_open(p));
		CHECK_EQUAL(vm.mapped, n <= 3);
		CHECK_EQUAL(vm.reservations, 1);
		p = opened(1, "AB.C", 0);
		CHECK_READS(p, "AB.C");
		CHECK_EQUAL(vm.reservations, 1);
		CHECK_EQUAL(closed(p), CUDA_SUCCESS);
		check_nothing_is_left();
		/* or by one that needs something else */
		p = opened(1, "AB.C", 0);
		vm.fail_from = vm.fail_to = vm.calls + n;
		CHECK_EQUAL(closed(p), CUDA_ERROR_UNKNOWN);
		p = opened(1, "..X.", 2);
		CHECK_READS(p - 2 * PAGE, "..X.");
		CHECK_EQUAL(vm.mapped, 1);
		CHECK_EQUAL(closed(p), CUDA_SUCCESS);
		check_nothing_is_left();
	}
	CHECK_EQUAL(n, 3 + 1 + 1);
	check_nothing_is_left();
}

/* The open fails, and so does unmapping: what is left without access gets it from the next open. */
IN_A_CHILD(what_could_not_be_undone_is_used_or_undone_later)
{
	struct opening o;
	CUdeviceptr p;

	start_mirrors();
	allocations = 0;
	p = opened(1, "A...", 0);
	vm.fail_from = vm.fail_to = vm.calls + 4; /* access */
	vm.unmap_fails = 1;
	CHECK_EQUAL(try_open(&o, 1, "AB..", 0), CUDA_ERROR_UNKNOWN);
	CHECK_EQUAL(vm.mapped, 2);
	CHECK(o.piece[1].mapped);
	CHECK_EQUAL(vm.told, 0);
	CHECK_EQUAL(devices_at(p + PAGE), 0);
	CHECK_EQUAL(opened(1, "AB..", 0), p);
	CHECK_READS(p, "AB..");
	CHECK_EQUAL(vm.maps, 2);
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	vm.fail_from = vm.fail_to = vm.calls + 4;
	vm.unmap_fails = 1;
	CHECK_EQUAL(try_open(&o, 1, "ABD.", 0), CUDA_ERROR_UNKNOWN);
	CHECK_EQUAL(vm.mapped, 3);
	CHECK_EQUAL(opened(1, "AB..", 0), p); /* which does not need it */
	CHECK_READS(p, "AB..");
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_EQUAL(vm.told, 3);
	check_nothing_is_left();
	/* the reservation itself can't be freed */
	vm.fail_from = vm.calls + 2;
	vm.fail_to = vm.calls + 3;
	CHECK_EQUAL(try_open(&o, 1, "A", 0), CUDA_ERROR_UNKNOWN);
	CHECK_EQUAL(vm.reservations, 1);
	opened(1, "A", 0);
	CHECK_EQUAL(vm.reservations, 1);
}

IN_A_CHILD(an_open_without_memory_leaves_nothing)
{
	unsigned int n = 0;
	CUresult result;
	struct opening o;
	CUdeviceptr p;

	start_mirrors();
	allocations = 0;
	do {
		allocations_left = n++;
		result = try_open(&o, 1, "AB.C", 0);
		allocations_left = UINT32_MAX;
		CHECK(!result || result == CUDA_ERROR_OUT_OF_MEMORY);
		if (result)
			check_nothing_is_left();
	} while (result);
	CHECK(n > 5);
	p = o.p;
	n = 0;
	do {
		allocations_left = n++;
		result = try_open(&o, 1, "ABXC", 1);
		allocations_left = UINT32_MAX;
		CHECK(!result || result == CUDA_ERROR_OUT_OF_MEMORY);
		if (result)
			CHECK_READS(p, "AB.C");
	} while (result);
	CHECK(n > 3);
	CHECK_READS(p, "ABXC");
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_READS(p, ".BXC");
	CHECK_EQUAL(closed(o.p), CUDA_SUCCESS);
	check_nothing_is_left();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_open_that_fails_leaves_nothing),
		cmocka_unit_test(an_open_that_fails_leaves_what_was_there),
		cmocka_unit_test(a_close_that_fails_is_made_good_by_the_next_call),
		cmocka_unit_test(what_could_not_be_undone_is_used_or_undone_later),
		cmocka_unit_test(an_open_without_memory_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of virtual memory (ranges.h): a pointer leads to what is mapped there, and to nothing else,
 * whatever is mapped and unmapped beside it.  A handle leads to its allocation, also if its number is used
 * again.  Without memory an entry is missing, and nothing else: realloc() and calloc() are wrapped.
 */
#include "tests/unit/child.h"

#include "shim/exporter/ranges.h"

static bool no_memory;
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	return no_memory ? NULL : __real_calloc(n, size);
}
void *__real_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size)
{
	return no_memory ? NULL : __real_realloc(old, size);
}

enum { AT = 0x100000, PIECE = 0x1000 };

static int begin(void **state)
{
	(void)state;
	cl_ranges_forget();
	no_memory = false;
	return 0;
}

static bool last; /* of the latest release */

static void make(CUmemGenericAllocationHandle handle, uint64_t size)
{
	cl_physical_add_locked(handle, &(struct cl_physical){ .size = size, .shareable = true });
}

/* Makes an allocation with the number @i, maps it, and releases its handle. */
static void map(unsigned int i, uint64_t address, uint64_t size)
{
	struct cl_physical *physical;

	make(i, size);
	cl_range_add_locked(address, size, 0, i);
	physical = cl_physical_release_locked(i, &last);
	assert_non_null(physical);
	assert_false(last); /* a mapping leads to it */
	cl_physical_released_locked(physical, true);
}

static void unmap(uint64_t address, uint64_t size)
{
	struct cl_reserved *reserved = cl_reserved_at_locked(address);
	size_t first, n;
	bool whole;

	n = cl_ranges_within(reserved, address, size, &first, &whole);
	assert_true(whole);
	while (n--)
		cl_range_remove_locked(reserved, first + n);
}

static void test_a_pointer_leads_to_its_reservation(void **state)
{
	struct cl_reserved *low, *high;

	(void)state;
	/* not in order of their addresses */
	cl_reserved_add_locked(AT + 8 * PIECE, 4 * PIECE);
	cl_reserved_add_locked(AT, 4 * PIECE);
	cl_reserved_add_locked(AT + 4 * PIECE, 4 * PIECE);
	low = cl_reserved_at_locked(AT);
	high = cl_reserved_at_locked(AT + 12 * PIECE - 1);
	assert_true(low && high && low->number != high->number);
	assert_ptr_equal(low, cl_reserved_at_locked(AT + 4 * PIECE - 1));
	assert_ptr_not_equal(low, cl_reserved_at_locked(AT + 4 * PIECE));
	assert_null(cl_reserved_at_locked(AT - 1));
	assert_null(cl_reserved_at_locked(AT + 12 * PIECE));
}

static void test_a_pointer_leads_to_its_mapping(void **state)
{
	const struct cl_reserved *reserved;
	size_t first;
	bool whole;

	(void)state;
	cl_reserved_add_locked(AT, 16 * PIECE);
	reserved = cl_reserved_at_locked(AT);
	map(3, AT + 6 * PIECE, PIECE);
	map(1, AT, PIECE);
	map(2, AT + PIECE, 2 * PIECE);
	assert_int_equal(reserved->ranges, 3);
	assert_int_equal(cl_range_at_locked(AT + PIECE - 1)->base, AT);
	assert_int_equal(cl_range_at_locked(AT + 3 * PIECE - 1)->base, AT + PIECE);
	assert_null(cl_range_at_locked(AT + 3 * PIECE));
	assert_null(cl_range_at_locked(AT + 7 * PIECE));
	assert_int_equal(cl_ranges_within(reserved, AT, 3 * PIECE, &first, &whole), 2);
	assert_true(whole && first == 0);
	/* half of the second one; a hole */
	assert_int_equal(cl_ranges_within(reserved, AT, 2 * PIECE, &first, &whole), 1);
	assert_false(whole);
	assert_int_equal(cl_ranges_within(reserved, AT + 2 * PIECE, 5 * PIECE, &first, &whole), 1);
	assert_true(!whole && first == 2);
	unmap(AT + PIECE, 2 * PIECE);
	assert_null(cl_range_at_locked(AT + PIECE));
	assert_int_equal(cl_range_at_locked(AT + 6 * PIECE)->base, AT + 6 * PIECE);
}

static bool is_alone(uint64_t address, uint64_t size)
{
	struct cl_reserved *reserved;
	size_t i;
	const struct cl_range *range = cl_range_alone_locked(address, size, &reserved, &i);

	assert_true(!range || (range == &reserved->range[i] && range->base == address));
	return range;
}

/* For an unmap: one mapping, exactly, of which no other process or thread knows. */
static void test_one_mapping_is_found_that_nobody_shares(void **state)
{
	struct cl_block *shared = (struct cl_block *)(void *)state;
	struct cl_reserved *reserved;

	(void)state;
	cl_reserved_add_locked(AT, 16 * PIECE);
	reserved = cl_reserved_at_locked(AT);
	map(1, AT, 2 * PIECE);
	map(2, AT + 2 * PIECE, PIECE);
	assert_true(is_alone(AT, 2 * PIECE) && is_alone(AT + 2 * PIECE, PIECE));
	assert_false(is_alone(AT, PIECE));
	assert_false(is_alone(AT + PIECE, PIECE));
	assert_false(is_alone(AT, 3 * PIECE));
	assert_false(is_alone(AT + 2 * PIECE, 2 * PIECE));
	assert_false(is_alone(AT + 3 * PIECE, PIECE));
	assert_false(is_alone(AT + 16 * PIECE, PIECE));
	reserved->range[0].block = shared;
	reserved->range[1].exporting = 1;
	assert_false(is_alone(AT, 2 * PIECE) || is_alone(AT + 2 * PIECE, PIECE));
	reserved->range[1].exporting = 0;
	assert_true(is_alone(AT + 2 * PIECE, PIECE));
	/* it was unmapped and mapped anew past us, so there are two entries */
	cl_range_add_locked(AT + 2 * PIECE, PIECE, 0, 99);
	assert_int_equal(reserved->ranges, 3);
	assert_false(is_alone(AT + 2 * PIECE, PIECE));
	reserved->range[0].block = NULL;
}

static void test_only_a_whole_allocation_is_shared(void **state)
{
	(void)state;
	cl_reserved_add_locked(AT, 16 * PIECE);
	make(1, 2 * PIECE);
	cl_range_add_locked(AT, PIECE, 0, 1);
	cl_range_add_locked(AT + PIECE, PIECE, PIECE, 1);
	cl_range_add_locked(AT + 2 * PIECE, 2 * PIECE, 0, 1);
	cl_range_add_locked(AT + 4 * PIECE, PIECE, 0, 99); /* made past us */
	assert_false(cl_range_is_shareable(cl_range_at_locked(AT)));
	assert_false(cl_range_is_shareable(cl_range_at_locked(AT + PIECE)));
	assert_true(cl_range_is_shareable(cl_range_at_locked(AT + 2 * PIECE)));
	assert_false(cl_range_is_shareable(cl_range_at_locked(AT + 4 * PIECE)));
}

static void test_an_allocation_stays_while_it_is_mapped(void **state)
{
	struct cl_physical *physical;

	(void)state;
	cl_reserved_add_locked(AT, 16 * PIECE);
	map(1, AT, PIECE);
	physical = cl_range_at_locked(AT)->physical;
	assert_non_null(physical);
	/* its number is used again, while it is mapped */
	make(1, 4 * PIECE);
	assert_ptr_not_equal(cl_physical_find_locked(1), physical);
	assert_int_equal(physical->size, PIECE);
	/* the program gets a handle of it, and gives that back */
	cl_physical_retained_locked(7, AT);
	assert_ptr_equal(cl_physical_find_locked(7), physical);
	unmap(AT, PIECE);
	assert_ptr_equal(cl_physical_find_locked(7), physical);
	assert_ptr_equal(cl_physical_release_locked(7, &last), physical);
	assert_true(last);
	assert_null(cl_physical_find_locked(7)); /* before the driver is asked */
	cl_physical_free(physical);
	assert_null(cl_physical_release_locked(7, &last));
}

static void test_what_the_driver_refuses_stays(void **state)
{
	struct cl_reserved *reserved;
	struct cl_physical *physical;

	(void)state;
	cl_reserved_add_locked(AT, 16 * PIECE);
	map(1, AT, PIECE);
	assert_null(cl_reserved_take_locked(AT, 16 * PIECE)); /* something is mapped */
	unmap(AT, PIECE);
	assert_null(cl_reserved_take_locked(AT, PIECE));
	assert_null(cl_reserved_take_locked(AT + PIECE, 15 * PIECE));
	reserved = cl_reserved_take_locked(AT, 16 * PIECE);
	assert_true(reserved && !cl_reserved_at_locked(AT));
	cl_reserved_put_back_locked(reserved);
	assert_ptr_equal(cl_reserved_at_locked(AT), reserved);

	make(2, PIECE);
	physical = cl_physical_release_locked(2, &last);
	assert_null(cl_physical_find_locked(2));
	cl_physical_released_locked(physical, false);
	assert_ptr_equal(cl_physical_find_locked(2), physical);
	/* another thread makes an allocation with that number, while the driver takes the handle back */
	physical = cl_physical_release_locked(2, &last);
	make(2, 2 * PIECE);
	cl_physical_released_locked(physical, true);
	assert_int_equal(cl_physical_find_locked(2)->size, 2 * PIECE);

	/* two threads give the two handles back at once: neither may end it while the other is in the driver */
	map(3, AT, PIECE);
	cl_physical_retained_locked(3, AT);
	cl_physical_retained_locked(3, AT);
	unmap(AT, PIECE);
	physical = cl_physical_release_locked(3, &last);
	assert_false(last);
	assert_ptr_equal(cl_physical_release_locked(3, &last), physical);
	assert_false(last);
	cl_physical_released_locked(physical, true);
	cl_physical_released_locked(physical, true);
	assert_null(cl_physical_find_locked(3));
}

static void test_what_was_freed_past_us_makes_room_for_what_comes_after_it(void **state)
{
	struct cl_reserved *reserved;

	(void)state;
	/* freed while another thread unmaps: the mapping is still listed, so the reservation stays */
	cl_reserved_add_locked(AT, 16 * PIECE);
	map(1, AT, PIECE);
	assert_null(cl_reserved_take_locked(AT, 16 * PIECE));
	unmap(AT, PIECE);
	/* the driver gives the addresses anew, in two parts */
	cl_reserved_add_locked(AT, 4 * PIECE);
	cl_reserved_add_locked(AT + 8 * PIECE, 8 * PIECE);
	map(2, AT + PIECE, PIECE);
	assert_null(cl_reserved_at_locked(AT + 5 * PIECE));
	unmap(AT + PIECE, PIECE);
	reserved = cl_reserved_take_locked(AT, 4 * PIECE);
	assert_non_null(reserved);
	cl_reserved_free(reserved);
	assert_null(cl_reserved_at_locked(AT));
	assert_non_null(cl_reserved_at_locked(AT + 8 * PIECE));
	/* of one that has a mapping all stays, and the newer of two is found and taken */
	map(3, AT + 8 * PIECE, PIECE);
	cl_reserved_add_locked(AT + 8 * PIECE, 8 * PIECE);
	reserved = cl_reserved_at_locked(AT + 8 * PIECE);
	assert_int_equal(reserved->ranges, 0);
	assert_ptr_equal(cl_reserved_take_locked(AT + 8 * PIECE, 8 * PIECE), reserved);
	cl_reserved_free(reserved);
	/* nor does it speak for the addresses of a newer one that lies in it, after a lookup beside that */
	cl_reserved_add_locked(AT + 10 * PIECE, 2 * PIECE);
	reserved = cl_reserved_at_locked(AT + 10 * PIECE);
	assert_int_equal(reserved->base, AT + 10 * PIECE);
	assert_int_equal(cl_reserved_at_locked(AT + 9 * PIECE)->base, AT + 8 * PIECE);
	assert_ptr_equal(cl_reserved_at_locked(AT + 10 * PIECE), reserved);
	assert_true(cl_range_is_shareable(cl_range_at_locked(AT + 8 * PIECE)));
}

static void test_it_is_also_taken_out_if_one_with_a_mapping_lies_in_it(void **state)
{
	(void)state;
	cl_reserved_add_locked(AT, 16 * PIECE);
	map(1, AT, PIECE);
	/* within the first, whose mapping keeps it; then that is gone, and the third lies in the first alone */
	cl_reserved_add_locked(AT + 4 * PIECE, 2 * PIECE);
	unmap(AT, PIECE);
	cl_reserved_add_locked(AT + 8 * PIECE, 2 * PIECE);
	assert_null(cl_reserved_at_locked(AT));
	assert_non_null(cl_reserved_at_locked(AT + 5 * PIECE));
	assert_non_null(cl_reserved_at_locked(AT + 9 * PIECE));
}

static void test_without_memory_an_entry_is_missing(void **state)
{
	(void)state;
	no_memory = true;
	cl_reserved_add_locked(AT, 16 * PIECE);
	assert_null(cl_reserved_at_locked(AT));
	no_memory = false;
	cl_reserved_add_locked(AT, 16 * PIECE);
	no_memory = true;
	cl_range_add_locked(AT, PIECE, 0, 1);
	assert_null(cl_range_at_locked(AT));
	no_memory = false;
	map(2, AT, PIECE);
	assert_true(cl_range_is_shareable(cl_range_at_locked(AT)));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, begin)
	const struct CMUnitTest tests[] = {
		TEST(test_a_pointer_leads_to_its_reservation),
		TEST(test_a_pointer_leads_to_its_mapping),
		TEST(test_one_mapping_is_found_that_nobody_shares),
		TEST(test_only_a_whole_allocation_is_shared),
		TEST(test_an_allocation_stays_while_it_is_mapped),
		TEST(test_what_the_driver_refuses_stays),
		TEST(test_what_was_freed_past_us_makes_room_for_what_comes_after_it),
		TEST(test_it_is_also_taken_out_if_one_with_a_mapping_lies_in_it),
		TEST(test_without_memory_an_entry_is_missing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

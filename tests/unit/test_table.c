/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash table for millions of elements (table.h).  An element is found as long as it is in the table,
 * whatever is added and removed beside it.  The same holds when there is no memory to grow: calloc() is
 * wrapped.
 */
#include "tests/unit/child.h"

#include "shim/base/table.h"

enum { MANY = 20000 };

static bool no_memory;
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	return no_memory ? NULL : __real_calloc(n, size);
}

struct thing {
	struct cl_link link;
	unsigned int number;
	bool in;
};
static struct thing things[MANY];
static struct cl_table table;

/* The keys are like device addresses: their low bits are 0, and they are near to each other. */
static uint64_t key_of(unsigned int i)
{
	return 0x7f0000000000u + i * 512ull;
}

static void put(unsigned int i)
{
	things[i] = (struct thing){ .link.key = key_of(i), .number = i, .in = true };
	cl_table_add(&table, &things[i].link);
}

static void take(unsigned int i)
{
	cl_table_remove(&table, &things[i].link);
	things[i].in = false;
}

/* Checks that every element is found, that an iteration meets each once, and that nothing else is there. */
static void is_right(void)
{
	struct cl_link *link, *next;
	static unsigned int met[MANY];
	unsigned int in = 0;

	memset(met, 0, sizeof met);
	CL_TABLE_EACH (&table, link, next)
		met[((struct thing *)link)->number]++;
	for (unsigned int i = 0; i < MANY; i++) {
		assert_ptr_equal(cl_table_find(&table, key_of(i)), things[i].in ? &things[i] : NULL);
		assert_int_equal(met[i], things[i].in);
		in += things[i].in;
	}
	assert_int_equal(table.n, in);
	assert_null(cl_table_find(&table, key_of(MANY)));
}

static int begin(void **state)
{
	(void)state;
	table = (struct cl_table)CL_TABLE_BEGIN(table);
	memset(things, 0, sizeof things);
	no_memory = false;
	return 0;
}

static int end(void **state)
{
	(void)state;
	if (table.bucket != table.few)
		free(table.bucket);
	if (table.old && table.old != table.few)
		free(table.old);
	return 0;
}

static void what_is_in_is_found(void **state)
{
	(void)state;
	is_right();
	for (unsigned int i = 0; i < MANY; i++) {
		put(i);
		if (i % 4999 == 0)
			is_right();
	}
	is_right();
	for (unsigned int i = 0; i < MANY; i += 3)
		take(i);
	is_right();
	for (unsigned int i = 0; i < MANY; i += 6)
		put(i);
	is_right();
	for (unsigned int i = 0; i < MANY; i++)
		if (things[i].in)
			take(i);
	is_right();
}

static void chains_stay_short(void **state)
{
	unsigned int longest = 0;

	(void)state;
	for (unsigned int i = 0; i < MANY; i++)
		put(i);
	assert_true(1u << table.log >= MANY && 1u << table.log <= 2 * MANY);
	for (uint64_t b = 0; b < 1ull << table.log; b++) {
		unsigned int n = 0;

		for (const struct cl_link *link = table.bucket[b]; link; link = link->next)
			n++;
		longest = n > longest ? n : longest;
	}
	assert_true(longest <= 4);
}

static void without_memory_the_chains_get_longer(void **state)
{
	(void)state;
	no_memory = true;
	for (unsigned int i = 0; i < 2000; i++)
		put(i);
	is_right();
	assert_int_equal(table.log, CL_TABLE_FEW);
	for (unsigned int i = 0; i < 2000; i += 2)
		take(i);
	is_right();
	no_memory = false;
	for (unsigned int i = 2000; i < 4000; i++)
		put(i);
	is_right();
	assert_true(table.log > CL_TABLE_FEW);
}

static void another_takes_the_place_of_one(void **state)
{
	struct thing others[100];

	(void)state;
	for (unsigned int i = 0; i < 100; i++)
		put(i);
	for (unsigned int i = 0; i < 100; i++) {
		others[i] = (struct thing){ .link.key = key_of(i) };
		cl_table_replace(&table, &things[i].link, &others[i].link);
	}
	assert_int_equal(table.n, 100);
	for (unsigned int i = 0; i < 100; i++) {
		assert_ptr_equal(cl_table_find(&table, key_of(i)), &others[i]);
		cl_table_replace(&table, &others[i].link, &things[i].link);
	}
	is_right();
}

static void each_may_be_taken_away_as_it_is_met(void **state)
{
	struct cl_link *link, *next;
	unsigned int met = 0;

	(void)state;
	for (unsigned int i = 0; i < 5000; i++)
		put(i);
	CL_TABLE_EACH (&table, link, next) {
		met++;
		if (((struct thing *)link)->number % 2)
			take(((struct thing *)link)->number);
	}
	assert_int_equal(met, 5000);
	is_right();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_in_is_found, begin, end),
		cmocka_unit_test_setup_teardown(chains_stay_short, begin, end),
		cmocka_unit_test_setup_teardown(without_memory_the_chains_get_longer, begin, end),
		cmocka_unit_test_setup_teardown(another_takes_the_place_of_one, begin, end),
		cmocka_unit_test_setup_teardown(each_may_be_taken_away_as_it_is_met, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

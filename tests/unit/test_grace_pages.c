/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget of the grace where blocks share pages: it counts whole pages of 2 MiB, each once, and a free that
 * exceeds it does a bounded amount of work.  The fake driver puts blocks side by side, a step of 1 KiB apart.
 */
#define DEVICE_STEP (1ull << 10)
#include "tests/unit/budget.h"

enum { IN_A_PAGE = (2 << 20) / 1024, LOST_AT_ONCE = 64, OPENED_AT_ONCE = 1024, LOOKS_MOST = 4096 };

static bool no_memory;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
	return no_memory ? NULL : __real_malloc(size);
}

static uint64_t counted(void)
{
	return cl_exporter.grace.bytes[0];
}
static uint64_t waiting(void)
{
	return cl_exporter.grace.waiting;
}

/* The next block begins at the next multiple of @step. */
static void align_to(uint64_t step)
{
	fake.n = (unsigned int)((fake.n * DEVICE_STEP + step - 1) / step * step / DEVICE_STEP);
}
/* Shares a block of @size bytes, none of which the next block gets. */
static CUdeviceptr share_large(uint64_t size, CUipcMemHandle *handle)
{
	CUdeviceptr p = share(size, handle);

	fake.n += (unsigned int)((size - 1) / DEVICE_STEP);
	return p;
}
/* Shares and frees @n blocks of a step, side by side. */
static CUdeviceptr wait_many(unsigned int n)
{
	CUdeviceptr first = share(DEVICE_STEP, NULL);

	for (unsigned int i = 1; i < n; i++)
		share(DEVICE_STEP, NULL);
	for (unsigned int i = 0; i < n; i++)
		free_block(first + i * DEVICE_STEP);
	return first;
}
/* As if an importer had opened the block at @p once for each export. */
static void was_opened(CUdeviceptr p)
{
	struct cl_block *block = cl_block_find(&cl_exporter.blocks, CL_MEMORY, p);

	CHECK(block);
	atomic_store(&cl_own.record[block->record].opens, cl_own.record[block->record].exports);
}

IN_A_CHILD(a_page_counts_once_however_many_blocks_share_it)
{
	CUdeviceptr p, other;

	start_with_budget(PAGE);
	p = wait_many(IN_A_PAGE);
	CHECK_EQUAL(counted(), PAGE);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	/* a block of 1 KiB more is a page more: it goes with the oldest, which give no page back */
	other = wait_many(1);
	CHECK_EQUAL(counted(), PAGE);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(frees_of(other), 1);
	CHECK_EQUAL(waiting(), IN_A_PAGE - LOST_AT_ONCE);
	/* a page is given back with the last block on it */
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(counted(), 0);
	CHECK_EQUAL(waiting(), 0);
	CHECK_EQUAL(cl_exporter.grace.pages.n, 0);
}

IN_A_CHILD(a_small_block_counts_as_the_page_that_it_keeps)
{
	CUdeviceptr p[3];

	start_with_budget(2 * PAGE);
	for (int i = 0; i < 3; i++) {
		p[i] = share(1024, NULL);
		align_to(PAGE);
	}
	free_block(p[0]);
	free_block(p[1]);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	CHECK_EQUAL(counted(), 2 * PAGE);
	free_block(p[2]);
	CHECK_EQUAL(frees_of(p[0]), 1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 1);
	CHECK_EQUAL(counted(), 2 * PAGE);
}

/* Only its first and its last page can be shared, and have an entry. */
IN_A_CHILD(the_pages_inside_of_a_block_are_its_alone)
{
	CUdeviceptr small[2], large;

	start_with_budget(64 * PAGE);
	small[0] = share(1024, NULL);
	large = share_large(10 * PAGE, NULL);
	small[1] = share(1024, NULL);
	free_block(large);
	CHECK_EQUAL(counted(), 11 * PAGE);
	CHECK_EQUAL(cl_exporter.grace.pages.n, 2);
	/* those at its ends */
	free_block(small[0]);
	free_block(small[1]);
	CHECK_EQUAL(counted(), 11 * PAGE);
	/* whole pages have no entry */
	align_to(PAGE);
	large = share_large(4 * PAGE, NULL);
	free_block(large);
	CHECK_EQUAL(counted(), 15 * PAGE);
	CHECK_EQUAL(cl_exporter.grace.pages.n, 2);
	/* one that only begins a page later, and one that ends inside a page */
	large = share_large(PAGE + 1024, NULL);
	free_block(large);
	CHECK_EQUAL(counted(), 17 * PAGE);
	free_block(share(1024, NULL));
	CHECK_EQUAL(counted(), 17 * PAGE);
	CHECK_EQUAL(cl_exporter.grace.pages.n, 3);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(counted(), 0);
	CHECK_EQUAL(cl_exporter.grace.pages.n, 0);
}

/* No driver has memory there, but a sum that ran below 0 would end every grace. */
IN_A_CHILD(page_0_counts_as_any_other)
{
	struct cl_block block[2] = {
		{ .link.key = 4096, .size = 1024, .record = CL_NO_RECORD },
		{ .link.key = 0, .size = 4096, .record = CL_NO_RECORD },
	};

	start_with_budget(64 * PAGE);
	for (int i = 0; i < 2; i++) {
		cl_grace_add_locked(&cl_exporter, &block[i], cl_now());
		CHECK_EQUAL(counted(), PAGE);
	}
	cl_grace_remove_locked(&cl_exporter, &block[0]);
	CHECK_EQUAL(counted(), PAGE);
	cl_grace_remove_locked(&cl_exporter, &block[1]);
	CHECK_EQUAL(counted(), 0);
	CHECK_EQUAL(cl_exporter.grace.pages.n, 0);
}

/* By its bytes it fits, by its pages it does not. */
IN_A_CHILD(a_block_of_more_pages_than_the_budget_has_no_grace)
{
	CUdeviceptr p;

	start_with_budget(2 * PAGE);
	share(1024, NULL);
	p = share_large(2 * PAGE, NULL);
	free_block(p);
	CHECK_EQUAL(frees_of(p), 1);
	align_to(PAGE);
	p = share_large(2 * PAGE, NULL);
	free_block(p);
	CHECK_EQUAL(frees_of(p), 0);
}

/* A page without an entry counts for each block alone, and no count is lost. */
IN_A_CHILD(without_memory_for_an_entry_the_page_counts_for_the_block_alone)
{
	CUdeviceptr p[4], large;

	start_with_budget(64 * PAGE);
	for (int i = 0; i < 4; i++)
		p[i] = share(1024, NULL);
	large = share_large(2 * PAGE, NULL);
	no_memory = true;
	free_block(p[0]);
	free_block(p[1]);
	CHECK_EQUAL(counted(), 2 * PAGE);
	free_block(large); /* its first and its last page */
	CHECK_EQUAL(counted(), 5 * PAGE);
	no_memory = false;
	free_block(p[2]);
	CHECK_EQUAL(counted(), 6 * PAGE);
	/* from here on the page has an entry */
	no_memory = true;
	free_block(p[3]);
	no_memory = false;
	CHECK_EQUAL(counted(), 6 * PAGE);
	/* what it added goes with the block, and the entry counts no block less */
	was_opened(p[0]);
	cl_options.grace_bytes.number = 6 * PAGE;
	align_to(PAGE);
	free_block(share(1024, NULL));
	CHECK_EQUAL(frees_of(p[0]), 1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 1);
	CHECK_EQUAL(counted(), 6 * PAGE);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(counted(), 0);
	CHECK_EQUAL(waiting(), 0);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 6);
}

IN_A_CHILD(a_block_on_a_page_that_is_counted_anyway_waits_though_it_was_opened)
{
	CUdeviceptr p, q, far;

	start_with_budget(PAGE);
	p = share(1024, NULL);
	q = share(1024, NULL);
	align_to(PAGE);
	far = share(1024, NULL);
	was_opened(q);
	was_opened(far);
	free_block(p);
	free_block(q);
	CHECK_EQUAL(frees_of(q), 0);
	free_block(far);
	CHECK_EQUAL(frees_of(far), 1);
	CHECK_EQUAL(waiting(), 2);
}

/* Otherwise one free would take as long as thousands, and thousands of unopened handles would become stale. */
IN_A_CHILD(a_large_block_does_not_end_the_grace_of_many_small_ones)
{
	CUdeviceptr first, large;

	start_with_budget(2 * PAGE);
	first = wait_many(2 * IN_A_PAGE);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	large = share_large(2 * PAGE, NULL);
	free_block(large);
	CHECK_EQUAL(frees_of(large), 1);
	CHECK_EQUAL(frees_of(first), 1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), LOST_AT_ONCE + 1);
	CHECK_EQUAL(cl_count_get(graces_cut), LOST_AT_ONCE + 1);
	CHECK_EQUAL(cl_count_get(graces_cut_bytes), LOST_AT_ONCE * DEVICE_STEP + 2 * PAGE);
	CHECK_EQUAL(counted(), 2 * PAGE);
	/* a few are given back nevertheless, and at last their page */
	for (unsigned int i = 2; i <= IN_A_PAGE / LOST_AT_ONCE; i++) {
		CHECK_EQUAL(frees_of(first + IN_A_PAGE * DEVICE_STEP), 0);
		align_to(PAGE);
		free_block(share(1024, NULL));
		CHECK(counted() <= 2 * PAGE);
	}
	CHECK_EQUAL(atomic_load(&fake.free_calls), IN_A_PAGE + IN_A_PAGE / LOST_AT_ONCE - 1);
	CHECK_EQUAL(counted(), 2 * PAGE);
	CHECK_EQUAL(frees_of(first + IN_A_PAGE * DEVICE_STEP), 0);
}

/* Nobody waits for what was opened, so more of these go at once, and none of the others. */
IN_A_CHILD(many_that_were_opened_go_at_once)
{
	CUdeviceptr first, large;

	start_with_budget(2 * PAGE);
	first = wait_many(2 * IN_A_PAGE);
	for (unsigned int i = 1; i < IN_A_PAGE; i++)
		was_opened(first + i * DEVICE_STEP);
	free_block(share_large(PAGE, NULL));
	CHECK_EQUAL(atomic_load(&fake.free_calls), OPENED_AT_ONCE + 1);
	CHECK_EQUAL(frees_of(first), 0);
	large = share_large(PAGE, NULL);
	free_block(large);
	/* the rest of them, then the one of their page that was not opened */
	CHECK_EQUAL(frees_of(large), 0);
	CHECK_EQUAL(frees_of(first), 1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), IN_A_PAGE + 1);
	CHECK_EQUAL(counted(), 2 * PAGE);
}

/* It is not among the first: behind it are as many as one free looks at, and some. */
IN_A_CHILD(one_that_was_opened_is_found_among_all)
{
	enum { MANY = LOOKS_MOST + LOOKS_MOST / 4, PAGES = MANY / IN_A_PAGE + 1 };
	CUdeviceptr first, opened;

	start_with_budget(PAGES * PAGE);
	first = wait_many(MANY);
	align_to(PAGE);
	opened = share(1024, NULL);
	align_to(PAGE);
	cl_options.grace_bytes.number += PAGE;
	free_block(opened);
	was_opened(opened);
	/* the first free does not come as far, the second goes on there */
	free_block(share(1024, NULL));
	CHECK_EQUAL(frees_of(opened), 0);
	CHECK_EQUAL(frees_of(first), 1);
	align_to(PAGE);
	free_block(share(1024, NULL));
	CHECK_EQUAL(frees_of(opened), 1);
	CHECK_EQUAL(counted(), cl_options.grace_bytes.number);
	CHECK_EQUAL(frees_of(first + LOST_AT_ONCE * DEVICE_STEP), 0);
}

/* A program whose importers run without culimbo has none that was opened, and pays little for the search. */
IN_A_CHILD(a_search_in_vain_looks_at_fewer_the_next_time)
{
	enum { MANY = LOOKS_MOST + LOOKS_MOST / 4, PAGES = MANY / IN_A_PAGE + 1 };
	const struct cl_grace_look *look = &cl_exporter.grace.look[0];
	unsigned int frees;
	CUdeviceptr last;

	start_with_budget(PAGES * PAGE);
	wait_many(MANY);
	for (unsigned int i = 1; i <= 8; i++) {
		align_to(PAGE);
		free_block(share(1024, NULL));
		CHECK_EQUAL(look->vain, i < 6 ? i : 6);
	}
	/* it comes round to each nevertheless, and to the one that it saw last not so soon */
	CHECK(look->after);
	last = CL_LIST_ENTRY(look->after, struct cl_block, node)->link.key;
	was_opened(last);
	for (frees = 0; !frees_of(last); frees++) {
		CHECK(frees < MANY / (LOOKS_MOST >> 6));
		align_to(PAGE);
		free_block(share(1024, NULL));
	}
	CHECK(frees > 2);
}

/* Whatever the sizes, and whatever was opened. */
IN_A_CHILD(after_each_free_the_budget_suffices)
{
	const uint64_t sizes[] = { 1024, 1024, 5000, 300000, PAGE, PAGE + 1, 5 * PAGE / 2, 1024 };
	uint64_t seed = 1;

	start_with_budget(8 * PAGE);
	for (unsigned int i = 0; i < 1500; i++) {
		CUdeviceptr p;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		if (seed >> 60 == 0)
			align_to(PAGE);
		if (fake.n > BLOCKS - 6 * IN_A_PAGE)
			break;
		p = share_large(sizes[seed >> 40 & 7], NULL);
		if (seed >> 50 & 1)
			was_opened(p);
		free_block(p);
		CHECK(counted() <= 8 * PAGE);
	}
	CHECK(waiting() > 0);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(counted(), 0);
	CHECK_EQUAL(cl_exporter.grace.pages.n, 0);
}

/* Its holder keeps it, as without the budget. */
IN_A_CHILD(one_that_becomes_held_is_not_counted_as_given_back_early)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle;
	CUdeviceptr p;
	uint64_t there;

	start_with_budget(PAGE);
	p = share_large(PAGE, &handle);
	there = others_open(&other, handle);
	free_block(p);
	CHECK_EQUAL(state_of(p), CL_BLOCK_GRACE);
	free_block(share_large(PAGE, NULL));
	CHECK_EQUAL(state_of(p), CL_BLOCK_HELD);
	CHECK_EQUAL(cl_count_get(graces_cut), 0);
	CHECK_EQUAL(cl_count_get(graces_cut_bytes), 0);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
	others_close(&other, there);
	cl_collector_wake(&cl_exporter);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_count_get(graces_cut), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_page_counts_once_however_many_blocks_share_it),
		cmocka_unit_test(a_small_block_counts_as_the_page_that_it_keeps),
		cmocka_unit_test(the_pages_inside_of_a_block_are_its_alone),
		cmocka_unit_test(page_0_counts_as_any_other),
		cmocka_unit_test(a_block_of_more_pages_than_the_budget_has_no_grace),
		cmocka_unit_test(without_memory_for_an_entry_the_page_counts_for_the_block_alone),
		cmocka_unit_test(a_block_on_a_page_that_is_counted_anyway_waits_though_it_was_opened),
		cmocka_unit_test(a_large_block_does_not_end_the_grace_of_many_small_ones),
		cmocka_unit_test(many_that_were_opened_go_at_once),
		cmocka_unit_test(one_that_was_opened_is_found_among_all),
		cmocka_unit_test(a_search_in_vain_looks_at_fewer_the_next_time),
		cmocka_unit_test(after_each_free_the_budget_suffices),
		cmocka_unit_test(one_that_becomes_held_is_not_counted_as_given_back_early),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: the cost of a free, of a collection and of a context's end does not grow with the number of
 * waiting blocks.
 */
#include "tests/unit/limbo.h"

#include <sys/mman.h>

enum { MEASURED = 301 };
struct cost {
	uint64_t free_ns, collect_ns, ready_ns, end_ns;
};
static struct cost *costs; /* shared with the children */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}
static uint64_t median(uint64_t *times)
{
	qsort(times, MEASURED, sizeof *times, by_value);
	return times[MEASURED / 2];
}

/* With @n blocks in the limbo that a live importer holds: the cost of one more free and of a collection. */
static void measure(unsigned int n, struct cost *cost)
{
	struct other other = start_other(0);
	struct order order = { .what = 'H' };
	static CUdeviceptr p[MEASURED];
	static uint64_t times[MEASURED];
	CUdeviceptr first;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.warn_blocks.number = 0;
	cl_options.settle.number = HOUR;
	cl_options.held_bytes.number = 1ull << 50; /* so that a collection asks whether they take too much */
	first = fake_alloc(1024, CONTEXT_A);
	export_block(first);
	for (unsigned int i = 1; i < n; i++)
		export_block(fake_alloc(1024, CONTEXT_A));
	for (unsigned int i = 0; i < MEASURED; i++)
		p[i] = exported_block();
	CHECK(cl_own.file_id);
	order.a = 0;
	order.b = n + MEASURED;
	memcpy(&order.handle, &cl_own.file_id, sizeof cl_own.file_id);
	ask(&other, order);
	for (unsigned int i = 0; i < n; i++)
		CHECK_EQUAL(cl_memory_free(first + DEVICE_STEP * i), CUDA_SUCCESS);
	for (unsigned int i = 0; i < MEASURED; i++) {
		times[i] = test_now();
		CHECK_EQUAL(cl_memory_free(p[i]), CUDA_SUCCESS);
		times[i] = test_now() - times[i];
	}
	cost->free_ns = median(times);
	CHECK_EQUAL(cl_own.header->limbo_blocks, n + MEASURED);
	for (unsigned int i = 0; i < MEASURED; i++) {
		times[i] = test_now();
		CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).blocks, 0);
		times[i] = test_now() - times[i];
	}
	cost->collect_ns = median(times);
	/* each of these finds one block that is marked ready, but is not */
	for (unsigned int i = 0; i < MEASURED; i++) {
		cl_record_set_ready(&cl_own, i * (n / MEASURED));
		times[i] = test_now();
		CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).blocks, 0);
		times[i] = test_now() - times[i];
	}
	cost->ready_ns = median(times);
	/* a context without such blocks ends */
	for (unsigned int i = 0; i < MEASURED; i++) {
		times[i] = test_now();
		context_ends(CONTEXT_B, -1);
		context_ended(CONTEXT_B, -1, true);
		times[i] = test_now() - times[i];
	}
	cost->end_ns = median(times);
	CHECK_EQUAL(cl_own.header->limbo_blocks, n + MEASURED);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
}
static void measure_few(void)
{
	measure(1000, &costs[0]);
}
static void measure_many(void)
{
	measure(200000, &costs[1]);
}
static bool about_the_same(uint64_t few, uint64_t many)
{
	/* five times: caches are colder with many blocks, and this machine is shared */
	return many < 5 * (few > 1000 ? few : 1000);
}
static void the_cost_does_not_grow_with_what_waits(void **state)
{
	bool same = false;

	for (int tries = 0; tries < 3 && !same; tries++) {
		in_a_child(measure_few);
		in_a_child(measure_many);
		print_message("# ns among 1,000 and 200,000 held blocks: free %llu, %llu; idle collection "
			      "%llu, %llu; with one ready %llu, %llu; another context's end %llu, %llu\n",
			      (unsigned long long)costs[0].free_ns, (unsigned long long)costs[1].free_ns,
			      (unsigned long long)costs[0].collect_ns,
			      (unsigned long long)costs[1].collect_ns,
			      (unsigned long long)costs[0].ready_ns,
			      (unsigned long long)costs[1].ready_ns,
			      (unsigned long long)costs[0].end_ns, (unsigned long long)costs[1].end_ns);
		same = about_the_same(costs[0].free_ns, costs[1].free_ns) &&
		       about_the_same(costs[0].collect_ns, costs[1].collect_ns) &&
		       about_the_same(costs[0].ready_ns, costs[1].ready_ns) &&
		       about_the_same(costs[0].end_ns, costs[1].end_ns);
	}
	assert_true(same);
}

static int set_up(void **state)
{
	costs = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return costs == MAP_FAILED ? -1 : make_folder(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_cost_does_not_grow_with_what_waits),
	};

	return cmocka_run_group_tests(tests, set_up, remove_folder);
}

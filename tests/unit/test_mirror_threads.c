/* SPDX-License-Identifier: Apache-2.0 */
/* Mirrors (importer/mirror.h) that several threads open, and in a forked child. */
#include "tests/unit/mirrors.h"

/* ------------------------------------------------------------------------- threads */
static _Atomic bool stall; /* maps of A wait while this is set */
static _Atomic unsigned int stalled;
static _Atomic pid_t waits;

static void stall_map_of_a(int bytes)
{
	if (bytes != 'A')
		return;
	stalled++;
	CHECK(COMES_TRUE(!stall, 20000));
}
static void *open_it(void *text)
{
	CUdeviceptr p;

	waits = gettid();
	p = opened(1, text, 0);
	return (void *)(uintptr_t)p;
}

IN_A_CHILD(who_opens_the_same_reservation_waits)
{
	pthread_t first, second;
	CUdeviceptr other;
	void *a, *b;

	start_mirrors();
	other = opened(2, "X", 0);
	vm.in_map = stall_map_of_a;
	stall = true;
	CHECK(!pthread_create(&first, NULL, open_it, (void *)(uintptr_t)"A."));
	CHECK(COMES_TRUE(stalled == 1, 20000));
	CHECK(!pthread_create(&second, NULL, open_it, (void *)(uintptr_t)"AB"));
	CHECK(COMES_TRUE(waits && sleeps_in_a_futex(waits), 20000));
	/* nobody else waits */
	CHECK_EQUAL(opened(3, "X", 0) != other, 1);
	CHECK_RANGE(other, other, 1);
	CHECK_EQUAL(closed(other), CUDA_SUCCESS);
	stall = false;
	CHECK(!pthread_join(first, &a) && !pthread_join(second, &b));
	CHECK(a == b);
	CHECK_READS((CUdeviceptr)(uintptr_t)a, "AB");
	CHECK_EQUAL(vm.maps, 4);
	CHECK_EQUAL(stalled, 1);
}

static void *add_device(void *unused)
{
	waits = gettid();
	CHECK_EQUAL(cl_mirrors_add_device(0, 1), CUDA_SUCCESS);
	return unused;
}

IN_A_CHILD(a_device_that_comes_during_an_open_gets_access)
{
	pthread_t first, second;
	void *p;

	start_mirrors();
	vm.in_map = stall_map_of_a;
	opened(1, "X.", 0);
	stall = true;
	CHECK(!pthread_create(&first, NULL, open_it, (void *)(uintptr_t)"XA"));
	CHECK(COMES_TRUE(stalled == 1, 20000));
	waits = 0;
	CHECK(!pthread_create(&second, NULL, add_device, NULL));
	CHECK(COMES_TRUE(waits && sleeps_in_a_futex(waits), 20000));
	stall = false;
	CHECK(!pthread_join(first, &p) && !pthread_join(second, NULL));
	CHECK_EQUAL(devices_at((CUdeviceptr)(uintptr_t)p), 3);
	CHECK_EQUAL(devices_at((CUdeviceptr)(uintptr_t)p + PAGE), 3);
}

enum { THREADS = 4, ROUNDS = 3000 };
static const char *const states[] = { "AB.DE", "ABCDE", "A..DE", "XB.DE", "XBYDE" };

/* Opens and closes by chance, and checks that what it has open has the right bytes. */
static void *storm(void *seed)
{
	unsigned int random = *(const unsigned int *)seed;
	struct { CUdeviceptr p; const char *text; uint64_t page; } open[8] = { { 0, NULL, 0 } };

	for (int i = 0; i < ROUNDS; i++) {
		int n = rand_r(&random) % 8;

		if (open[n].text) {
			const char *text = open[n].text + open[n].page;

			for (uint64_t k = 0; text[k] && (text[k] != '.' || !open[n].page); k++)
				if (text[k] != '.') {
					pthread_mutex_lock(&vm_lock);
					CHECK_EQUAL(bytes_at(open[n].p + k * PAGE), text[k]);
					pthread_mutex_unlock(&vm_lock);
				}
			CHECK(is_open(open[n].p));
			CHECK_EQUAL(closed(open[n].p), CUDA_SUCCESS);
			open[n].text = NULL;
			continue;
		}
		open[n].text = states[(unsigned int)rand_r(&random) % (sizeof states / sizeof states[0])];
		open[n].page = rand_r(&random) % 2 ? 0 : 3;
		open[n].p = opened((uint64_t)(rand_r(&random) % 3), open[n].text, open[n].page);
	}
	for (int n = 0; n < 8; n++)
		if (open[n].text)
			CHECK_EQUAL(closed(open[n].p), CUDA_SUCCESS);
	return NULL;
}

IN_A_CHILD(threads_open_and_close_by_chance)
{
	static const unsigned int seed[THREADS] = { 1, 2, 3, 4 };
	pthread_t thread[THREADS];

	start_mirrors();
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, storm, (void *)(uintptr_t)&seed[i]));
	for (int i = 0; i < 20; i++)
		CHECK_EQUAL(cl_mirrors_add_device(0, 1 + i), CUDA_SUCCESS);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK_EQUAL(vm.told, vm.maps);
	CHECK_EQUAL(vm.unmaps, vm.maps);
	CHECK_NOTHING_IS_LEFT();
}

/* ---------------------------------------------------------------------------- fork */
IN_A_CHILD(a_forked_child_forgets_all)
{
	pthread_t thread;
	CUdeviceptr p, base;
	CUresult result;
	uint64_t size;
	pid_t child;

	start_mirrors();
	p = opened(2, "A", 0);
	opened(1, ".X", 0);
	vm.in_map = stall_map_of_a;
	stall = true;
	CHECK(!pthread_create(&thread, NULL, open_it, (void *)(uintptr_t)"A."));
	CHECK(COMES_TRUE(stalled == 1, 20000));
	child = fork();
	if (!child) {
		child_begins();
		cl_mirrors_forget();
		memset(&vm, 0, sizeof vm);
		CHECK(!cl_mirrors_any());
		CHECK(!cl_mirror_find(p, &base, &size, NULL) && !cl_mirror_close(p, &result));
		cl_mirror_pieces_most = 1;
		/* the turn of a thread that is not here */
		CHECK_EQUAL(closed(opened(1, "A.", 0)), CUDA_SUCCESS);
		CHECK_NOTHING_IS_LEFT();
		_exit(0);
	}
	child_judge(child);
	stall = false;
	CHECK(!pthread_join(thread, NULL));
	CHECK(cl_mirror_find(p, &base, &size, NULL));
}

static bool forked;
static void fork_in_reserve(void)
{
	pid_t child;

	vm.in_reserve = NULL;
	child = fork();
	if (child) {
		child_judge(child);
		return;
	}
	child_begins();
	cl_mirrors_forget();
	memset(&vm, 0, sizeof vm);
	forked = true;
	vm.fail_from = 1; /* in a child all calls of the driver fail */
	vm.fail_to = UINT32_MAX;
}

/* As a signal handler may, which returns in the child, too. */
IN_A_CHILD(a_child_that_is_forked_during_an_open_has_no_turn)
{
	struct opening o;
	CUresult result;

	start_mirrors();
	vm.in_reserve = fork_in_reserve;
	result = try_open(&o, 1, "A.", 0);
	if (forked) {
		CHECK_EQUAL(result, CUDA_ERROR_UNKNOWN);
		CHECK(!cl_mirrors_any());
		cl_mirror_pieces_most = 1;
		vm.fail_to = 0;
		CHECK_EQUAL(closed(opened(1, "A.", 0)), CUDA_SUCCESS);
		CHECK_NOTHING_IS_LEFT();
		_exit(0);
	}
	CHECK_EQUAL(result, CUDA_SUCCESS);
	CHECK_READS(o.p, "A.");
	CHECK_EQUAL(closed(opened(1, ".B", 1)), CUDA_SUCCESS);
}

static CUdeviceptr of_another;
static void open_another(void)
{
	vm.in_free = NULL;
	of_another = opened(2, "B.", 0);
}

IN_A_CHILD(an_address_may_be_anothers_as_soon_as_it_is_free)
{
	CUdeviceptr p;

	start_mirrors();
	p = opened(1, "A.", 0);
	vm.in_free = open_another;
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_EQUAL(of_another, p);
	CHECK(is_open(p));
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_opens_the_same_reservation_waits),
		cmocka_unit_test(a_device_that_comes_during_an_open_gets_access),
		cmocka_unit_test(threads_open_and_close_by_chance),
		cmocka_unit_test(a_forked_child_forgets_all),
		cmocka_unit_test(a_child_that_is_forked_during_an_open_has_no_turn),
		cmocka_unit_test(an_address_may_be_anothers_as_soon_as_it_is_free),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

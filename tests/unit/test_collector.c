/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collector never sleeps past a block's release time: promise 3, at the one point where a
 * program's thread and the collector's thread race.
 *
 * collector.c is compiled into this test with a stop before two of its atomic operations, so that
 * the worst order of the two threads always occurs.
 */
#include "tests/unit/fake_driver.h"

#include <fcntl.h>

static void stop_before_add(const volatile void *object);
static void stop_before_store(const volatile void *object, uint64_t value);

#undef atomic_fetch_add_explicit
#undef atomic_store_explicit
#ifdef __clang__
#define ADD __c11_atomic_fetch_add
#define STORE __c11_atomic_store
#else
#define ADD __atomic_fetch_add
#define STORE __atomic_store_n
#endif
#define atomic_fetch_add_explicit(object, by, order) \
	(stop_before_add(object), ADD((object), (by), __ATOMIC_SEQ_CST))
#define atomic_store_explicit(object, value, order) \
	(stop_before_store((object), (uint64_t)(value)), STORE((object), (value), __ATOMIC_SEQ_CST))

/* The next threads cannot be created, as when a limit of processes is reached for a moment. */
static _Atomic unsigned int no_threads, tried;
static int create_if_it_may(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *data)
{
	atomic_fetch_add(&tried, 1);
	if (atomic_load(&no_threads)) {
		atomic_fetch_sub(&no_threads, 1);
		return EAGAIN;
	}
	return pthread_create(thread, attr, main, data);
}
#define pthread_create create_if_it_may
#include "shim/base/thread.c"
#include "shim/limbo/collector.c"
#undef pthread_create

static _Atomic bool armed, collector_stopped, waker_came;
static _Atomic pid_t collector_task;

/* In the collector: it has looked for work, and is about to publish how long it sleeps. */
static void stop_before_store(const volatile void *object, uint64_t value)
{
	/* 0 means that it is awake again */
	if (object != &cl_exporter.collector.sleeps_until || !value || !atomic_load(&armed) ||
	    pthread_equal(pthread_self(), cl_exporter.collector.thread) == 0)
		return;
	if (atomic_exchange(&collector_stopped, true))
		return;
	atomic_store(&collector_task, gettid());
	COMES_TRUE(atomic_load(&waker_came), 30000);
}

static bool is_asleep_on_its_futex(pid_t task)
{
	return sleeps_in_a_futex(task) && atomic_load(&cl_own.header->sleeping);
}

/* In the waker: it is about to change what the collector's sleep depends on. */
static void stop_before_add(const volatile void *object)
{
	if (!cl_own.header || object != &cl_own.header->wake || !atomic_load(&collector_stopped) ||
	    atomic_exchange(&waker_came, true))
		return;
	/* the worst case: the collector goes to sleep meanwhile */
	CHECK(COMES_TRUE(is_asleep_on_its_futex(atomic_load(&collector_task)), 30000));
}

static void wake_up_body(void)
{
	CUdeviceptr first, second;
	uint64_t begun;

	/* longer than from an export to its free; otherwise no thread is woken */
	start_with(1000 * MS, CL_COLLECTOR_THREAD);
	first = exported_block();
	second = exported_block();
	/* with nothing left to wait for it would sleep forever */
	CHECK_EQUAL(cl_memory_free(first), CUDA_SUCCESS);
	CHECK(COMES_TRUE(frees_of(first) == 1, 30000));
	CHECK(COMES_TRUE(atomic_load(&cl_own.header->sleeping) &&
			 atomic_load(&cl_exporter.collector.sleeps_until) == UINT64_MAX, 30000));
	export_block(second);
	atomic_store(&armed, true);
	cl_collector_wake(&cl_exporter); /* it looks, finds nothing, and is stopped before it sleeps */
	CHECK(COMES_TRUE(atomic_load(&collector_stopped), 30000));
	begun = test_now();
	CHECK_EQUAL(cl_memory_free(second), CUDA_SUCCESS);
	CHECK(atomic_load(&waker_came));
	/* due after a second; 20 s is twenty times late */
	if (!COMES_TRUE(frees_of(second) == 1, 20000)) {
		dprintf(2, "the collector sleeps %s though a block was due %.1f s ago\n",
			atomic_load(&cl_exporter.collector.sleeps_until) == UINT64_MAX ? "for good" : "on",
			(double)(test_now() - begun) / 1e9);
		_exit(1);
	}
}

static void a_wake_up_is_never_lost(void **state)
{
	in_a_child(wake_up_body);
}

/*
 * A thread that could not be created at first is created later, by any call that finds work: a
 * free of a shared block, or (@by_any) an unrelated call.
 */
static void late_body(bool by_any)
{
	CUdeviceptr first, second, other;

	/* As long as a slow machine may take before the first free. */
	start_with(300 * MS, CL_COLLECTOR_THREAD);
	first = exported_block();
	second = exported_block();
	other = fake_alloc(1024, CONTEXT_A);
	atomic_store(&no_threads, 2);
	CHECK_EQUAL(cl_memory_free(first), CUDA_SUCCESS);
	CHECK_EQUAL(logged("cannot start the collector thread"), 1);
	CHECK(cl_collector_is_inline(&cl_exporter.collector));
	CHECK(!atomic_load(&cl_own.header->serving));
	if (by_any) {
		CHECK(COMES_TRUE((export_block(other), atomic_load(&cl_exporter.collector.running)), 30000));
	} else {
		CHECK(COMES_TRUE((exported_block(), cl_collector_wake(&cl_exporter), atomic_load(&cl_exporter.collector.running)),
				 30000));
	}
	CHECK_EQUAL(atomic_load(&tried), 3);
	CHECK(!cl_collector_is_inline(&cl_exporter.collector));
	CHECK(atomic_load(&cl_own.header->serving));
	/* and it does what it is there for, also for what was freed before it came */
	CHECK_EQUAL(cl_memory_free(second), CUDA_SUCCESS);
	CHECK(COMES_TRUE(frees_of(first) == 1 && frees_of(second) == 1, 30000));
	CHECK_EQUAL(logged("the collector thread"), 2);
}

static void late_by_a_free_body(void)
{
	late_body(false);
}

static void late_by_any_call_body(void)
{
	late_body(true);
}

static void never_body(void)
{
	uint64_t begin = test_now(), took = 0;
	unsigned int most = 2;

	start_with(0, CL_COLLECTOR_THREAD);
	atomic_store(&no_threads, UINT32_MAX);
	exported_block();
	while (took < 20 * MS || (atomic_load(&tried) < 2 && took < 20000 * MS)) {
		cl_collector_wake(&cl_exporter);
		took = test_now() - begin;
	}
	CHECK(atomic_load(&tried) >= 2);
	/* the wait before the next attempt doubles from 4 us: their sum is less than all of this took */
	for (uint64_t waits = 4000; waits < took; waits = 2 * waits + 4000)
		most++;
	CHECK(atomic_load(&tried) <= most);
	CHECK_EQUAL(logged("cannot start the collector thread"), 1);
}

static void a_thread_that_could_not_be_had_comes_later(void **state)
{
	in_a_child(late_by_a_free_body);
	in_a_child(late_by_any_call_body);
}

static void a_thread_that_cannot_be_had_is_not_asked_for_all_the_time(void **state)
{
	in_a_child(never_body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_wake_up_is_never_lost),
		cmocka_unit_test(a_thread_that_could_not_be_had_comes_later),
		cmocka_unit_test(a_thread_that_cannot_be_had_is_not_asked_for_all_the_time),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

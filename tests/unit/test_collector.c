/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collector never sleeps past what is due: promise 3, at the one point
 * where a program's thread and the collector's decide about each other.
 *
 * collector.c is compiled into this test with a stop before two of its atomic
 * operations, so that the worst order of the two threads is not left to luck.
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
#include "shim/collector.c"

static _Atomic bool armed, collector_stopped, waker_came;
static _Atomic pid_t collector_task;

/* In the collector: it has looked for work, and is about to say how long it sleeps. */
static void stop_before_store(const volatile void *object, uint64_t value)
{
	/* 0 says that it is awake again */
	if (object != &collector.sleeps_until || !value || !atomic_load(&armed) ||
	    pthread_equal(pthread_self(), collector.thread) == 0)
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

/* In the waker: it is about to change what the collector's sleep hangs on. */
static void stop_before_add(const volatile void *object)
{
	if (!cl_own.header || object != &cl_own.header->wake || !atomic_load(&collector_stopped) ||
	    atomic_exchange(&waker_came, true))
		return;
	/* the worst: the collector gets all the way to bed meanwhile */
	CHECK(COMES_TRUE(is_asleep_on_its_futex(atomic_load(&collector_task)), 30000));
}

static void wake_up_body(void)
{
	CUdeviceptr first, second;
	uint64_t begun;

	/* (longer than it takes from an export to its free: else nobody is woken) */
	start_with(1000 * MS, CL_COLLECTOR_THREAD);
	first = exported_block();
	second = exported_block();
	/* with nothing left to wait for it would sleep for good */
	CHECK_EQUAL(cl_memory_free(first), CUDA_SUCCESS);
	CHECK(COMES_TRUE(frees_of(first) == 1, 30000));
	CHECK(COMES_TRUE(atomic_load(&cl_own.header->sleeping) &&
			 atomic_load(&collector.sleeps_until) == UINT64_MAX, 30000));
	export_block(second);
	atomic_store(&armed, true);
	cl_collector_wake(); /* it looks, finds nothing, and is stopped before its bed */
	CHECK(COMES_TRUE(atomic_load(&collector_stopped), 30000));
	begun = test_now();
	CHECK_EQUAL(cl_memory_free(second), CUDA_SUCCESS);
	CHECK(atomic_load(&waker_came));
	/* due after a second; 20 s is twenty times late */
	if (!COMES_TRUE(frees_of(second) == 1, 20000)) {
		dprintf(2, "the collector sleeps %s though a block was due %.1f s ago\n",
			atomic_load(&collector.sleeps_until) == UINT64_MAX ? "for good" : "on",
			(double)(test_now() - begun) / 1e9);
		_exit(1);
	}
}

static void a_wake_up_is_never_lost(void **state)
{
	in_a_child(wake_up_body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_wake_up_is_never_lost),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

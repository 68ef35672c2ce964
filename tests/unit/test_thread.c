/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of our own do not take after the thread that creates them.  It may be real-time, nice, or bound to one
 * processor, and its program may have large thread-local variables or a small stack limit.
 */
#include "tests/unit/child.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include "shim/base/thread.h"

enum { OF_PROGRAM = 192 << 10 };
static __thread char of_program[OF_PROGRAM]; /* thread-local, so part of the stack of each thread */

/* pthread_create() with attributes fails so. */
static int refusal;
static int tried;
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg)
{
	tried++;
	return how && refusal ? refusal : __real_pthread_create(thread, how, run, arg);
}

/* What one of our threads sees of itself. */
struct seen {
	int class, nice;
	cpu_set_t cpus;
	size_t room; /* of its stack */
};

static void *look_at_itself(void *data)
{
	struct seen *seen = data;
	pthread_attr_t attr;
	void *stack;
	size_t size;

	cl_thread_begin();
	of_program[0] = 1;
	seen->class = sched_getscheduler(0);
	seen->nice = getpriority(PRIO_PROCESS, 0);
	CHECK(!sched_getaffinity(0, sizeof seen->cpus, &seen->cpus));
	CHECK(!pthread_getattr_np(pthread_self(), &attr) && !pthread_attr_getstack(&attr, &stack, &size));
	pthread_attr_destroy(&attr);
	seen->room = (size_t)((char *)__builtin_frame_address(0) - (char *)stack);
	return NULL;
}

static void start_one(struct seen *seen)
{
	pthread_t thread;

	CHECK_EQUAL(cl_thread_start(&thread, look_at_itself, seen), 0);
	CHECK(!pthread_join(thread, NULL));
}

/* A thread of the program that changes itself by @become, and then creates one of ours. */
struct creator {
	void (*become)(void);
	struct seen seen;
};

static void *creator_main(void *data)
{
	struct creator *creator = data;

	creator->become();
	start_one(&creator->seen);
	return NULL;
}

static struct seen created_by(void (*become)(void))
{
	struct creator creator = { .become = become };
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, creator_main, &creator));
	CHECK(!pthread_join(thread, NULL));
	return creator.seen;
}

/* ------------------------------------------------------------------------ class */
static int wanted_class;

static void change_class(void)
{
	struct sched_param param = { .sched_priority = wanted_class == SCHED_BATCH ? 0 : 1 };

	if (sched_setscheduler(0, wanted_class, &param))
		CHILD_SKIP("no right to be real-time");
}

static void check_class(int class)
{
	wanted_class = class;
	CHECK_EQUAL(created_by(change_class).class, SCHED_OTHER);
}

IN_A_CHILD(it_is_not_real_time_though_its_creator_is)
{
	check_class(SCHED_BATCH);
	check_class(SCHED_FIFO);
	check_class(SCHED_RR);
}

/* ------------------------------------------------------------------------- nice */
static int wanted_nice;

static void change_nice(void)
{
	if (setpriority(PRIO_PROCESS, 0, wanted_nice))
		CHILD_SKIP("no right to be less nice");
}

static int nice_of_one(int creators)
{
	wanted_nice = creators;
	return created_by(change_nice).nice;
}

IN_A_CHILD(it_is_not_less_nice_than_others_though_its_creator_is)
{
	CHECK_EQUAL(nice_of_one(-3), 0);
}

static void change_nice_for_good(void)
{
	change_nice();
	if (!setpriority(PRIO_PROCESS, 0, 0))
		change_nice();
	else
		CHILD_SKIP("no right to be less nice again");
}

IN_A_CHILD(it_is_not_nice_though_its_creator_is)
{
	wanted_nice = 3;
	CHECK_EQUAL(created_by(change_nice_for_good).nice, 0);
}

/* ------------------------------------------------------------------- processors */
static cpu_set_t some;

static void bind_itself(void)
{
	CHECK(!sched_setaffinity(0, sizeof some, &some));
}

static cpu_set_t all_cpus(void)
{
	cpu_set_t all;

	CHECK(!sched_getaffinity(0, sizeof all, &all));
	if (CPU_COUNT(&all) < 2)
		CHILD_SKIP("there is one processor only");
	return all;
}

/* The first of @all. */
static cpu_set_t one_of(const cpu_set_t *all)
{
	cpu_set_t one;
	int cpu = 0;

	while (!CPU_ISSET(cpu, all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	return one;
}

IN_A_CHILD(its_creator_is_bound_to_a_processor_and_it_is_not)
{
	cpu_set_t all = all_cpus();
	struct seen seen;

	some = one_of(&all);
	seen = created_by(bind_itself);
	CHECK(CPU_EQUAL(&seen.cpus, &all));
}

/* As by taskset; and a main thread that has bound itself to a processor that it keeps busy. */
IN_A_CHILD(it_has_the_processors_of_the_main_thread_and_of_its_creator)
{
	cpu_set_t all = all_cpus(), one = one_of(&all);
	struct seen seen;

	CHECK(!sched_setaffinity(0, sizeof one, &one));
	some = one; /* of the creator */
	seen = created_by(bind_itself);
	CHECK(CPU_EQUAL(&seen.cpus, &one));
	some = all;
	seen = created_by(bind_itself);
	CHECK(CPU_EQUAL(&seen.cpus, &all));
}

/* ------------------------------------------------------------------------ stack */
static void check_room(const struct seen *seen)
{
	CHECK(seen->room > 960 << 10);
	CHECK(seen->room < 2 << 20);
}

IN_A_CHILD(its_stack_is_small_and_has_room_beside_thread_local_variables)
{
	pthread_attr_t attr;
	struct seen seen;

	start_one(&seen);
	check_room(&seen);
	/* as `ulimit -s` sets it: much too small, and much too large */
	CHECK(!pthread_attr_init(&attr));
	for (size_t size = OF_PROGRAM + (64 << 10); size < 1 << 30; size *= 256) {
		CHECK(!pthread_attr_setstacksize(&attr, size) && !pthread_setattr_default_np(&attr));
		start_one(&seen);
		check_room(&seen);
	}
}

/* --------------------------------------------------------------------- refusals */
static int try_with(int error)
{
	struct seen seen = { .class = -1 };
	pthread_t thread;
	int err;

	refusal = error;
	tried = 0;
	err = cl_thread_start(&thread, look_at_itself, &seen);
	if (!err) {
		CHECK(!pthread_join(thread, NULL));
		CHECK_EQUAL(seen.class, SCHED_OTHER);
	}
	return err;
}

IN_A_CHILD(where_attributes_are_refused_it_comes_without)
{
	CHECK_EQUAL(try_with(EPERM), 0);
	CHECK_EQUAL(tried, 2);
	CHECK_EQUAL(try_with(EINVAL), 0);
	CHECK_EQUAL(tried, 2);
	/* no thread at all is to be had */
	CHECK_EQUAL(try_with(EAGAIN), EAGAIN);
	CHECK_EQUAL(tried, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_not_real_time_though_its_creator_is),
		cmocka_unit_test(it_is_not_less_nice_than_others_though_its_creator_is),
		cmocka_unit_test(it_is_not_nice_though_its_creator_is),
		cmocka_unit_test(its_creator_is_bound_to_a_processor_and_it_is_not),
		cmocka_unit_test(it_has_the_processors_of_the_main_thread_and_of_its_creator),
		cmocka_unit_test(its_stack_is_small_and_has_room_beside_thread_local_variables),
		cmocka_unit_test(where_attributes_are_refused_it_comes_without),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

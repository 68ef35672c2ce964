/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: a thread needs an event or memory that the driver lacks, while a context that may be ending, or
 * another thread, keeps the limbo's blocks from being released.  The thread waits for that, but once,
 * not forever, and not for what would not help it.
 */
#include "tests/unit/limbo.h"

#include "shim/blocks/event_owner.h"
#include "shim/reclaim/callbacks.h"

/* The driver is at its limit, and the end of a context keeps blocks from being released. */
static bool thread_given;
static void *need_an_event(void *unused)
{
	atomic_store(&thread_task, gettid());
	thread_given = another_event(1);
	atomic_store(&thread_done, true);
	return unused;
}
static void *need_memory(void *unused)
{
	atomic_store(&thread_task, gettid());
	thread_given = NO_MEMORY();
	atomic_store(&thread_done, true);
	return unused;
}
/* The context of the limbo's blocks may be ending, and does not end while @needs waits. */
static void waits_for_the_end(void *(*needs)(void *), CUdevice device)
{
	pthread_t thread;

	cl_options.pressure_wait.number = SOON * MS;
	context_ends(NULL, device);
	thread = starts_and_waits(needs);
	context_ended(NULL, device, false);
	CHECK(!pthread_join(thread, NULL));
	CHECK(thread_given);
}

IN_A_CHILD(who_needs_an_event_waits_for_a_context_that_may_be_ending)
{
	struct other other = start_other(0);
	CUipcEventHandle handle;
	CUevent held, waits;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	waits = event_of_context(NULL);
	CHECK_EQUAL(cl_event_destroy(waits, fake_event_destroy), CUDA_SUCCESS);
	waits_for_the_end(need_an_event, 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	held = event_of_context(&handle);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'e', .event = handle }).result, CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(held, fake_event_destroy), CUDA_SUCCESS);
	waits_for_the_end(need_an_event, 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 2);
	/* not where nothing can be released */
	CHECK(!another_event(1));
}

/* Nor forever: all attempts together wait as long as the option says. */
IN_A_CHILD(who_needs_an_event_does_not_wait_twice)
{
	pthread_t turns;
	uint64_t began;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(cl_event_destroy(event_of_context(NULL), fake_event_destroy), CUDA_SUCCESS);
	cl_options.pressure_wait.number = 2000 * MS;
	context_ends(NULL, 0);
	turns = turn_clock_beside();
	began = cl_now();
	CHECK(NO_EVENT()); /* one retry in any case */
	CHECK(cl_now() - began >= 2000 * MS);
	turn_no_more(turns);
	began = cl_now();
	CHECK(!fails_again());
	CHECK(cl_now() - began < 2000 * MS);
	context_ended(NULL, 0, false);
	/* a few attempts more when others take all that is released */
	CHECK_EQUAL(cl_event_destroy(event_of_context(NULL), fake_event_destroy), CUDA_SUCCESS);
	failing.attempt = 5;
	CHECK(!fails_again());
	failing.attempt = 4;
	CHECK(fails_again());
}

/* Records as many events as there is room for, so that one more is not refused for lack of memory. */
static void make_as_many_events_as_can_be(void)
{
	for (uintptr_t i = 0; i < CL_EVENT_PLACES; i++)
		cl_shareable_event_created((CUevent)(0x1000000 + i * 16));
}

static unsigned int event_callbacks;
static size_t event_callback(size_t bytes, void *data)
{
	event_callbacks += bytes == 0;
	return 0;
}
IN_A_CHILD(who_needs_an_event_does_not_get_memory)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	make_as_many_events_as_can_be();
	CHECK_EQUAL(cl_callbacks_register(event_callback, NULL), 0);
	CHECK(another_event(0)); /* one retry in any case */
	CHECK_EQUAL(event_callbacks, 1);
	CHECK(!another_event(1));
	CHECK_EQUAL(event_callbacks, 1);
	CHECK_EQUAL(frees_of(p), 0);
	/* the event that was created to test whether others can be is destroyed again */
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), atomic_load(&fake.event_n));
	/* with an event in the limbo, all blocks are released that may be, but none is an event */
	CHECK_EQUAL(cl_event_destroy(event_of_context(NULL), fake_event_destroy), CUDA_SUCCESS);
	CHECK(another_event(1));
	CHECK(!another_event(1));
}

/* Another thread releases something between the driver's answer and the retry decision. */
IN_A_CHILD(who_needs_an_event_hears_of_one_that_just_went)
{

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(cl_event_destroy(event_of_context(NULL), fake_event_destroy), CUDA_SUCCESS);
	CHECK(NO_EVENT());
	CHECK_EQUAL(cl_event_destroy(event_of_context(NULL), fake_event_destroy), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK(fails_again());
	CHECK(!fails_again());
}

/* No event of any kind can be made. */
IN_A_CHILD(who_needs_memory_for_an_event_gets_it)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	fake.event_create_result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK(another_event(0));
	CHECK_EQUAL(frees_of(p), 1);
	CHECK(!another_event(1));
}

/* Also if events can be created, but fewer than the process's limit. */
IN_A_CHILD(who_needs_memory_for_a_shared_event_gets_it)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK(another_event(1));
	CHECK_EQUAL(frees_of(p), 1);
}

/* An event that no process holds any more is freed in the driver by its destroy. */
IN_A_CHILD(who_needs_an_event_hears_of_one_that_goes_straight)
{
	struct other other = start_other(0);
	CUevent held, goes;
	pthread_t thread;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.pressure_wait.number = SOON * MS;
	held = held_event(&other);
	fake_stack[fake_depth] = CONTEXT_B;
	goes = event_of_context(NULL);
	CHECK_EQUAL(cl_event_destroy(held, fake_event_destroy), CUDA_SUCCESS);
	context_ends(NULL, 0);
	thread = starts_and_waits(need_an_event);
	CHECK_EQUAL(cl_event_destroy(goes, fake_event_destroy), CUDA_SUCCESS);
	CHECK(COMES_TRUE(atomic_load(&thread_done), SOON / 2));
	CHECK(thread_given);
	pthread_join(thread, NULL);
	context_ended(NULL, 0, false);
}

/* In CONTEXT_A, and in B, which may be ending from then on. */
static CUdeviceptr here, there;
static void free_in_both_contexts(void)
{
	cl_options.pressure_wait.number = SOON * MS;
	here = fake_alloc(1024, CONTEXT_A);
	there = fake_alloc(1024, CONTEXT_B);
	export_block(here);
	export_block(there);
	CHECK_EQUAL(cl_memory_free(here), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(there), CUDA_SUCCESS);
	context_ends(CONTEXT_B, -1);
}

/* Although more would be released when a context turns out not to have ended. */
IN_A_CHILD(what_came_free_is_not_waited_for)
{
	uint64_t began;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	free_in_both_contexts();
	began = cl_now();
	CHECK(NO_MEMORY());
	CHECK_EQUAL(frees_of(here), 1);
	CHECK_EQUAL(frees_of(there), 0);
	/* nor memory for a thread that needs an event */
	CHECK_EQUAL(cl_event_destroy(event_of_context(NULL), fake_event_destroy), CUDA_SUCCESS);
	CHECK(another_event(0));
	CHECK(cl_now() - began < SOON / 2 * MS);
	context_ended(CONTEXT_B, -1, false);
}

/* What was released may not be enough: the next attempt waits for the rest of the time. */
static void *need_memory_twice(void *unused)
{
	atomic_store(&thread_task, gettid());
	CHECK(NO_MEMORY());
	thread_given = fails_again();
	atomic_store(&thread_done, true);
	return unused;
}
IN_A_CHILD(who_did_not_get_enough_memory_waits_for_a_context_that_may_be_ending)
{
	pthread_t thread;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	free_in_both_contexts();
	CHECK(!pthread_create(&thread, NULL, need_memory_twice, NULL));
	CHECK(COMES_TRUE(frees_of(here) && (atomic_load(&thread_done) ||
					    sleeps_in_a_futex(atomic_load(&thread_task))), SOON));
	CHECK(!atomic_load(&thread_done));
	context_ended(CONTEXT_B, -1, false);
	CHECK(!pthread_join(thread, NULL) && thread_given);
	CHECK_EQUAL(frees_of(there), 1);
}

/* A place comes free with the context, too. */
IN_A_CHILD(who_needs_an_event_hears_of_one_that_goes_with_its_context)
{
	struct other other = start_other(0);
	pthread_t thread;
	CUevent held;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.pressure_wait.number = SOON * MS;
	fake_stack[fake_depth] = CONTEXT_B;
	held = held_event(&other);
	CHECK_EQUAL(cl_event_destroy(held, fake_event_destroy), CUDA_SUCCESS);
	context_ends(CONTEXT_B, -1);
	thread = starts_and_waits(need_an_event);
	atomic_store(&fake.dead_b, true);
	context_ended(CONTEXT_B, -1, true);
	CHECK(!pthread_join(thread, NULL) && thread_given);
}

static void *force_beside(void *unused)
{
	CHECK(another_event(1));
	return unused;
}
IN_A_CHILD(who_needs_an_event_waits_for_the_last_that_is_being_forced_out)
{
	struct other other = start_other(0);
	pthread_t forces, needs;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.pressure_wait.number = SOON * MS;
	make_as_many_events_as_can_be();
	CHECK_EQUAL(cl_event_destroy(held_event(&other), fake_event_destroy), CUDA_SUCCESS);
	cl_driver.cuEventDestroy_v2 = destroy_that_stalls;
	atomic_store(&stall_destroy, true);
	CHECK(!pthread_create(&forces, NULL, force_beside, NULL));
	CHECK(COMES_TRUE(atomic_load(&in_destroy), SOON));
	needs = starts_and_waits(need_an_event);
	atomic_store(&stall_destroy, false);
	CHECK(!pthread_join(forces, NULL) && !pthread_join(needs, NULL) && thread_given);
}

IN_A_CHILD(short_memory_waits_for_a_context_that_may_be_ending)
{
	CUdeviceptr waits;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	waits = exported_block();
	CHECK_EQUAL(cl_memory_free(waits), CUDA_SUCCESS);
	waits_for_the_end(need_memory, 0);
	CHECK_EQUAL(frees_of(waits), 1);
}

/* Not at each attempt: a long wait must not cost the program that each time. */
IN_A_CHILD(short_memory_waits_once_for_a_context_that_may_be_ending)
{
	pthread_t turns;
	uint64_t began;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	cl_options.pressure_wait.number = 2000 * MS;
	context_ends(NULL, 0);
	turns = turn_clock_beside();
	began = cl_now();
	CHECK(NO_MEMORY()); /* one retry in any case */
	CHECK(cl_now() - began >= 2000 * MS);
	turn_no_more(turns);
	began = cl_now();
	CHECK(!fails_again());
	CHECK(cl_now() - began < 2000 * MS);
	context_ended(NULL, 0, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_needs_an_event_waits_for_a_context_that_may_be_ending),
		cmocka_unit_test(short_memory_waits_for_a_context_that_may_be_ending),
		cmocka_unit_test(short_memory_waits_once_for_a_context_that_may_be_ending),
		cmocka_unit_test(who_needs_an_event_does_not_wait_twice),
		cmocka_unit_test(who_needs_an_event_does_not_get_memory),
		cmocka_unit_test(who_needs_an_event_hears_of_one_that_just_went),
		cmocka_unit_test(who_needs_memory_for_an_event_gets_it),
		cmocka_unit_test(who_needs_memory_for_a_shared_event_gets_it),
		cmocka_unit_test(who_did_not_get_enough_memory_waits_for_a_context_that_may_be_ending),
		cmocka_unit_test(who_needs_an_event_hears_of_one_that_goes_with_its_context),
		cmocka_unit_test(who_needs_an_event_waits_for_the_last_that_is_being_forced_out),
		cmocka_unit_test(who_needs_an_event_hears_of_one_that_goes_straight),
		cmocka_unit_test(what_came_free_is_not_waited_for),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: destroyed events that other processes may have open wait for their importers.  When there are
 * too many, the oldest is released first.
 */
#include "tests/unit/limbo.h"

#include "shim/blocks/event_owner.h"

#include <signal.h>

IN_A_CHILD(a_destroyed_event_waits_for_its_importers)
{
	struct other other = start_other(0);
	CUipcEventHandle handle;
	struct answer answer;
	CUevent event, plain;

	start_with(0, CL_COLLECTOR_THREAD);
	plain = fake_event();
	CHECK_EQUAL(cl_event_destroy(plain, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	event = exported_event(&handle);
	answer = ask(&other, (struct order){ .what = 'e', .event = handle });
	CHECK_EQUAL(answer.result, CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_ERROR_INVALID_HANDLE);
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_ERROR_INVALID_HANDLE);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EVENT_DESTROYED_TWICE]), 1);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'd', .a = answer.value }).result, CUDA_SUCCESS);
	CHECK(COMES_TRUE(atomic_load(&fake.destroyed_n) == 2, SOON));
	CHECK(fake.destroyed[1] == event);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'e', .event = handle }).result,
		    CUDA_ERROR_INVALID_VALUE);
}

IN_A_CHILD(of_too_many_events_the_oldest_goes_first)
{
	struct other other = start_other(0);
	CUipcEventHandle handle;
	CUevent event[6];

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.max_events.number = 3;
	for (int i = 0; i < 6; i++) {
		event[i] = fake_event();
		if (i < 3) /* known or not: whose they are */
			cl_shareable_event_created(event[i]);
		CHECK_EQUAL(cl_event_export(&handle, event[i]), CUDA_SUCCESS);
		if (i % 2) /* held or not: the oldest */
			CHECK_EQUAL(ask(&other, (struct order){ .what = 'e', .event = handle }).result,
				    CUDA_SUCCESS);
	}
	for (int i = 0; i < 3; i++)
		CHECK_EQUAL(cl_event_destroy(event[i], fake_event_destroy), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 0);
	for (int i = 3; i < 6; i++)
		CHECK_EQUAL(cl_event_destroy(event[i], fake_event_destroy), CUDA_SUCCESS);
	CHECK(COMES_TRUE(atomic_load(&fake.destroyed_n) == 3, SOON));
	for (int i = 0; i < 3; i++)
		CHECK(fake.destroyed[i] == event[i]);
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 3);
	/* of those three only the second is held: the others are taken from nobody */
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EVENT_FORCED_OUT]), 1);
	CHECK_EQUAL(cl_event_destroy(event[5], fake_event_destroy), CUDA_ERROR_INVALID_HANDLE);
	/* an event that was released early is not destroyed again when its importer ends */
	kill(other.pid, SIGKILL);
	CHECK(COMES_TRUE((cl_limbo_reap(&cl_exporter), cl_count_get(findings[CL_FINDING_HOLD_RECLAIMED])) == 3, SOON));
	CHECK(COMES_TRUE((cl_limbo_collect(&cl_exporter, true), cl_own.header->limbo_blocks) == 0, SOON));
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 6);
	CHECK(none_belongs_to_a_context());
}

/* A program that shares nothing, or nothing yet, may make and destroy such events for ever. */
IN_A_CHILD(an_event_that_is_destroyed_is_not_remembered_also_where_nothing_is_shared)
{
	CUevent event[2];

	start_with(HOUR, CL_COLLECTOR_THREAD);
	for (int i = 0; i < 2; i++)
		cl_shareable_event_created(event[i] = fake_event());
	CHECK_EQUAL(cl_events_alive(&cl_exporter.blocks), 2);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(cl_unshared_event_destroy(event[i], fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(cl_events_alive(&cl_exporter.blocks), 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 2);
	/* one that nobody remembers */
	CHECK_EQUAL(cl_unshared_event_destroy(fake_event(), fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 3);
}

/* The collector looks while a thread of the program has the limbo's last event. */
static CUresult destroy_and_collect(CUevent event)
{
	struct cl_collected now = cl_limbo_collect(&cl_exporter, false);

	CHECK(!now.held && now.next == UINT64_MAX); /* it sleeps until it is woken */
	return fake_event_destroy(event);
}
IN_A_CHILD(who_forces_events_out_leaves_their_records_to_the_collector)
{
	struct other other = start_other(0);
	CUipcEventHandle handle;
	struct answer answer;
	uint32_t woken;
	CUevent event;

	start_with(0, CL_COLLECTOR_THREAD);
	event = exported_event(&handle);
	answer = ask(&other, (struct order){ .what = 'e', .event = handle });
	CHECK_EQUAL(answer.result, CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	cl_driver.cuEventDestroy_v2 = destroy_and_collect;
	woken = atomic_load(&cl_own.header->wake);
	CHECK(another_event(1));
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	CHECK(atomic_load(&cl_own.header->wake) != woken);
	/* it notices the death of the record's holder */
	kill(other.pid, SIGKILL);
	CHECK(COMES_TRUE(atomic_load(&cl_own.header->limbo_blocks) == 0, SOON));
}

/*
 * Events that cannot be released yet, because their context may be ending or another thread is releasing
 * them, are counted; but no younger, held one is released in their place.
 */
IN_A_CHILD(no_younger_event_goes_for_those_of_a_context_that_may_be_ending)
{
	struct other other = start_other(0);
	CUevent event[2];

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.max_events.number = 1;
	for (int i = 0; i < 2; i++) {
		fake_stack[fake_depth] = i ? CONTEXT_B : CONTEXT_A;
		event[i] = held_event(&other);
		if (i)
			context_ends(CONTEXT_A, -1);
		CHECK_EQUAL(cl_event_destroy(event[i], fake_event_destroy), CUDA_SUCCESS);
	}
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 0);
	context_ended(CONTEXT_A, -1, false);
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	CHECK(fake.destroyed[0] == event[0]);
}

IN_A_CHILD(no_younger_event_goes_for_those_that_are_being_given_back)
{
	struct other other = start_other(0);
	CUevent event;
	pthread_t thread;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.max_events.number = 2;
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(cl_event_destroy(event_of_context(NULL), fake_event_destroy), CUDA_SUCCESS);
	event = held_event(&other);
	cl_driver.cuEventDestroy_v2 = destroy_that_stalls;
	atomic_store(&stall_destroy, true);
	CHECK(!pthread_create(&thread, NULL, collect_beside, NULL));
	CHECK(COMES_TRUE(atomic_load(&in_destroy), SOON));
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	atomic_store(&stall_destroy, false);
	CHECK(!pthread_join(thread, NULL));
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EVENT_FORCED_OUT]), 0);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 2);
}

IN_A_CHILD(an_event_whose_context_may_be_ending_does_not_keep_the_next_from_going)
{
	struct other other = start_other(0);
	CUipcEventHandle handle;
	CUevent event[2];

	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (int i = 0; i < 2; i++) {
		fake_stack[fake_depth] = i ? CONTEXT_B : CONTEXT_A;
		event[i] = event_of_context(&handle);
		CHECK_EQUAL(ask(&other, (struct order){ .what = 'e', .event = handle }).result,
			    CUDA_SUCCESS);
		CHECK_EQUAL(cl_event_destroy(event[i], fake_event_destroy), CUDA_SUCCESS);
	}
	context_ends(CONTEXT_A, -1);
	CHECK(another_event(1));
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1);
	CHECK(fake.destroyed[0] == event[1]);
	context_ended(CONTEXT_A, -1, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_destroyed_event_waits_for_its_importers),
		cmocka_unit_test(of_too_many_events_the_oldest_goes_first),
		cmocka_unit_test(an_event_that_is_destroyed_is_not_remembered_also_where_nothing_is_shared),
		cmocka_unit_test(who_forces_events_out_leaves_their_records_to_the_collector),
		cmocka_unit_test(an_event_whose_context_may_be_ending_does_not_keep_the_next_from_going),
		cmocka_unit_test(no_younger_event_goes_for_those_of_a_context_that_may_be_ending),
		cmocka_unit_test(no_younger_event_goes_for_those_that_are_being_given_back),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

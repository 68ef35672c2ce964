/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports and exports at the end of a context: what was open in it ends with it.  What is opened, closed and
 * exported at its address before the end is recorded belongs to another context.
 */
#include "tests/unit/imports.h"

/*
 * The driver has ended a context, and reused the context's address and its blocks' addresses, before the
 * end is recorded.  What is opened, closed and exported meanwhile does not end with the old context.
 */
static CUdeviceptr given;
static CUresult open_at_given(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	*p = given;
	return CUDA_SUCCESS;
}

IN_A_CHILD(what_is_opened_at_a_contexts_address_does_not_go_with_it)
{
	CUdeviceptr p, q;

	start();
	for (int gone = 0; gone <= 1; gone++) {
		fake_stack[fake_depth] = CONTEXT_B;
		CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
		context_ends(CONTEXT_B, -1);
		CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		CHECK_EQUAL(p, q);
		context_ended(CONTEXT_B, -1, gone);
		CHECK(cl_record_held(peer(), other.record));
		CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
		CHECK_EQUAL(cl_record_held(peer(), other.record), !gone);
		if (!gone)
			CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		CHECK(!cl_record_held(peer(), other.record));
	}
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_CLOSED_TWICE]), 0);
	finish();
}

/* Two contexts have one address open: a close is of the current one's, and the other's goes with its context. */
IN_A_CHILD(a_close_is_of_the_current_contexts_open)
{
	CUdeviceptr p, q;

	start();
	for (int ends_a = 0; ends_a <= 1; ends_a++) {
		CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
		fake_stack[fake_depth] = CONTEXT_B;
		CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		CHECK_EQUAL(p, q);
		CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
		fake_stack[fake_depth] = CONTEXT_A;
		context_ends(ends_a ? NULL : CONTEXT_B, ends_a ? 0 : -1);
		context_ended(ends_a ? NULL : CONTEXT_B, ends_a ? 0 : -1, true);
		/* A's open is still there, or has gone with A */
		CHECK_EQUAL(cl_record_held(peer(), other.record), !ends_a);
		if (!ends_a)
			CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		CHECK(!cl_record_held(peer(), other.record));
	}
	finish();
}

/* Three contexts have one address open.  Closes in a fourth take the oldest one's open first. */
IN_A_CHILD(a_close_in_another_context_is_of_the_oldest_open)
{
	const CUcontext opener[] = { CONTEXT_A, CONTEXT_B, (CUcontext)0xc0 }, closer = (CUcontext)0xd0;
	CUdeviceptr p;

	start();
	for (int i = 0; i < 3; i++) {
		fake_stack[fake_depth] = opener[i];
		CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	}
	fake_stack[fake_depth] = closer;
	for (int i = 0; i < 3; i++) {
		CHECK(cl_record_held(peer(), other.record));
		CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		/* nothing goes with it any more */
		context_ends(i ? opener[i] : NULL, i ? -1 : 0);
		context_ended(i ? opener[i] : NULL, i ? -1 : 0, true);
	}
	CHECK(!cl_record_held(peer(), other.record));
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_CLOSED_TWICE]), 0);
	finish();
}

/* A is the primary context of device 0: such an end names only the device */
IN_A_CHILD(what_is_open_in_a_primary_context_goes_with_it)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	context_ends(NULL, 1); /* another device's */
	context_ended(NULL, 1, true);
	CHECK(cl_record_held(peer(), other.record));
	context_ends(NULL, 0);
	context_ended(NULL, 0, true);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

IN_A_CHILD(a_close_is_of_what_is_there_now)
{
	CUipcMemHandle own;
	CUdeviceptr p, q;

	start();
	fake_stack[fake_depth] = CONTEXT_B;
	given = fake_alloc(1024, CONTEXT_A);
	own = export_block(given);
	CHECK_EQUAL(cl_memory_import(&p, other.handle, 0, open_at_given), CUDA_SUCCESS);
	context_ends(CONTEXT_B, -1);
	/* the fake driver has no import at that address */
	CHECK_EQUAL(cl_memory_import(&q, own, 0, fake_open), CUDA_SUCCESS);
	CHECK(p == q && q == given);
	CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
	CHECK_EQUAL(fake.close_calls, 0);
	context_ended(CONTEXT_B, -1, true);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* The handle opens whatever the driver has allocated there since. */
IN_A_CHILD(what_is_made_where_an_ended_context_was_is_not_opened)
{
	CUdeviceptr p, q;

	start();
	CHECK_EQUAL(cl_memory_import(&p, other.handle, 0, fake_open), CUDA_SUCCESS);
	CHECK(!cl_record_orphan(peer(), other.record));
	given = p + DEVICE_STEP;
	CHECK_EQUAL(cl_memory_import(&q, other.handle, 0, open_at_given), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(fake.close_calls, 1);
	/* but not where the driver says that it is mapped already */
	CHECK_EQUAL(cl_memory_import(&q, other.handle, 0, fake_open), CUDA_SUCCESS);
	CHECK(p == q);
	CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
	/* a refusal is the driver's own error */
	fake.none_result = CUDA_ERROR_INVALID_CONTEXT;
	CHECK_EQUAL(cl_memory_import(&q, other.handle, 0, open_at_given), CUDA_ERROR_INVALID_CONTEXT);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* The context may live on: a reference of a primary context was released, but not the last one. */
IN_A_CHILD(what_is_closed_while_a_context_may_be_ending_is_closed)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	context_ends(NULL, 0);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	context_ended(NULL, 0, false);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

static CUdeviceptr exported_there;
static atomic_int exporter_id;
static atomic_bool is_exported;
static void *export_there(void *unused)
{
	exporter_id = gettid();
	export_block(exported_there);
	is_exported = true;
	return unused;
}

IN_A_CHILD(what_is_exported_at_a_contexts_address_does_not_go_with_it)
{
	pthread_t thread;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	export_block(fake_alloc(1024, CONTEXT_B));
	exported_there = fake_alloc(1024, CONTEXT_B);
	context_ends(CONTEXT_B, -1);
	CHECK(!pthread_create(&thread, NULL, export_there, NULL));
	CHECK(COMES_TRUE(is_exported || sleeps_in_a_futex(exporter_id), SOON));
	context_ended(CONTEXT_B, -1, true);
	CHECK(!pthread_join(thread, NULL) && is_exported);
	/* somebody may have its handle */
	CHECK_EQUAL(cl_memory_free(exported_there), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(exported_there), 0);
	CHECK_EQUAL(cl_process_end(0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_opened_at_a_contexts_address_does_not_go_with_it),
		cmocka_unit_test(a_close_is_of_the_current_contexts_open),
		cmocka_unit_test(a_close_in_another_context_is_of_the_oldest_open),
		cmocka_unit_test(what_is_open_in_a_primary_context_goes_with_it),
		cmocka_unit_test(a_close_is_of_what_is_there_now),
		cmocka_unit_test(what_is_made_where_an_ended_context_was_is_not_opened),
		cmocka_unit_test(what_is_closed_while_a_context_may_be_ending_is_closed),
		cmocka_unit_test(what_is_exported_at_a_contexts_address_does_not_go_with_it),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: a thread that ends a context waits for calls that nobody watches and for those that create
 * the context.  A retain or release of a primary context that has another reference takes no lock.
 */
#include "tests/unit/imports.h"

#include "shim/driver/gate.h"

static pthread_t beside;
static atomic_int beside_id;
static atomic_bool beside_done;

/*
 * While a primary context ends, culimbo asks whether it is still active.  A new one would answer in
 * its place.  So nothing creates a primary context during the end of one, and no end begins during
 * a creation.
 */
static void *make_beside(void *unused)
{
	struct cl_context_creation making;

	beside_id = gettid();
	making = cl_context_creation_begin(0);
	beside_done = true;
	cl_context_creation_end(&making, false);
	return unused;
}
static void *end_beside(void *unused)
{
	beside_id = gettid();
	context_ends(NULL, 0);
	beside_done = true;
	context_ended(NULL, 0, true);
	return unused;
}

IN_A_CHILD(no_primary_context_is_made_before_it_is_known_whether_the_last_has_ended)
{
	struct cl_context_creation making;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	context_ends(NULL, 0);
	making = cl_context_creation_begin(1); /* a creation on another device does not wait */
	cl_context_creation_end(&making, false);
	CHECK(!pthread_create(&beside, NULL, make_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
	context_ended(NULL, 0, true);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	beside_done = false;
	beside_id = 0;
	making = cl_context_creation_begin(0);
	CHECK(!pthread_create(&beside, NULL, end_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
	cl_context_creation_end(&making, false);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	/* devices that do not exist */
	for (int i = -1; i <= 64; i += 65) {
		making = cl_context_creation_begin(i);
		cl_context_creation_end(&making, false);
	}
}

/*
 * A call that began before this process shares is not watched.  If it retains or releases the primary
 * context, the end of that context waits for it: otherwise culimbo could not tell which of the two
 * calls released the last reference.
 */
static struct ending {
	CUcontext ctx;
	CUdevice device;
} ending;
static void *end_that_beside(void *unused)
{
	beside_id = gettid();
	context_ends(ending.ctx, ending.device);
	beside_done = true;
	context_ended(ending.ctx, ending.device, false);
	return unused;
}
/* Returns whether the end waits.  If it does, it is still in progress. */
static bool end_waits(CUcontext ctx, CUdevice device)
{
	ending = (struct ending){ ctx, device };
	beside_done = false;
	beside_id = 0;
	CHECK(!pthread_create(&beside, NULL, end_that_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	if (!beside_done)
		return true;
	CHECK(!pthread_join(beside, NULL));
	return false;
}

IN_A_CHILD(who_ends_a_context_waits_for_calls_that_nobody_watches)
{
	struct cl_context_creation making;
	struct cl_context_call call;

	start_with(0, CL_COLLECTOR_INLINE);
	call = cl_context_call_begin(0); /* what it had is given back */
	cl_context_call_end(&call);
	call = cl_context_call_begin(0);
	making = cl_context_creation_begin(1);
	CHECK(call.unwatched && making.call.unwatched && !making.begun);
	CHECK(cl_self_start() && cl_sharing());
	CHECK(!cl_context_call_begin(0).unwatched);
	CHECK(!end_waits(NULL, 2));
	CHECK(end_waits(NULL, 0));
	cl_context_call_end(&call);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	CHECK(end_waits(NULL, 1));
	cl_context_creation_end(&making, false);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	CHECK(!end_waits(NULL, 0));
	making = cl_context_creation_begin(0);
	CHECK(!making.call.unwatched && making.begun);
	cl_context_creation_end(&making, false);
	/* a forked process does not share yet, and has none of its parent's calls */
	cl_contexts_forget();
	cl_gate_forget();
	call = cl_context_call_begin(0);
	CHECK(call.unwatched);
	cl_context_call_end(&call);
}

/* No other thread waits meanwhile, because the end has not begun. */
static CUdeviceptr free_beside_p;
static void *free_beside(void *unused)
{
	beside_id = gettid();
	CHECK_EQUAL(cl_memory_free(free_beside_p), CUDA_SUCCESS);
	beside_done = true;
	return unused;
}
IN_A_CHILD(who_waits_for_such_calls_holds_nobody_up)
{
	struct cl_context_call call;
	pthread_t ends;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	call = cl_context_call_begin(0);
	free_beside_p = fake_alloc(1024, CONTEXT_A);
	export_block(free_beside_p);
	CHECK(end_waits(NULL, 0));
	ends = beside;
	beside_id = 0;
	CHECK(!pthread_create(&beside, NULL, free_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(beside_done);
	cl_context_call_end(&call);
	CHECK(!pthread_join(beside, NULL) && !pthread_join(ends, NULL));
}

IN_A_CHILD(who_ends_any_context_waits_for_a_call_of_no_known_device)
{
	struct cl_context_call call;

	start_with(0, CL_COLLECTOR_INLINE);
	call = cl_context_call_begin(-1);
	CHECK(cl_self_start());
	CHECK(end_waits(NULL, 0));
	cl_context_call_end(&call);
	CHECK(!pthread_join(beside, NULL));
	CHECK(!end_waits(CONTEXT_B, -1));
}

/* A call that never returns does not block the end of a context for ever. */
static CUresult no_state(CUdevice device, unsigned int *flags, int *active)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}
IN_A_CHILD(who_ends_a_context_does_not_wait_for_ever)
{
	uint64_t began;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_context_call_begin(0).unwatched);
	CHECK(cl_self_start());
	began = cl_now();
	context_ends(NULL, 0);
	context_ended(NULL, 0, false);
	CHECK(cl_now() - began >= 900 * MS);
	/* nor in a process that was forked amid one, where the driver does nothing */
	cl_driver.cuDevicePrimaryCtxGetState = no_state;
	CHECK(!end_waits(NULL, 0));
}

/* -------------------------------------------------- references to primary contexts */
static int retain_beside(CUdevice device)
{
	int call = cl_retain_beside_begin(device);

	CHECK(call != CL_NOT_BESIDE);
	return call;
}
static int release_beside_others(CUdevice device)
{
	int call = cl_release_beside_begin(device);

	CHECK(call != CL_NOT_BESIDE);
	return call;
}
static void retained(CUdevice device)
{
	struct cl_context_creation making;
	int call;

	call = cl_retain_beside_begin(device);
	if (call != CL_NOT_BESIDE) {
		cl_beside_end(device, call, true);
		return;
	}
	making = cl_context_creation_begin(device);
	cl_context_creation_end(&making, true);
}
static bool released_beside_others(CUdevice device)
{
	struct cl_context_call long_way;
	int call;

	call = cl_release_beside_begin(device);
	if (call != CL_NOT_BESIDE) {
		cl_beside_end(device, call, false);
		return true;
	}
	long_way = cl_primary_release_begin(device);
	if (long_way.unwatched)
		cl_context_call_end(&long_way);
	return false;
}

IN_A_CHILD(only_the_last_release_is_watched)
{
	start_with(0, CL_COLLECTOR_INLINE);
	retained(0); /* before the process shares */
	CHECK(cl_self_start() && cl_sharing());
	retained(0);
	retained(1);
	/* neither takes a lock: this thread has it, and would wait for itself */
	cl_lock(&cl_exports_lock);
	retained(0);
	CHECK(released_beside_others(0));
	CHECK(released_beside_others(0));
	cl_unlock(&cl_exports_lock);
	CHECK(!released_beside_others(0));
	CHECK(!released_beside_others(0)); /* of a reference that was taken past our hooks */
	retained(0);
	CHECK(!released_beside_others(0));
	CHECK(!released_beside_others(1));
	/* a retain that failed gives no reference */
	retained(1);
	for (int i = 0; i < 2; i++) {
		int call;

		call = retain_beside(1);
		cl_beside_end(1, call, false);
	}
	CHECK(!released_beside_others(1));
	/* no such device */
	for (int i = -1; i <= 64; i += 65) {
		retained(i);
		retained(i);
		CHECK(!released_beside_others(i));
	}
}

IN_A_CHILD(after_a_reset_or_a_fork_no_reference_is_counted)
{
	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	for (int i = 0; i < 3; i++) {
		retained(0);
		retained(1);
	}
	cl_gate_drop_references(0);
	CHECK(!released_beside_others(0));
	CHECK(released_beside_others(1));
	cl_contexts_forget();
	cl_gate_forget();
	CHECK(!released_beside_others(1));
}

static void *release_beside(void *device)
{
	beside_id = gettid();
	CHECK_EQUAL(cl_release_beside_begin(*(CUdevice *)device), CL_NOT_BESIDE);
	cl_primary_release_begin(*(CUdevice *)device);
	beside_done = true;
	return NULL;
}
/* Returns whether the release that takes the last counted reference waits.  If it does, it is still in progress. */
static bool last_release_waits(CUdevice device)
{
	static CUdevice of;

	of = device;
	beside_done = false;
	beside_id = 0;
	CHECK(!pthread_create(&beside, NULL, release_beside, &of));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	if (!beside_done)
		return true;
	CHECK(!pthread_join(beside, NULL));
	return false;
}

/* Else the release before it would be the last one for the driver, and nobody would see the end. */
IN_A_CHILD(the_last_release_waits_for_calls_that_rely_on_its_reference)
{
	struct cl_context_creation making;
	int call;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	retained(0);
	retained(1);
	call = retain_beside(0);
	CHECK(!last_release_waits(1));
	CHECK(!end_waits(NULL, 0)); /* what ends no counted reference need not wait */
	CHECK(last_release_waits(0));
	/* without a limit of time */
	CHECK(!COMES_TRUE(beside_done, 1200));
	cl_beside_end(0, call, true);
	CHECK(!pthread_join(beside, NULL) && beside_done);

	retained(0);
	call = release_beside_others(0);
	CHECK(last_release_waits(0));
	/* when the program has got another reference, the call relies on that */
	making = cl_context_creation_begin(0);
	CHECK(making.begun);
	cl_context_creation_end(&making, true);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	CHECK(last_release_waits(0));
	cl_beside_end(0, call, false);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	retained(0);
	CHECK(!last_release_waits(0));
}

/*
 * The driver's call is a cancellation point.  Else the last release would wait for a thread that is gone.
 * tests/threads/cancel.c cancels a thread at any instruction.
 */
static void *cancelled_beside(void *unused)
{
	retain_beside(0);
	release_beside_others(0); /* within the first, in a signal handler */
	pthread_cancel(pthread_self());
	pthread_testcancel();
	return unused;
}
IN_A_CHILD(a_thread_that_is_cancelled_beside_others_leaves_no_call_behind)
{
	pthread_t thread;
	void *result;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	retained(0);
	retained(0);
	CHECK(!pthread_create(&thread, NULL, cancelled_beside, NULL) && !pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
	CHECK(!last_release_waits(0));
}

/* The thread's mark is of one device; a call of another one is rare and goes the long way. */
IN_A_CHILD(a_call_within_another_is_beside_others_of_the_same_device_alone)
{
	int outer, call;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	retained(0);
	retained(1);
	outer = retain_beside(0);
	CHECK_EQUAL(cl_retain_beside_begin(1), CL_NOT_BESIDE);
	call = retain_beside(0);
	cl_beside_end(0, call, true);
	CHECK_EQUAL(cl_retain_beside_begin(1), CL_NOT_BESIDE);
	CHECK(released_beside_others(0));
	CHECK(last_release_waits(0)); /* for the outer one */
	cl_beside_end(0, outer, false);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	call = retain_beside(1);
	cl_beside_end(1, call, false);
}

static void *reset_beside(void *device)
{
	beside_id = gettid();
	cl_gate_drop_references_and_wait(*(CUdevice *)device);
	beside_done = true;
	return NULL;
}
IN_A_CHILD(a_reset_waits_for_calls_that_rely_on_a_reference)
{
	int call;
	pthread_t resets;
	CUdevice all = -1;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	retained(0);
	call = retain_beside(0);
	beside_done = false;
	beside_id = 0;
	CHECK(!pthread_create(&resets, NULL, reset_beside, &all));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
	cl_beside_end(0, call, false);
	CHECK(!pthread_join(resets, NULL) && beside_done);
}

/* It would go on by itself after a second.  On a machine that stalls, it gets more than one try. */
IN_A_CHILD(the_end_of_such_a_call_wakes_who_waits)
{
	int call;
	uint64_t began, took = UINT64_MAX;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	for (int i = 0; i < 5 && took >= 900 * MS; i++) {
		retained(0);
		retained(0);
		call = release_beside_others(0);
		began = cl_now();
		CHECK(last_release_waits(0));
		cl_beside_end(0, call, false);
		CHECK(!pthread_join(beside, NULL) && beside_done);
		took = cl_now() - began;
	}
	CHECK(took < 900 * MS);
}

/* It passes cancellation points in the driver, so it is no call that only counts. */
IN_A_CHILD(the_creation_of_a_green_context_takes_the_long_way)
{
	struct cl_context_creation making;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	retained(0);
	making = cl_context_creation_begin(0);
	CHECK(making.begun && !making.call.unwatched);
	cl_context_creation_end(&making, false);
	CHECK(!released_beside_others(0));
}

/* As many as the driver counts, whatever threads do at once: the one that finds none left is the last. */
static _Atomic int driver_counts, ended_unseen;
static void *retain_and_release(void *unused)
{
	for (int i = 0; i < 20000; i++) {
		struct cl_context_creation making;
		struct cl_context_end end;
		int call;

		call = cl_retain_beside_begin(0);
		if (call != CL_NOT_BESIDE) {
			driver_counts++;
			cl_beside_end(0, call, true);
		} else {
			making = cl_context_creation_begin(0);
			driver_counts++;
			cl_context_creation_end(&making, true);
		}
		call = cl_release_beside_begin(0);
		if (call != CL_NOT_BESIDE) {
			if (--driver_counts <= 0)
				ended_unseen++;
			cl_beside_end(0, call, false);
			continue;
		}
		CHECK(!cl_primary_release_begin(0).unwatched);
		end = cl_context_end_begin(NULL, 0);
		driver_counts--;
		cl_context_end_done(&end, false);
	}
	return unused;
}
IN_A_CHILD(no_release_beside_others_is_the_drivers_last)
{
	pthread_t threads[3];

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, retain_and_release, NULL));
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK_EQUAL(ended_unseen, 0);
	CHECK_EQUAL(driver_counts, 0);
	CHECK(!released_beside_others(0));
}

IN_A_CHILD(a_context_that_ended_past_the_count_is_forgotten_and_no_newer_one)
{
	CUcontext ctx;
	CUdevice device;
	uint64_t last;
	bool primary;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	retained(0);
	retained(0);
	last = cl_context_last();
	CHECK(known_current(&ctx, &device, &primary) && primary);
	CHECK_EQUAL(cl_contexts.n, 1);
	cl_primary_ended_past_us(0, last);
	CHECK_EQUAL(cl_contexts.n, 1);
	CHECK(!released_beside_others(0));
	cl_primary_ended_past_us(0, cl_context_last());
	CHECK_EQUAL(cl_contexts.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_primary_context_is_made_before_it_is_known_whether_the_last_has_ended),
		cmocka_unit_test(who_ends_a_context_waits_for_calls_that_nobody_watches),
		cmocka_unit_test(who_waits_for_such_calls_holds_nobody_up),
		cmocka_unit_test(who_ends_any_context_waits_for_a_call_of_no_known_device),
		cmocka_unit_test(who_ends_a_context_does_not_wait_for_ever),
		cmocka_unit_test(only_the_last_release_is_watched),
		cmocka_unit_test(after_a_reset_or_a_fork_no_reference_is_counted),
		cmocka_unit_test(the_last_release_waits_for_calls_that_rely_on_its_reference),
		cmocka_unit_test(the_end_of_such_a_call_wakes_who_waits),
		cmocka_unit_test(no_release_beside_others_is_the_drivers_last),
		cmocka_unit_test(a_thread_that_is_cancelled_beside_others_leaves_no_call_behind),
		cmocka_unit_test(a_call_within_another_is_beside_others_of_the_same_device_alone),
		cmocka_unit_test(a_reset_waits_for_calls_that_rely_on_a_reference),
		cmocka_unit_test(the_creation_of_a_green_context_takes_the_long_way),
		cmocka_unit_test(a_context_that_ended_past_the_count_is_forgotten_and_no_newer_one),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

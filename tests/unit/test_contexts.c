/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: which is current and which is primary is asked once and remembered as long as it
 * is so, and no question makes or ends one.
 */
#include "tests/unit/imports.h"

#include "shim/driver/context.h"
#include "shim/driver/visit.h"

static CUresult no_device(CUdevice *device)
{
	driver_entered();
	*device = 7;
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* culimbo asks the driver anew about a context at the address of an ended one. */
IN_A_CHILD(the_device_is_asked_once_for_a_context)
{
	CUcontext ctx;
	CUdevice device;
	uint32_t asked;
	bool primary;

	start();
	CHECK(cl_self_start());
	asked = fake.device_calls;
	for (int i = 0; i < 3; i++) {
		CHECK(known_current(&ctx, &device, &primary));
		CHECK(ctx == CONTEXT_A);
		CHECK_EQUAL(device, 0);
		CHECK_EQUAL(fake.device_calls, asked + 1);
	}
	context_ends(CONTEXT_A, 0);
	fake.device = 3;
	/* another context may be there before the end is recorded: without ids the two look alike */
	CHECK(!known_current(&ctx, &device, &primary));
	fake.device = 2;
	context_ended(CONTEXT_A, 0, true);
	CHECK(known_current(&ctx, &device, &primary));
	CHECK_EQUAL(device, 2);
	fake_stack[fake_depth] = CONTEXT_B;
	fake.device = 1;
	CHECK(known_current(&ctx, &device, &primary));
	CHECK(ctx == CONTEXT_B);
	CHECK_EQUAL(device, 1);
	fake_stack[fake_depth] = NULL;
	CHECK(!known_current(&ctx, &device, &primary));
	CHECK(!ctx && !device && !primary);
	/* a context that has just become current, of which the driver tells nothing */
	fake_stack[fake_depth] = (CUcontext)0xc0;
	cl_driver.cuCtxGetDevice = no_device;
	ctx = CONTEXT_B;
	CHECK(!known_current(&ctx, &device, &primary));
	CHECK(!ctx && !device && !primary);
	cl_driver.cuCtxGetDevice = fake_device;
	finish();
}

static _Atomic bool b_is_primary;
static CUresult retain_a_or_b(CUcontext *ctx, CUdevice device)
{
	driver_entered();
	*ctx = b_is_primary ? CONTEXT_B : CONTEXT_A;
	return CUDA_SUCCESS;
}

/* With ids, a new context at an old address is recognised as new, however the old one ended. */
static unsigned long long b_id = 7;
static CUresult id_of(CUcontext ctx, unsigned long long *id)
{
	driver_entered();
	*id = ctx == CONTEXT_B ? b_id : 1;
	return ctx == CONTEXT_B && !b_id ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

static unsigned int objects(void)
{
	return (unsigned int)cl_contexts.n;
}

IN_A_CHILD(an_end_past_the_hooks_is_seen_by_the_id)
{
	CUcontext ctx;
	CUdevice device;
	CUdeviceptr p, q;
	bool primary;

	start();
	cl_driver.cuDevicePrimaryCtxRetain = retain_a_or_b;
	cl_driver.cuCtxGetId = id_of;
	fake_stack[fake_depth] = CONTEXT_B;
	p = fake_alloc(1024, CONTEXT_B);
	export_block(p);
	CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
	CHECK(known_current(&ctx, &device, &primary) && !primary);
	CHECK_EQUAL(objects(), 1);
	/* it ends past the hooks, and the primary context is created at its address: its blocks are forgotten */
	b_id = 8;
	b_is_primary = true;
	CHECK(known_current(&ctx, &device, &primary) && ctx == CONTEXT_B && primary);
	CHECK_EQUAL(objects(), 1);
	CHECK(!cl_block_find(&cl_exporter.blocks, CL_MEMORY, p));
	CHECK(!cl_record_held(peer(), other.record));
	/* the driver gives no id for an ended context */
	b_id = 0;
	CHECK(!known_current(&ctx, &device, &primary));
	finish();
}

/* The same while a call may be ending a context: a question does not wait, and it has an answer. */
IN_A_CHILD(with_ids_nobody_waits_to_know_a_context)
{
	CUcontext ctx;
	CUdevice device;
	CUdeviceptr p, q;
	uint32_t asked;
	bool primary;

	start();
	cl_driver.cuDevicePrimaryCtxRetain = retain_a_or_b;
	cl_driver.cuCtxGetId = id_of;
	fake_stack[fake_depth] = CONTEXT_B;
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	asked = fake.device_calls;
	context_ends(CONTEXT_B, -1);
	CHECK(known_current(&ctx, &device, &primary) && ctx == CONTEXT_B);
	CHECK_EQUAL(fake.device_calls, asked);
	context_ended(CONTEXT_B, -1, false);
	/* it ends, and another context is at its address before the end is recorded */
	context_ends(CONTEXT_B, -1);
	b_id = 9;
	CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
	context_ended(CONTEXT_B, -1, true);
	CHECK(cl_record_held(peer(), other.record));
	CHECK_EQUAL(objects(), 1);
	CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/*
 * A context has ended, and another thread uses a new context at its address before the end is
 * recorded.  Once it is recorded, nothing of the old context is remembered.
 */
enum { ENDS = 100000, ENDS_AT_LEAST = 100, ENDS_MS = 3000 /* on one processor the threads seldom meet */ };
#define NO_MORE UINT32_MAX
static _Atomic uint32_t another_there, end_noted, seen;

/* It does not yield at first, because the two threads are to meet within some ns. */
static void spin_until(const _Atomic uint32_t *what, uint32_t at_least)
{
	for (unsigned int i = 1; *what < at_least; i++)
		if (i % 4096 == 0)
			sched_yield();
}

static void *use_another(void *unused)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	fake_stack[fake_depth] = CONTEXT_B;
	for (uint32_t round = 1;; round++) {
		spin_until(&another_there, round);
		if (another_there == NO_MORE)
			return unused;
		do
			known_current(&ctx, &device, &primary);
		while (end_noted != round);
		CHECK(known_current(&ctx, &device, &primary));
		CHECK_EQUAL(primary, b_is_primary);
		seen = round;
	}
}

IN_A_CHILD(what_is_remembered_of_a_context_goes_before_its_end_is_counted)
{
	uint64_t until = cl_now() + ENDS_MS * MS;
	pthread_t thread;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_a_or_b;
	CHECK(cl_self_start());
	CHECK(!pthread_create(&thread, NULL, use_another, NULL));
	for (uint32_t round = 1; round <= ENDS && (round <= ENDS_AT_LEAST || cl_now() < until); round++) {
		bool was = b_is_primary;

		context_ends(was ? NULL : CONTEXT_B, 0);
		b_is_primary = !was;
		another_there = round;
		context_ended(was ? NULL : CONTEXT_B, 0, true);
		end_noted = round;
		spin_until(&seen, round);
	}
	another_there = NO_MORE;
	CHECK(!pthread_join(thread, NULL));
}

/* Asking which context is primary and giving back the last reference to it keep out of each other's way. */
static _Atomic uint32_t retains;
static void (*amid_retain)(void);
static CUresult retain_amid(CUcontext *ctx, CUdevice device)
{
	retains++;
	if (amid_retain)
		amid_retain();
	return fake_retain(ctx, device);
}

static pthread_t beside;
static atomic_int beside_id;
static atomic_bool beside_done;
static void *end_primary(void *unused)
{
	beside_id = gettid();
	context_ends(NULL, 0);
	beside_done = true;
	context_ended(NULL, 0, false);
	return unused;
}
static void primary_ends_amid(void)
{
	CHECK(!pthread_create(&beside, NULL, end_primary, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
	amid_retain = NULL;
}
static void *ask(void *unused)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	beside_id = gettid();
	CHECK(known_current(&ctx, &device, &primary) && ctx == CONTEXT_A && primary);
	return unused;
}

IN_A_CHILD(a_primary_context_does_not_end_by_a_question)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_amid;
	CHECK(cl_self_start());
	fake_stack[fake_depth] = CONTEXT_B;
	amid_retain = primary_ends_amid;
	CHECK(known_current(&ctx, &device, &primary) && !primary);
	CHECK(!pthread_join(beside, NULL) && beside_done);

	amid_retain = NULL;
	retains = 0;
	beside_id = 0;
	context_ends(NULL, 0);
	CHECK(!pthread_create(&beside, NULL, ask, NULL));
	CHECK(COMES_TRUE(retains || sleeps_in_a_futex(beside_id), SOON));
	CHECK_EQUAL(retains, 0);
	context_ended(NULL, 0, false);
	CHECK(!pthread_join(beside, NULL));
	CHECK_EQUAL(retains, 1);
}

/*
 * A process that does not share asks no such question either, since a thread that releases the context
 * would not wait for it.
 */
static bool is_exported_event(CUevent event)
{
	bool is;

	cl_lock(&cl_exports_lock);
	is = cl_block_find(&cl_exporter.blocks, CL_EVENT, (uint64_t)(uintptr_t)event);
	cl_unlock(&cl_exports_lock);
	return is;
}

IN_A_CHILD(who_does_not_share_asks_no_such_question)
{
	CUipcEventHandle handle;
	CUevent event = fake_event();

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_amid;
	amid_retain = NULL;
	CHECK(!cl_sharing());
	cl_shareable_event_created(event);
	CHECK_EQUAL(retains, 0);
	/* the first export asks, so that the event ends with its context */
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	CHECK_EQUAL(retains, 1);
	CHECK(is_exported_event(event));
	context_ends(NULL, 0);
	context_ended(NULL, 0, true);
	CHECK(!is_exported_event(event));
}

/* culimbo also asks once which context is primary, but not about one whose address may be another's by now. */
static void *is_b_primary(void *is)
{
	CUcontext ctx;
	CUdevice device;

	beside_id = gettid();
	fake_stack[fake_depth] = CONTEXT_B;
	CHECK(known_current(&ctx, &device, is));
	beside_done = true;
	return NULL;
}

static void b_becomes(bool is_primary)
{
	bool is = !is_primary;

	context_ends(is_primary ? CONTEXT_B : NULL, 0);
	b_is_primary = is_primary;
	beside_done = false;
	beside_id = 0;
	CHECK(!pthread_create(&beside, NULL, is_b_primary, &is));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
	context_ended(is_primary ? CONTEXT_B : NULL, 0, true);
	CHECK(!pthread_join(beside, NULL));
	CHECK_EQUAL(is, is_primary);
}

IN_A_CHILD(without_ids_what_comes_to_a_contexts_address_amid_its_end_is_asked_for_after_it)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_a_or_b;
	CHECK(cl_self_start());
	fake_stack[fake_depth] = CONTEXT_B;
	CHECK(known_current(&ctx, &device, &primary) && !primary);
	b_becomes(true);
	b_becomes(false);
}

static void *who_is_b(void *unused)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	fake_stack[fake_depth] = CONTEXT_B;
	CHECK(!known_current(&ctx, &device, &primary));
	beside_done = true;
	return unused;
}
IN_A_CHILD(without_ids_who_asks_waits_a_second_at_most)
{
	CUcontext ctx;
	CUdevice device;
	pthread_t turns;
	bool primary;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	fake_stack[fake_depth] = CONTEXT_B;
	CHECK(known_current(&ctx, &device, &primary));
	context_ends(CONTEXT_B, -1);
	turns = turn_clock_beside();
	CHECK(!pthread_create(&beside, NULL, who_is_b, NULL));
	CHECK(COMES_TRUE(beside_done, SOON));
	CHECK(!pthread_join(beside, NULL));
	turn_no_more(turns);
	context_ended(CONTEXT_B, -1, false);
	CHECK(known_current(&ctx, &device, &primary) && ctx == CONTEXT_B);
	CHECK_EQUAL(objects(), 1);
}

/* Another thread ends contexts in a loop: most attempts to learn the current context fail, but not all. */
static unsigned int ends_left;
static CUresult device_amid_ends(CUdevice *device)
{
	if (ends_left) {
		ends_left--;
		context_ends(CONTEXT_A, -1);
		context_ended(CONTEXT_A, -1, false);
	}
	return fake_device(device);
}
IN_A_CHILD(without_ids_many_ends_beside_do_not_hide_a_context)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	cl_driver.cuCtxGetDevice = device_amid_ends;
	ends_left = 200;
	fake_stack[fake_depth] = CONTEXT_B;
	CHECK(known_current(&ctx, &device, &primary) && ctx == CONTEXT_B);
	CHECK_EQUAL(ends_left, 0);
}

/* A block names its context by an index in a table. */
static bool is_known(unsigned int i)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	fake_stack[fake_depth] = (CUcontext)(uintptr_t)(0x100000 + 16 * i);
	return known_current(&ctx, &device, &primary);
}
static void it_ends(unsigned int i)
{
	CUcontext ctx = (CUcontext)(uintptr_t)(0x100000 + 16 * i);

	context_ends(ctx, -1);
	context_ended(ctx, -1, true);
}
IN_A_CHILD(contexts_that_come_and_go_do_not_use_the_table_up)
{
	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	for (unsigned int i = 0; i < 2 * CL_CONTEXTS; i++) {
		CHECK(is_known(i));
		it_ends(i);
	}
	CHECK_EQUAL(objects(), 0);
}
IN_A_CHILD(what_belongs_to_more_contexts_than_the_table_has_is_of_the_unknown_one)
{
	const unsigned int most = CL_CONTEXTS - CL_CONTEXT_UNKNOWN - 1;
	const struct cl_block *block;
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	for (unsigned int i = 0; i < most; i++)
		CHECK(is_known(i));
	CHECK(!is_known(most));
	CHECK_EQUAL(objects(), most);
	p = fake_alloc(1024, fake_stack[fake_depth]);
	export_block(p);
	block = cl_block_find(&cl_exporter.blocks, CL_MEMORY, p);
	CHECK(block && cl_block_context(block) == &cl_context_unknown);
	it_ends(5);
	CHECK(is_known(most));
	p = fake_alloc(1024, fake_stack[fake_depth]);
	export_block(p);
	block = cl_block_find(&cl_exporter.blocks, CL_MEMORY, p);
	CHECK(block && cl_block_context(block)->handle == fake_stack[fake_depth]);
	it_ends(most);
	CHECK(!cl_block_find(&cl_exporter.blocks, CL_MEMORY, p));
}

#ifdef CL_DEBUG
/* The caller of a visit must have asked whether the context is ending. */
IN_A_CHILD(a_visit_to_a_context_that_is_ending_aborts)
{
	struct cl_context_name name;
	struct cl_context *context;
	struct cl_visit visit;
	int status;
	pid_t child = fork();

	if (!child) {
		start();
		CHECK(cl_self_start());
		name = cl_context_name_current();
		cl_lock(&cl_exports_lock);
		context = cl_context_get_locked(&name, &cl_exports_lock);
		CHECK(context);
		context->state = CL_CONTEXT_ENDING;
		signal(SIGABRT, SIG_DFL);
		cl_visit_begin_locked(&visit, context);
		_exit(0);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_device_is_asked_once_for_a_context),
		cmocka_unit_test(an_end_past_the_hooks_is_seen_by_the_id),
		cmocka_unit_test(with_ids_nobody_waits_to_know_a_context),
		cmocka_unit_test(what_is_remembered_of_a_context_goes_before_its_end_is_counted),
		cmocka_unit_test(a_primary_context_does_not_end_by_a_question),
		cmocka_unit_test(who_does_not_share_asks_no_such_question),
		cmocka_unit_test(without_ids_what_comes_to_a_contexts_address_amid_its_end_is_asked_for_after_it),
		cmocka_unit_test(without_ids_who_asks_waits_a_second_at_most),
		cmocka_unit_test(without_ids_many_ends_beside_do_not_hide_a_context),
		cmocka_unit_test(contexts_that_come_and_go_do_not_use_the_table_up),
		cmocka_unit_test(what_belongs_to_more_contexts_than_the_table_has_is_of_the_unknown_one),
#ifdef CL_DEBUG
		cmocka_unit_test(a_visit_to_a_context_that_is_ending_aborts),
#endif
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

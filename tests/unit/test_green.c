/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts.  What is recorded for one belongs to the primary context; culimbo makes no
 * green context current; and a handle means the context that has it now.
 *
 * Promise 4.  The driver is fake (fake_driver.h): CONTEXT_A is the primary context of its
 * device.  green.c is compiled in, in place of the library's.
 */
#include "tests/unit/fake_driver.h"

#include "shim/driver/green.c"

#define GREEN ((CUgreenCtx)0x6e0)
#define GREEN_2 ((CUgreenCtx)0x6e1)
#define CONTEXT_G ((CUcontext)0x60)
#define CONTEXT_G2 ((CUcontext)0x61)

/* While this is set, memory allocation in shim/ fails (the linker redirects its calls here). */
static bool no_memory;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
	return no_memory ? NULL : __real_malloc(size);
}

static _Atomic uint32_t pushes;
static CUresult push_no_green(CUcontext ctx)
{
	CHECK(ctx != CONTEXT_G && ctx != CONTEXT_G2);
	pushes++;
	return fake_push(ctx);
}

static uint32_t retains, releases;
static CUresult counted_retain(CUcontext *ctx, CUdevice device)
{
	retains++;
	return fake_retain(ctx, device);
}
static CUresult counted_release(CUdevice device)
{
	releases++;
	return fake_release(device);
}
static CUresult no_retain(CUcontext *ctx, CUdevice device)
{
	driver_entered();
	retains++;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void start(void)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuCtxPushCurrent_v2 = push_no_green;
	cl_driver.cuDevicePrimaryCtxRetain = counted_retain;
	cl_driver.cuDevicePrimaryCtxRelease_v2 = counted_release;
}

static void make(CUgreenCtx green, CUcontext ctx)
{
	cl_green_created(green, 0);
	cl_green_converted(ctx, green);
}

/* As the hook calls it. */
static void destroy(CUgreenCtx green)
{
	struct cl_green_end end = cl_green_end_begin(green);

	CHECK_EQUAL(end.device, 0);
	if (cl_sharing())
		context_ends(NULL, 0);
	if (cl_sharing())
		context_ended(NULL, 0, false);
	cl_green_end_done(&end, true);
}

static void make_current(CUcontext ctx)
{
	fake_stack[fake_depth] = ctx;
}

static void current_is(CUcontext wanted, bool wanted_primary)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	for (int i = 0; i < 2; i++) { /* once as asked, once from the cache */
		CHECK_EQUAL(known_current(&ctx, &device, &primary), wanted != NULL);
		CHECK(ctx == wanted);
		CHECK_EQUAL(primary, wanted_primary);
	}
}

static struct cl_block *block_of(CUevent event)
{
	struct cl_block *block;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(&cl_exporter.blocks, CL_EVENT, (uint64_t)(uintptr_t)event);
	cl_unlock(&cl_exports_lock);
	return block;
}

IN_A_CHILD(a_green_context_is_its_primary_one)
{
	start();
	make(GREEN, CONTEXT_G);
	make(GREEN_2, CONTEXT_G2);
	/* what was retained for the query is released, and no further query is needed */
	CHECK(retains == 2 && releases == 2);
	CHECK(cl_self_start());
	make_current(CONTEXT_G2);
	current_is(CONTEXT_A, true);
	make_current(CONTEXT_G);
	current_is(CONTEXT_A, true);
	CHECK_EQUAL(retains, 2);
	make_current(CONTEXT_B);
	current_is(CONTEXT_B, false);
	/* one ends, the other stays; also one whose end failed */
	destroy(GREEN);
	make_current(CONTEXT_G2);
	current_is(CONTEXT_A, true);
	cl_green_end_done(&(struct cl_green_end){ .green = GREEN_2, .number = 2 }, false);
	current_is(CONTEXT_A, true);
	destroy(GREEN_2);
	CHECK(!greens.n && !cl_green_known);
}

static CUresult convert(CUcontext *ctx, CUgreenCtx green)
{
	driver_entered();
	*ctx = green == GREEN ? CONTEXT_G : CONTEXT_G2;
	return CUDA_SUCCESS;
}
/* The program got its CUcontext from a stream (cuStreamGetCtx), not from cuCtxFromGreenCtx(). */
IN_A_CHILD(a_green_context_is_known_that_was_never_converted)
{
	start();
	CHECK(cl_self_start());
	make_current(CONTEXT_G);
	current_is(CONTEXT_G, false);
	cl_driver.cuCtxFromGreenCtx = convert;
	cl_green_created(GREEN, 0);
	cl_green_created(GREEN_2, 0);
	current_is(CONTEXT_A, true);
	make_current(CONTEXT_G2);
	current_is(CONTEXT_A, true);
	cl_green_converted(CONTEXT_G2, GREEN_2);
	CHECK_EQUAL(cl_green_known, 2);
	destroy(GREEN);
	current_is(CONTEXT_A, true);
	destroy(GREEN_2);
	CHECK(!greens.n && !cl_green_known);
	current_is(CONTEXT_G2, false);
}

static CUresult id_of(CUcontext ctx, unsigned long long *id)
{
	driver_entered();
	*id = (uintptr_t)ctx;
	return CUDA_SUCCESS;
}
/* What a thread remembers of a handle ends with its green context, and does not apply to the next one. */
IN_A_CHILD(the_handle_of_one_may_be_anothers_before_and_after)
{
	start();
	cl_driver.cuCtxGetId = id_of; /* otherwise nothing is known during an end */
	CHECK(cl_self_start());
	make_current(CONTEXT_G);
	current_is(CONTEXT_G, false);
	for (int round = 0; round < 3; round++) {
		struct cl_green_end end;

		/* the last one ended without culimbo's knowledge */
		make(GREEN, CONTEXT_G);
		current_is(CONTEXT_A, true);
		/* a thread asks during the driver's call, and the primary context lives on */
		end = cl_green_end_begin(GREEN);
		context_ends(NULL, 0);
		current_is(CONTEXT_A, true);
		context_ended(NULL, 0, false);
		current_is(CONTEXT_A, true);
		if (round == 1) /* another context gets the handles before the end is recorded */
			make(GREEN, CONTEXT_G);
		cl_green_end_done(&end, true);
		current_is(round == 1 ? CONTEXT_A : CONTEXT_G, round == 1);
		if (round == 1)
			destroy(GREEN);
		current_is(CONTEXT_G, false);
	}
	CHECK(!greens.n && !cl_green_known);
}

/* Converted to a CUcontext more than once; another gets its handle after an end that was not seen. */
IN_A_CHILD(each_handle_is_noted_once)
{
	CUcontext none = NULL;

	start();
	make(GREEN, CONTEXT_G);
	cl_green_converted(CONTEXT_G, GREEN);
	CHECK_EQUAL(cl_green_known, 1);
	cl_green_converted(CONTEXT_G2, GREEN); /* no known driver does so */
	cl_green_converted(CONTEXT_G, GREEN);
	cl_green_converted(CONTEXT_G2, GREEN);
	CHECK_EQUAL(cl_green_known, 2);
	CHECK(cl_self_start());
	for (int i = 0; i < 2; i++) {
		make_current(i ? CONTEXT_G2 : CONTEXT_G);
		current_is(CONTEXT_A, true);
	}
	make(GREEN_2, CONTEXT_G2);
	CHECK_EQUAL(cl_green_known, 2);
	make(GREEN, CONTEXT_G);
	CHECK_EQUAL(cl_green_known, 2);
	destroy(GREEN);
	destroy(GREEN_2);
	CHECK(!greens.n && !cl_green_known);
	/* its end was not seen, and another green context with its handle converts to another CUcontext */
	make(GREEN, CONTEXT_G);
	make(GREEN, CONTEXT_G2);
	CHECK_EQUAL(cl_green_known, 1);
	make_current(CONTEXT_G);
	current_is(CONTEXT_G, false);
	/* no current context: that is not a green context that was not converted */
	cl_green_created(GREEN_2, 0);
	CHECK(!cl_green_resolve(&none) && !none);
}

/* @shares: the process shares before the event is created. */
static void event_of_a_green_context(bool shares, bool ends)
{
	CUipcEventHandle handle;
	CUevent event;

	start();
	make(GREEN, CONTEXT_G);
	if (shares)
		CHECK(cl_self_start());
	make_current(CONTEXT_G);
	event = fake_event();
	cl_shareable_event_created(event);
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	make_current(CONTEXT_B);
	destroy(GREEN);
	CHECK_EQUAL(retains, 1); /* by its making */
	CHECK(cl_block_context(block_of(event))->handle == CONTEXT_A && cl_block_context(block_of(event))->primary);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(fake.destroyed_n, 0); /* it waits out the grace */
	if (ends) {
		context_ends(NULL, 0);
		context_ended(NULL, 0, true);
		CHECK(!block_of(event));
	}
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, !ends);
	CHECK(!block_of(event));
	CHECK(fake.destroyed_n == !ends && pushes == !ends);
}
IN_A_CHILD(an_event_of_one_is_destroyed_in_the_primary_one)
{
	event_of_a_green_context(true, false);
}
IN_A_CHILD(so_is_one_that_was_made_before_the_process_shared)
{
	event_of_a_green_context(false, false);
}
IN_A_CHILD(an_event_of_one_goes_with_the_primary_one)
{
	event_of_a_green_context(true, true);
}
IN_A_CHILD(so_does_one_that_was_made_before_the_process_shared)
{
	event_of_a_green_context(false, true);
}

/* Whatever a driver says about the contexts of a block and a stream. */
static CUresult stream_of_green(CUstream stream, CUcontext *ctx)
{
	driver_entered();
	*ctx = CONTEXT_G;
	return CUDA_SUCCESS;
}
static void block_of_a_green_context(CUcontext current, bool async)
{
	CUdeviceptr p;

	start();
	make(GREEN, CONTEXT_G);
	cl_driver.cuStreamGetCtx = stream_of_green;
	p = fake_alloc(1024, CONTEXT_G);
	make_current(current);
	export_block(p);
	cl_driver.cuStreamGetCtx_ptsz = stream_of_green;
	cl_driver.cuMemFreeAsync = NULL; /* its stream would be of A, the fake driver's block is not */
	if (async)
		CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, true), CUDA_SUCCESS);
	else
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	if (async)
		CHECK_EQUAL(pushes, current == CONTEXT_B);
	else
		CHECK_EQUAL(fake.sync_ctx == CONTEXT_A, true);
	make_current(CONTEXT_B);
	destroy(GREEN);
	cl_limbo_collect(&cl_exporter, true);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
}
IN_A_CHILD(a_block_of_one_is_freed_in_the_primary_one)
{
	block_of_a_green_context(CONTEXT_G, false);
}
IN_A_CHILD(a_block_is_freed_in_the_order_of_a_stream_of_one)
{
	block_of_a_green_context(CONTEXT_B, true);
}
/* its event is made in what is current: a default stream is that one's */
IN_A_CHILD(a_block_is_freed_in_the_order_of_a_stream_of_one_from_the_primary_one)
{
	block_of_a_green_context(CONTEXT_A, true);
}
IN_A_CHILD(a_block_is_freed_in_the_order_of_a_stream_of_the_current_one)
{
	block_of_a_green_context(CONTEXT_G, true);
}

/* The driver did not say which context is the primary one; it is asked when that matters. */
IN_A_CHILD(which_is_the_primary_one_is_asked_for_later)
{
	CUipcEventHandle handle;
	CUevent event;

	start();
	cl_driver.cuDevicePrimaryCtxRetain = no_retain;
	make(GREEN, CONTEXT_G);
	make_current(CONTEXT_G);
	/* a process that does not share does not ask: then the event's context is not known */
	event = fake_event();
	cl_shareable_event_created(event);
	CHECK_EQUAL(retains, 1); /* by its making */
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	CHECK(cl_block_context(block_of(event)) == &cl_context_unknown);
	current_is(NULL, false);
	cl_driver.cuDevicePrimaryCtxRetain = counted_retain;
	retains = 0;
	current_is(CONTEXT_A, true);
	CHECK(retains && retains == releases);
}

/* No memory to record a green context: from then on any context but a primary one may be green. */
IN_A_CHILD(what_may_be_a_green_context_is_not_noted)
{
	CUipcEventHandle handle;
	CUevent event;
	CUdeviceptr p;

	start();
	cl_green_created(GREEN, 0);
	no_memory = true;
	cl_green_created(GREEN_2, 0);
	no_memory = false;
	cl_green_converted(CONTEXT_G, GREEN);
	no_memory = true;
	cl_green_converted(CONTEXT_G2, GREEN_2);
	no_memory = false;
	CHECK_EQUAL(cl_green_end_begin(GREEN_2).device, -1);
	make_current(CONTEXT_G2);
	event = fake_event();
	cl_shareable_event_created(event);
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	CHECK(cl_block_context(block_of(event)) == &cl_context_unknown);
	current_is(NULL, false);
	p = fake_alloc(1024, CONTEXT_G2);
	export_block(p);
	make_current(CONTEXT_B);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	/* known ones stay known */
	make_current(CONTEXT_G);
	current_is(CONTEXT_A, true);
	make_current(CONTEXT_A);
	current_is(CONTEXT_A, true);
}

/* -------------------------------------------------------------------- children */
/* Forked while another thread had the lock, by a process that does not share: the child does not wait for it. */
IN_A_CHILD(a_forked_child_does_not_wait_for_its_parents_threads)
{
	struct cl_green_end end;

	start();
	make(GREEN, CONTEXT_G);
	cl_lock(&lock);
	end = cl_green_end_begin(GREEN);
	CHECK_EQUAL(end.device, -1);
}

/* A child of a process that shares starts anew, without its parent's contexts. */
static void has_no_greens(void)
{
	CHECK(!greens.n && !cl_green_known);
	make(GREEN, CONTEXT_G);
	CHECK_EQUAL(cl_green_known, 1);
}
IN_A_CHILD(a_forked_child_has_no_greens)
{
	start();
	CHECK(cl_self_start());
	make(GREEN, CONTEXT_G);
	in_a_child(has_no_greens);
	cl_lock(&lock); /* as if another thread had it */
	in_a_child(has_no_greens);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_green_context_is_its_primary_one),
		cmocka_unit_test(a_green_context_is_known_that_was_never_converted),
		cmocka_unit_test(the_handle_of_one_may_be_anothers_before_and_after),
		cmocka_unit_test(each_handle_is_noted_once),
		cmocka_unit_test(an_event_of_one_is_destroyed_in_the_primary_one),
		cmocka_unit_test(so_is_one_that_was_made_before_the_process_shared),
		cmocka_unit_test(an_event_of_one_goes_with_the_primary_one),
		cmocka_unit_test(so_does_one_that_was_made_before_the_process_shared),
		cmocka_unit_test(a_block_of_one_is_freed_in_the_primary_one),
		cmocka_unit_test(a_block_is_freed_in_the_order_of_a_stream_of_one),
		cmocka_unit_test(a_block_is_freed_in_the_order_of_a_stream_of_one_from_the_primary_one),
		cmocka_unit_test(a_block_is_freed_in_the_order_of_a_stream_of_the_current_one),
		cmocka_unit_test(which_is_the_primary_one_is_asked_for_later),
		cmocka_unit_test(what_may_be_a_green_context_is_not_noted),
		cmocka_unit_test(a_forked_child_does_not_wait_for_its_parents_threads),
		cmocka_unit_test(a_forked_child_has_no_greens),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fences: a block with a stream-ordered free waits for its stream and for no other, whatever the
 * streams' handles are.
 *
 * The fake driver gets streams here.  It tells them apart as the real driver does, counts the work of each,
 * and completes as much as the test says.
 */
#include "tests/unit/child.h"
#include "tests/unit/fake_driver.h"

#include <sys/wait.h>

#include "shim/limbo/fence.h"

static bool no_memory;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
	return no_memory ? NULL : __real_malloc(size);
}

/* ------------------------------------------------------------------ the streams */
enum { STREAMS = 600, MARKS = 3000 };
#define ALL UINT32_MAX
#define SOON 10000 /* ms */

struct stream {
	CUcontext ctx;
	CUstream handle; /* as normalised by number_of() */
	pthread_t thread;
	unsigned long long id;
	uint32_t put, got; /* got: how much of that it has completed */
	uint32_t asked;
};
static struct stream stream[STREAMS];
static unsigned int streams_n;
static unsigned long long ids;
/* For each recorded event: its stream, and its number on that stream. */
static struct {
	_Atomic bool live;
	unsigned int on;
	uint32_t as;
	CUcontext ctx;
} mark[MARKS];
static unsigned int marks_n, marks_live, queries;

static struct stream *find_stream(CUstream handle, bool per_thread)
{
	CUcontext ctx = fake_stack[fake_depth];
	struct stream *s;

	if (!handle)
		handle = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	/* the newest stream with that handle: an older one was destroyed */
	for (s = stream + streams_n; s-- > stream;)
		if (s->handle == handle && (handle > CU_STREAM_PER_THREAD || s->ctx == ctx) &&
		    (handle != CU_STREAM_PER_THREAD || pthread_equal(s->thread, pthread_self())))
			return s;
	CHECK(streams_n < STREAMS);
	s = &stream[streams_n++];
	*s = (struct stream){ ctx, handle, pthread_self(), ++ids, 0, ALL, 0 };
	return s;
}
/* A new stream with that handle in the current context; it completes all its work, or none. */
static struct stream *new_stream(CUstream handle, bool busy)
{
	struct stream *s = &stream[streams_n++];

	CHECK(streams_n < STREAMS);
	*s = (struct stream){ fake_stack[fake_depth], handle, pthread_self(), ++ids, 0, busy ? 0 : ALL, 0 };
	return s;
}

static CUresult create(CUevent *event, unsigned int flags)
{
	driver_entered();
	CHECK(marks_n < MARKS);
	mark[marks_n].live = true;
	mark[marks_n].ctx = fake_stack[fake_depth];
	marks_live++;
	*event = (CUevent)(uintptr_t)(0x1000 + 16 * marks_n++);
	return CUDA_SUCCESS;
}
static unsigned int number(CUevent event)
{
	unsigned int n = (unsigned int)(((uintptr_t)event - 0x1000) / 16);

	CHECK(n < marks_n && mark[n].live);
	CHECK(mark[n].ctx != CONTEXT_A || !fake.dead_a);
	CHECK(mark[n].ctx != CONTEXT_B || !fake.dead_b);
	return n;
}
static CUresult destroy(CUevent event)
{
	driver_entered();
	mark[number(event)].live = false;
	marks_live--;
	return CUDA_SUCCESS;
}
static CUresult record_on(CUevent event, struct stream *s)
{
	driver_entered();
	CHECK(mark[number(event)].ctx == s->ctx);
	mark[number(event)].on = (unsigned int)(s - stream);
	mark[number(event)].as = ++s->put;
	return CUDA_SUCCESS;
}
static CUresult record(CUevent event, CUstream handle)
{
	return record_on(event, find_stream(handle, false));
}
static CUresult record_ptsz(CUevent event, CUstream handle)
{
	return record_on(event, find_stream(handle, true));
}
static _Atomic int stalled; /* the stream's number; a query about it waits */
static _Atomic bool in_stall;
static CUresult query(CUevent event)
{
	unsigned int n = number(event);
	struct stream *s = &stream[mark[n].on];

	driver_entered();
	CHECK(fake_stack[fake_depth] == mark[n].ctx);
	queries++;
	s->asked++;
	if (stalled == (int)mark[n].on) {
		in_stall = true;
		CHECK(COMES_TRUE(stalled < 0, 20000));
	}
	return mark[n].as <= s->got ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
static CUresult context_of(CUstream handle, CUcontext *ctx)
{
	driver_entered();
	*ctx = handle <= CU_STREAM_PER_THREAD ? fake_stack[fake_depth] : find_stream(handle, false)->ctx;
	return CUDA_SUCCESS;
}
static CUresult id_of(CUstream handle, unsigned long long *id)
{
	driver_entered();
	*id = find_stream(handle, false)->id;
	return CUDA_SUCCESS;
}

static void start_with_streams(void)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.grace_bytes.number = BLOCKS * DEVICE_STEP; /* each block keeps a page */
	stalled = -1;
	cl_driver.cuEventCreate = create;
	cl_driver.cuEventDestroy_v2 = destroy;
	cl_driver.cuEventRecord = record;
	cl_driver.cuEventRecord_ptsz = record_ptsz;
	cl_driver.cuEventQuery = query;
	cl_driver.cuStreamGetCtx = cl_driver.cuStreamGetCtx_ptsz = context_of;
	cl_driver.cuStreamGetId = id_of;
}

/* A shared block with a free on a stream. */
static CUdeviceptr freed_in(CUcontext ctx, CUstream handle, bool per_thread)
{
	CUdeviceptr p = fake_alloc(1024, ctx);

	export_block(p);
	CHECK_EQUAL(cl_memory_free_async(p, handle, per_thread), CUDA_SUCCESS);
	return p;
}
static CUdeviceptr freed_on(CUstream handle)
{
	return freed_in(CONTEXT_A, handle, false);
}
/* As for a thread that is short of memory; it notices what is released meanwhile. */
static void collect(void)
{
	cl_limbo_collect(&cl_exporter, true);
}

#define HANDLE(n) ((CUstream)(uintptr_t)(0x5000 + 16 * (uintptr_t)(n)))

/* ------------------------------------------------------------- no other stream */
static void many_streams(bool have_ids)
{
	enum { IDLE = 500 };
	CUdeviceptr waits, p[IDLE];
	struct stream *busy;

	start_with_streams();
	if (!have_ids)
		cl_driver.cuStreamGetId = NULL;
	busy = new_stream(HANDLE(0), true);
	waits = freed_on(HANDLE(0));
	for (int i = 0; i < IDLE; i++)
		p[i] = freed_on(HANDLE(i + 1));
	collect();
	for (int i = 0; i < IDLE; i++)
		CHECK_EQUAL(frees_of(p[i]), 1);
	CHECK_EQUAL(frees_of(waits), 0);
	CHECK_EQUAL(busy->asked, 1);
	busy->got = ALL;
	collect();
	CHECK_EQUAL(frees_of(waits), 1);
	CHECK_EQUAL(marks_live, 0);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
}
IN_A_CHILD(no_stream_waits_for_another)
{
	many_streams(true);
}
IN_A_CHILD(no_stream_waits_for_another_where_the_driver_gives_them_no_ids)
{
	many_streams(false);
}

/* Streams of two devices; the same holds for two contexts of one device. */
static void contexts_default_streams(bool per_thread)
{
	CUdeviceptr waits, p;
	struct stream *busy;

	start_with_streams();
	busy = find_stream(NULL, per_thread);
	busy->got = 0;
	waits = freed_in(CONTEXT_A, NULL, per_thread);
	fake.block_device = 1;
	fake.device = 1;
	fake_stack[0] = CONTEXT_B;
	p = freed_in(CONTEXT_B, NULL, per_thread);
	collect();
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(frees_of(waits), 0);
	busy->got = ALL;
	collect();
	CHECK_EQUAL(frees_of(waits), 1);
}
IN_A_CHILD(the_default_streams_of_two_devices_are_two)
{
	contexts_default_streams(false);
}
IN_A_CHILD(the_per_thread_default_streams_of_two_devices_are_two)
{
	contexts_default_streams(true);
}

static CUdeviceptr beside[2];
static void *frees_beside(void *unused)
{
	/* both names of this thread's own stream */
	beside[0] = freed_in(CONTEXT_A, NULL, true);
	beside[1] = freed_in(CONTEXT_A, CU_STREAM_PER_THREAD, false);
	return unused;
}
IN_A_CHILD(a_per_thread_default_stream_is_of_its_thread_and_not_the_legacy_one)
{
	CUdeviceptr legacy[3], own[2];
	struct stream *busy[2];
	pthread_t thread;

	start_with_streams();
	busy[0] = find_stream(NULL, true);
	busy[1] = find_stream(NULL, false);
	busy[0]->got = busy[1]->got = 0;
	own[0] = freed_in(CONTEXT_A, NULL, true);
	own[1] = freed_in(CONTEXT_A, CU_STREAM_PER_THREAD, true);
	legacy[0] = freed_on(NULL);
	legacy[1] = freed_on(CU_STREAM_LEGACY);
	legacy[2] = freed_in(CONTEXT_A, CU_STREAM_LEGACY, true);
	/* The same number again, one after the other: the next thread gets the id of an ended one. */
	for (int i = 0; i < 3; i++) {
		CHECK(!pthread_create(&thread, NULL, frees_beside, NULL) && !pthread_join(thread, NULL));
		collect();
		CHECK_EQUAL(frees_of(beside[0]) + frees_of(beside[1]), 2);
	}
	/* two lists, for five blocks */
	queries = 0;
	collect();
	CHECK_EQUAL(queries, 2);
	CHECK_EQUAL(frees_of(own[0]) + frees_of(own[1]), 0);
	busy[0]->got = ALL;
	collect();
	CHECK_EQUAL(frees_of(own[0]) + frees_of(own[1]), 2);
	CHECK_EQUAL(frees_of(legacy[0]) + frees_of(legacy[1]) + frees_of(legacy[2]), 0);
	busy[1]->got = ALL;
	collect();
	CHECK_EQUAL(frees_of(legacy[0]) + frees_of(legacy[1]) + frees_of(legacy[2]), 3);
	CHECK_EQUAL(marks_live, 0);
}

/* A stream is destroyed with pending work, and another gets its handle. */
static void handle_is_given_again(bool has_ids)
{
	struct stream *old;
	CUdeviceptr waits, p;

	start_with_streams();
	if (!has_ids)
		cl_driver.cuStreamGetId = NULL;
	old = new_stream(HANDLE(1), true);
	waits = freed_on(HANDLE(1));
	new_stream(HANDLE(1), false);
	p = freed_on(HANDLE(1));
	collect();
	CHECK_EQUAL(frees_of(waits), 0);
	/* before CUDA 12.0 they cannot be told apart: then the block waits, which is safe */
	CHECK_EQUAL(frees_of(p), has_ids);
	old->got = ALL;
	collect();
	CHECK_EQUAL(frees_of(waits), 1);
	CHECK_EQUAL(frees_of(p), 1);
}
IN_A_CHILD(a_stream_that_has_the_handle_of_a_destroyed_one_does_not_wait_for_it)
{
	handle_is_given_again(true);
}
IN_A_CHILD(streams_of_one_handle_that_can_not_be_told_apart_wait_in_order)
{
	handle_is_given_again(false);
}

static void *collects(void *unused)
{
	collect();
	return unused;
}
IN_A_CHILD(while_a_thread_asks_about_a_stream_others_ask_about_the_rest)
{
	CUdeviceptr waits, more, p;
	struct stream *busy;
	pthread_t thread;

	start_with_streams();
	busy = new_stream(HANDLE(1), true);
	waits = freed_on(HANDLE(1));
	stalled = (int)(busy - stream);
	CHECK(!pthread_create(&thread, NULL, collects, NULL));
	CHECK(COMES_TRUE(in_stall, SOON));
	p = freed_on(HANDLE(2));
	more = freed_on(HANDLE(1));
	collect();
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(busy->asked, 1);
	/* the program learns at once what it has freed */
	CHECK_EQUAL(cl_memory_free(waits), CUDA_ERROR_INVALID_VALUE);
	busy->got = ALL;
	stalled = -1;
	CHECK(!pthread_join(thread, NULL));
	collect();
	CHECK_EQUAL(frees_of(waits) + frees_of(more), 2);
	CHECK_EQUAL(marks_live, 0);
}

/* ------------------------------------------------------ which fences are queried */
IN_A_CHILD(of_a_stream_only_the_first_fence_is_asked_about)
{
	enum { FREES = 1000 };
	CUdeviceptr p[FREES];
	struct stream *busy, *graced;
	CUdeviceptr in_grace;

	start_with_streams();
	busy = new_stream(HANDLE(1), true);
	graced = new_stream(HANDLE(2), true);
	for (int i = 0; i < FREES; i++)
		p[i] = freed_on(HANDLE(1));
	collect();
	/* nothing is queried for a block in its grace period, however often other blocks are collected */
	in_grace = freed_on(HANDLE(2));
	busy->asked = 0;
	for (int i = 0; i < 10; i++)
		cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(busy->asked, 10);
	CHECK_EQUAL(graced->asked, 0);
	CHECK_EQUAL(frees_of(in_grace), 0);
	/* each fence once, up to the first that is not reached */
	busy->got = FREES / 2;
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(busy->asked, 10 + FREES / 2 + 1);
	for (int i = 0; i < FREES; i++)
		CHECK_EQUAL(frees_of(p[i]), i < FREES / 2);
	busy->got = ALL;
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(busy->asked, 10 + FREES + 1);
	CHECK_EQUAL(frees_of(p[FREES - 1]), 1);
	graced->got = ALL;
	collect();
	CHECK_EQUAL(frees_of(in_grace), 1);
	CHECK_EQUAL(marks_live, 0);
}

/* The block freed first is released when its stream has reached that free, not only after a later free. */
IN_A_CHILD(the_order_is_that_of_the_frees)
{
	CUdeviceptr first, second, own;
	CUipcMemHandle handle;
	struct stream *busy;

	start_with_streams();
	busy = new_stream(HANDLE(1), true);
	first = fake_alloc(1024, CONTEXT_A);
	handle = export_block(first);
	CHECK_EQUAL(cl_memory_import(&own, handle, 0, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free_async(first, HANDLE(1), false), CUDA_SUCCESS);
	/* the second block waits for its stream before the first does */
	second = freed_on(HANDLE(1));
	collect();
	CHECK_EQUAL(cl_memory_close(first), CUDA_SUCCESS);
	busy->got = 1;
	collect();
	CHECK_EQUAL(frees_of(first), 1);
	CHECK_EQUAL(frees_of(second), 0);
	busy->got = 2;
	collect();
	CHECK_EQUAL(frees_of(second), 1);
}

/* ------------------------------------------------------ contexts, memory, fork */
/* The list of a stream is in the memory of its first fence, which ends before the list does. */
IN_A_CHILD(a_list_outlives_its_first_fence)
{
	CUdeviceptr first, second;
	struct stream *busy;

	start_with_streams();
	fake_stack[0] = CONTEXT_B;
	busy = new_stream(HANDLE(1), true);
	fake_stack[0] = CONTEXT_A;
	first = freed_in(CONTEXT_A, HANDLE(1), false);
	second = freed_in(CONTEXT_B, HANDLE(1), false);
	collect();
	CHECK_EQUAL(marks_live, 2);
	context_ends(CONTEXT_A, 0);
	context_ended(CONTEXT_A, 0, true);
	fake.dead_a = true;
	fake_stack[0] = CONTEXT_B;
	collect();
	CHECK_EQUAL(frees_of(first) + frees_of(second), 0);
	CHECK_EQUAL(marks_live, 1); /* nothing needs it */
	freed_in(CONTEXT_B, HANDLE(1), false);
	collect();
	busy->got = 2;
	collect();
	CHECK_EQUAL(frees_of(second), 1);
	CHECK_EQUAL(marks_live, 1);
	context_ends(CONTEXT_B, 0);
	context_ended(CONTEXT_B, 0, true);
	fake.dead_b = true;
	collect();
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
}

static struct {
	CUcontext ctx; /* ends while an event is recorded */
	CUresult result;
} amid = { .ctx = CONTEXT_A };
static CUresult record_and_end(CUevent event, CUstream handle)
{
	record(event, handle);
	context_ends(amid.ctx, 0);
	context_ended(amid.ctx, 0, true);
	*(amid.ctx == CONTEXT_A ? &fake.dead_a : &fake.dead_b) = true;
	return amid.result;
}
IN_A_CHILD(a_fence_whose_context_ends_while_it_is_made_goes_with_it)
{
	start_with_streams();
	cl_driver.cuEventRecord = record_and_end;
	freed_on(HANDLE(1));
	fake_stack[0] = CONTEXT_B;
	collect();
	CHECK_EQUAL(queries, 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 0);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
}

IN_A_CHILD(an_event_whose_context_ends_while_it_is_recorded_is_not_destroyed)
{
	CUdeviceptr p;

	start_with_streams();
	cl_driver.cuEventRecord = record_and_end;
	amid.result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	p = fake_alloc(1024, CONTEXT_A);
	export_block(p);
	CHECK_EQUAL(cl_memory_free_async(p, HANDLE(1), false), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK_EQUAL(marks_live, 1);
	CHECK(!cl_block_find(&cl_exporter.blocks, CL_MEMORY, p));
}

/* For a stream of another, ended context the block waits no longer. */
IN_A_CHILD(a_block_does_not_wait_for_a_stream_that_went_with_its_context)
{
	CUdeviceptr p;

	start_with_streams();
	fake_stack[0] = CONTEXT_B;
	new_stream(HANDLE(1), true);
	fake_stack[0] = CONTEXT_A;
	cl_driver.cuEventRecord = record_and_end;
	amid.ctx = CONTEXT_B;
	p = freed_on(HANDLE(1));
	cl_driver.cuEventRecord = record;
	collect();
	CHECK_EQUAL(queries, 0);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
}

/* Fences of a context that may be ending are not queried; those of other contexts are. */
IN_A_CHILD(the_streams_of_a_context_that_ends_are_passed_over)
{
	CUdeviceptr waits, p;

	start_with_streams();
	waits = freed_on(NULL);
	fake_stack[0] = CONTEXT_B;
	p = freed_in(CONTEXT_B, NULL, false);
	fake_stack[0] = CONTEXT_A;
	context_ends(CONTEXT_A, 0);
	collect();
	CHECK_EQUAL(queries, 1);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(frees_of(waits), 0);
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).next, UINT64_MAX);
	context_ended(CONTEXT_A, 0, false);
	collect();
	CHECK_EQUAL(frees_of(waits), 1);
	CHECK_EQUAL(marks_live, 0);
}

IN_A_CHILD(without_memory_for_a_fence_the_block_is_kept)
{
	CUdeviceptr p, q;

	start_with_streams();
	p = exported_block();
	no_memory = true;
	CHECK_EQUAL(cl_memory_free_async(p, HANDLE(1), false), CUDA_SUCCESS);
	no_memory = false;
	CHECK_EQUAL(marks_live, 0);
	CHECK_EQUAL(logged("no host memory for the fence of a stream-ordered free"), 1);
	q = freed_on(HANDLE(1));
	collect();
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(frees_of(q), 1);
}

IN_A_CHILD(a_forked_child_has_none_of_its_parents_fences)
{
	CUdeviceptr waits, p;
	struct stream *busy;
	pid_t child;
	int status;

	start_with_streams();
	busy = new_stream(HANDLE(1), true);
	waits = freed_on(HANDLE(1));
	collect();
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		busy->got = ALL;
		queries = 0;
		p = freed_on(HANDLE(1));
		collect();
		_exit(frees_of(p) == 1 && frees_of(waits) == 0 && queries == 1 ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	busy->got = ALL;
	collect();
	CHECK_EQUAL(frees_of(waits), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_stream_waits_for_another),
		cmocka_unit_test(no_stream_waits_for_another_where_the_driver_gives_them_no_ids),
		cmocka_unit_test(the_default_streams_of_two_devices_are_two),
		cmocka_unit_test(the_per_thread_default_streams_of_two_devices_are_two),
		cmocka_unit_test(a_per_thread_default_stream_is_of_its_thread_and_not_the_legacy_one),
		cmocka_unit_test(a_stream_that_has_the_handle_of_a_destroyed_one_does_not_wait_for_it),
		cmocka_unit_test(streams_of_one_handle_that_can_not_be_told_apart_wait_in_order),
		cmocka_unit_test(while_a_thread_asks_about_a_stream_others_ask_about_the_rest),
		cmocka_unit_test(of_a_stream_only_the_first_fence_is_asked_about),
		cmocka_unit_test(the_order_is_that_of_the_frees),
		cmocka_unit_test(a_list_outlives_its_first_fence),
		cmocka_unit_test(a_fence_whose_context_ends_while_it_is_made_goes_with_it),
		cmocka_unit_test(an_event_whose_context_ends_while_it_is_recorded_is_not_destroyed),
		cmocka_unit_test(a_block_does_not_wait_for_a_stream_that_went_with_its_context),
		cmocka_unit_test(the_streams_of_a_context_that_ends_are_passed_over),
		cmocka_unit_test(without_memory_for_a_fence_the_block_is_kept),
		cmocka_unit_test(a_forked_child_has_none_of_its_parents_fences),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

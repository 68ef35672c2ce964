/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by several tests of the limbo (test_limbo_*.c): queries about a block, the
 * end of a context, threads that wait in the middle of a call, events, and
 * calls that fail for lack of memory or of events.
 *
 * Each test is a process that has shared nothing yet.  Importers are separate
 * processes (other.h).  The driver is a fake one that counts calls (fake_driver.h), so the
 * time of each free is known and no wait is needless.
 */
#ifndef CL_TEST_LIMBO_H
#define CL_TEST_LIMBO_H

#include "tests/unit/other.h"

/*
 * A grace period that a test waits for; a test that asserts "not over yet" must get there within it.
 * Where no test waits for it, HOUR is used.
 */
#define GRACE (250 * MS)

static inline unsigned int tasks(void)
{
	return count_entries("/proc/self/task");
}
#ifdef __SANITIZE_THREAD__ /* ThreadSanitizer has threads of its own, some of which come and go */
#define TASKS(n) tasks()
#else
#define TASKS(n) (n)
#endif
#define CHECK_TASKS(n) CHECK_EQUAL(tasks(), TASKS(n))

static inline bool freed_soon(CUdeviceptr p)
{
	return COMES_TRUE(frees_of(p) == 1, SOON);
}
static inline uint64_t freed_at(CUdeviceptr p)
{
	return atomic_load(&fake_at(p)->freed_at);
}
static inline CUresult open_own(CUdeviceptr *p, CUipcMemHandle handle)
{
	return cl_memory_import(p, handle, 0, fake_open);
}
static inline bool is_known(CUdeviceptr p)
{
	bool known;

	cl_lock(&cl_exports_lock);
	known = cl_block_find(&cl_exporter.blocks, CL_MEMORY, p) != NULL;
	cl_unlock(&cl_exports_lock);
	return known;
}

/* The driver has freed the block without culimbo's knowledge, and allocated another at its address. */
static inline CUresult get_other_handle(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = fake_get_handle(handle, p);

	handle->reserved[55] ^= 1;
	return result;
}

static _Atomic pid_t thread_task;
static _Atomic bool thread_done;

/* Checks that the lists of blocks and fences of a context become empty when these end. */
static inline bool none_belongs_to_a_context(void)
{
	const struct cl_context *context;

	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
		if (context->blocks.n || context->fences.n)
			return false;
	return !cl_context_unknown.blocks.n;
}

/* What the driver does when CONTEXT_A ends. */
static inline void end_blocks_of_a(void)
{
	atomic_store(&fake.dead_a, true);
	for (unsigned int i = 0; i < fake.n; i++)
		if (fake.block[i].ctx == CONTEXT_A)
			atomic_store(&fake.block[i].live, false);
	fake_stack[0] = CONTEXT_B;
}

static inline void end_context_a(bool gone)
{
	context_ends(CONTEXT_A, 0);
	if (gone)
		end_blocks_of_a();
	context_ended(CONTEXT_A, 0, gone);
}

static inline void end_meanwhile(void)
{
	fake.in_sync = NULL;
	end_context_a(true);
}

static inline CUevent exported_event(CUipcEventHandle *handle)
{
	CUipcEventHandle unused;
	CUevent event = fake_event();

	CHECK_EQUAL(cl_event_export(handle ? handle : &unused, event), CUDA_SUCCESS);
	return event;
}

/* At @attempt the driver refuses to create an event; true: try again. */
static inline bool another_event(unsigned int attempt)
{
	struct cl_retry retry;

	cl_retry_begin(&retry, CL_RETRY_EVENT, (struct cl_need){ .bytes = 0 });
	retry.attempt = attempt;
	retry.deadline = cl_now() + cl_options.pressure_wait.number;
	retry.seen = cl_limbo_events_back(&cl_exporter);
	return cl_retry_again(&retry);
}

/* A call fails.  Returns whether to retry it, and after a second failure whether to retry again. */
static __thread struct cl_retry failing;
static inline bool fails(enum cl_retry_want want, struct cl_need what)
{
	cl_retry_end(&failing);
	cl_retry_begin(&failing, want, what);
	return cl_retry_again(&failing);
}
static inline bool fails_again(void)
{
	return cl_retry_again(&failing);
}
#define NO_MEMORY() fails(CL_RETRY_MEMORY, (struct cl_need){ .bytes = 12345, .device = CL_OF_CURRENT })
#define NO_EVENT() fails(CL_RETRY_EVENT, (struct cl_need){ .bytes = 0 })

/* An event whose context is known, as for events that are created through the hook. */
static inline CUevent event_of_context(CUipcEventHandle *handle)
{
	CUipcEventHandle unused;
	CUevent event = fake_event();

	cl_shareable_event_created(event);
	CHECK_EQUAL(cl_event_export(handle ? handle : &unused, event), CUDA_SUCCESS);
	return event;
}

/* A thread that does @what, and waits in the middle of it. */
static inline pthread_t starts_and_waits(void *(*what)(void *))
{
	pthread_t thread;

	atomic_store(&thread_done, false);
	atomic_store(&thread_task, 0);
	CHECK(!pthread_create(&thread, NULL, what, NULL));
	CHECK(COMES_TRUE(atomic_load(&thread_done) || sleeps_in_a_futex(atomic_load(&thread_task)), SOON));
	CHECK(!atomic_load(&thread_done));
	return thread;
}

/* An exported block that @other holds. */
static inline CUevent held_event(struct other *other)
{
	CUipcEventHandle handle;
	CUevent event = event_of_context(&handle);

	CHECK_EQUAL(ask(other, (struct order){ .what = 'e', .event = handle }).result, CUDA_SUCCESS);
	return event;
}

static _Atomic bool stall_destroy, in_destroy;
static inline CUresult destroy_that_stalls(CUevent event)
{
	CUresult result = fake_event_destroy(event);

	atomic_store(&in_destroy, true);
	while (atomic_load(&stall_destroy))
		usleep(100);
	return result;
}
static inline void *collect_beside(void *unused)
{
	cl_limbo_collect(&cl_exporter, true);
	return unused;
}

/* After how many ns the driver is asked again about a fence that has waited for @waited ns. */
static inline uint64_t asks_again_after(uint64_t waited)
{
	return waited < CL_FENCE_FIRST ? CL_FENCE_FIRST : waited > CL_FENCE_LAST ? CL_FENCE_LAST : waited;
}

/*
 * One rule applies to fences of imports and of this process's freed blocks.  @start: a moment before the newest
 * fence began to wait.  What passes since then on a slow machine counts as well.
 */
static inline void check_that_it_asks_less_and_less(uint64_t start)
{
	static const uint64_t turns[] = { 0, 2 * MS, 1000 * MS };
	uint64_t turned = 0;

	for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
		uint64_t before, next, after;

		turn_clock(turns[i]);
		turned += turns[i];
		before = cl_now();
		next = cl_limbo_collect(&cl_exporter, false).next;
		after = cl_now();
		CHECK(next >= before + asks_again_after(turned));
		CHECK(next <= after + asks_again_after(after - start));
	}
}

#endif

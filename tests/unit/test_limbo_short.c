/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: shortage of memory.  First the limbo's unheld blocks are released, then the program's callbacks
 * and the other processes are asked.  Without a file, large blocks are freed at once.
 */
#include "tests/unit/limbo.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include "shim/reclaim/callbacks.h"

/* ------------------------------------------------------- when memory is short */
static unsigned int called, called_inside;
static CUdeviceptr must_be_freed;
static size_t a_callback(size_t bytes, void *data)
{
	struct cl_retry inside;

	called++;
	CHECK_EQUAL(bytes, 12345);
	/* a callback that allocates, and fails, is not called again */
	cl_retry_begin(&inside, CL_RETRY_MEMORY, (struct cl_need){ .bytes = 99 });
	called_inside += cl_retry_again(&inside);
	if (must_be_freed) /* the limbo's blocks come first */
		CHECK_EQUAL(frees_of(must_be_freed), 1);
	return *(size_t *)data;
}
static size_t another_callback(size_t bytes, void *data)
{
	return (size_t)(uintptr_t)data & 0;
}

IN_A_CHILD(callbacks_are_a_bounded_registry)
{
	size_t gives = 7, nothing = 0;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(cl_callbacks_register(NULL, NULL), -EINVAL);
	CHECK_EQUAL(cl_callbacks_unregister(a_callback, &gives), -ENOENT);
	CHECK_EQUAL(NO_MEMORY(), false); /* no process has anything, none shares */
	CHECK_EQUAL(cl_callbacks_register(a_callback, &gives), 0);
	CHECK_EQUAL(cl_callbacks_register(a_callback, &gives), -EEXIST);
	CHECK_EQUAL(cl_callbacks_register(a_callback, &nothing), 0);
	CHECK_EQUAL(NO_MEMORY(), true);
	CHECK_EQUAL(called, 2);
	CHECK_EQUAL(called_inside, 0);
	CHECK_EQUAL(cl_callbacks_unregister(a_callback, &gives), 0);
	CHECK_EQUAL(NO_MEMORY(), false);
	CHECK_EQUAL(called, 3);
	CHECK_EQUAL(cl_callbacks_register(a_callback, &gives), 0);
	for (uintptr_t i = 2; i < CL_CALLBACKS; i++)
		CHECK_EQUAL(cl_callbacks_register(another_callback, (void *)i), 0);
	CHECK_EQUAL(cl_callbacks_register(another_callback, (void *)CL_CALLBACKS), -ENOSPC);
	CHECK_EQUAL(NO_MEMORY(), true);
	/* a callback that claims to free memory, and does not, is not called forever */
	failing.attempt = 1000;
	CHECK_EQUAL(fails_again(), false);
	cl_options.disable.number = 1;
	CHECK_EQUAL(NO_MEMORY(), false);
	CHECK_TASKS(1);
	CHECK_EQUAL(atomic_load(&fake.free_calls), 0);
}

IN_A_CHILD(short_memory_ends_the_grace_of_what_nobody_opened)
{
	struct other other = start_other(0);
	CUdeviceptr held, waits, live;
	size_t nothing = 0;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	held = fake_alloc(1024, CONTEXT_A);
	others_open(&other, export_block(held));
	waits = exported_block();
	live = exported_block();
	CHECK_EQUAL(cl_memory_free(held), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(waits), CUDA_SUCCESS);
	must_be_freed = waits;
	CHECK_EQUAL(cl_callbacks_register(a_callback, &nothing), 0);
	CHECK_EQUAL(NO_MEMORY(), true);
	CHECK_EQUAL(called, 1);
	CHECK_EQUAL(frees_of(waits), 1);
	CHECK_EQUAL(frees_of(held), 0);
	CHECK_EQUAL(frees_of(live), 0);
	CHECK_EQUAL(fails_again(), false);
	/* a dying process frees its memory within the call */
	kill(other.pid, SIGKILL);
	CHECK(COMES_TRUE(fails_again() || frees_of(held), SOON));
	CHECK_EQUAL(frees_of(held), 1);
	CHECK_EQUAL(frees_of(live), 0);
}

IN_A_CHILD(short_memory_asks_the_other_processes)
{
	struct other other = start_other(HOUR);
	struct answer waits, held;
	CUdeviceptr mine;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	waits = ask(&other, (struct order){ .what = 'x' });
	held = ask(&other, (struct order){ .what = 'x' });
	CHECK_EQUAL(open_own(&mine, held.handle), CUDA_SUCCESS); /* an import, from here */
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'f', .a = waits.value }).result, CUDA_SUCCESS);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'f', .a = held.value }).result, CUDA_SUCCESS);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'n', .a = waits.value }).value, 0);
	cl_options.pressure_wait.number = SOON * MS;
	CHECK_EQUAL(NO_MEMORY(), true);
	/* on a slow machine it answers after this attempt: then the call is made again */
	while (!ask(&other, (struct order){ .what = 'n', .a = waits.value }).value)
		CHECK_EQUAL(fails_again(), true);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'n', .a = held.value }).value, 0);
	/* and it may hear once more of what moved meanwhile */
	CHECK(COMES_TRUE(!fails_again(), SOON));
	/* a stopped process is waited for, but not long */
	kill(other.pid, SIGSTOP);
	cl_options.pressure_wait.number = 20 * MS;
	CHECK_EQUAL(fails_again(), false);
	kill(other.pid, SIGCONT);
	CHECK_EQUAL(cl_memory_close(mine), CUDA_SUCCESS);
	CHECK(COMES_TRUE(ask(&other, (struct order){ .what = 'n', .a = held.value }).value == 1, SOON));
}

/* Its mapping is created twice, both times by one thread: see cl_region_create(). */
IN_A_CHILD(a_file_that_another_thread_is_making_is_not_looked_at)
{
	void *not_to_stay = mmap(NULL, CL_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct cl_header *before = cl_own.header;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_own.header = not_to_stay;
	cl_memory_allocates();
	cl_collector_wake(&cl_exporter);
	cl_own.header = before;
}

/* ------------------------------------------------------------- without a file */
IN_A_CHILD(without_a_file_large_blocks_go_at_their_free_and_small_ones_never)
{
	CUipcMemHandle handle;
	CUdeviceptr small, large;

	start_with(0, CL_COLLECTOR_THREAD);
	cl_options.dir.text = "/proc/nowhere/culimbo";
	small = fake_alloc(1024, CONTEXT_A);
	large = fake_alloc(2 * MIB, CONTEXT_A);
	handle = export_block(small);
	CHECK(!cl_handle_stamp(handle.reserved, CL_MEMORY));
	export_block(large);
	CHECK_EQUAL(logged("cannot make this process's exporter file"), 1);
	CHECK_EQUAL(cl_memory_free(small), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(large), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(small), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(frees_of(large), 1);
	CHECK_EQUAL(frees_of(small), 0);
	/* the address is the program's again */
	fake_alloc_again(large, CONTEXT_A);
	CHECK_EQUAL(cl_memory_free(large), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(large), 1);
	CHECK_EQUAL(NO_MEMORY(), false);
	CHECK_EQUAL(frees_of(small), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(callbacks_are_a_bounded_registry),
		cmocka_unit_test(short_memory_ends_the_grace_of_what_nobody_opened),
		cmocka_unit_test(short_memory_asks_the_other_processes),
		cmocka_unit_test(a_file_that_another_thread_is_making_is_not_looked_at),
		cmocka_unit_test(without_a_file_large_blocks_go_at_their_free_and_small_ones_never),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

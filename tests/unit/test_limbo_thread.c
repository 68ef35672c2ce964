/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: the collector's thread.  It starts with the first waiting block and takes no signal.  A forked
 * child starts anew.  No importer keeps the thread busy forever.  Each fault of the limbo is reported once.
 */
#include "tests/unit/limbo.h"

#include <signal.h>
#include "shim/blocks/event_owner.h"
#include "shim/reclaim/callbacks.h"
#include "shim/virtual.h"

/* ------------------------------------------------------------ the thread, fork */
static uint64_t blocked_signals(pid_t task)
{
	char path[64], line[256];
	unsigned long long mask = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)task);
	f = fopen(path, "r");
	CHECK(f);
	while (fgets(line, sizeof line, f) && sscanf(line, "SigBlk: %llx", &mask) != 1)
		;
	fclose(f);
	return mask;
}

static pid_t collector_task(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	pid_t found = 0;

	while ((entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != gettid())
			found = atoi(entry->d_name);
	closedir(dir);
	return found;
}

IN_A_CHILD(the_collector_comes_with_the_first_block_and_takes_no_signal)
{
	char path[64], name[32] = "";
	sigset_t before = { 0 }, after = { 0 };
	uint64_t mask;
	CUdeviceptr p;
	FILE *f;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	p = exported_block();
	CHECK_TASKS(1);
	CHECK_EQUAL(cl_own.header->serving, 0);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_TASKS(2);
	CHECK_EQUAL(cl_own.header->serving, 1);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	CHECK(!memcmp(&before, &after, sizeof before));
	mask = blocked_signals(collector_task());
	for (int s = 1; s <= 64; s++)
		if (s != SIGKILL && s != SIGSTOP && s != 32 && s != 33) /* libc's own */
			CHECK(mask >> (s - 1) & 1);
	snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)collector_task());
	CHECK(COMES_TRUE((f = fopen(path, "r")) && fgets(name, sizeof name, f) && !fclose(f) &&
			 !strcmp(name, "culimbo\n"), SOON));
	for (int i = 0; i < 50; i++)
		CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	CHECK_TASKS(2);
	CHECK(cl_collector_stop(&cl_exporter, 5000 * MS));
	CHECK(COMES_TRUE(tasks() == TASKS(1), SOON)); /* a moment after the join */
	CHECK_EQUAL(cl_own.header->serving, 0);
}

IN_A_CHILD(a_forked_child_starts_anew)
{
	CUdeviceptr p;
	uint32_t file_id;
	pid_t child;

	start_with(4 * GRACE, CL_COLLECTOR_THREAD);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_TASKS(2);
	/*
	 * A thread that just starts may be inside the runtime of AddressSanitizer, whose locks then stay taken
	 * in a forked child: the collector would seem never to start.
	 */
	CHECK(COMES_TRUE(atomic_load(&cl_own.header->sleeping), SOON));
	file_id = cl_own.file_id;
	child = fork();
	if (!child) {
		alarm(CHILD_SECONDS);
		CHECK_TASKS(1);
		CHECK(!cl_sharing());
		CHECK(!cl_own.file_id);
		CHECK(!is_known(p));
		CHECK_EQUAL(cl_limbo_collect(&cl_exporter, true).blocks, 0);
		CHECK_TASKS(1);
		cl_options.grace.number = GRACE;
		p = exported_block();
		CHECK(cl_own.file_id != file_id);
		CHECK_EQUAL(cl_own.header->exporter.pid, getpid());
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		CHECK_TASKS(2);
		CHECK(freed_soon(p));
		_exit(0);
	}
	child_judge(child);
	turn_clock(4 * GRACE);
	wake_sleepers();
	CHECK(freed_soon(p));
}

IN_A_CHILD(too_many_waiting_blocks_are_told_once)
{
	CUdeviceptr p, own;

	start_with(0, CL_COLLECTOR_THREAD);
	cl_options.warn_blocks.number = 5;
	for (int i = 0; i < 12; i++) {
		p = fake_alloc(1024, CONTEXT_A);
		CHECK_EQUAL(open_own(&own, export_block(p)), CUDA_SUCCESS);
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		CHECK_EQUAL(logged("CULIMBO_WARN_BLOCKS"), i >= 5);
	}
}

/* ------------------------------------------------------------------- hostile */
/* An importer that makes record 0 ready again faster than any collection (linked in by --wrap). */
static bool hostile;
static unsigned int takes;
unsigned int __real_cl_record_take_ready(struct cl_region *region, uint32_t *out, unsigned int max);
unsigned int __wrap_cl_record_take_ready(struct cl_region *region, uint32_t *out, unsigned int max);
unsigned int __wrap_cl_record_take_ready(struct cl_region *region, uint32_t *out, unsigned int max)
{
	unsigned int n = __real_cl_record_take_ready(region, out, max);

	takes++;
	if (hostile)
		cl_record_set_ready(region, 0);
	return n;
}

IN_A_CHILD(an_importer_that_makes_ready_for_ever_does_not_keep_the_thread)
{
	CUdeviceptr p, q, own_p, own_q;

	start_with(0, CL_COLLECTOR_INLINE);
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(open_own(&own_p, export_block(p)), CUDA_SUCCESS);
	q = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(open_own(&own_q, export_block(q)), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(q), CUDA_SUCCESS);
	hostile = true;
	cl_record_set_ready(&cl_own, 0);
	takes = 0;
	CHECK_EQUAL(cl_limbo_collect(&cl_exporter, false).blocks, 0);
	CHECK(takes > 1 && takes <= 2 * CL_CHUNK);
	/* the other blocks are released meanwhile */
	CHECK_EQUAL(cl_memory_close(own_q), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(q), 1);
	hostile = false;
	CHECK_EQUAL(cl_memory_close(own_p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
}

/* ------------------------------------------------------------------------ doors */
static CUresult open_an_event(CUevent *event, CUipcEventHandle handle)
{
	*event = fake_event();
	return CUDA_SUCCESS;
}

static void allocates(void)
{
	cl_memory_allocates();
}
static void exports(void)
{
	CUipcMemHandle handle;

	CHECK_EQUAL(cl_memory_export(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
}
static void imports(void)
{
	CUdeviceptr p;

	cl_memory_import(&p, (CUipcMemHandle){ .reserved = { 1 } }, 0, fake_open);
}
static void closes(void)
{
	cl_memory_close(fake_alloc(1024, CONTEXT_A));
}
static void frees(void)
{
	CHECK_EQUAL(cl_memory_free(fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
}
static void frees_in_stream_order(void)
{
	CHECK_EQUAL(cl_memory_free_async(fake_alloc(1024, CONTEXT_A), NULL, false), CUDA_SUCCESS);
}
static void makes_an_event(void)
{
	CUevent event = fake_event();

	cl_event_created(event);
}
static void makes_an_event_to_share(void)
{
	cl_shareable_event_created(fake_event());
}
static void exports_an_event(void)
{
	CUipcEventHandle handle;

	CHECK_EQUAL(cl_event_export(&handle, fake_event()), CUDA_SUCCESS);
}
static void imports_an_event(void)
{
	CUevent event;

	CHECK_EQUAL(cl_event_import(&event, (CUipcEventHandle){ .reserved = { 1 } }), CUDA_SUCCESS);
}
static void destroys_an_event(void)
{
	CHECK_EQUAL(cl_event_destroy(fake_event(), fake_event_destroy), CUDA_SUCCESS);
}
static void has_made_again(void)
{
	struct cl_retry retry;

	cl_retry_begin(&retry, CL_RETRY_MEMORY, (struct cl_need){ .device = CL_OF_NONE });
	cl_retry_end(&retry);
}
static void makes_again(void)
{
	struct cl_retry retry;

	cl_retry_begin(&retry, CL_RETRY_MEMORY, (struct cl_need){ .device = CL_OF_NONE });
	CHECK(!cl_retry_again(&retry));
	cl_reclaim_end(&retry);
}
#define VIRTUAL UINT64_C(0x600000000000)
static CUresult fake_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			    unsigned long long flags)
{
	*handle = 101;
	return CUDA_SUCCESS;
}
static CUresult fake_memory_release(CUmemGenericAllocationHandle handle)
{
	return CUDA_SUCCESS;
}
static CUresult fake_unmap(CUdeviceptr p, size_t size)
{
	return CUDA_SUCCESS;
}
static void makes_virtual_memory(void)
{
	CUmemGenericAllocationHandle memory;

	CHECK_EQUAL(cl_virtual_create(&memory, MIB, &(CUmemAllocationProp){ .location.id = 0 }, 0), CUDA_SUCCESS);
}
static void has_mapped_it(void)
{
	cl_virtual_mapped(VIRTUAL, MIB, 0, 101);
}
static void unmaps_it(void)
{
	CHECK_EQUAL(cl_virtual_unmap_now(VIRTUAL, MIB), CUDA_SUCCESS);
}
static void releases_it(void)
{
	CHECK_EQUAL(cl_virtual_release(101), CUDA_SUCCESS);
}
static void (*const doors[])(void) = {
	allocates, exports, imports, closes, frees, frees_in_stream_order, makes_an_event,
	makes_an_event_to_share, exports_an_event, imports_an_event, destroys_an_event, has_made_again, makes_again,
	makes_virtual_memory, has_mapped_it, unmaps_it, releases_it,
};
enum { DOORS = sizeof doors / sizeof doors[0] };

static void start_at_the_doors(uint64_t collector)
{
	start_with(GRACE, collector);
	cl_driver.cuIpcOpenEventHandle = open_an_event;
	cl_driver.cuMemCreate = fake_create;
	cl_driver.cuMemRelease = fake_memory_release;
	cl_driver.cuMemUnmap = fake_unmap;
	/* so an unmap has its fast half */
	cl_virtual_reserved(VIRTUAL, MIB);
}

/* Whatever the program calls; and no call of culimbo changes errno. */
IN_A_CHILD(without_a_thread_the_limbo_has_its_turn_in_each_call)
{
	start_at_the_doors(CL_COLLECTOR_INLINE);
	for (unsigned int i = 0; i < DOORS; i++) {
		CUdeviceptr p = exported_block();

		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		CHECK_EQUAL(frees_of(p), 0);
		turn_clock(2 * GRACE);
		errno = ENOTUNIQ;
		doors[i]();
		CHECK_EQUAL(errno, ENOTUNIQ);
		CHECK_EQUAL(frees_of(p), 1);
	}
	unlink(log_path); /* it says that a pool was exported */
}

/* The copy of a process, after a fork that no handler has seen, begins anew in @door. */
static void begins_anew_in(void (*door)(void))
{
	pid_t copy = _Fork();

	if (!copy) {
		CHECK(cl_self_is_copy());
		door();
		CHECK_EQUAL(cl_count_get(exports), door == exports || door == exports_an_event);
		unlink(log_path);
		_exit(0);
	}
	child_judge(copy);
}

IN_A_CHILD(the_copy_of_a_fork_begins_anew_in_each_call)
{
	start_at_the_doors(CL_COLLECTOR_INLINE);
	export_block(fake_alloc(1024, CONTEXT_A));
	for (unsigned int i = 0; i < DOORS; i++)
		begins_anew_in(doors[i]);
}

/* A call has one only where the collector has a thread. */
IN_A_CHILD(the_copy_of_a_fork_begins_anew_in_each_fast_half)
{
	start_at_the_doors(CL_COLLECTOR_THREAD);
	export_block(fake_alloc(1024, CONTEXT_A));
	begins_anew_in(exports);
	begins_anew_in(makes_virtual_memory);
	begins_anew_in(has_mapped_it);
	begins_anew_in(unmaps_it);
	begins_anew_in(releases_it);
}

/* Functions that begin with CL_GUARD. */
static void creates_a_context(void)
{
	struct cl_context_creation creation = cl_context_creation_begin(0);

	cl_context_creation_end(&creation, false);
}
static void ends_a_context(void)
{
	cl_context_end_begin(CONTEXT_A, -1);
}
static void has_ended_a_context(void)
{
	cl_context_end_done(&(struct cl_context_end){ .handle = CONTEXT_A, .device = -1 }, true);
}
static void makes_a_green_context(void)
{
	cl_green_created((CUgreenCtx)(uintptr_t)0x77, 0);
}
static void converts_a_green_context(void)
{
	cl_green_converted(CONTEXT_B, (CUgreenCtx)(uintptr_t)0x77);
}
static void destroys_a_green_context(void)
{
	cl_green_end_begin((CUgreenCtx)(uintptr_t)0x77);
}
static void has_destroyed_a_green_context(void)
{
	cl_green_end_done(&(struct cl_green_end){ .device = -1 }, true);
}
static size_t gives_nothing(size_t bytes, void *data)
{
	return 0;
}
static void registers_a_callback(void)
{
	CHECK_EQUAL(cl_callbacks_register(gives_nothing, NULL), 0);
}
static void unregisters_a_callback(void)
{
	CHECK_EQUAL(cl_callbacks_unregister(gives_nothing, NULL), -ENOENT);
}
static void (*const guards[])(void) = {
	registers_a_callback, unregisters_a_callback, creates_a_context, ends_a_context, has_ended_a_context, makes_a_green_context,
	converts_a_green_context, destroys_a_green_context, has_destroyed_a_green_context,
};

IN_A_CHILD(the_copy_of_a_fork_begins_anew_at_each_guard)
{
	start_at_the_doors(CL_COLLECTOR_INLINE);
	export_block(fake_alloc(1024, CONTEXT_A));
	for (unsigned int i = 0; i < sizeof guards / sizeof guards[0]; i++) {
		pid_t copy = _Fork();

		if (!copy) {
			CHECK(cl_self_is_copy());
			guards[i]();
			CHECK(!cl_sharing());
			CHECK_EQUAL(cl_count_get(exports), 0);
			unlink(log_path);
			_exit(0);
		}
		child_judge(copy);
	}
}

/* The context of an event must be known when it is exported. */
static void a_child_knows_its_events(pid_t (*forks)(void))
{
	pid_t child;

	start_at_the_doors(CL_COLLECTOR_INLINE);
	export_block(fake_alloc(1024, CONTEXT_A));
	makes_an_event_to_share();
	child = forks();
	if (!child) {
		makes_an_event_to_share();
		makes_an_event_to_share();
		CHECK_EQUAL(cl_events_alive(&cl_exporter.blocks), 2);
		export_block(fake_alloc(1024, CONTEXT_A));
		CHECK_EQUAL(cl_events_alive(&cl_exporter.blocks), 2);
		_exit(0);
	}
	child_judge(child);
}

IN_A_CHILD(a_forked_child_knows_the_events_that_it_made_before_it_shares)
{
	a_child_knows_its_events(fork);
}

IN_A_CHILD(a_copy_that_no_handler_saw_knows_the_events_that_it_made_before_it_shares)
{
	a_child_knows_its_events(_Fork);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_forked_child_knows_the_events_that_it_made_before_it_shares),
		cmocka_unit_test(a_copy_that_no_handler_saw_knows_the_events_that_it_made_before_it_shares),
		cmocka_unit_test(without_a_thread_the_limbo_has_its_turn_in_each_call),
		cmocka_unit_test(the_copy_of_a_fork_begins_anew_in_each_call),
		cmocka_unit_test(the_copy_of_a_fork_begins_anew_in_each_fast_half),
		cmocka_unit_test(the_copy_of_a_fork_begins_anew_at_each_guard),
		cmocka_unit_test(the_collector_comes_with_the_first_block_and_takes_no_signal),
		cmocka_unit_test(a_forked_child_starts_anew),
		cmocka_unit_test(too_many_waiting_blocks_are_told_once),
		cmocka_unit_test(an_importer_that_makes_ready_for_ever_does_not_keep_the_thread),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

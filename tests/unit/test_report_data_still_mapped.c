/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With CULIMBO_STRICT, a free while another process has the block open, and an open after the free, are
 * findings: once, and only where no other finding says the same.  An unmap of virtual memory is one without the option.
 */
#include "tests/unit/report_data.h"
#include "tests/unit/other.h"

#include "shim/exporter/service.h"
#include "shim/virtual.h"

static struct cl_finding found;

static unsigned int early(void)
{
	struct cl_view view;
	unsigned int n;

	/* the collector may be writing an entry */
	cl_lock(&cl_exports_lock);
	view = own();
	n = findings_of(&view, CL_FINDING_FREED_WHILE_MAPPED, &found);
	cl_unlock(&cl_exports_lock);
	return n;
}

static bool is_foreign(uint32_t stack)
{
	struct cl_view view = own();
	struct cl_view_frame frame;

	return cl_view_stack_frame(&view, stack, 0, &frame) && frame.foreign && frame.path[0];
}

/* Without the locks, which the end of the process has. */
static void end_here(void)
{
	cl_lock(&cl_imports_lock);
	cl_lock(&cl_exports_lock);
	cl_still_end_locked(&cl_exporter);
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
}

static uint64_t kept(void)
{
	uint64_t n;

	cl_lock(&cl_exports_lock);
	n = cl_still_kept_locked(&cl_exporter);
	cl_unlock(&cl_exports_lock);
	return n;
}

static void start_strict(uint64_t grace, uint64_t collector)
{
	start_with(grace, collector);
	cl_options.strict.number = 1;
}

static void freed_while_held(uint64_t grace, bool async)
{
	struct other other = start_other(HOUR);
	CUipcMemHandle handle;
	struct cl_view view;
	uint64_t import, freed;
	CUdeviceptr p;

	start_strict(grace, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	import = others_open(&other, handle);
	CHECK_EQUAL(async ? cl_memory_free_async(p, SOME_STREAM, false) : free_here(p), CUDA_SUCCESS);
	freed = cl_now();
	CHECK_EQUAL(early(), 0); /* the duration is not known yet */
	CHECK_EQUAL(kept(), 1);
	others_close(&other, import);
	CHECK(COMES_TRUE(early() == 1, SOON));
	CHECK_EQUAL(kept(), 1);
	CHECK_EQUAL(found.pid, other.pid);
	CHECK(found.name[0]);
	CHECK_EQUAL(found.key, p);
	CHECK_EQUAL(found.size, 1024);
	CHECK_EQUAL(found.block_kind, CL_MEMORY);
	CHECK_EQUAL(found.file_id, cl_own.file_id);
	CHECK(found.other_when && found.other_when <= found.when && found.when <= freed && freed < found.until);
	view = own();
	if (!async)
		CHECK(LEADS_THROUGH(&view, found.stack, free_here));
	CHECK(found.stack && is_foreign(found.other_stack));
	end_here();
	CHECK_EQUAL(early(), 1);
}

IN_A_CHILD(a_block_in_its_grace_is_found_freed_while_another_process_has_it_open)
{
	freed_while_held(HOUR, false);
}

IN_A_CHILD(a_held_block_is_found_freed_while_another_process_has_it_open)
{
	freed_while_held(0, false);
}

IN_A_CHILD(a_block_is_found_freed_in_stream_order_while_another_process_has_it_open)
{
	freed_while_held(0, true);
}

IN_A_CHILD(without_the_option_it_is_counted_and_no_finding)
{
	struct other other = start_other(HOUR);
	CUdeviceptr p, closed;
	CUipcMemHandle handle;
	uint64_t import;

	start_with(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	closed = fake_alloc(1024, CONTEXT_A);
	others_close(&other, others_open(&other, export_block(closed)));
	handle = export_block(p);
	import = others_open(&other, handle);
	CHECK_EQUAL(cl_memory_free(closed), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	others_close(&other, import);
	CHECK(COMES_TRUE(frees_of(p) == 1, SOON));
	CHECK_EQUAL(kept(), 1);
	end_here();
	CHECK_EQUAL(early(), 0);
}

IN_A_CHILD(of_two_holders_the_last_close_counts)
{
	struct other a = start_other(HOUR), b = start_other(HOUR);
	uint64_t by_a, by_b, between;
	CUipcMemHandle handle;
	CUdeviceptr p;

	start_strict(HOUR, CL_COLLECTOR_INLINE);
	p = fake_alloc(1024, CONTEXT_A);
	handle = export_block(p);
	by_a = others_open(&a, handle);
	by_b = others_open(&b, handle);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	others_close(&a, by_a);
	cl_limbo_collect(&cl_exporter, false);
	end_here();
	CHECK_EQUAL(early(), 0);
	between = cl_now();
	others_close(&b, by_b);
	/* the end of the process finds what no collection has seen */
	end_here();
	CHECK_EQUAL(early(), 1);
	CHECK(found.until > between && found.when < between);
	CHECK(found.pid == (uint32_t)a.pid || found.pid == (uint32_t)b.pid);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(early(), 1);
	CHECK_EQUAL(frees_of(p), 1);
}

IN_A_CHILD(a_holder_that_died_is_told_of_as_such_alone)
{
	struct other other = start_other(HOUR);
	CUdeviceptr p;
	struct cl_view view;

	start_strict(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	others_open(&other, export_block(p));
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK(!kill(other.pid, SIGKILL));
	CHECK(waitpid(other.pid, NULL, 0) == other.pid);
	CHECK(COMES_TRUE(frees_of(p) == 1, SOON));
	end_here();
	CHECK_EQUAL(early(), 0);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_HOLD_RECLAIMED, &found), 1);
}

IN_A_CHILD(a_block_that_is_forced_out_is_told_of_as_such_alone)
{
	struct other other = start_other(HOUR);
	struct cl_view view;
	uint64_t import;
	CUdeviceptr p;

	start_strict(0, CL_COLLECTOR_INLINE);
	cl_options.held_bytes.number = 1;
	p = fake_alloc(1024, CONTEXT_A);
	import = others_open(&other, export_block(p));
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	others_close(&other, import);
	cl_limbo_collect(&cl_exporter, false);
	end_here();
	CHECK_EQUAL(early(), 0);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_HELD_FORCED_OUT, &found), 1);
	unlink(log_path);
}

IN_A_CHILD(an_event_and_what_this_process_opens_of_its_own_may_be_freed)
{
	struct other other = start_other(HOUR);
	CUipcEventHandle handle;
	CUdeviceptr p, import;
	struct answer answer;
	CUevent event;

	start_strict(0, CL_COLLECTOR_INLINE);
	event = fake_event();
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	answer = ask(&other, (struct order){ .what = 'e', .event = handle });
	CHECK_EQUAL(answer.result, CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	ask(&other, (struct order){ .what = 'd', .a = answer.value });
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(cl_memory_import(&import, export_block(p), 0, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_close(import), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	end_here();
	CHECK_EQUAL(early(), 0);
	CHECK_EQUAL(kept(), 0);
}

IN_A_CHILD(a_forked_child_knows_nothing_of_its_parents_blocks)
{
	struct other other = start_other(HOUR);
	CUdeviceptr p;
	int status;
	pid_t child;

	start_strict(HOUR, CL_COLLECTOR_INLINE);
	p = fake_alloc(1024, CONTEXT_A);
	others_open(&other, export_block(p));
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	child = fork();
	if (!child) {
		struct cl_view view;

		CHECK_EQUAL(cl_memory_export(&(CUipcMemHandle){ { 0 } }, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
		end_here();
		view = own();
		CHECK_EQUAL(cl_view_findings(&view), 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK_EQUAL(early(), 0);
}

IN_A_CHILD(an_open_after_the_free_is_found_once)
{
	struct other other = start_other(HOUR);
	struct answer block = ask(&other, (struct order){ .what = 'x' });
	struct cl_view view;
	CUdeviceptr p, again;

	start_strict(HOUR, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'f', .a = block.value }).result, CUDA_SUCCESS);
	CHECK_EQUAL(open_here(&p, &block.handle), CUDA_SUCCESS);
	CHECK_EQUAL(open_here(&again, &block.handle), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_OPENED_AFTER_FREE, &found), 1);
	CHECK_EQUAL(found.pid, other.pid);
	CHECK_EQUAL(found.key, p);
	CHECK_EQUAL(found.size, 1024);
	CHECK(found.other_when && found.other_when < found.when);
	CHECK(LEADS_THROUGH(&view, found.stack, open_here));
	CHECK(is_foreign(found.other_stack));
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
}

IN_A_CHILD(an_open_before_the_free_or_without_the_option_is_no_finding)
{
	struct other other = start_other(HOUR);
	struct answer block = ask(&other, (struct order){ .what = 'x' });
	struct cl_view view;
	CUdeviceptr p;

	start_strict(HOUR, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(open_here(&p, &block.handle), CUDA_SUCCESS);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'f', .a = block.value }).result, CUDA_SUCCESS);
	CHECK_EQUAL(open_here(&p, &block.handle), CUDA_SUCCESS);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	cl_options.strict.number = 0;
	CHECK_EQUAL(open_here(&p, &block.handle), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_OPENED_AFTER_FREE, &found), 0);
}

/* -------------------------------------------------------------- virtual memory */
enum { PIECE = 2 * MIB };
#define AT UINT64_C(0x600000000000)

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	*handle = 101;
	return CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr p, size_t size)
{
	return CUDA_SUCCESS;
}
static CUresult refuse(CUipcMemHandle *handle, CUdeviceptr p)
{
	return CUDA_ERROR_INVALID_VALUE;
}

static CUmemGenericAllocationHandle map_three(uint64_t collector)
{
	CUmemAllocationProp prop = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
				     .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	CUmemGenericAllocationHandle memory;

	start_with(HOUR, collector);
	cl_options.share.number = CL_SHARE_ALL;
	cl_driver.cuMemCreate = create;
	cl_driver.cuMemUnmap = unmap;
	cl_driver.cuIpcGetMemHandle = refuse;
	CHECK_EQUAL(cl_virtual_create(&memory, PIECE, &prop, 0), CUDA_SUCCESS);
	cl_virtual_reserved(AT, 3 * (uint64_t)PIECE);
	for (unsigned int i = 0; i < 3; i++)
		cl_virtual_mapped(AT + i * (uint64_t)PIECE, PIECE, 0, memory);
	return memory;
}
static uint32_t record_of(CUdeviceptr p)
{
	CUipcMemHandle handle = export_block(p);

	return cl_stamp_unpack(cl_handle_stamp(handle.reserved, CL_VIRTUAL)).record;
}
__attribute__((noinline)) static CUresult unmap_here(CUdeviceptr p, size_t size)
{
	CUresult result = cl_virtual_unmap_now(p, size);

	__asm__ volatile("" ::: "memory"); /* no tail call: this frame stays */
	return result;
}
/* Has @other hold @record of this process, without the driver's part of an open. */
static void others_hold(struct other *other, uint32_t record)
{
	struct order order = { .what = 'H', .a = record, .b = record + 1 };

	memcpy(&order.handle, &cl_own.file_id, sizeof cl_own.file_id);
	ask(other, order);
}

IN_A_CHILD(memory_that_is_unmapped_while_another_process_has_it_is_told_of_with_where_from)
{
	struct other other = start_other(HOUR);
	CUmemGenericAllocationHandle memory = map_three(CL_COLLECTOR_INLINE);
	uint32_t first = record_of(AT), last = record_of(AT + 2 * PIECE), words;
	struct cl_view view;

	/* what nobody holds leaves no stack: that would cost each unmap time */
	words = cl_own.header->stack_words;
	CHECK(words);
	CHECK_EQUAL(unmap_here(AT, PIECE), CUDA_SUCCESS);
	CHECK_EQUAL(cl_own.header->stack_words, words);
	/* of two mappings that go in one call, the second one is held */
	CHECK(first != last);
	others_hold(&other, last);
	CHECK_EQUAL(unmap_here(AT + PIECE, 2 * PIECE), CUDA_SUCCESS);
	/* other memory comes there, or what the importer read would have been as good as before */
	cl_virtual_mapped(AT + 2 * PIECE, PIECE / 2, 0, memory);
	ask(&other, (struct order){ .what = 'U', .a = last });
	end_here();
	CHECK_EQUAL(early(), 1);
	CHECK_EQUAL(found.pid, other.pid);
	CHECK_EQUAL(found.key, AT + 2 * PIECE);
	CHECK_EQUAL(found.made, CL_MADE_VIRTUAL);
	view = own();
	CHECK(LEADS_THROUGH(&view, found.stack, unmap_here));
	cl_service_end(SOON);
}

static CUmemGenericAllocationHandle its_memory;
static void *maps_and_is_cancelled(void *unused)
{
	pthread_cancel(pthread_self());
	cl_virtual_mapped(AT, PIECE / 2, 0, its_memory);
	pthread_testcancel();
	return unused;
}

/* Whether the process that had it lives is read from files, and there threads are cancelled. */
IN_A_CHILD(a_thread_that_maps_such_memory_anew_and_is_cancelled_leaves_no_lock)
{
	struct other other = start_other(HOUR);
	pthread_t thread;
	void *result;

	/* a process without a thread for the collector goes another way */
	its_memory = map_three(CL_COLLECTOR_THREAD);
	others_hold(&other, record_of(AT));
	CHECK_EQUAL(unmap_here(AT, PIECE), CUDA_SUCCESS);
	/* it is dead, and its process is there */
	CHECK_EQUAL(kill(other.pid, SIGKILL), 0);
	CHECK_EQUAL(waitid(P_PID, (id_t)other.pid, &(siginfo_t){ .si_signo = 0 }, WEXITED | WNOWAIT), 0);
	CHECK_EQUAL(pthread_create(&thread, NULL, maps_and_is_cancelled, NULL), 0);
	CHECK_EQUAL(pthread_join(thread, &result), 0);
	CHECK_EQUAL(result, PTHREAD_CANCELED);
	CHECK(cl_try_lock(&cl_exports_lock));
	cl_unlock(&cl_exports_lock);
	cl_service_end(SOON);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_in_its_grace_is_found_freed_while_another_process_has_it_open),
		cmocka_unit_test(a_held_block_is_found_freed_while_another_process_has_it_open),
		cmocka_unit_test(a_block_is_found_freed_in_stream_order_while_another_process_has_it_open),
		cmocka_unit_test(without_the_option_it_is_counted_and_no_finding),
		cmocka_unit_test(of_two_holders_the_last_close_counts),
		cmocka_unit_test(a_holder_that_died_is_told_of_as_such_alone),
		cmocka_unit_test(a_block_that_is_forced_out_is_told_of_as_such_alone),
		cmocka_unit_test(an_event_and_what_this_process_opens_of_its_own_may_be_freed),
		cmocka_unit_test(a_forked_child_knows_nothing_of_its_parents_blocks),
		cmocka_unit_test(an_open_after_the_free_is_found_once),
		cmocka_unit_test(an_open_before_the_free_or_without_the_option_is_no_finding),
		cmocka_unit_test(memory_that_is_unmapped_while_another_process_has_it_is_told_of_with_where_from),
		cmocka_unit_test(a_thread_that_maps_such_memory_anew_and_is_cancelled_leaves_no_lock),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

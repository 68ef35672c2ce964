/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: misuse is found, with the stacks of both calls, and only where it is one; findings
 * are bounded.
 */
#include "tests/unit/report_data.h"

#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/self/self.h"
#include "shim/importer/peers.h"
#include "shim/report/report.h"
#include "shim/shm/view.h"

IN_A_CHILD(misuse_of_blocks_is_found_with_both_stacks)
{
	struct cl_finding found;
	struct cl_view view;
	CUipcMemHandle handle;
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	CHECK_EQUAL(free_here(p), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_FREED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, p);
	CHECK_EQUAL(found.size, 1024);
	CHECK_EQUAL(found.file_id, cl_own.file_id);
	CHECK_EQUAL(found.record, 0);
	CHECK(found.when && found.other_when && found.when >= found.other_when);
	CHECK(LEADS_THROUGH(&view, found.stack, free_here));
	CHECK(LEADS_THROUGH(&view, found.other_stack, free_here));
	CHECK_EQUAL(export_here(&handle, p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EXPORTED_AFTER_FREE, &found), 1);
	/* an error of the driver comes first with culimbo, too */
	fake.none_result = CUDA_ERROR_INVALID_CONTEXT;
	CHECK_EQUAL(export_here(&handle, p), CUDA_ERROR_INVALID_CONTEXT);
	CHECK_EQUAL(cl_memory_free_async(p, NULL, false), CUDA_ERROR_INVALID_CONTEXT);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EXPORTED_AFTER_FREE, &found), 2);
	CHECK(LEADS_THROUGH(&view, found.stack, export_here));
	CHECK(LEADS_THROUGH(&view, found.other_stack, free_here));
}

IN_A_CHILD(misuse_of_imports_is_found_with_both_stacks)
{
	struct cl_finding found;
	struct cl_view view;
	CUipcMemHandle handle, stale;
	CUdeviceptr p = 0;
	uint64_t tail;
	int line;
	pid_t other = start_exporter(&handle, &line);

	start_with(0, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_IMPORT_FREED, &found), 1);
	CHECK_EQUAL(found.pid, other);
	CHECK_EQUAL(found.size, 2048);
	CHECK(LEADS_THROUGH(&view, found.stack, free_here));
	CHECK(LEADS_THROUGH(&view, found.other_stack, open_here));
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	/* the fake driver closes what was ever open: another address, which it refuses */
	CHECK_EQUAL(close_here(p - 0x10000000000), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_CLOSED_TWICE, &found), 1);
	CHECK_EQUAL(found.other_stack, 0);
	cl_driver.cuIpcCloseMemHandle = fake_free; /* refuses it */
	CHECK_EQUAL(close_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_CLOSED_TWICE, &found), 2);
	CHECK_EQUAL(found.pid, other);
	CHECK(found.other_when && found.other_when < found.when);
	CHECK(LEADS_THROUGH(&view, found.stack, close_here));
	CHECK(LEADS_THROUGH(&view, found.other_stack, close_here));
	/* another generation than there is */
	stale = handle;
	tail = cl_handle_stamp(handle.reserved, CL_MEMORY);
	tail ^= 1ull << (CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS);
	cl_handle_put_stamp(stale.reserved, CL_MEMORY, tail);
	CHECK_EQUAL(open_here(&p, &stale), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_STALE_REFUSED, &found), 1);
	CHECK_EQUAL(found.file_id, stamp_of(&stale).file_id);
	CHECK_EQUAL(found.generation, 1);
	CHECK(LEADS_THROUGH(&view, found.stack, open_here));
	end_exporter(other, line);
}

IN_A_CHILD(events_are_found_destroyed_twice_and_forced_out)
{
	static struct cl_report report;
	struct cl_view_block block;
	CUipcEventHandle handle;
	struct cl_finding found;
	uint8_t bytes[64];
	struct cl_view view;
	CUevent event, other;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	event = fake_event();
	other = fake_event();
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_export(&handle, other), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_ERROR_INVALID_HANDLE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EVENT_DESTROYED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, (uintptr_t)event);
	CHECK_EQUAL(found.block_kind, CL_EVENT);
	CHECK(found.stack && found.other_stack);
	/* as a process that has opened it */
	cl_record_handle(&cl_own, 0, bytes);
	CHECK_EQUAL(cl_record_hold(&cl_own, 0, 0, 0, bytes), 0);
	cl_options.max_events.number = 1;
	CHECK_EQUAL(cl_event_destroy(other, fake_event_destroy), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EVENT_FORCED_OUT, &found), 1);
	CHECK_EQUAL(found.key, (uintptr_t)event);
	CHECK(found.other_stack);
	/* the driver has it: it is not in the limbo any more, though its record waits for the holder */
	CHECK(cl_view_block(&view, 0, &block));
	CHECK(block.given_back && block.holders == 1 && block.freed);
	CHECK_EQUAL(block.class, CL_VIEW_ORPHANED);
	CHECK(cl_view_block(&view, 1, &block) && !block.given_back);
	CHECK_EQUAL(block.class, CL_VIEW_GRACE);
	cl_report_begin(&report);
	cl_report_look_at_view(&report, &view);
	CHECK_EQUAL(report.sums.n[CL_REPORT_HELD_LIMBO], 0);
	CHECK_EQUAL(report.sums.n[CL_REPORT_ORPHANED], 0);
	CHECK_EQUAL(report.sums.n[CL_REPORT_GRACE], 1);
	CHECK_EQUAL(report.sums.n[CL_REPORT_EVENT_FORCED_OUT], 1);
	cl_report_end(&report);
}

/* In another process, whose file may contain anything. */
IN_A_CHILD(a_stale_handle_is_found_with_where_its_block_was_freed)
{
	enum { LONGEST = 64 };
	const struct cl_region *region;
	struct cl_view_frame frame;
	struct cl_record was, lie;
	struct cl_finding found;
	CUipcMemHandle handle;
	struct cl_stamp stamp;
	struct cl_view view;
	uint64_t word;
	CUdeviceptr p;
	off_t record, stack;
	int line, status, n = 0;
	bool is_own;
	pid_t child;

	child = fork_with_line(&line);
	if (!child) {
		char byte;

		start_with(20 * MS, CL_COLLECTOR_INLINE);
		p = fake_alloc(2048, CONTEXT_A);
		CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
		CHECK_EQUAL(free_here(p), CUDA_SUCCESS);
		while (cl_life_state(cl_record_life(&cl_own, 0)) != CL_FREE)
			cl_limbo_collect(&cl_exporter, false);
		CHECK_EQUAL(write(line, &handle, sizeof handle), sizeof handle);
		while (read(line, &byte, 1) > 0)
			;
		_exit(cl_process_end(0));
	}
	CHECK_EQUAL(read(line, &handle, sizeof handle), sizeof handle);
	stamp = stamp_of(&handle);

	start_with(HOUR, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(open_here(&p, &handle), CUDA_ERROR_INVALID_VALUE);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_STALE_REFUSED, &found), ++n);
	CHECK(found.other_when && found.other_when < found.when);
	CHECK(LEADS_THROUGH(&view, found.stack, open_here));
	/* a forked child has our addresses */
	CHECK(LEADS_THROUGH(&view, found.other_stack, free_here));
	CHECK(cl_view_stack_frame(&view, found.other_stack, 0, &frame) && frame.foreign);
	CHECK(cl_view_stack_frame(&view, found.stack, 0, &frame) && !frame.foreign);
	word = found.other_stack;
	CHECK_EQUAL(open_here(&p, &handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_STALE_REFUSED, &found), ++n);
	CHECK_EQUAL(found.other_stack, word); /* one place, recorded once */

	/* false entries: no stack, impossible addresses, too long a stack, another generation */
	region = cl_peer_has_open(stamp.file_id, &is_own);
	CHECK(region && !is_own);
	record = (off_t)(CL_AT_RECORDS + stamp.record * sizeof was);
	CHECK_EQUAL(pread(region->fd, &was, sizeof was, record), sizeof was);
	stack = (off_t)(CL_AT_STACKS + was.free_stack * 8u);
	for (int way = 0; way < 4; way++) {
		static const uint64_t heads[] = { 0, UINT64_MAX, LONGEST + 1, 0 };

		lie = was;
		word = 2;
		if (way == 0)
			lie.free_stack = UINT32_MAX;
		else if (way == 3)
			lie.life += 1 << 8;
		else
			word = heads[way];
		CHECK_EQUAL(pwrite(region->fd, &lie, sizeof lie, record), sizeof lie);
		if (way == 1 || way == 2)
			CHECK_EQUAL(pwrite(region->fd, &word, sizeof word, stack), sizeof word);
		CHECK_EQUAL(open_here(&p, &handle), CUDA_ERROR_INVALID_VALUE);
		CHECK_EQUAL(findings_of(&view, CL_FINDING_STALE_REFUSED, &found), ++n);
		CHECK_EQUAL(found.other_stack, 0);
		CHECK_EQUAL(found.other_when != 0, way != 3);
	}
	CHECK_EQUAL(pwrite(region->fd, &was, sizeof was, record), sizeof was);
	word = 1;
	CHECK_EQUAL(pwrite(region->fd, &word, sizeof word, stack), sizeof word);
	word = UINT64_C(1) << 63 | 4096;
	CHECK_EQUAL(pwrite(region->fd, &word, sizeof word, stack + 8), sizeof word);
	CHECK_EQUAL(open_here(&p, &handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_STALE_REFUSED, &found), ++n);
	CHECK_EQUAL(found.other_stack, 0);
	close(line);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
}

static CUresult open_fake_event(CUevent *event, CUipcEventHandle handle)
{
	*event = fake_event();
	return CUDA_SUCCESS;
}

static CUresult refuse_destroy(CUevent event)
{
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The driver would crash; but the next event at that address is another one. */
IN_A_CHILD(an_imported_event_is_found_destroyed_twice)
{
	CUipcEventHandle handle = { 0 }; /* of a process without culimbo */
	struct cl_finding found;
	struct cl_view view;
	CUevent event;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuIpcOpenEventHandle = open_fake_event;
	CHECK_EQUAL(cl_event_import(&event, handle), CUDA_SUCCESS);
	/* a call that the driver refused does not count */
	CHECK_EQUAL(cl_event_destroy(event, refuse_destroy), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EVENT_DESTROYED_TWICE, &found), 0);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_ERROR_INVALID_HANDLE);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EVENT_DESTROYED_TWICE]), 1);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EVENT_DESTROYED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, (uintptr_t)event);
	CHECK_EQUAL(found.block_kind, CL_EVENT);
	CHECK(found.stack && found.other_stack && found.other_when && found.other_when <= found.when);
	/* the driver creates another event at that address */
	atomic_store(&fake.event_live[((uintptr_t)event - 0x1000) / 16], true);
	cl_event_created(event);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EVENT_DESTROYED_TWICE, &found), 1);
}

/* The program makes some by a pointer of its own to the driver; of one that it exports, we know. */
IN_A_CHILD(what_was_exported_where_an_imported_event_was_is_destroyed_as_often_as_it_is_made)
{
	CUipcEventHandle handle = { 0 };
	CUevent event;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuIpcOpenEventHandle = open_fake_event;
	CHECK_EQUAL(cl_event_import(&event, handle), CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	for (int i = 1; i <= 2; i++) {
		atomic_store(&fake.event_n, 0);
		CHECK(fake_event() == event);
		if (i == 1)
			CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
		CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
		CHECK_EQUAL(atomic_load(&fake.destroyed_n), 1 + i);
	}
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_EVENT_DESTROYED_TWICE]), 0);
}

/* While this is set, memory allocation in shim/ fails (the linker redirects its calls here). */
static bool no_memory;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
	return no_memory ? NULL : __real_malloc(size);
}

/* Without a record of the second, it cannot be told from the first. */
IN_A_CHILD(an_event_opened_where_one_was_is_destroyed_though_no_memory_was_left_for_its_mapping)
{
	CUipcEventHandle handle = { 0 };
	struct cl_finding found;
	struct cl_view view;
	CUevent event, again;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuIpcOpenEventHandle = open_fake_event;
	CHECK_EQUAL(cl_event_import(&event, handle), CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	atomic_store(&fake.event_n, 0); /* the driver opens the next where it was */
	no_memory = true;
	CHECK_EQUAL(cl_event_import(&again, handle), CUDA_SUCCESS);
	no_memory = false;
	CHECK(again == event);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&fake.destroyed_n), 2);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_EVENT_DESTROYED_TWICE, &found), 0);
}

IN_A_CHILD(a_second_close_of_what_no_memory_was_left_for_is_told_without_another_ones_first)
{
	CUresult (*close_of_the_driver)(CUdeviceptr);
	struct cl_finding found;
	CUipcMemHandle handle, another;
	struct cl_view view;
	CUdeviceptr p = 0, q = 0;
	int line, another_line;
	pid_t other = start_exporter(&handle, &line), third;

	fake_alloc(2048, CONTEXT_A); /* that the third's is at another address */
	third = start_exporter(&another, &another_line);
	start_with(0, CL_COLLECTOR_THREAD);
	close_of_the_driver = cl_driver.cuIpcCloseMemHandle;
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
		CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	}
	/* it takes what the first left for the next */
	CHECK_EQUAL(open_here(&q, &another), CUDA_SUCCESS);
	no_memory = true;
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	no_memory = false;
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FINDING_CLOSED_TWICE, &found), 0);
	cl_driver.cuIpcCloseMemHandle = fake_free; /* refuses it */
	CHECK_EQUAL(close_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_CLOSED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, p);
	CHECK(!found.other_stack && !found.other_when);
	/* a new record gives a new report */
	cl_driver.cuIpcCloseMemHandle = close_of_the_driver;
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	cl_driver.cuIpcCloseMemHandle = fake_free;
	CHECK_EQUAL(close_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_CLOSED_TWICE, &found), 2);
	CHECK(found.other_stack && found.other_when);
	unlink(log_path); /* it says that there was no memory */
	end_exporter(third, another_line);
	end_exporter(other, line);
}

/* Findings beyond their table are counted. */
IN_A_CHILD(findings_are_bounded_and_all_counted)
{
	struct cl_finding finding = { .kind = CL_FINDING_FREED_TWICE };
	CUipcMemHandle handle;
	struct cl_view view;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	for (uint32_t i = 0; i < CL_FINDINGS + 10; i++) {
		finding.key = i;
		cl_lock(&cl_exports_lock);
		cl_finding_add_locked(&finding);
		cl_unlock(&cl_exports_lock);
	}
	view = own();
	CHECK_EQUAL(cl_view_findings(&view), CL_FINDINGS);
	CHECK_EQUAL(cl_view_finding_count(&view, CL_FINDING_FREED_TWICE), CL_FINDINGS + 10);
	CHECK(cl_view_finding(&view, CL_FINDINGS - 1, &finding));
	CHECK_EQUAL(finding.key, CL_FINDINGS - 1);
}

/* Every misuse is counted, recorded and logged. */
IN_A_CHILD(each_kind_is_heard_of_in_every_way)
{
	const struct cl_about about = { .key = 0xabcd000, .size = 4096, .when = 5, .stack = 7, .file_id = 1,
					.record = 2, .generation = 3, .pid = 4, .kind = CL_MEMORY, .device = 6,
					.name = "another" };
	struct stat before = { .st_size = 0 }, log;
	struct cl_finding found;
	struct cl_view view;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.log.number = CL_LOG_DEBUG;
	for (enum cl_finding_kind kind = CL_FINDING_NONE + 1; kind <= CL_FINDING_OPENED_AFTER_FREE; kind++) {
		cl_happened(kind, &about, 8);
		view = own();
		CHECK_EQUAL(cl_count_get(findings[kind]), 1);
		CHECK_EQUAL(findings_of(&view, kind, &found), 1);
		CHECK_EQUAL(found.key, about.key);
		CHECK_EQUAL(found.size, about.size);
		CHECK_EQUAL(found.stack, 8);
		CHECK_EQUAL(found.other_stack, about.stack);
		CHECK_EQUAL(found.other_when, about.when);
		CHECK_EQUAL(found.file_id, about.file_id);
		CHECK_EQUAL(found.record, about.record);
		CHECK_EQUAL(found.generation, about.generation);
		CHECK_EQUAL(found.pid, about.pid);
		CHECK_EQUAL(found.block_kind, about.kind);
		CHECK_EQUAL(found.device, about.device);
		CHECK(!strcmp(found.name, about.name));
		CHECK(!stat(log_path, &log) && log.st_size > before.st_size);
		before = log;
	}
	unlink(log_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_kind_is_heard_of_in_every_way),
		cmocka_unit_test(misuse_of_blocks_is_found_with_both_stacks),
		cmocka_unit_test(misuse_of_imports_is_found_with_both_stacks),
		cmocka_unit_test(events_are_found_destroyed_twice_and_forced_out),
		cmocka_unit_test(a_stale_handle_is_found_with_where_its_block_was_freed),
		cmocka_unit_test(an_imported_event_is_found_destroyed_twice),
		cmocka_unit_test(what_was_exported_where_an_imported_event_was_is_destroyed_as_often_as_it_is_made),
		cmocka_unit_test(an_event_opened_where_one_was_is_destroyed_though_no_memory_was_left_for_its_mapping),
		cmocka_unit_test(a_second_close_of_what_no_memory_was_left_for_is_told_without_another_ones_first),
		cmocka_unit_test(findings_are_bounded_and_all_counted),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

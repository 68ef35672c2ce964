/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records for reports (diag/): what a process writes about itself is correct, stores nothing twice, and
 * never disturbs the program.  Promises 4 and 5.
 */
#include "tests/unit/report_data.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "shim/diag/report_data.h"
#include "shim/self/self.h"
#include "shim/shm/view.h"

IN_A_CHILD(a_block_says_where_it_was_exported_and_freed)
{
	struct cl_view view;
	struct cl_view_block block;
	CUipcMemHandle handle;
	CUdeviceptr p;
	uint32_t stack;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	view = own();
	CHECK(cl_view_block(&view, 0, &block));
	CHECK(block.export_stack && LEADS_THROUGH(&view, block.export_stack, export_here));
	CHECK_EQUAL(block.free_stack, 0);
	stack = block.export_stack;
	/* the same from another place: the first one counts */
	CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_SUCCESS);
	CHECK(cl_view_block(&view, 0, &block));
	CHECK_EQUAL(block.export_stack, stack);
	CHECK_EQUAL(free_here(p), CUDA_SUCCESS);
	CHECK(cl_view_block(&view, 0, &block));
	CHECK(block.free_stack && LEADS_THROUGH(&view, block.free_stack, free_here));
	CHECK(cl_view_stack_depth(&view, block.free_stack) <= 8);
}

IN_A_CHILD(equal_stacks_are_noted_once)
{
	uint32_t words = 0, modules = 0;
	struct cl_view view;
	struct cl_view_block block;
	CUipcMemHandle handle;
	struct stat st;
	long long before = 0;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	for (int i = 0; i < 100; i++) {
		CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
		if (i == 0) {
			words = cl_own.header->stack_words;
			modules = cl_own.header->modules;
			CHECK(words > 1 && modules > 0);
			CHECK(!fstat(cl_own.fd, &st));
			before = st.st_blocks;
		}
	}
	CHECK_EQUAL(cl_own.header->stack_words, words);
	CHECK_EQUAL(cl_own.header->modules, modules);
	CHECK(!fstat(cl_own.fd, &st));
	CHECK_EQUAL(st.st_blocks, before);
	view = own();
	CHECK(cl_view_block(&view, 99, &block) && LEADS_THROUGH(&view, block.export_stack, export_here));
}

IN_A_CHILD(as_many_frames_as_wanted)
{
	struct cl_view view;
	struct cl_view_block block;
	CUipcMemHandle handle;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.stack.number = 0;
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	view = own();
	CHECK(cl_view_block(&view, 0, &block));
	CHECK_EQUAL(block.export_stack, 0);
	CHECK_EQUAL(cl_own.header->stack_words, 0);
	cl_options.stack.number = 2;
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	view = own();
	CHECK(cl_view_block(&view, 1, &block));
	CHECK_EQUAL(cl_view_stack_depth(&view, block.export_stack), 2);
}

/* A free that does not enter the limbo takes no stack. */
IN_A_CHILD(a_free_that_goes_to_the_driver_writes_nothing)
{
	CUipcMemHandle handle;
	CUdeviceptr p;
	uint32_t words;

	start_with(0, CL_COLLECTOR_INLINE);
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	words = cl_own.header->stack_words;
	CHECK_EQUAL(free_here(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_own.header->stack_words, words);
}

IN_A_CHILD(an_import_is_noted_while_it_is_open)
{
	struct cl_view view;
	struct cl_view_import import;
	CUipcMemHandle handle;
	CUdeviceptr p = 0, q = 0;
	struct cl_stamp stamp;
	uint64_t begun = cl_now();
	int line;
	pid_t other = start_exporter(&handle, &line);

	start_with(0, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	stamp = stamp_of(&handle);
	view = own();
	CHECK(cl_view_import_of(&view, stamp.file_id, stamp.record, 0, &import));
	CHECK_EQUAL(import.index, 0);
	CHECK_EQUAL(import.kind, CL_MEMORY);
	CHECK_EQUAL(import.key, p);
	CHECK_EQUAL(import.size, 2048);
	CHECK_EQUAL(import.opens, 1);
	CHECK(import.since >= begun && import.since <= cl_now());
	CHECK_EQUAL(import.generation, 0);
	CHECK_EQUAL(import.exporter_pid, other);
	CHECK(LEADS_THROUGH(&view, import.stack, open_here));
	CHECK_EQUAL(cl_memory_import(&q, handle, 0, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(q, p);
	CHECK(cl_view_import(&view, 0, &import));
	CHECK_EQUAL(import.opens, 2);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	CHECK(cl_view_import(&view, 0, &import) && import.opens == 1);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	CHECK(!cl_view_import(&view, 0, &import));
	/* the same place, over and over */
	for (int i = 0; i < 200; i++) {
		CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
		CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	}
	CHECK_EQUAL(cl_own.header->imports, 1);
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	end_exporter(other, line);
	cl_process_end(0);
	CHECK_EQUAL(count_entries(folder), 0);
}

IN_A_CHILD(what_goes_with_its_context_is_not_noted_as_open)
{
	struct cl_view view;
	struct cl_view_import import;
	CUipcMemHandle handle;
	CUdeviceptr p = 0;
	int line;
	pid_t other = start_exporter(&handle, &line);

	start_with(0, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	view = own();
	CHECK(cl_view_import(&view, 0, &import));
	context_ends(CONTEXT_A, 0);
	context_ended(CONTEXT_A, 0, true);
	CHECK(!cl_view_import(&view, 0, &import));
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	CHECK_EQUAL(cl_own.header->imports, 1);
	end_exporter(other, line);
}

/* Without a file everything else works, and an importer prints no message. */
IN_A_CHILD(who_only_imports_needs_no_file)
{
	struct rlimit limit = { 1 << 20, RLIM_INFINITY };
	CUipcMemHandle handle;
	CUdeviceptr p = 0;
	struct stat log;
	int line;
	pid_t other = start_exporter(&handle, &line);

	start_with(0, CL_COLLECTOR_THREAD);
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit)); /* its file would be longer than that */
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	CHECK(!cl_own.file_id);
	CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_IMPORT_FREED]), 1);
	CHECK(stat(log_path, &log) || !log.st_size);
	/* once it exports, it is an error that must be reported */
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	CHECK(!cl_own.file_id);
	CHECK(!stat(log_path, &log) && log.st_size);
	unlink(log_path);
	end_exporter(other, line);
}

IN_A_CHILD(without_room_there_are_fewer_stacks_and_one_word)
{
	CUipcMemHandle handle;
	char text[4096] = "", *said;
	int fd;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.stack.number = 0;
	cl_options.log.number = CL_LOG_INFO;
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	cl_options.stack.number = 8;
	/* the descriptor is not ours any more, and the name is gone */
	CHECK_EQUAL(cl_region_unlink(&cl_own, open(folder, O_RDONLY | O_DIRECTORY)), 0);
	close(cl_own.fd);
	for (int i = 0; i < 3; i++)
		CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	CHECK_EQUAL(cl_own.record[3].export_stack, 0);
	CHECK_EQUAL(cl_own.header->stack_words + cl_own.header->modules, 0);
	fd = open(log_path, O_RDONLY);
	CHECK(read(fd, text, sizeof text - 1) > 0);
	said = strstr(text, "no room for more call stacks");
	CHECK(said && !strstr(said + 1, "no room for more call stacks"));
	unlink(log_path);
}

IN_A_CHILD(a_forked_child_writes_anew)
{
	struct cl_view view;
	struct cl_view_block block;
	CUipcMemHandle handle;
	pid_t child;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	child = fork();
	if (!child) {
		CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
		view = own();
		CHECK(cl_view_block(&view, 0, &block));
		CHECK(LEADS_THROUGH(&view, block.export_stack, export_here));
		_exit(cl_process_end(0));
	}
	CHECK(child > 0);
	CHECK_EQUAL(waitpid(child, &(int){ 0 }, 0), child);
	cl_process_end(0);
	CHECK_EQUAL(count_entries(folder), 0);
}

/* Another process has written into our counts and entries: culimbo uses only entries that it got itself. */
IN_A_CHILD(lies_in_the_report_data_are_nothing_to_who_wrote_them)
{
	struct cl_finding finding = { .kind = CL_FINDING_FREED_TWICE };
	struct cl_import_entry entry = { .key = 1, .kind = CL_MEMORY };
	CUipcMemHandle handle;
	struct cl_view view;
	struct cl_view_block block;
	struct stat before, after;
	uint32_t index, words;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	index = cl_import_log_add(&entry);
	CHECK_EQUAL(index, 0);
	cl_lock(&cl_exports_lock);
	cl_finding_add_locked(&finding);
	cl_unlock(&cl_exports_lock);
	words = cl_own.header->stack_words;
	CHECK(!fstat(cl_own.fd, &before));
	memset(&cl_own.header->modules, 0xff, 16);
	cl_import_log_opens(index, 2);
	CHECK_EQUAL(cl_import_log_add(&entry), 1);
	cl_lock(&cl_exports_lock);
	cl_finding_add_locked(&finding);
	cl_unlock(&cl_exports_lock);
	CHECK_EQUAL(cl_own.header->imports, 2);
	CHECK_EQUAL(cl_own.header->findings, 2);
	memset(&cl_own.header->modules, 0, 16);
	CHECK_EQUAL(cl_memory_export(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	CHECK(cl_own.header->stack_words > words);
	CHECK(!fstat(cl_own.fd, &after));
	CHECK_EQUAL(after.st_blocks, before.st_blocks);
	view = own();
	CHECK(cl_view_block(&view, 0, &block) && block.export_stack);
	cl_import_log_opens(1, 0);
	CHECK_EQUAL(cl_import_log_add(&entry), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_says_where_it_was_exported_and_freed),
		cmocka_unit_test(equal_stacks_are_noted_once),
		cmocka_unit_test(as_many_frames_as_wanted),
		cmocka_unit_test(a_free_that_goes_to_the_driver_writes_nothing),
		cmocka_unit_test(an_import_is_noted_while_it_is_open),
		cmocka_unit_test(what_goes_with_its_context_is_not_noted_as_open),
		cmocka_unit_test(who_only_imports_needs_no_file),
		cmocka_unit_test(without_room_there_are_fewer_stacks_and_one_word),
		cmocka_unit_test(a_forked_child_writes_anew),
		cmocka_unit_test(lies_in_the_report_data_are_nothing_to_who_wrote_them),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

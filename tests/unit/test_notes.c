/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: what a process writes of itself for reports is right, is there when it
 * is killed, costs no room twice, and never stands in the way.
 *
 * Promises 4 and 5.  The driver is a fake one (fake_driver.h); each test is a
 * process that has shared nothing yet, read by view.c.
 */
#include "tests/unit/fake_driver.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "shim/importer/peers.h"
#include "shim/report/exit.h"
#include "shim/shm/gc.h"
#include "shim/diag/notes.h"
#include "shim/self/self.h"
#include "shim/diag/stack.h"
#include "shim/shm/view.h"

enum { SOON = 5000 };

static struct cl_view own(void)
{
	struct cl_view view;

	CHECK(cl_own.header);
	cl_view_own(&view);
	return view;
}

/* The frames of a stack lead through this function of ours. */
#define LEADS_THROUGH(view, stack, function) \
	leads_through(view, stack, (uint64_t)(uintptr_t)&(function))
static bool leads_through(const struct cl_view *view, uint32_t stack, uint64_t function)
{
	struct cl_view_frame frame;

	for (unsigned int i = 0; i < cl_view_stack_depth(view, stack); i++)
		if (cl_view_stack_frame(view, stack, i, &frame) && frame.address > function &&
		    frame.address < function + 400) {
			/* and that is in this program, which the linker gave an id or not */
			CHECK(strstr(frame.path, "test_notes"));
			CHECK(frame.offset < 16 * MIB);
			return true;
		}
	return false;
}

static unsigned int findings_of(const struct cl_view *view, enum cl_finding_kind kind,
				struct cl_finding *last)
{
	struct cl_finding finding;
	unsigned int n = 0;

	for (uint32_t i = 0; i < cl_view_findings(view); i++)
		if (cl_view_finding(view, i, &finding) && finding.kind == kind) {
			*last = finding;
			n++;
		}
	CHECK_EQUAL(cl_view_found(view, kind), n);
	return n;
}

__attribute__((noinline)) static CUresult export_here(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = cl_memory_export(handle, p);

	__asm__ volatile("" ::: "memory"); /* no jump: this frame stays */
	return result;
}
__attribute__((noinline)) static CUresult free_here(CUdeviceptr p)
{
	CUresult result = cl_memory_free(p);

	__asm__ volatile("" ::: "memory");
	return result;
}
__attribute__((noinline)) static CUresult open_here(CUdeviceptr *p, const CUipcMemHandle *handle)
{
	CUresult result = cl_memory_import(p, *handle, 0, fake_open);

	__asm__ volatile("" ::: "memory");
	return result;
}
__attribute__((noinline)) static CUresult close_here(CUdeviceptr p)
{
	CUresult result = cl_memory_close(p);

	__asm__ volatile("" ::: "memory");
	return result;
}

/* ----------------------------------------------------------------- another one */
/* A process that exports one block and waits until its line is closed. */
static pid_t start_exporter(CUipcMemHandle *handle, int *line)
{
	pid_t child = fork_with_line(line);

	if (!child) {
		CUipcMemHandle mine;
		char byte;

		start_with(HOUR, CL_COLLECTOR_THREAD);
		CHECK_EQUAL(export_here(&mine, fake_alloc(2048, CONTEXT_A)), CUDA_SUCCESS);
		CHECK_EQUAL(write(*line, &mine, sizeof mine), sizeof mine);
		while (read(*line, &byte, 1) > 0)
			;
		_exit(cl_process_end(0));
	}
	CHECK_EQUAL(read(*line, handle, sizeof *handle), sizeof *handle);
	return child;
}

static void end_exporter(pid_t child, int line)
{
	int status;

	close(line);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
}

/* ------------------------------------------------------------------------ tests */
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
	/* again, from elsewhere: the first one counts */
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
	CHECK(cl_view_block(&view, 1, &block));
	CHECK_EQUAL(cl_view_stack_depth(&view, block.export_stack), 2);
}

/* A free that does not enter the limbo takes no stack. */
IN_A_CHILD(a_free_that_goes_to_the_driver_notes_nothing)
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
	cl_context_end_begin(CONTEXT_A, 0);
	cl_context_end_done(CONTEXT_A, 0, true);
	CHECK(!cl_view_import(&view, 0, &import));
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	CHECK_EQUAL(cl_own.header->imports, 1);
	end_exporter(other, line);
}

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
	CHECK_EQUAL(findings_of(&view, CL_FOUND_FREED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, p);
	CHECK_EQUAL(found.size, 1024);
	CHECK_EQUAL(found.file_id, cl_own.file_id);
	CHECK_EQUAL(found.record, 0);
	CHECK(found.when && found.other_when && found.when >= found.other_when);
	CHECK(LEADS_THROUGH(&view, found.stack, free_here));
	CHECK(LEADS_THROUGH(&view, found.other_stack, free_here));
	CHECK_EQUAL(export_here(&handle, p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EXPORTED_AFTER_FREE, &found), 1);
	/* what the driver says first, it says with us, too */
	fake.none_result = CUDA_ERROR_INVALID_CONTEXT;
	CHECK_EQUAL(export_here(&handle, p), CUDA_ERROR_INVALID_CONTEXT);
	CHECK_EQUAL(cl_memory_free_async(p, NULL, false), CUDA_ERROR_INVALID_CONTEXT);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EXPORTED_AFTER_FREE, &found), 2);
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
	CHECK_EQUAL(findings_of(&view, CL_FOUND_IMPORT_FREED, &found), 1);
	CHECK_EQUAL(found.pid, other);
	CHECK_EQUAL(found.size, 2048);
	CHECK(LEADS_THROUGH(&view, found.stack, free_here));
	CHECK(LEADS_THROUGH(&view, found.other_stack, open_here));
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	/* (the fake driver closes what was ever open: another address, which it refuses) */
	CHECK_EQUAL(close_here(p - 0x10000000000), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_CLOSED_TWICE, &found), 1);
	CHECK_EQUAL(found.other_stack, 0);
	cl_driver.cuIpcCloseMemHandle = fake_free; /* refuses it */
	CHECK_EQUAL(close_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_CLOSED_TWICE, &found), 2);
	CHECK_EQUAL(found.pid, other);
	CHECK(found.other_when && found.other_when < found.when);
	CHECK(LEADS_THROUGH(&view, found.stack, close_here));
	CHECK(LEADS_THROUGH(&view, found.other_stack, close_here));
	/* another generation than there is */
	stale = handle;
	memcpy(&tail, handle.reserved + 56, sizeof tail);
	tail ^= 1ull << (CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS);
	memcpy(stale.reserved + 56, &tail, sizeof tail);
	CHECK_EQUAL(open_here(&p, &stale), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_STALE_REFUSED, &found), 1);
	CHECK_EQUAL(found.file_id, stamp_of(&stale).file_id);
	CHECK_EQUAL(found.generation, 1);
	CHECK(LEADS_THROUGH(&view, found.stack, open_here));
	end_exporter(other, line);
}

IN_A_CHILD(events_are_found_destroyed_twice_and_forced_out)
{
	CUipcEventHandle handle;
	struct cl_finding found;
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
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EVENT_DESTROYED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, (uintptr_t)event);
	CHECK_EQUAL(found.block_kind, CL_EVENT);
	CHECK(found.stack && found.other_stack);
	cl_options.max_events.number = 1;
	CHECK_EQUAL(cl_event_destroy(other, fake_event_destroy), CUDA_SUCCESS);
	cl_limbo_collect(false);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EVENT_FORCED_OUT, &found), 1);
	CHECK_EQUAL(found.key, (uintptr_t)event);
	CHECK(found.other_stack);
}

/* Of another process, whose file may say anything. */
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
			cl_limbo_collect(false);
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
	CHECK_EQUAL(findings_of(&view, CL_FOUND_STALE_REFUSED, &found), ++n);
	CHECK(found.other_when && found.other_when < found.when);
	CHECK(LEADS_THROUGH(&view, found.stack, open_here));
	/* (a forked child's addresses are ours) */
	CHECK(LEADS_THROUGH(&view, found.other_stack, free_here));
	CHECK(cl_view_stack_frame(&view, found.other_stack, 0, &frame) && frame.foreign);
	CHECK(cl_view_stack_frame(&view, found.stack, 0, &frame) && !frame.foreign);
	word = found.other_stack;
	CHECK_EQUAL(open_here(&p, &handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_STALE_REFUSED, &found), ++n);
	CHECK_EQUAL(found.other_stack, word); /* one place, noted once */

	/* lies: a stack that is none, addresses that can be none, longer than any, another generation */
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
		CHECK_EQUAL(findings_of(&view, CL_FOUND_STALE_REFUSED, &found), ++n);
		CHECK_EQUAL(found.other_stack, 0);
		CHECK_EQUAL(found.other_when != 0, way != 3);
	}
	CHECK_EQUAL(pwrite(region->fd, &was, sizeof was, record), sizeof was);
	word = 1;
	CHECK_EQUAL(pwrite(region->fd, &word, sizeof word, stack), sizeof word);
	word = UINT64_C(1) << 63 | 4096;
	CHECK_EQUAL(pwrite(region->fd, &word, sizeof word, stack + 8), sizeof word);
	CHECK_EQUAL(open_here(&p, &handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_STALE_REFUSED, &found), ++n);
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

/* The driver would crash; but what it makes at that address later is another event. */
IN_A_CHILD(an_imported_event_is_found_destroyed_twice)
{
	CUipcEventHandle handle = { 0 }; /* (of a process without culimbo) */
	struct cl_finding found;
	struct cl_view view;
	CUevent event;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuIpcOpenEventHandle = open_fake_event;
	CHECK_EQUAL(cl_event_import(&event, handle), CUDA_SUCCESS);
	/* one that the driver did not do was none */
	CHECK_EQUAL(cl_event_destroy(event, refuse_destroy), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EVENT_DESTROYED_TWICE, &found), 0);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_ERROR_INVALID_HANDLE);
	CHECK_EQUAL(cl_count_get(events_destroyed_twice), 1);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EVENT_DESTROYED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, (uintptr_t)event);
	CHECK_EQUAL(found.block_kind, CL_EVENT);
	CHECK(found.stack && found.other_stack && found.other_when && found.other_when <= found.when);
	/* the driver makes another where it was */
	atomic_store(&fake.event_live[((uintptr_t)event - 0x1000) / 16], true);
	cl_event_is_new(event);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EVENT_DESTROYED_TWICE, &found), 1);
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
	CHECK_EQUAL(cl_count_get(events_destroyed_twice), 0);
}

/* Memory that shim/ asks for while this is set is not to be had (the linker leads its calls here). */
static bool no_memory;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
	return no_memory ? NULL : __real_malloc(size);
}

/* No note of the second says that it is not the first. */
IN_A_CHILD(an_event_opened_where_one_was_is_destroyed_though_no_memory_was_left_to_note_it)
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
	CHECK_EQUAL(findings_of(&view, CL_FOUND_EVENT_DESTROYED_TWICE, &found), 0);
}

IN_A_CHILD(a_second_close_of_what_no_memory_was_left_to_note_is_told_without_another_ones_first)
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
	/* (it takes what the first left for the next) */
	CHECK_EQUAL(open_here(&q, &another), CUDA_SUCCESS);
	no_memory = true;
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	no_memory = false;
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(findings_of(&view, CL_FOUND_CLOSED_TWICE, &found), 0);
	cl_driver.cuIpcCloseMemHandle = fake_free; /* refuses it */
	CHECK_EQUAL(close_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_CLOSED_TWICE, &found), 1);
	CHECK_EQUAL(found.key, p);
	CHECK(!found.other_stack && !found.other_when);
	/* what is noted again is told again */
	cl_driver.cuIpcCloseMemHandle = close_of_the_driver;
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	cl_driver.cuIpcCloseMemHandle = fake_free;
	CHECK_EQUAL(close_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(findings_of(&view, CL_FOUND_CLOSED_TWICE, &found), 2);
	CHECK(found.other_stack && found.other_when);
	unlink(log_path); /* (it says that there was no memory) */
	end_exporter(third, another_line);
	end_exporter(other, line);
}

static bool is_open_here(uint32_t file_id)
{
	bool is_own;

	return cl_peer_has_open(file_id, &is_own) != NULL;
}

static unsigned int reclaimed(const struct cl_view *view)
{
	struct cl_finding found;

	cl_limbo_reap();
	return findings_of(view, CL_FOUND_HOLD_RECLAIMED, &found);
}

IN_A_CHILD(the_dead_are_found_and_left_a_file_that_says_what_they_had)
{
	CUipcMemHandle handle;
	struct cl_witness dead = { 0 };
	struct cl_finding found;
	struct cl_view view, his;
	struct cl_view_import import;
	CUdeviceptr p;
	int line[2], dir, status;
	pid_t other;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = fake_alloc(4096, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	view = own();
	CHECK(!pipe(line));
	other = fork();
	if (!other) {
		start_with(HOUR, CL_COLLECTOR_INLINE);
		CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
		CHECK_EQUAL(write(line[1], &cl_self.witness, sizeof dead), sizeof dead);
		for (;;)
			pause();
	}
	CHECK_EQUAL(read(line[0], &dead, sizeof dead), sizeof dead);
	CHECK_EQUAL(dead.pid, other);
	kill(other, SIGKILL);
	CHECK_EQUAL(waitpid(other, &status, 0), other);
	CHECK(COMES_TRUE(reclaimed(&view) == 1, SOON));
	findings_of(&view, CL_FOUND_HOLD_RECLAIMED, &found);
	CHECK_EQUAL(found.pid, other);
	CHECK_EQUAL(found.key, p);
	CHECK_EQUAL(found.size, 4096);
	CHECK(found.name[0]);
	/* what he said himself is still there */
	dir = open(folder, O_RDONLY | O_DIRECTORY);
	CHECK_EQUAL(cl_view_open_process(&his, dir, &dead, cl_peer_has_open), 0);
	CHECK_EQUAL(his.state, CL_DEAD);
	CHECK(cl_view_import_of(&his, cl_own.file_id, 0, 0, &import));
	CHECK_EQUAL(import.exporter_pid, getpid());
	CHECK_EQUAL(import.size, 4096);
	CHECK(LEADS_THROUGH(&his, import.stack, open_here));
	cl_view_close(&his);
	/* kept when wanted, and taken by who is asked to */
	cl_options.keep_dead.number = HOUR;
	CHECK_EQUAL(cl_gc_directory(dir, is_open_here), 0);
	CHECK_EQUAL(cl_view_open_process(&his, dir, &dead, cl_peer_has_open), 0);
	cl_view_close(&his);
	cl_options.keep_dead.number = 1;
	CHECK_EQUAL(cl_gc_directory(dir, is_open_here), 1);
	CHECK_EQUAL(cl_view_open_process(&his, dir, &dead, cl_peer_has_open), -ENOENT);
	cl_process_end(0);
}

IN_A_CHILD(an_explicit_gc_takes_what_is_kept)
{
	int dir, status, line;
	CUipcMemHandle handle;
	pid_t other = start_exporter(&handle, &line);

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.keep_dead.number = HOUR;
	kill(other, SIGKILL);
	CHECK_EQUAL(waitpid(other, &status, 0), other);
	dir = open(folder, O_RDONLY | O_DIRECTORY);
	CHECK_EQUAL(cl_gc_directory(dir, is_open_here), 0);
	CHECK_EQUAL(cl_gc_directory(dir, NULL), 1);
	close(line);
}

/* Without a file all is as before, and an importer makes no fuss about it. */
IN_A_CHILD(who_only_imports_needs_no_file)
{
	struct rlimit limit = { 1 << 20, RLIM_INFINITY };
	CUipcMemHandle handle;
	CUdeviceptr p = 0;
	struct stat log;
	int line;
	pid_t other = start_exporter(&handle, &line);

	start_with(0, CL_COLLECTOR_THREAD);
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit)); /* its file would be longer */
	CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
	CHECK(!cl_own.header);
	CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(close_here(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_count_get(freed_import), 1);
	CHECK(stat(log_path, &log) || !log.st_size);
	/* once it exports, it is an error that somebody must know of */
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	CHECK(!cl_own.header);
	CHECK(!stat(log_path, &log) && log.st_size);
	unlink(log_path);
	end_exporter(other, line);
}

IN_A_CHILD(without_room_there_are_fewer_notes_and_one_word)
{
	CUipcMemHandle handle;
	char text[4096] = "", *said;
	int fd;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.stack.number = 0;
	cl_options.log.number = CL_LOG_INFO;
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	cl_options.stack.number = 8;
	/* a descriptor that is not ours any more, and a name that is gone */
	CHECK_EQUAL(cl_region_unlink(&cl_own, open(folder, O_RDONLY | O_DIRECTORY)), 0);
	close(cl_own.fd);
	for (int i = 0; i < 3; i++)
		CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	CHECK_EQUAL(cl_own.record[3].export_stack, 0);
	CHECK_EQUAL(cl_own.header->stack_words + cl_own.header->modules, 0);
	fd = open(log_path, O_RDONLY);
	CHECK(read(fd, text, sizeof text - 1) > 0);
	said = strstr(text, "no room to note");
	CHECK(said && !strstr(said + 1, "no room to note"));
	unlink(log_path);
}

IN_A_CHILD(a_forked_child_notes_anew)
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

/* Findings beyond their table are counted. */
IN_A_CHILD(findings_are_bounded_and_all_counted)
{
	struct cl_finding finding = { .kind = CL_FOUND_FREED_TWICE };
	CUipcMemHandle handle;
	struct cl_view view;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	for (uint32_t i = 0; i < CL_FINDINGS + 10; i++) {
		finding.key = i;
		cl_notes_finding(&finding);
	}
	view = own();
	CHECK_EQUAL(cl_view_findings(&view), CL_FINDINGS);
	CHECK_EQUAL(cl_view_found(&view, CL_FOUND_FREED_TWICE), CL_FINDINGS + 10);
	CHECK(cl_view_finding(&view, CL_FINDINGS - 1, &finding));
	CHECK_EQUAL(finding.key, CL_FINDINGS - 1);
}

/* Another process has written into our counts and entries: we touch only what we got. */
IN_A_CHILD(lies_in_the_notes_are_nothing_to_who_wrote_them)
{
	struct cl_finding finding = { .kind = CL_FOUND_FREED_TWICE };
	struct cl_import_note note = { .key = 1, .kind = CL_MEMORY };
	CUipcMemHandle handle;
	struct cl_view view;
	struct cl_view_block block;
	struct stat before, after;
	uint32_t index, words;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	index = cl_notes_import(&note);
	CHECK_EQUAL(index, 0);
	cl_notes_finding(&finding);
	words = cl_own.header->stack_words;
	CHECK(!fstat(cl_own.fd, &before));
	memset(&cl_own.header->modules, 0xff, 16);
	cl_notes_import_opens(index, 2);
	CHECK_EQUAL(cl_notes_import(&note), 1);
	cl_notes_finding(&finding);
	CHECK_EQUAL(cl_own.header->imports, 2);
	CHECK_EQUAL(cl_own.header->findings, 2);
	memset(&cl_own.header->modules, 0, 16);
	CHECK_EQUAL(cl_memory_export(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	CHECK(cl_own.header->stack_words > words);
	CHECK(!fstat(cl_own.fd, &after));
	CHECK_EQUAL(after.st_blocks, before.st_blocks);
	view = own();
	CHECK(cl_view_block(&view, 0, &block) && block.export_stack);
	cl_notes_import_opens(1, 0);
	CHECK_EQUAL(cl_notes_import(&note), 1);
}

/* ------------------------------------------------------------------- the end */
static void end_in_handler(int signal)
{
	(void)signal;
	_exit(cl_process_end(7));
}

/* _exit() in a handler on a stack of 8 KiB, with what must not be touched below it. */
IN_A_CHILD(an_end_in_a_signal_handler_needs_no_large_stack)
{
	enum { SMALL_STACK = 8192 };
	struct sigaction action = { .sa_handler = end_in_handler, .sa_flags = SA_ONSTACK };
	CUipcMemHandle handle, other;
	CUdeviceptr p;
	int line, status;
	pid_t exporter = start_exporter(&other, &line), child = fork();
	char *area;

	CHECK(child >= 0);
	if (!child) {
		start_with(HOUR, CL_COLLECTOR_INLINE);
		cl_options.report.number = CL_REPORT_ALWAYS;
		CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
		CHECK_EQUAL(open_here(&p, &other), CUDA_SUCCESS);
		area = mmap(NULL, 32 * SMALL_STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(area != MAP_FAILED);
		area += 31 * SMALL_STACK;
		CHECK(!mprotect(area, SMALL_STACK, PROT_READ | PROT_WRITE));
		CHECK(!sigaltstack(&(stack_t){ .ss_sp = area, .ss_size = SMALL_STACK }, NULL));
		CHECK(!sigaction(SIGUSR1, &action, NULL));
		raise(SIGUSR1);
		_exit(1);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 7 << 8);
	end_exporter(exporter, line);
}

static void fails(enum cl_retry_want want)
{
	struct cl_retry retry;

	cl_retry_begin(&retry, want, (struct cl_short){ .bytes = 1 });
	cl_retry_again(&retry);
	cl_retry_end(&retry);
}

/* What forks past the handlers (_Fork(), clone()) leaves a child without our files. */
IN_A_CHILD(a_child_that_was_forked_unseen_begins_anew)
{
	enum { EXPORT, FREE, IMPORT, CLOSE, ALLOCATE, CONTEXT_ENDS, NO_MEMORY, NO_EVENT, WAYS };
	CUipcMemHandle handle, other;
	int line, status;
	pid_t exporter = start_exporter(&other, &line);
	CUdeviceptr p, open;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	CHECK_EQUAL(open_here(&open, &other), CUDA_SUCCESS);
	for (int way = 0; way < WAYS; way++) {
		pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, NULL, NULL, 0);

		CHECK(child >= 0);
		if (!child) {
			if (way == EXPORT)
				cl_memory_export(&handle, p);
			else if (way == FREE)
				cl_memory_free(p);
			else if (way == IMPORT)
				open_here(&open, &other);
			else if (way == CLOSE)
				cl_memory_close(open);
			else if (way == ALLOCATE)
				cl_memory_allocates();
			else if (way == NO_MEMORY)
				fails(CL_RETRY_MEMORY);
			else if (way == NO_EVENT)
				fails(CL_RETRY_EVENT);
			if (way == CONTEXT_ENDS) {
				cl_context_end_begin(CONTEXT_A, 0);
				cl_context_end_done(CONTEXT_A, 0, false);
			}
			_exit(0);
		}
		CHECK_EQUAL(waitpid(child, &status, 0), child);
		CHECK_EQUAL(status, 0);
	}
	/* and its parent has what it had */
	CHECK(cl_own.header && cl_region_fd_intact(&cl_own));
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	CHECK_EQUAL(cl_memory_close(open), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_process_end(0);
	end_exporter(exporter, line);
}

static bool none_is_open(uint32_t file_id)
{
	(void)file_id;
	return false;
}

/* What others left by the thousand makes neither a start nor an end long. */
IN_A_CHILD(of_many_dead_files_a_few_hundred_are_judged_at_once)
{
	enum { DEAD = 600, AT_ONCE = 256 };
	unsigned int gone = 0, some;
	int dir, status;
	pid_t maker;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK((dir = cl_self_open_dir(true)) >= 0);
	maker = fork();
	CHECK(maker >= 0);
	if (!maker) {
		struct cl_witness self;
		struct cl_region r;

		cl_witness_self(&self);
		for (int i = 0; i < DEAD; i++) {
			CHECK_EQUAL(cl_region_create(&r, dir, &self), 0);
			cl_region_close(&r);
		}
		_exit(0);
	}
	CHECK_EQUAL(waitpid(maker, &status, 0), maker);
	CHECK_EQUAL(status, 0);
	/* looked at once, the kept ones cost so little that they are in nobody's way */
	cl_options.keep_dead.number = HOUR;
	for (int i = 0; i <= DEAD / AT_ONCE; i++)
		CHECK_EQUAL(cl_gc_directory(dir, none_is_open), 0);
	cl_options.keep_dead.number = 0;
	while (gone < DEAD) {
		some = cl_gc_directory(dir, none_is_open);
		CHECK(some > 0 && some <= AT_ONCE);
		gone += some;
	}
	CHECK_EQUAL(gone, DEAD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_says_where_it_was_exported_and_freed),
		cmocka_unit_test(equal_stacks_are_noted_once),
		cmocka_unit_test(as_many_frames_as_wanted),
		cmocka_unit_test(a_free_that_goes_to_the_driver_notes_nothing),
		cmocka_unit_test(an_import_is_noted_while_it_is_open),
		cmocka_unit_test(what_goes_with_its_context_is_not_noted_as_open),
		cmocka_unit_test(misuse_of_blocks_is_found_with_both_stacks),
		cmocka_unit_test(misuse_of_imports_is_found_with_both_stacks),
		cmocka_unit_test(events_are_found_destroyed_twice_and_forced_out),
		cmocka_unit_test(a_stale_handle_is_found_with_where_its_block_was_freed),
		cmocka_unit_test(an_imported_event_is_found_destroyed_twice),
		cmocka_unit_test(what_was_exported_where_an_imported_event_was_is_destroyed_as_often_as_it_is_made),
		cmocka_unit_test(an_event_opened_where_one_was_is_destroyed_though_no_memory_was_left_to_note_it),
		cmocka_unit_test(a_second_close_of_what_no_memory_was_left_to_note_is_told_without_another_ones_first),
		cmocka_unit_test(the_dead_are_found_and_left_a_file_that_says_what_they_had),
		cmocka_unit_test(an_explicit_gc_takes_what_is_kept),
		cmocka_unit_test(who_only_imports_needs_no_file),
		cmocka_unit_test(without_room_there_are_fewer_notes_and_one_word),
		cmocka_unit_test(a_forked_child_notes_anew),
		cmocka_unit_test(findings_are_bounded_and_all_counted),
		cmocka_unit_test(lies_in_the_notes_are_nothing_to_who_wrote_them),
		cmocka_unit_test(an_end_in_a_signal_handler_needs_no_large_stack),
		cmocka_unit_test(a_child_that_was_forked_unseen_begins_anew),
		cmocka_unit_test(of_many_dead_files_a_few_hundred_are_judged_at_once),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of diag/: calls that can be found in a stack, another exporter, and what a
 * process has recorded.  The driver is fake (fake_driver.h).  Each test is a process that has shared
 * nothing yet; view.c reads its file.
 */
#ifndef CL_TEST_REPORT_DATA_H
#define CL_TEST_REPORT_DATA_H

#include "tests/unit/fake_driver.h"

#include "shim/importer/peers.h"
#include "shim/report/exit.h"
#include "shim/shm/view.h"

static inline struct cl_view own(void)
{
	struct cl_view view;

	cl_view_own(&view);
	return view;
}

/* The frames of a stack go through this function of the test. */
#define LEADS_THROUGH(view, stack, function) \
	leads_through(view, stack, (uint64_t)(uintptr_t)&(function))
static inline bool leads_through(const struct cl_view *view, uint32_t stack, uint64_t function)
{
	struct cl_view_frame frame;

	for (unsigned int i = 0; i < cl_view_stack_depth(view, stack); i++)
		if (cl_view_stack_frame(view, stack, i, &frame) && frame.address > function &&
		    frame.address < function + 400) {
			/* and that is in this program, which the linker gave an id or not */
			CHECK(strstr(frame.path, "test_report_data"));
			CHECK(frame.offset < 16 * MIB);
			return true;
		}
	return false;
}

static inline unsigned int findings_of(const struct cl_view *view, enum cl_finding_kind kind,
				       struct cl_finding *last)
{
	struct cl_finding finding;
	unsigned int n = 0;

	*last = (struct cl_finding){ 0 };
	for (uint32_t i = 0; i < cl_view_findings(view); i++)
		if (cl_view_finding(view, i, &finding) && finding.kind == kind) {
			*last = finding;
			n++;
		}
	CHECK_EQUAL(cl_view_finding_count(view, kind), n);
	return n;
}

__attribute__((noinline)) static CUresult export_here(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = cl_memory_export(handle, p);

	__asm__ volatile("" ::: "memory"); /* no tail call: this frame stays */
	return result;
}
__attribute__((noinline, unused)) static CUresult free_here(CUdeviceptr p)
{
	CUresult result = cl_memory_free(p);

	__asm__ volatile("" ::: "memory");
	return result;
}
__attribute__((noinline, unused)) static CUresult open_here(CUdeviceptr *p, const CUipcMemHandle *handle)
{
	CUresult result = cl_memory_import(p, *handle, 0, fake_open);

	__asm__ volatile("" ::: "memory");
	return result;
}
__attribute__((noinline, unused)) static CUresult close_here(CUdeviceptr p)
{
	CUresult result = cl_memory_close(p);

	__asm__ volatile("" ::: "memory");
	return result;
}

/* A process that exports one block and waits until its line is closed. */
static inline pid_t start_exporter(CUipcMemHandle *handle, int *line)
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

static inline void end_exporter(pid_t child, int line)
{
	int status;

	close(line);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
}

#endif

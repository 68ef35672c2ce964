/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace: records the lives of blocks for a picture of them (CULIMBO_TRACE, `culimbo trace`).
 *
 * Without that option a call costs a load and a branch.  With it, a record costs a clock reading
 * and some stores to a mapped file, without a lock.  Only the first record of the process, which
 * makes the file, makes system calls.  If that fails the log says so once, and there is no trace.
 * Any thread, with or without locks of ours, also in signal handlers.  errno is kept.
 */
#ifndef CL_TRACE_H
#define CL_TRACE_H

#include "shim/diag/trace_layout.h"
#include <cuda.h>
#include "shim/self/sharing.h"

/* Writes one record.  Fills in @e->tid, and @e->when if it is 0. */
void cl_trace_write(struct cl_trace_event *e) __attribute__((cold));

#define cl_trace(what_, ...)                                                            \
	do {                                                                            \
		if (cl_tracing())                                                       \
			cl_trace_write(&(struct cl_trace_event){ .what = (what_), __VA_ARGS__ }); \
	} while (0)

/* Traces a struct cl_block of this process, under cl_exports_lock.  More members may follow. */
#define cl_trace_block(what_, block, ...)                                               \
	cl_trace(what_, .kind = (block)->kind, .device = (block)->device,               \
		 .key = (block)->link.key, .size = (block)->size, .file_id = cl_own.file_id, \
		 .record = (block)->record, ##__VA_ARGS__)

/* At the end of the process: writes a last record if there is a file. */
void cl_trace_end(void);
/*
 * The process calls these once, at its end.  room_for_stacks() returns the room that the file has for call
 * stacks, *size bytes, or NULL if there is no file.  The second says how many modules and words were
 * written there (cl_report_data_copy_stacks_locked()).
 */
char *cl_trace_room_for_stacks(uint64_t *size);
void cl_trace_has_stacks(uint32_t modules, uint32_t words);
/* In a forked child, which begins its own trace. */
void cl_trace_forget(void);

/* The hooks in preload/ call these. */
/* After the options were read: makes cl_tracing() true if CULIMBO_TRACE is set.  No system call. */
void cl_trace_begin(void);
/* The next three only if cl_tracing(). */
uint64_t cl_trace_now(void); /* CLOCK_MONOTONIC, ns */
/* An allocation of @bytes returned @result.  @dptr: its address; NULL: it cannot be shared. */
void cl_trace_allocated(const CUdeviceptr *dptr, size_t bytes, CUresult result);
/* The driver or the limbo took @dptr, in a call that began at @began (cl_trace_now()). */
void cl_trace_freed(CUdeviceptr dptr, uint64_t began);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording block lives for a picture of them: CULIMBO_TRACE, `culimbo trace`.
 *
 * Without that option a call here costs a load and a branch.  With it, a record
 * costs a clock reading and some stores to a mapped file: no lock, no system
 * call but for the first one of the process, which makes the file.  Where that
 * fails there is one message and no trace.  Any thread, any lock of ours held
 * or not, signal handlers too.  errno is kept.
 */
#ifndef CL_TRACE_H
#define CL_TRACE_H

#include "shim/diag/trace_layout.h"
#include <cuda.h>
#include "shim/self/sharing.h"

/* @e->tid is filled in, and @e->when if it is 0. */
void cl_trace_write(struct cl_trace_event *e) __attribute__((cold));

#define cl_trace(what_, ...)                                                            \
	do {                                                                            \
		if (cl_tracing())                                                       \
			cl_trace_write(&(struct cl_trace_event){ .what = (what_), __VA_ARGS__ }); \
	} while (0)

/* Of a struct cl_block of this process (under cl_exports_lock); more members may follow. */
#define cl_trace_block(what_, block, ...)                                               \
	cl_trace(what_, .kind = (block)->kind, .device = (block)->device,               \
		 .key = (block)->link.key, .size = (block)->size, .file_id = cl_own.file_id, \
		 .record = (block)->record, ##__VA_ARGS__)

/* The process ends: a record of that, in a file that is there (it makes none). */
void cl_trace_end(void);
/* A forked child starts anew. */
void cl_trace_forget(void);

/* What the hooks in preload/ call: */
/* After the options were read: makes cl_tracing() true where CULIMBO_TRACE is set.  No system call. */
void cl_trace_begin(void);
/* When cl_tracing(): */
uint64_t cl_trace_now(void); /* CLOCK_MONOTONIC, ns */
/* An allocation of @bytes had @result; then its address is at @dptr (NULL: not one that can be shared). */
void cl_trace_allocated(const CUdeviceptr *dptr, size_t bytes, CUresult result);
/* The driver, or the limbo, took @dptr in a call that began at @began (cl_trace_now). */
void cl_trace_freed(CUdeviceptr dptr, uint64_t began);

#endif

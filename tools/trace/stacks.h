/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The call stacks of the processes of a trace.  A process leaves them in its trace when it
 * ends.  If it still runs or was killed, they are read from its exporter file, if that exists.
 */
#ifndef CU_TRACE_STACKS_H
#define CU_TRACE_STACKS_H

#include <stdio.h>

#include "tools/common/symbols.h"
#include "tools/trace/trace.h"

struct cu_trace_view {
	struct cl_view is;
	struct cl_header header; /* of stacks from the trace */
};

/*
 * Reads the call stacks in the trace file @fd of @size bytes for @p, whose identity is known.
 * Without memory, or if the numbers in @header are impossible, @p gets none.
 */
void cu_trace_stacks_read(struct cu_trace_process *p, int fd, const struct cl_trace_header *header,
			  uint64_t size);
/* For each process without call stacks, reads them from its exporter file in @dirfd. */
void cu_trace_stacks_find(struct cu_trace *t, int dirfd);
void cu_trace_stacks_free(struct cu_trace_process *p);

/* The stacks that blocks and opens of a trace name; each is listed once. */
struct cu_trace_stacks {
	uint64_t *key; /* sorted: the process's index << 32 | the stack */
	size_t n;
};
/* Lists them; without memory the list is empty. */
struct cu_trace_stacks cu_trace_stacks_of(const struct cu_trace *t);
/* Returns the index of @stack of process @process, or -1. */
long cu_trace_stack_index(const struct cu_trace_stacks *stacks, uint32_t process, uint32_t stack);
/*
 * Writes a JSON list of a stack's lines, innermost first: the program's frames, Python's in
 * front.
 */
void cu_trace_put_stack(FILE *out, struct cu_symbols *symbols, const struct cu_trace *t, uint64_t key);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The call stacks of the processes of a trace: those that a process left in its trace when it ended,
 * else those of its exporter file, if it still runs or was killed and its file is there.
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
 * Reads what the trace file @fd of @size bytes has for @p, whose identity is known.  Without memory,
 * or where the numbers of @header are not possible, @p has none.
 */
void cu_trace_stacks_read(struct cu_trace_process *p, int fd, const struct cl_trace_header *header,
			  uint64_t size);
/* Of each process that has none yet: looks for its exporter file in @dirfd. */
void cu_trace_stacks_find(struct cu_trace *t, int dirfd);
void cu_trace_stacks_free(struct cu_trace_process *p);

/* The stacks that the blocks and opens of a trace name, each once. */
struct cu_trace_stacks {
	uint64_t *key; /* sorted: the process's index << 32 | the stack */
	size_t n;
};
/* Without memory it has none. */
struct cu_trace_stacks cu_trace_stacks_of(const struct cu_trace *t);
/* The place of @stack of process @process among them, or -1. */
long cu_trace_stack_index(const struct cu_trace_stacks *stacks, uint32_t process, uint32_t stack);
/* A JSON list of its lines, innermost first: the program's frames, Python's in front. */
void cu_trace_put_stack(FILE *out, struct cu_symbols *symbols, const struct cu_trace *t, uint64_t key);

#endif

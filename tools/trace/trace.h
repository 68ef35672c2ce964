/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of traces, from which `culimbo trace` makes its pictures.
 *
 * A trace file may be cut, damaged, still written to, or forged.  A good seal only
 * shows that something is a record, and nothing else is trusted: every number is
 * bounded before it is used as an index.
 */
#ifndef CU_TRACE_H
#define CU_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/diag/trace_layout.h"

#define CU_NEVER INT64_MIN /* an unknown time */
#define CU_NO_BLOCK UINT32_MAX

enum cu_trace_state { CU_TRACE_RUNNING, CU_TRACE_ENDED_WELL, CU_TRACE_KILLED };

struct cu_limbo_sample {
	int64_t when;
	uint64_t bytes;
};

/* One trace file.  Times are ns since the earliest record of all. */
struct cu_trace_process {
	char *path;
	uint32_t pid;	       /* in its own PID namespace */
	uint32_t id;	       /* the pid, or another number if two files have the same pid */
	char name[17], command[257]; /* the bytes in the file, up to a zero */
	enum cu_trace_state state;
	struct cl_identity who;
	uint8_t boot_id[16];
	uint64_t monotonic, realtime;
	int64_t begin, end;
	uint64_t records, lost, damaged; /* read; overwritten by later ones; unreadable */
	struct cl_trace_event *event;	 /* by time */
	size_t events;
	struct cu_limbo_sample *limbo;
	size_t limbo_n;
	uint64_t limbo_peak;
	uint32_t rows, open_rows; /* the number of rows for its blocks, and for its opens */
	int64_t to_zero; /* added to CLOCK_MONOTONIC for the common time */
	struct cu_trace_view *stacks; /* see stacks.h; NULL: none */
};

struct cu_trace_block {
	uint32_t process; /* index */
	uint32_t file_id, record, generation; /* file_id 0: never exported */
	uint64_t key, size;
	int64_t allocated, exported, freed, limbo, held, ready, released, kept;
	int64_t begin, end; /* of the bar */
	uint32_t exports, opens, row;
	uint32_t export_stack, free_stack; /* 0: not known */
	uint32_t first_open; /* UINT32_MAX: none is known */
	uint8_t kind, device;
	bool gone;	  /* its context ended; virtual memory: it was unmapped */
	bool at_once;	  /* it was never in limbo */
	bool assumed;	  /* its end was not seen; later its address was another block's */
};

struct cu_trace_open {
	uint32_t process, block; /* indices; CU_NO_BLOCK: its exporter has no trace here */
	uint32_t file_id, record, generation, pid;
	uint64_t key, size, opens;
	int64_t opened, closed, end;
	uint32_t row, next_of_block;
	uint32_t stack; /* of the first open; 0: not known */
	uint8_t kind;
	bool own, reclaimed;
};

struct cu_trace_mark {
	uint32_t process, block;
	struct cl_trace_event event;
	int64_t when;
};

struct cu_trace {
	struct cu_trace_process *process;
	struct cu_trace_block *block;
	struct cu_trace_open *open;
	struct cu_trace_mark *mark;
	size_t processes, blocks, opens, marks;
	int64_t span;	       /* ns */
	uint64_t zero_realtime; /* of time 0, CLOCK_REALTIME ns */
};

/*
 * Adds the trace file @path.  Calls @warn for faults that can be skipped.  Returns 0,
 * -ENOMEM, or -errno with *why, a text that stays valid.
 */
int cu_trace_add(struct cu_trace *trace, const char *path, const char **why,
		 void (*warn)(const char *path, const char *text));

/* Makes blocks, opens and marks, after the last cu_trace_add().  Returns 0 or -ENOMEM. */
int cu_trace_join(struct cu_trace *trace);

void cu_trace_free(struct cu_trace *trace);

#endif

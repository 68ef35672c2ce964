/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of `culimbo top`: the processes that the last scan found, sorted and filtered as
 * requested, and how full the limbo of each was before.
 */
#ifndef CU_ROWS_H
#define CU_ROWS_H

#include "tools/common/scan.h"
#include "tools/common/table.h"

/* The columns of the table, by which rows are sorted as well. */
enum { PID, STATE, LIMBOBYTES, BAR, TREND, LIMBO, HELD, EXPORTED, EXPORTEDBYTES, IMPORTED, PINS, AGE, COMMAND };
extern const struct cu_column cu_top_columns[];

enum { SAMPLES = 120 };

/* How many bytes were in the limbo of a process at each scan. */
struct cu_history {
	struct cl_identity who;
	uint32_t file_id;
	uint64_t sample[SAMPLES]; /* a ring; the newest at [(n - 1) % SAMPLES] */
	uint64_t n;
	bool seen; /* the last scan found it */
};

struct cu_row {
	struct cu_process process; /* without its holders, which were freed with the scan */
	size_t history;
};

struct cu_live {
	struct cu_scan scan;
	struct cu_row *row;
	size_t rows;
	struct cu_history *history;
	size_t histories;
	uint64_t most, limbo, limbo_bytes, held, exported, exported_bytes;
	unsigned int unread;
	int sort;
	bool backwards, paused, ascii;
	char filter[64];
	bool looks_only; /* it shows another user's processes, so `g` (collect) is off */
	size_t first; /* row at the top of the screen */
	size_t selected; /* row that keys act on; it follows its process when rows are sorted */
	struct cl_identity chosen; /* pid 0: none was chosen yet: the uppermost row */
	uint32_t chosen_file;
};
extern struct cu_live cu_live;

/* Scans again.  Returns false after an error message. */
bool cu_top_look(const struct cu_command *command);
/* Filters and sorts the last scan again. */
void cu_top_arrange(void);
/* Selects row @row, or the last one. */
void cu_top_select(size_t row);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo top`: the processes that share, as they were seen last, in the order and by the
 * filter that were asked for; and how full the limbo of each was before.
 */
#ifndef CU_ROWS_H
#define CU_ROWS_H

#include "tools/common/scan.h"
#include "tools/common/table.h"

/* The columns of the table, by which rows are sorted as well. */
enum { PID, STATE, LIMBOBYTES, BAR, TREND, LIMBO, HELD, EXPORTED, EXPORTEDBYTES, IMPORTED, PINS, AGE, COMMAND };
extern const struct cu_column cu_top_columns[];

enum { SAMPLES = 120 };

/* Of each process that was seen, how many bytes were in its limbo. */
struct cu_history {
	struct cl_identity who;
	uint32_t file_id;
	uint64_t sample[SAMPLES]; /* a ring; the newest at [(n - 1) % SAMPLES] */
	uint64_t n;
	bool seen; /* in the last scan */
};

struct cu_row {
	struct cu_process process; /* its holders are gone with the scan */
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
	bool looks_only; /* at another user's processes: none is made to collect */
	size_t first; /* row at the top of the screen */
	size_t selected; /* row that keys act on; it stays with its process, wherever that is sorted to */
	struct cl_identity chosen; /* pid 0: nobody was chosen yet, so the uppermost */
	uint32_t chosen_file;
};
extern struct cu_live cu_live;

/* Looks again.  False after a complaint. */
bool cu_top_look(const struct cu_command *command);
/* Filters and sorts what was seen last once more. */
void cu_top_arrange(void);
/* Row @row, or the last one, is the selected one. */
void cu_top_select(size_t row);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns the rows on which blocks and opens are drawn: see pack.h. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "tools/trace/pack.h"

struct bar {
	int64_t begin, end;
	uint32_t *row;
};
static int bars_by_begin(const void *a, const void *b)
{
	const struct bar *x = a, *y = b;

	return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) :
	       x->end != y->end ? (x->end > y->end ? -1 : 1) : 0;
}

/*
 * Puts each bar into the row that has been free the longest, with as few rows as possible.
 * Returns their number.
 */
static uint32_t pack(struct bar *bar, size_t n, int64_t *heap_end, uint32_t *heap_row)
{
	uint32_t rows = 0;

	qsort(bar, n, sizeof *bar, bars_by_begin);
	for (size_t i = 0; i < n; i++) {
		uint32_t row, at = 0;
		int64_t end = bar[i].end;

		if (rows && heap_end[0] < bar[i].begin) {
			row = heap_row[0]; /* reuse the root, and let it sink */
			for (uint32_t child; (child = 2 * at + 1) < rows; at = child) {
				if (child + 1 < rows && heap_end[child + 1] < heap_end[child])
					child++;
				if (heap_end[child] >= end)
					break;
				heap_end[at] = heap_end[child];
				heap_row[at] = heap_row[child];
			}
		} else {
			row = rows;
			for (at = rows++; at && heap_end[(at - 1) / 2] > end; at = (at - 1) / 2) {
				heap_end[at] = heap_end[(at - 1) / 2];
				heap_row[at] = heap_row[(at - 1) / 2];
			}
		}
		heap_end[at] = end;
		heap_row[at] = row;
		*bar[i].row = row;
	}
	return rows;
}

int cu_trace_pack(struct cu_trace *t)
{
	size_t most = t->blocks > t->opens ? t->blocks : t->opens, n, i = 0, k = 0;
	struct bar *bar = malloc((most + 1) * sizeof *bar);
	int64_t *end = malloc((most + 1) * sizeof *end);
	uint32_t *row = malloc((most + 1) * sizeof *row);
	int err = bar && end && row ? 0 : -ENOMEM;

	/* both lists are in the order of the processes */
	for (uint32_t p = 0; !err && p < t->processes; p++) {
		for (n = 0; i < t->blocks && t->block[i].process == p; i++)
			bar[n++] = (struct bar){ t->block[i].begin, t->block[i].end, &t->block[i].row };
		t->process[p].rows = pack(bar, n, end, row);
		for (n = 0; k < t->opens && t->open[k].process == p; k++)
			bar[n++] = (struct bar){ t->open[k].opened, t->open[k].end, &t->open[k].row };
		t->process[p].open_rows = pack(bar, n, end, row);
	}
	free(bar);
	free(end);
	free(row);
	return err;
}

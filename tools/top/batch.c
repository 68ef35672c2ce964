/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo top` without a screen: prints plain tables one after the other, like
 * top -b.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tools/common/text.h"
#include "tools/top/bars.h"
#include "tools/top/batch.h"

static void fill(struct cu_cell *cell, unsigned int column, const void *data)
{
	const struct cu_row *row = data;
	const struct cu_process *p = &row->process;
	static char text[SAMPLES * 4];

	if (column == STATE)
		cu_cell_text(cell, cu_state_word(p));
	if (column == COMMAND)
		cu_cell_text(cell, p->error ? cu_process_note(p) : p->command);
	if (p->error)
		return;
	switch (column) {
	case PID:
		cu_cell_number(cell, p->who.pid);
		break;
	case LIMBOBYTES:
		cu_cell_number(cell, p->limbo_bytes);
		break;
	case BAR:
		cu_draw_bar(text, sizeof(text), 10, p->limbo_bytes, cu_live.most);
		cu_cell_text(cell, text);
		break;
	case TREND:
		cu_draw_trend(text, sizeof(text), 10,
			      row->history == SIZE_MAX ? NULL : &cu_live.history[row->history]);
		cu_cell_text(cell, text + strspn(text, " "));
		break;
	case LIMBO:
		cu_cell_number(cell, p->limbo);
		break;
	case HELD:
		cu_cell_number(cell, p->held);
		break;
	case EXPORTED:
		cu_cell_number(cell, p->blocks);
		break;
	case EXPORTEDBYTES:
		cu_cell_number(cell, p->bytes);
		break;
	case IMPORTED:
		cu_cell_number(cell, p->imported);
		break;
	case PINS:
		cu_cell_number(cell, p->pin_bytes);
		break;
	case AGE:
		cu_cell_number(cell, p->age);
		break;
	default:
		break;
	}
}

/* Prints a text, whose parts stand three blanks apart, in lines that are no wider than @room; 0: in one. */
static void print_parts(const char *text, unsigned int room)
{
	enum { BETWEEN = 3, FURTHER_IN = 2 };
	size_t at = 0;

	for (;;) {
		const char *end = strstr(text, "   ");
		int length = end ? (int)(end - text) : (int)strlen(text);
		char part[320];
		bool below;

		snprintf(part, sizeof(part), "%.*s", length, text);
		below = room && at && at + BETWEEN + cu_width(part) > room;
		printf("%s%s", below ? "\n  " : at ? "   " : "", part);
		at = (below ? FURTHER_IN : at ? at + BETWEEN : 0) + cu_width(part);
		if (!end)
			break;
		text = end + BETWEEN;
	}
	putchar('\n');
}

int cu_top_batch(const struct cu_command *command, const struct cu_format *wanted, long long times,
		 uint64_t delay)
{
	struct cu_format timed = *wanted;
	const struct cu_format *format = &timed;
	char sum[256], when[32], utc[32], head[320];
	int status = CU_OK;

	for (long long i = 0; (times < 0 || i < times) && status == CU_OK; i++) {
		time_t now;
		struct cu_table *lines;
		struct tm tm;

		if (i) {
			struct timespec t = { (time_t)(delay / 1000000000), (long)(delay % 1000000000) };

			nanosleep(&t, NULL);
			putchar('\n');
		}
		if (!cu_top_look(command))
			return CU_FAILED;
		now = time(NULL);
		strftime(utc, sizeof(utc), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
		timed.time = utc;
		lines = cu_table_new(command, "processes", format, &status);
		if (!lines)
			return status;
		if (!format->json && !format->raw && !format->noheadings) {
			cu_say_sum(sum, sizeof(sum));
			strftime(when, sizeof(when), "%H:%M:%S", localtime_r(&now, &tm));
			snprintf(head, sizeof(head), "culimbo top - %s  %s", when, sum);
			print_parts(head, cu_table_room());
			for (unsigned int gpu = 0; gpu < cu_live.scan.gpus.n; gpu++) {
				cu_gpu_say(&cu_live.scan.gpus.gpu[gpu], sum, sizeof(sum));
				print_parts(sum, cu_table_room());
			}
		}
		for (size_t row = 0; row < cu_live.rows; row++)
			cu_table_line(lines, fill, &cu_live.row[row]);
		status = cu_table_end(lines);
		if (fflush(stdout) && status == CU_OK)
			status = CU_FAILED; /* culimbo.c prints the error at the end */
	}
	return status;
}

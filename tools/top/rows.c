/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of `culimbo top`: see rows.h. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/top/rows.h"

struct cu_live cu_live;

const struct cu_column cu_top_columns[] = {
	[PID] = { "PID", CU_NUMBER, 0, "its process id" },
	[STATE] = { "STATE", CU_TEXT, 0, "as in `culimbo ps`" },
	[LIMBOBYTES] = { "LIMBOBYTES", CU_BYTES, 0, "bytes that it has freed and the driver does not have back" },
	[BAR] = { "BAR", CU_TEXT, CU_HIDDEN, "the same as a bar, scaled to the largest of all processes" },
	[TREND] = { "TREND", CU_TEXT, CU_DROP(1), "its history, newest right, scaled to its own maximum" },
	[LIMBO] = { "LIMBO", CU_NUMBER, CU_DROP(3), "blocks in limbo" },
	[HELD] = { "HELD", CU_NUMBER, CU_DROP(4), "its blocks that others hold" },
	[EXPORTED] = { "EXPORTED", CU_NUMBER, CU_DROP(6), "blocks that it exports and has not freed" },
	[EXPORTEDBYTES] = { "EXPORTEDBYTES", CU_BYTES, CU_HIDDEN, "the size of these" },
	[IMPORTED] = { "IMPORTED", CU_NUMBER, CU_DROP(5), "blocks of others that it holds" },
	[PINS] = { "PINS", CU_BYTES, 0, "memory of others that it still has open, although it was freed or its exporter died" },
	[AGE] = { "AGE", CU_SECONDS, CU_DROP(2), "for how long it has shared" },
	[COMMAND] = { "COMMAND", CU_TEXT, CU_CUT, "its command line" },
	{ .name = NULL },
};

static int compare_rows(const void *x, const void *y)
{
	const struct cu_process *a = &((const struct cu_row *)x)->process;
	const struct cu_process *b = &((const struct cu_row *)y)->process;
	int64_t order = 0;

	if (!a->error != !b->error)
		return a->error ? 1 : -1;
#define BY(what) order = (a->what < b->what) - (a->what > b->what)
	switch (cu_live.sort) {
	case LIMBOBYTES:
		BY(limbo_bytes);
		break;
	case LIMBO:
		BY(limbo);
		break;
	case HELD:
		BY(held);
		break;
	case EXPORTED:
		BY(bytes);
		break;
	case IMPORTED:
		BY(imported);
		break;
	case PINS:
		BY(pin_bytes);
		break;
	case AGE:
		BY(age);
		break;
	case COMMAND:
		order = strcmp(a->command, b->command);
		break;
	default:
		break;
	}
#undef BY
	if (!order)
		order = (a->who.pid > b->who.pid) - (a->who.pid < b->who.pid);
	if (!order)
		order = (a->file_id > b->file_id) - (a->file_id < b->file_id);
	return (int)(cu_live.backwards ? -order : order);
}

/* Returns the index of its history; SIZE_MAX without memory. */
static size_t history_of(const struct cu_process *p)
{
	struct cu_history *more;
	size_t i;

	for (i = 0; i < cu_live.histories; i++) {
		const struct cu_history *h = &cu_live.history[i];

		if (h->file_id == p->file_id && h->who.pid == p->who.pid &&
		    h->who.start_time == p->who.start_time)
			return i;
	}
	/* reuse the history of a process that has gone */
	for (i = 0; i < cu_live.histories; i++)
		if (!cu_live.history[i].seen)
			break;
	if (i == cu_live.histories) {
		more = realloc(cu_live.history, (i + 1) * sizeof(*more));
		if (!more)
			return SIZE_MAX;
		cu_live.history = more;
		cu_live.histories++;
	}
	cu_live.history[i] = (struct cu_history){ .who = p->who, .file_id = p->file_id };
	return i;
}

static bool passes_filter(const struct cu_process *p)
{
	char pid[16];

	if (!*cu_live.filter)
		return true;
	snprintf(pid, sizeof(pid), "%u", p->who.pid);
	return strcasestr(p->command, cu_live.filter) || strstr(pid, cu_live.filter) ||
	       strcasestr(cu_state_word(p), cu_live.filter);
}

static bool is_chosen(const struct cu_process *p)
{
	return p->file_id == cu_live.chosen_file && p->who.pid == cu_live.chosen.pid &&
	       p->who.start_time == cu_live.chosen.start_time && p->who.pid_ns == cu_live.chosen.pid_ns;
}

void cu_top_select(size_t row)
{
	if (!cu_live.rows) {
		cu_live.selected = 0;
		return;
	}
	cu_live.selected = row < cu_live.rows ? row : cu_live.rows - 1;
	cu_live.chosen = cu_live.row[cu_live.selected].process.who;
	cu_live.chosen_file = cu_live.row[cu_live.selected].process.file_id;
}

/* Finds the chosen process.  If it is gone, the process in its row becomes selected. */
static void follow_selected(void)
{
	size_t row = 0;

	if (!cu_live.chosen.pid && !cu_live.chosen_file)
		return;
	while (row < cu_live.rows && !is_chosen(&cu_live.row[row].process))
		row++;
	if (row < cu_live.rows)
		cu_live.selected = row;
	else if (cu_live.selected >= cu_live.rows)
		cu_live.selected = cu_live.rows ? cu_live.rows - 1 : 0;
}

void cu_top_arrange(void)
{
	cu_live.rows = 0;
	for (size_t i = 0; i < cu_live.scan.processes; i++) {
		struct cu_row row = { .process = cu_live.scan.process[i], .history = SIZE_MAX };

		if (!row.process.error)
			row.history = history_of(&row.process);
		if (passes_filter(&row.process))
			cu_live.row[cu_live.rows++] = row;
	}
	if (cu_live.rows)
		qsort(cu_live.row, cu_live.rows, sizeof(*cu_live.row), compare_rows);
	follow_selected();
}

bool cu_top_look(const struct cu_command *command)
{
	struct cu_row *rows;
	int fd = cu_directory_open(command), error;

	if (fd < 0 && fd != -ENOENT)
		return false;
	cu_scan_free(&cu_live.scan);
	error = cu_scan(&cu_live.scan, fd, 0);
	if (fd >= 0)
		close(fd);
	rows = realloc(cu_live.row, (cu_live.scan.processes + 1) * sizeof(*rows));
	if (error || !rows) {
		cu_error(command, "cannot read %s: %s", cu_directory(), strerror(ENOMEM));
		return false;
	}
	cu_live.row = rows;
	for (size_t i = 0; i < cu_live.histories; i++)
		cu_live.history[i].seen = false;
	cu_live.most = cu_live.limbo = cu_live.limbo_bytes = 0;
	cu_live.held = cu_live.exported = cu_live.exported_bytes = 0;
	cu_live.unread = 0;
	for (size_t i = 0; i < cu_live.scan.processes; i++) {
		const struct cu_process *p = &cu_live.scan.process[i];
		size_t at;

		if (p->error) {
			cu_live.unread++;
			continue;
		}
		at = history_of(p);
		if (at != SIZE_MAX) {
			struct cu_history *h = &cu_live.history[at];

			h->seen = true;
			h->sample[h->n++ % SAMPLES] = p->limbo_bytes;
		}
		cu_live.limbo += p->limbo;
		cu_live.limbo_bytes += p->limbo_bytes;
		cu_live.held += p->held;
		cu_live.exported += p->blocks;
		cu_live.exported_bytes += p->bytes;
		if (p->limbo_bytes > cu_live.most)
			cu_live.most = p->limbo_bytes;
	}
	cu_gpus_ask(&cu_live.scan.gpus);
	cu_top_arrange();
	return true;
}

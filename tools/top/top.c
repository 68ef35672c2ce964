/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo top`: shows the processes that share, live.
 *
 * On a terminal it shows a full screen (screen.c); without one, or on a dumb one, it
 * prints plain tables one after the other (batch.c).
 */
#include "config.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/users.h"
#include "tools/top/batch.h"
#include "tools/top/rows.h"
#include "tools/top/screen.h"

enum { OPTION_BATCH = 'b', OPTION_TIMES = 'n', OPTION_DELAY = 'd', OPTION_SORT = 's',
       OPTION_FILTER = 'f', OPTION_USER = 128 };

static int run_top(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { 0 };
	struct cu_users users = { .given = false };
	uint64_t delay = 1000000000;
	const char *dir = NULL, *nearest;
	bool plain = false;
	long long times = -1;
	int got, status;

	cu_live.sort = LIMBOBYTES;
	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_BATCH:
			plain = true;
			break;
		case OPTION_TIMES:
			if (!cu_number(optarg, &times) || !times)
				return cu_usage_error(command, "'%s' is not a number of updates", optarg);
			break;
		case OPTION_DELAY:
			if (!cu_read_wait(optarg, &delay) || delay < 50000000)
				return cu_usage_error(command, "'%s': the delay must be at least 50ms, as in 2s or 1m", optarg);
			break;
		case OPTION_SORT: {
			int column = cu_column_find(cu_top_columns, optarg, strlen(optarg),
						    &nearest);

			if (column == STATE || column == BAR || column == TREND)
				column = -1;
			if (column < 0 && nearest)
				return cu_usage_error(command, "cannot sort by '%s'; did you mean '%s'?", optarg,
						      nearest);
			if (column < 0)
				return cu_usage_error(command, "cannot sort by '%s'", optarg);
			cu_live.sort = column == EXPORTEDBYTES ? EXPORTED : column;
			break;
		}
		case OPTION_FILTER:
			snprintf(cu_live.filter, sizeof(cu_live.filter), "%s", optarg);
			break;
		case CU_OPTION_DIR:
			dir = optarg;
			break;
		case OPTION_USER:
			if (!cu_users_read(command, optarg, &users))
				return CU_USAGE;
			break;
		default:
			if (!cu_format_option(&format, got))
				return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (!cu_users_become(command, &users, &status))
		return status;
	cu_live.looks_only = users.given;
	setlocale(LC_CTYPE, "");
	cu_live.ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
	cu_directory_set(command, dir);
	if (!plain && !format.json && !format.raw && !format.output && !format.noheadings &&
	    cu_top_has_screen(command)) {
		status = cu_top_screen(command, delay, times);
		/* the terminal has its old contents again: leave what was seen last */
		if (times > 0 && status == CU_OK)
			status = cu_top_batch(command, &format, 1, delay);
	} else {
		status = cu_top_batch(command, &format, times < 0 && !plain ? 1 : times, delay);
	}
	cu_scan_free(&cu_live.scan);
	free(cu_live.row);
	free(cu_live.history);
	return status;
}

static const struct cu_option options[] = {
	{ "batch", OPTION_BATCH, NULL, "print tables one after the other, for a file" },
	{ "iterations", OPTION_TIMES, "N", "stop after N updates; on a terminal the last one stays as a table" },
	{ "delay", OPTION_DELAY, "DURATION", "time between updates (default 1s)" },
	{ "sort", OPTION_SORT, "LIMBOBYTES|LIMBO|HELD|EXPORTED|IMPORTED|PINS|AGE|PID|COMMAND",
	  "sort by this column (default LIMBOBYTES)" },
	{ "filter", OPTION_FILTER, "TEXT", "only those with TEXT in command, pid or state" },
	CU_USER_OPTION(OPTION_USER),
	CU_TABLE_OPTIONS,
	CU_DIR_OPTION,
	{ .name = NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo top", "live; ? shows the keys, q quits" },
	{ "culimbo top --sort=PINS", "processes that keep freed memory of others, first" },
	{ "culimbo top --batch -n 60 -d 1s > limbo.log", "a minute of it, into a file" },
	{ "culimbo top -n 1 --json", "once, for a script" },
	{ .line = NULL },
};

const struct cu_command cu_top = {
	.name = "top",
	.arguments = "",
	.summary = "show the processes that share, live, and how their limbos grow",
	.help = "Shows the processes that share GPU memory, live, with what waits in the limbo of\n"
		"each, as a bar (scaled to the largest limbo) and over time.  Keys select a process,\n"
		"show what it shares, with whom and from where in the code, make it collect, sort,\n"
		"filter, pause and quit; ? lists the keys.  For each GPU it shows used and free memory\n"
		"(from NVIDIA's libnvidia-ml.so.1, if it is installed), and what the limbos of all\n"
		"processes take, in whole pages of 2 MiB.  If stdout is not a terminal, or a dumb one,\n"
		"it prints one table, or with `--batch` one after the other.",
	.options = options,
	.columns = cu_top_columns,
	.examples = examples,
	.run = run_top,
};

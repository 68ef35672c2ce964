/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo config`: the options as a program started from here would have
 * them.  All that is shown comes from the table in shim/base/options.def, read as
 * the library reads it; its complaints go to stderr.
 */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "tools/commands/commands.h"
#include "tools/common/table.h"

enum { NAME, VALUE, SOURCE, DEFAULT, ALLOWED, HELP };

static const struct cu_column columns[] = {
	[NAME] = { "NAME", CU_TEXT, 0, "the environment variable" },
	[VALUE] = { "VALUE", CU_TEXT, 0, "what a program started from here would have" },
	[SOURCE] = { "SOURCE", CU_TEXT, 0, "environment or default" },
	[DEFAULT] = { "DEFAULT", CU_TEXT, 0, "what holds when nothing is said" },
	[ALLOWED] = { "ALLOWED", CU_TEXT, 0, "what it may be" },
	[HELP] = { "HELP", CU_TEXT, CU_WRAP, "what it does" },
	{ .name = NULL },
};

struct option_row {
	const struct cl_option_row *row;
	const struct cl_option_value *value;
};

static void fill(struct cu_cell *cell, unsigned int column, const void *data)
{
	static char text[128];
	const struct option_row *option = data;
	const struct cl_option_row *row = option->row;

	switch (column) {
	case NAME:
		cu_cell_text(cell, row->name);
		break;
	case VALUE:
		cu_cell_text(cell, option->value->text);
		break;
	case SOURCE:
		cu_cell_text(cell, option->value->from_environment ? "environment" : "default");
		break;
	case DEFAULT:
		cu_cell_text(cell, row->def);
		break;
	case ALLOWED:
		if (row->kind == cl_option_choice || (!*row->min && !*row->max)) {
			cu_cell_text(cell, row->arg);
			break;
		}
		snprintf(text, sizeof(text), "%s..%s", row->min, row->max);
		cu_cell_text(cell, text);
		break;
	case HELP:
		cu_cell_text(cell, row->help);
		break;
	}
}

static void complain(const char *line)
{
	fprintf(stderr, "culimbo config: %s\n", line);
}

static int config(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { 0 };
	struct cl_options values;
	struct cu_table *table;
	int got, status;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		if (!cu_format_option(&format, got))
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	table = cu_table_new(command, "options", &format, &status);
	if (!table)
		return status;
	cl_options_read(&values, environ, complain);
	for (size_t i = 0; i < cl_option_rows_n; i++) {
		struct option_row option = {
			&cl_option_rows[i],
			(const void *)((const char *)&values + cl_option_rows[i].offset),
		};

		cu_table_line(table, fill, &option);
	}
	return cu_table_end(table);
}

static const struct cu_option options[] = { CU_TABLE_OPTIONS, { .name = NULL } };

static const struct cu_example examples[] = {
	{ "CULIMBO_GRACE=500ms culimbo config", "is the value understood?" },
	{ "culimbo config --json | jq -r '.options[] | select(.source == \"environment\").name'",
	  "what of ours this shell sets" },
	{ .line = NULL },
};

const struct cu_command cu_config = {
	.name = "config",
	.arguments = "",
	.summary = "show each option, its value and where it came from",
	.help = "Shows each option (an environment variable), the value that a program started\n"
		"from here would have, where that came from, its default, and what it does.\n"
		"Bad values and unknown names are complained about on stderr.",
	.options = options,
	.columns = columns,
	.examples = examples,
	.run = config,
};

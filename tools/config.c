/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo config`: the options as a program started from here would have
 * them.  All that is shown comes from the table in shim/options.def, read as
 * the library reads it; its complaints go to stderr.
 */
#include "config.h"

#include <errno.h>
#include <libsmartcols.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/options.h"
#include "tools/culimbo.h"

enum { OPTION_JSON = 128, OPTION_RAW };

static const char *name_cell(const struct cl_option_row *row, const struct cl_option_value *value)
{
	return row->name;
}

static const char *value_cell(const struct cl_option_row *row, const struct cl_option_value *value)
{
	return value->text;
}

static const char *source_cell(const struct cl_option_row *row, const struct cl_option_value *value)
{
	return value->from_environment ? "environment" : "default";
}

static const char *default_cell(const struct cl_option_row *row, const struct cl_option_value *value)
{
	return row->def;
}

static const char *allowed_cell(const struct cl_option_row *row, const struct cl_option_value *value)
{
	static char text[128];

	if (row->kind == cl_option_choice || (!*row->min && !*row->max))
		return row->arg;
	snprintf(text, sizeof(text), "%s..%s", row->min, row->max);
	return text;
}

static const char *help_cell(const struct cl_option_row *row, const struct cl_option_value *value)
{
	return row->help;
}

static const struct column {
	const char *name;
	double width;
	int flags;
	const char *(*cell)(const struct cl_option_row *, const struct cl_option_value *);
} columns[] = {
	{ "NAME", 0.1, 0, name_cell },	     { "VALUE", 0.1, 0, value_cell },
	{ "SOURCE", 0.1, 0, source_cell },   { "DEFAULT", 0.1, 0, default_cell },
	{ "ALLOWED", 0.1, 0, allowed_cell }, { "HELP", 0.5, SCOLS_FL_WRAP, help_cell },
};
#define COLUMNS_N (sizeof(columns) / sizeof(columns[0]))

static void complain(const char *line)
{
	fprintf(stderr, "culimbo config: %s\n", line);
}

/* Returns 0 or -errno. */
static int print_table(const struct cl_options *values, bool json, bool raw)
{
	struct libscols_table *table = scols_new_table();
	int error = -ENOMEM;

	if (!table)
		return -ENOMEM;
	scols_table_enable_json(table, json);
	scols_table_enable_raw(table, raw);
	if (scols_table_set_name(table, "options"))
		goto out;
	for (size_t i = 0; i < COLUMNS_N; i++)
		if (!scols_table_new_column(table, columns[i].name, columns[i].width,
					    json || raw ? 0 : columns[i].flags))
			goto out;
	for (size_t i = 0; i < cl_option_rows_n; i++) {
		const struct cl_option_row *row = &cl_option_rows[i];
		const struct cl_option_value *value =
			(const void *)((const char *)values + row->offset);
		struct libscols_line *line = scols_table_new_line(table, NULL);

		for (size_t j = 0; line && j < COLUMNS_N; j++)
			if (scols_line_set_data(line, j, columns[j].cell(row, value)))
				goto out;
		if (!line)
			goto out;
	}
	error = scols_print_table(table);
out:
	scols_unref_table(table);
	return error;
}

static int config(const struct cu_command *command, int argc, char **argv)
{
	struct cl_options values;
	bool json = false, raw = false;
	int got, error;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_JSON:
			json = true;
			break;
		case OPTION_RAW:
			raw = true;
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (optind < argc)
		return cu_usage_error(command, "takes no argument: '%s'", argv[optind]);
	if (json && raw)
		return cu_usage_error(command, "--json and --raw exclude each other");
	setlocale(LC_CTYPE, ""); /* the width of letters in file names */
	cl_options_read(&values, environ, complain);
	error = print_table(&values, json, raw);
	if (error) {
		cu_error(command, "cannot make the table: %s", strerror(-error));
		return CU_FAILED;
	}
	return CU_OK;
}

static const struct cu_option options[] = {
	{ "json", OPTION_JSON, NULL, "print JSON" },
	{ "raw", OPTION_RAW, NULL, "print columns for scripts, one blank apart" },
	{ .name = NULL },
};

const struct cu_command cu_config = {
	.name = "config",
	.arguments = "",
	.summary = "show each option, its value and where it came from",
	.help = "Shows each option (an environment variable), the value that a program started\n"
		"from here would have, where that came from, its default, and what it does.\n"
		"Bad values and unknown names are complained about on stderr.",
	.options = options,
	.run = config,
};

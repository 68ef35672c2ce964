/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo config`: shows the options that a program started from here would have.
 * It reads the table in shim/base/options.def and the environment as the library
 * does.  The library's warnings go to stderr.
 */
#include "config.h"

#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "tools/commands/commands.h"
#include "tools/common/table.h"

enum { NAME, VALUE, SOURCE, DEFAULT, ALLOWED, HELP };

static const struct cu_column columns[] = {
	[NAME] = { "NAME", CU_TEXT, 0, "the environment variable" },
	[VALUE] = { "VALUE", CU_TEXT, 0, "the value that a program started from here would have" },
	[SOURCE] = { "SOURCE", CU_TEXT, 0, "environment or default" },
	[DEFAULT] = { "DEFAULT", CU_TEXT, 0, "the value if nothing is set" },
	[ALLOWED] = { "ALLOWED", CU_TEXT, 0, "the allowed values" },
	[HELP] = { "HELP", CU_TEXT, CU_BELOW, "what it does" },
	{ .name = NULL },
};

struct option_row {
	const struct cl_option_row *row;
	const struct cl_option_value *value;
};

/* Returns true if the value is a duration without a unit; 0 needs none. */
static bool is_bare_duration(const struct option_row *option)
{
	const char *value = option->value->text;

	return option->row->kind == cl_option_duration && strlen(value) < 32 && *value &&
	       !value[strspn(value, "0123456789.")] && value[strspn(value, "0.")];
}

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
		/* what has no unit is seconds, as the default's value says */
		snprintf(text, sizeof(text), "%ss", option->value->text);
		cu_cell_text(cell, is_bare_duration(option) ? text : option->value->text);
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

/* Returns true if @word names @row, with or without "CULIMBO_", in upper or lower case. */
static bool is_named(const struct cl_option_row *row, const char *word)
{
	return !strcasecmp(row->name, word) || !strcasecmp(row->name + strlen("CULIMBO_"), word);
}

/* Returns false, after an error message, if one of the @n words of @name is no option. */
static bool are_options(const struct cu_command *command, int n, char **name)
{
	for (int i = 0; i < n; i++) {
		const char *nearest = NULL;
		size_t distance = SIZE_MAX, row = 0;

		while (row < cl_option_rows_n && !is_named(&cl_option_rows[row], name[i]))
			row++;
		if (row < cl_option_rows_n)
			continue;
		for (row = 0; row < cl_option_rows_n; row++) {
			const char *option = cl_option_rows[row].name;
			char upper[64];
			size_t length = 0;

			for (; name[i][length] && length < sizeof(upper); length++)
				upper[length] = (char)toupper((unsigned char)name[i][length]);
			if (strncmp(upper, "CULIMBO_", strlen("CULIMBO_")) != 0)
				option += strlen("CULIMBO_");
			cu_nearer(upper, length, option, &nearest, &distance);
		}
		if (nearest)
			cu_usage_error(command, "there is no option '%s'; did you mean '%s'?", name[i], nearest);
		else
			cu_usage_error(command, "there is no option '%s'", name[i]);
		return false;
	}
	return true;
}

static bool is_asked_for(const struct cl_option_row *row, int n, char **name)
{
	for (int i = 0; i < n; i++)
		if (is_named(row, name[i]))
			return true;
	return n == 0;
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
	argc -= optind;
	argv += optind;
	if (!are_options(command, argc, argv))
		return CU_USAGE;
	table = cu_table_new(command, "options", &format, &status);
	if (!table)
		return status;
	cl_options_read(&values, environ, complain);
	for (size_t i = 0; i < cl_option_rows_n; i++) {
		struct option_row option = {
			&cl_option_rows[i],
			(const void *)((const char *)&values + cl_option_rows[i].offset),
		};

		if (is_asked_for(option.row, argc, argv))
			cu_table_line(table, fill, &option);
	}
	return cu_table_end(table);
}

static const struct cu_option options[] = { CU_TABLE_OPTIONS, { .name = NULL } };

static const struct cu_example examples[] = {
	{ "CULIMBO_GRACE=500ms culimbo config grace", "shows whether the value is understood" },
	{ "culimbo config --json | jq -r '.options[] | select(.source == \"environment\").name'",
	  "the options that this shell sets" },
	{ .line = NULL },
};

const struct cu_command cu_config = {
	.name = "config",
	.arguments = "[NAME...]",
	.summary = "show each option, its value and where it came from",
	.help = "Shows all options (environment variables), or those that are named, with or\n"
		"without CULIMBO_: the value that a program started from here would have, where it\n"
		"comes from, the default, and what the option does.\n"
		"Warns on stderr about bad values and unknown names.",
	.options = options,
	.columns = columns,
	.examples = examples,
	.run = config,
};

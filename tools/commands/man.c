/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo man`: writes the man pages from the tables that the command itself uses,
 * so that both always have the same options.  For `make`.
 *
 *   culimbo man            culimbo(1)
 *   culimbo man SUB        culimbo-SUB(1)
 *   culimbo man options    culimbo(7)'s section on the library's options
 *   culimbo man --write=DIR --library=FILE
 *                          all of them into DIR; FILE is culimbo(7), with a line
 *                          "@OPTIONS@" in the place of that section
 */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/options.h"
#include "tools/commands/commands.h"
#include "tools/common/table.h"

#define PAGE_DATE "2026-11-20" /* not the date of the build: the same source makes the same pages */

enum { OPTION_WRITE = 128, OPTION_LIBRARY };

/* Writes a letter, escaped for roff; `...` becomes bold. */
static void put_letter(FILE *to, char c, bool *bold)
{
	switch (c) {
	case '\\':
		fputs("\\e", to);
		break;
	case '-':
		fputs("\\-", to);
		break;
	case '`':
		fputs(*bold ? "\\fR" : "\\fB", to);
		*bold = !*bold;
		break;
	case '\'':
		fputs("\\(aq", to);
		break;
	case '^':
		fputs("\\(ha", to);
		break;
	case '~':
		fputs("\\(ti", to);
		break;
	default:
		putc(c, to);
	}
}

static void put(FILE *to, const char *text)
{
	bool bold = false, first = true;

	for (; *text; text++) {
		if (first && (*text == '.' || *text == '\''))
			fputs("\\&", to);
		put_letter(to, *text, &bold);
		first = *text == '\n';
	}
	if (bold)
		fputs("\\fR", to);
}

/* Writes text whose paragraphs are separated by empty lines. */
static void put_paragraphs(FILE *to, const char *text)
{
	for (const char *end; *text; text = end) {
		char line[512];
		size_t length = strcspn(text, "\n");

		end = text + length + (text[length] == '\n');
		snprintf(line, sizeof(line), "%.*s", (int)length, text);
		if (!length) {
			fputs(".PP\n", to);
			continue;
		}
		put(to, line);
		putc('\n', to);
	}
}

static void put_head(FILE *to, const char *name, const char *section, const char *title,
		     const char *summary)
{
	fprintf(to, ".\\\" Made by culimbo man: change the tables in tools/ instead.\n.TH ");
	for (const char *c = name; *c; c++)
		if (*c == '-')
			fputs("\\-", to);
		else
			putc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, to);
	fprintf(to, " %s %s \"culimbo %s\" \"%s\"\n.SH NAME\n", section, PAGE_DATE, PACKAGE_VERSION, title);
	put(to, name);
	fputs(" \\- ", to);
	put(to, summary);
	fputs("\n.SH SYNOPSIS\n", to);
}

static void put_option(FILE *to, const struct cu_option *option)
{
	fputs(".TP\n", to);
	if (option->value < 128)
		fprintf(to, "\\fB\\-%c\\fR, ", option->value);
	fputs("\\fB\\-\\-", to);
	put(to, option->name);
	fputs("\\fR", to);
	if (option->argument) {
		fputs("=\\fI", to);
		put(to, option->argument);
		fputs("\\fR", to);
	}
	putc('\n', to);
	put(to, option->help);
	putc('\n', to);
}

static void put_see_also(FILE *to, const struct cu_command *but)
{
	fputs(".SH \"SEE ALSO\"\n", to);
	if (but)
		fputs(".BR culimbo (1),\n", to);
	for (const struct cu_command *const *c = cu_commands; *c; c++)
		if (!(*c)->hidden && *c != but) {
			fputs(".BR culimbo\\-", to);
			put(to, (*c)->name);
			fputs(" (1),\n", to);
		}
	fputs(".BR culimbo (7)\n", to);
}

static void put_command(FILE *to, const struct cu_command *command)
{
	const struct cu_option help = { "help", 'h', NULL, "show a summary of this" };
	char name[64];

	snprintf(name, sizeof(name), "culimbo-%s", command->name);
	put_head(to, name, "1", "User Commands", command->summary);
	fputs(".B culimbo ", to);
	put(to, command->name);
	fputs("\n[\\fIOPTIONS\\fR]", to);
	if (*command->arguments) {
		fputs(" \\fI", to);
		put(to, command->arguments);
		fputs("\\fR", to);
	}
	fputs("\n.SH DESCRIPTION\n", to);
	put_paragraphs(to, command->help);
	fputs(".SH OPTIONS\n", to);
	for (const struct cu_option *o = command->options; o && o->name; o++)
		if (o->help)
			put_option(to, o);
	put_option(to, &help);
	if (command->columns) {
		fputs(".SH COLUMNS\nWhat\n.B \\-\\-output\ntakes; an asterisk marks those that are shown without it.\ndoc/json.md has their names in JSON.\n",
		      to);
		for (const struct cu_column *c = command->columns; c->name; c++) {
			fprintf(to, ".TP\n\\fB%s\\fR%s\n", c->name, c->flags & CU_HIDDEN ? "" : " *");
			put(to, c->help);
			putc('\n', to);
		}
	}
	fputs(".SH \"EXIT STATUS\"\n", to);
	for (const struct cu_exit *e = cu_exits(command); e->when; e++) {
		fprintf(to, ".TP\n.B %d\n", e->status);
		put(to, e->when);
		putc('\n', to);
	}
	if (command->examples) {
		fputs(".SH EXAMPLES\n", to);
		for (const struct cu_example *e = command->examples; e->line; e++) {
			fputs(".TP\n\\fB", to);
			put(to, e->line);
			fputs("\\fR\n", to);
			put(to, e->what);
			putc('\n', to);
		}
	}
	put_see_also(to, command);
}

static void put_top(FILE *to)
{
	const struct cu_option help = { "help", 'h', NULL, "show a summary of this" };
	const struct cu_option version = { "version", 'V', NULL, "show the version" };

	put_head(to, "culimbo", "1", "User Commands",
		 "run programs with CUDA IPC made safe, and see what they share");
	fputs(".B culimbo\n\\fISUBCOMMAND\\fR [\\fIARGUMENTS\\fR]\n.PP\n.B culimbo help\n\\fISUBCOMMAND\\fR\n"
	      ".SH DESCRIPTION\n"
	      "If a process shares a block of GPU memory by CUDA IPC and then frees it, CUDA reuses it,\n"
	      "though other processes may still read it. This command runs a program under the\n"
	      "culimbo library: the block then waits in a limbo until every process that maps it has\n"
	      "closed it or died; see\n.BR culimbo (7).\nThe other subcommands show who shares, holds and waits.\n"
	      ".SH SUBCOMMANDS\n",
	      to);
	for (const struct cu_command *const *c = cu_commands; *c; c++)
		if (!(*c)->hidden) {
			fputs(".TP\n.BR culimbo\\-", to);
			put(to, (*c)->name);
			fputs(" (1)\n", to);
			put(to, (*c)->summary);
			putc('\n', to);
		}
	fputs(".TP\n.B culimbo help\nshow the list of subcommands, or the help of one\n", to);
	fputs(".SH OPTIONS\n", to);
	put_option(to, &help);
	put_option(to, &version);
	fputs(".SH \"EXIT STATUS\"\n.TP\n.B 0\nsuccess\n.TP\n.B 1\nfailure\n.TP\n.B 2\nthe command line is wrong\n"
	      ".PP\nOthers are said on the page of each subcommand.\n"
	      ".SH ENVIRONMENT\n.TP\n.B CULIMBO_DIR\nwhere exporter files are; it must be what the programs have\n"
	      ".TP\n.B COLUMNS\nhow wide tables may be, instead of the width of the terminal\n.TP\n.B NO_COLOR\nif set, no colours\n.PP\nThe library's options are described in\n.BR culimbo (7).\n"
	      ".SH FILES\n.TP\n.I /dev/shm/culimbo\\-UID/exporter\\-ID\none for each process that shares\n",
	      to);
	put_see_also(to, NULL);
}

static void put_library_options(FILE *to)
{
	for (size_t i = 0; i < cl_option_rows_n; i++) {
		const struct cl_option_row *row = &cl_option_rows[i];

		fputs(".TP\n\\fB", to);
		put(to, row->name);
		fputs("\\fR=\\fI", to);
		put(to, row->arg);
		fputs("\\fR\n", to);
		put(to, row->help);
		if (row->kind != cl_option_choice && *row->max) {
			fputs(" (", to);
			put(to, row->min);
			fputs(" to ", to);
			put(to, row->max);
			putc(')', to);
		}
		if (*row->def) {
			fputs("; default \\fB", to);
			put(to, row->def);
			fputs("\\fR", to);
		}
		fputs(".\n", to);
	}
}

/* Opens the file to write.  Returns NULL after an error message. */
static FILE *page(const struct cu_command *command, const char *dir, const char *name, const char *section)
{
	char path[PATH_MAX];
	FILE *to;

	snprintf(path, sizeof(path), "%s/culimbo%s%s.%s", dir, *name ? "-" : "", name, section);
	to = fopen(path, "we");
	if (!to)
		cu_error(command, "cannot write %s: %s", path, strerror(errno));
	return to;
}

static int done(const struct cu_command *command, FILE *to)
{
	int failed = ferror(to);

	if (fclose(to) || failed) {
		cu_error(command, "cannot write a page: %s", strerror(errno));
		return CU_FAILED;
	}
	return CU_OK;
}

/* Writes culimbo(7) from its text. */
static int write_library(const struct cu_command *command, const char *dir, const char *library)
{
	char *line = NULL;
	size_t size = 0;
	FILE *from = fopen(library, "re"), *to;

	if (!from) {
		cu_error(command, "cannot read %s: %s", library, strerror(errno));
		return CU_FAILED;
	}
	to = page(command, dir, "", "7");
	while (to && getline(&line, &size, from) > 0)
		if (!strcmp(line, "@OPTIONS@\n")) {
			put_library_options(to);
		} else {
			char *at = strstr(line, "@VERSION@");

			if (at)
				fprintf(to, "%.*s%s%s", (int)(at - line), line, PACKAGE_VERSION,
					at + strlen("@VERSION@"));
			else
				fputs(line, to);
		}
	free(line);
	fclose(from);
	return to ? done(command, to) : CU_FAILED;
}

static int write_all(const struct cu_command *command, const char *dir, const char *library)
{
	FILE *to = page(command, dir, "", "1");

	if (!to)
		return CU_FAILED;
	put_top(to);
	if (done(command, to))
		return CU_FAILED;
	for (const struct cu_command *const *c = cu_commands; *c; c++) {
		if ((*c)->hidden)
			continue;
		to = page(command, dir, (*c)->name, "1");
		if (!to)
			return CU_FAILED;
		put_command(to, *c);
		if (done(command, to))
			return CU_FAILED;
	}
	return library ? write_library(command, dir, library) : CU_OK;
}

static int man(const struct cu_command *command, int argc, char **argv)
{
	const char *dir = NULL, *library = NULL, *name;
	int got;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		if (got == OPTION_WRITE)
			dir = optarg;
		else if (got == OPTION_LIBRARY)
			library = optarg;
		else
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	if (dir)
		return write_all(command, dir, library);
	name = argv[optind];
	if (!name) {
		put_top(stdout);
		return CU_OK;
	}
	if (!strcmp(name, "options")) {
		put_library_options(stdout);
		return CU_OK;
	}
	for (const struct cu_command *const *c = cu_commands; *c; c++)
		if (!strcmp((*c)->name, name)) {
			put_command(stdout, *c);
			return CU_OK;
		}
	return cu_usage_error(command, "no such page: '%s'", name);
}

static const struct cu_option options[] = {
	{ "write", OPTION_WRITE, "DIR", "write all pages into DIR" },
	{ "library", OPTION_LIBRARY, "FILE", "the text of culimbo(7)" },
	{ .name = NULL },
};

const struct cu_command cu_man = {
	.name = "man",
	.arguments = "[SUBCOMMAND]",
	.summary = "make the man pages",
	.help = "Writes the man page of the command, or of SUBCOMMAND, in roff.",
	.options = options,
	.hidden = true,
	.run = man,
};

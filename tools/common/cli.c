/* SPDX-License-Identifier: Apache-2.0 */
/* How each subcommand reads its command line, reports errors and shows its help: see cli.h. */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/nearest.h"
#include "tools/common/cli.h"
#include "tools/common/table.h"
#include "tools/common/text.h"

#define OPTIONS_MOST 32
enum { LINE = 80, OPTION_WIDTH = 24 }; /* letters, in a help */

const struct cu_command *const *cu_commands;

static const struct cu_exit usual_exits[] = {
	{ CU_OK, "success" },
	{ CU_FAILED, "failure: stderr says why" },
	{ CU_USAGE, "the command line is wrong" },
	{ 0, NULL },
};

const struct cu_exit *cu_exits(const struct cu_command *command)
{
	return command->exits ? command->exits : usual_exits;
}

/*
 * Prints @text from column @at on, in lines of 80 letters.  Further lines begin at
 * @at as well.  An empty line separates paragraphs.
 */
static void put_wrapped(const char *text, size_t at)
{
	size_t column = at, gap = 0;

	while (*text) {
		size_t word = strcspn(text, " \n"), blanks = strspn(text + word, " \n");

		if (gap && column + gap + word > LINE) {
			printf("\n%*s", (int)at, "");
			column = at;
			gap = 0;
		}
		printf("%*s%.*s", (int)gap, "", (int)word, text);
		column += gap + word;
		gap = blanks > 0;
		text += word + blanks;
		if (blanks == 2 && text[-1] == '\n' && text[-2] == '\n') {
			printf("\n\n%*s", (int)at, "");
			column = at;
			gap = 0;
		}
	}
	putchar('\n');
}

static void print_columns(const struct cu_column *columns)
{
	int width = 0;

	if (!columns)
		return;
	for (const struct cu_column *c = columns; c->name; c++)
		if ((int)strlen(c->name) > width)
			width = (int)strlen(c->name);
	printf("\nColumns of -o (*: shown without it):\n");
	for (const struct cu_column *c = columns; c->name; c++) {
		printf("  %c %-*s  ", c->flags & CU_HIDDEN ? ' ' : '*', width, c->name);
		put_wrapped(c->help, (size_t)width + 6);
	}
}

static size_t option_length(const struct cu_option *option)
{
	return strlen(option->name) + (option->argument ? strlen(option->argument) + 1 : 0);
}

static void print_options(const struct cu_command *command)
{
	const struct cu_option *option;
	size_t width = strlen("help"), length;

	for (option = command->options; option && option->name; option++) {
		length = option_length(option);
		if (length > width && length <= OPTION_WIDTH)
			width = length;
	}
	printf("\nOptions:\n");
	for (option = command->options; option && option->name; option++) {
		if (!option->help)
			continue;
		if (option->value < 128)
			printf("  -%c, ", option->value);
		else
			printf("      ");
		printf("--%s%s%s", option->name, option->argument ? "=" : "",
		       option->argument ? option->argument : "");
		length = option_length(option);
		/* a long option has a line of its own */
		printf(length > width ? "\n%*s" : "%*s",
		       (int)(length > width ? width + 10 : width - length + 2), "");
		put_wrapped(option->help, width + 10);
	}
	printf("  -h, --%-*s  show this\n", (int)width, "help");
}

void cu_print_command_help(const struct cu_command *command)
{
	printf("Usage: culimbo %s [OPTIONS]%s%s\n\n", command->name,
	       *command->arguments ? " " : "", command->arguments);
	put_wrapped(command->help, 0);
	print_options(command);
	print_columns(command->columns);
	printf("\nExit status:\n");
	for (const struct cu_exit *e = cu_exits(command); e->when; e++) {
		printf("  %3d  ", e->status);
		put_wrapped(e->when, 7);
	}
	if (!command->examples)
		return;
	printf("\nExamples:\n");
	for (const struct cu_example *e = command->examples; e->line; e++)
		printf("  %s\n      %s\n", e->line, e->what);
}

static void verror(const struct cu_command *command, const char *format, va_list args)
	__attribute__((format(printf, 2, 0)));
static void verror(const struct cu_command *command, const char *format, va_list args)
{
	char start[48], *text = NULL;
	int n = snprintf(start, sizeof(start), command ? "culimbo %s: " : "culimbo: ", command ? command->name : "");

	if (vasprintf(&text, format, args) < 0)
		return;
	fputs(start, stderr);
	cu_put_line(stderr, (size_t)n, 2, text);
	free(text);
}

void cu_note(const char *format, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, format);
	if (vasprintf(&text, format, args) >= 0) {
		cu_put_line(stderr, 0, 2, text);
		free(text);
	}
	va_end(args);
}

void cu_error(const struct cu_command *command, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	verror(command, format, args);
	va_end(args);
}

int cu_usage_error(const struct cu_command *command, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	verror(command, format, args);
	va_end(args);
	fprintf(stderr, "Try 'culimbo help%s%s'.\n", command ? " " : "",
		command ? command->name : "");
	return CU_USAGE;
}

void cu_nearer(const char *word, size_t length, const char *name, const char **best,
	       size_t *best_distance)
{
	size_t distance = cl_word_distance(word, length, name, strlen(name));

	if (distance < *best_distance && cl_word_near(distance, strlen(name))) {
		*best_distance = distance;
		*best = name;
	}
}

static void unknown_option(const struct cu_command *command, const char *given)
{
	size_t length = strcspn(given, "="), distance = (size_t)-1;
	const char *best = NULL;

	if (!strncmp(given, "--", 2)) {
		for (const struct cu_option *o = command->options; o && o->name; o++)
			if (o->help)
				cu_nearer(given + 2, length - 2, o->name, &best, &distance);
		cu_nearer(given + 2, length - 2, "help", &best, &distance);
	}
	if (best)
		cu_usage_error(command, "unknown option '%.*s'; did you mean '--%s'?", (int)length,
			       given, best);
	else
		cu_usage_error(command, "unknown option '%.*s'", (int)length, given);
}

int cu_getopt(const struct cu_command *command, int argc, char **argv)
{
	struct option longs[OPTIONS_MOST + 2] = { { .name = NULL } };
	/* '+': stop at CMD, the first word that is no option; options behind it are CMD's */
	bool first = strstr(command->arguments, "CMD") != NULL;
	char shorts[2 * OPTIONS_MOST + 8] = "";
	char letter[] = "-?";
	size_t n = 0, shorts_n = (size_t)sprintf(shorts, "%s:h", first ? "+" : "");
	int before = optind, got;

	for (const struct cu_option *o = command->options; o && o->name; o++) {
		if (n == OPTIONS_MOST)
			abort(); /* a subcommand with more needs a larger table */
		longs[n++] = (struct option){ o->name, o->argument ? required_argument : no_argument,
					      NULL, o->value };
		if (o->value < 128) {
			shorts[shorts_n++] = (char)o->value;
			if (o->argument)
				shorts[shorts_n++] = ':';
		}
	}
	shorts[shorts_n] = 0;
	longs[n] = (struct option){ "help", no_argument, NULL, 'h' };
	opterr = 0;
	got = getopt_long(argc, argv, shorts, longs, NULL);
	switch (got) {
	case 'h':
		cu_print_command_help(command);
		return CU_EXIT_HELP;
	case '?':
		/* a letter of -abc is wrong, and optind may not have passed the word yet */
		if (optind == before || strncmp(argv[optind - 1], "--", 2)) {
			letter[1] = (char)optopt;
			unknown_option(command, letter);
		} else if (optopt) {
			cu_usage_error(command, "'%s': this option takes no value",
				       argv[optind - 1]);
		} else {
			unknown_option(command, argv[optind - 1]);
		}
		return CU_EXIT_USAGE;
	case ':':
		cu_usage_error(command, "option '%s' needs a value", argv[optind - 1]);
		return CU_EXIT_USAGE;
	case CU_DONE: /* getopt_long() returns the same at the end */
		if (*command->arguments || optind >= argc)
			return got;
		cu_usage_error(command, "takes no argument: '%s'", argv[optind]);
		return CU_EXIT_USAGE;
	default:
		return got;
	}
}

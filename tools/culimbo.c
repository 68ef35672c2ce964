/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `culimbo` command: finds the subcommand and runs it.
 *
 * Requested output goes to stdout, with status 0.  Errors in the command line go to
 * stderr, with status 2, and name the nearest valid word.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"

/* One line for each subcommand, so that two branches can each add one. */
static const struct cu_command *const commands[] = {
	&cu_run,
	&cu_check,
	&cu_report,
	&cu_ps,
	&cu_top,
	&cu_blocks,
	&cu_show,
	&cu_gc,
	&cu_collect,
	&cu_doctor,
	&cu_config,
	&cu_metrics,
	&cu_trace,
	&cu_version,
	&cu_man,
	&cu_completion,
	NULL,
};

static const struct cu_command *find_command(const char *name)
{
	for (const struct cu_command *const *c = commands; *c; c++)
		if (!strcmp((*c)->name, name))
			return *c;
	return NULL;
}

static void print_help(void)
{
	printf("Usage: culimbo SUBCOMMAND [ARGUMENTS]\n"
	       "\n"
	       "Makes CUDA IPC memory sharing safe in unmodified programs.\n"
	       "\n"
	       "Subcommands:\n");
	for (const struct cu_command *const *c = commands; *c; c++)
		if (!(*c)->hidden)
			printf("  %-10s %s\n", (*c)->name, (*c)->summary);
	printf("  %-10s %s\n", "help", "show this, or the help of a subcommand");
	printf("\n"
	       "Options:\n"
	       "  -h, --help     show this\n"
	       "  -V, --version  show the version\n"
	       "\n"
	       "Start with:  culimbo run -- CMD\n"
	       "See also:    culimbo help SUBCOMMAND\n");
}

static int unknown_command(const char *name)
{
	size_t distance = (size_t)-1;
	const char *best = NULL;

	for (const struct cu_command *const *c = commands; *c; c++)
		if (!(*c)->hidden)
			cu_nearer(name, strlen(name), (*c)->name, &best, &distance);
	cu_nearer(name, strlen(name), "help", &best, &distance);
	if (best)
		return cu_usage_error(NULL, "unknown subcommand '%s'; did you mean '%s'?", name, best);
	return cu_usage_error(NULL, "unknown subcommand '%s'; to run a program: culimbo run -- %s",
			      name, name);
}

static int help(const char *name, const char *more)
{
	const struct cu_command *command;

	if (more)
		return cu_usage_error(NULL, "help is of one subcommand at a time: '%s' is too many", more);
	if (!name || !strcmp(name, "help")) {
		print_help();
		return CU_OK;
	}
	command = find_command(name);
	if (!command)
		return unknown_command(name);
	cu_print_command_help(command);
	return CU_OK;
}

/* Fails if the output could not be written, as on a full disk. */
static int flushed(int status)
{
	if ((fflush(stdout) || ferror(stdout)) && errno != EPIPE) {
		cu_error(NULL, "cannot write to stdout: %s", strerror(errno));
		return status ? status : CU_FAILED;
	}
	return status;
}

int main(int argc, char **argv)
{
	static const struct cu_option top_options[] = {
		{ "version", 'V', NULL, "" },
		{ .name = NULL },
	};
	static const struct cu_command top = { .name = "", .options = top_options };
	const struct cu_command *command;
	const char *word = argc > 1 ? argv[1] : NULL;

	cu_commands = commands;
	if (!word || !*word) {
		cu_usage_error(NULL, "no subcommand");
		return CU_USAGE;
	}
	if (!strcmp(word, "-h") || !strcmp(word, "--help") || !strcmp(word, "help"))
		return flushed(help(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL));
	if (!strcmp(word, "-V") || !strcmp(word, "--version")) {
		printf("culimbo %s\n", PACKAGE_VERSION);
		return flushed(CU_OK);
	}
	if (word[0] == '-') {
		size_t distance = (size_t)-1;
		const char *best = NULL;

		for (const struct cu_option *o = top.options; o->name; o++)
			cu_nearer(word + strspn(word, "-"), strlen(word + strspn(word, "-")),
				  o->name, &best, &distance);
		cu_nearer(word + strspn(word, "-"), strlen(word + strspn(word, "-")), "help", &best,
			  &distance);
		if (best)
			return cu_usage_error(NULL, "unknown option '%s'; did you mean '--%s'?",
					      word, best);
		return cu_usage_error(NULL, "unknown option '%s'", word);
	}
	command = find_command(word);
	if (!command)
		return unknown_command(word);
	return flushed(command->run(command, argc - 1, argv + 1));
}

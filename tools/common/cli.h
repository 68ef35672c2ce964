/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of the subcommands: what a subcommand is, its options, its
 * complaints and its help.
 *
 * A subcommand is one struct cu_command, declared in commands/commands.h, and one
 * line in the table in culimbo.c.
 */
#ifndef CU_CLI_H
#define CU_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>

/* Exit statuses of ours; `culimbo run` otherwise leaves with CMD's own. */
enum {
	CU_OK = 0,
	CU_FAILED = 1,	      /* what was asked for could not be done */
	CU_USAGE = 2,	      /* the command line is wrong */
	CU_NO_LIBRARY = 125,  /* run: our own part is missing or can't be named */
	CU_CANNOT_RUN = 126,  /* run: CMD is there, but can't be run (so) */
	CU_NOT_FOUND = 127,   /* run: no such CMD */
};

/* What a status says, for the help and the man page; the last has no text. */
struct cu_exit {
	int status;
	const char *when;
};

/* A command line, and what it is good for; the last has none. */
struct cu_example {
	const char *line, *what;
};

/*
 * What a subcommand is: the help, the man page and the completions of bash, zsh
 * and fish are made of this.  Completions tell what a word may be from what it is
 * called: PID, ID (a process or a block), FILE, DIR, COL, CMD, SUBCOMMAND, or
 * words with '|' between them.
 */
struct cu_command {
	const char *name;
	const char *arguments; /* after the options, for the usage line; "": takes none, cu_getopt() sees to it */
	const char *summary;   /* one line */
	const char *help;      /* what it does: paragraphs, an empty line between */
	const struct cu_option *options; /* one line each */
	const struct cu_column *columns; /* of its table (table.h); NULL: it has none */
	const struct cu_exit *exits;	 /* NULL: 0, CU_FAILED and CU_USAGE as everywhere */
	const struct cu_example *examples; /* NULL-able */
	bool hidden; /* not for people: in no list */
	/* @argv[0] is the subcommand's name.  Returns the exit status. */
	int (*run)(const struct cu_command *command, int argc, char **argv);
};

/* An option of a subcommand, as getopt_long and the help have it. */
struct cu_option {
	const char *name;     /* without the "--" */
	int value;	      /* what cu_getopt() returns; a letter is a short option too */
	const char *argument; /* what the help calls its argument; NULL: takes none */
	const char *help;     /* NULL: for ourselves, in no list */
};

/* What cu_getopt() returns beside the options' values. */
enum { CU_DONE = -1, CU_EXIT_HELP = -2, CU_EXIT_USAGE = -3 };

/*
 * The next option of @command, as getopt_long() has it; where the arguments are a
 * CMD, it stops at the first that is no option.  --help and -h are added to every subcommand.
 * CU_EXIT_HELP: the help was printed; CU_EXIT_USAGE: the complaint was.
 */
int cu_getopt(const struct cu_command *command, int argc, char **argv);

/* "culimbo SUB: text" on stderr. */
void cu_error(const struct cu_command *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The same, and how to get help.  Returns CU_USAGE. */
int cu_usage_error(const struct cu_command *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Shows the help of @command, which "culimbo help SUB" and --help print. */
void cu_print_command_help(const struct cu_command *command);

/*
 * For "did you mean": keeps in @best the name nearest to @word of @length letters, of all that it
 * is called with.  *best is NULL and *best_distance SIZE_MAX at first; *best stays NULL where no
 * name is near.
 */
void cu_nearer(const char *word, size_t length, const char *name, const char **best,
	       size_t *best_distance);

/*
 * All subcommands, in the order of the help; NULL at the end.  main() sets it before it runs
 * one: here no subcommand is known by name, so that each of them may use this file.
 */
extern const struct cu_command *const *cu_commands;
/* The exit statuses of @command, for the help. */
const struct cu_exit *cu_exits(const struct cu_command *command);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of the subcommands: what a subcommand is, its options, its
 * error messages and its help.
 *
 * A subcommand is one struct cu_command, declared in commands/commands.h, and one
 * line in the table in culimbo.c.
 */
#ifndef CU_CLI_H
#define CU_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>

/* The command's exit statuses; otherwise `culimbo run` exits with CMD's own. */
enum {
	CU_OK = 0,
	CU_FAILED = 1,	      /* the task could not be done */
	CU_USAGE = 2,	      /* the command line is wrong */
	CU_NO_LIBRARY = 125,  /* run: a part of culimbo is missing, or ld.so can't take its path */
	CU_CANNOT_RUN = 126,  /* run: CMD exists, but can't be run in this way */
	CU_NOT_FOUND = 127,   /* run: no such CMD */
};

/* An exit status and its meaning, for the help and the man page; the last one has no text. */
struct cu_exit {
	int status;
	const char *when;
};

/* An example: a command line and its purpose; the last one has no line. */
struct cu_example {
	const char *line, *what;
};

/*
 * A subcommand.  Its help, its man page and the completions of bash, zsh and fish
 * are made from this.  The name of an argument tells the completions its kind:
 * PID, ID (a process or a block), FILE, DIR, COL, CMD, SUBCOMMAND, or words with
 * '|' between them.
 */
struct cu_command {
	const char *name;
	const char *arguments; /* after the options, for the usage line; "": none are allowed */
	const char *summary;   /* one line */
	const char *help;      /* what it does: paragraphs, separated by empty lines */
	const struct cu_option *options; /* one line each */
	const struct cu_column *columns; /* of its table (table.h); NULL: it has none */
	const struct cu_exit *exits;	 /* NULL: the usual CU_OK, CU_FAILED and CU_USAGE */
	const struct cu_example *examples; /* NULL-able */
	bool hidden; /* not for users: in no list */
	/* @argv[0] is the subcommand's name.  Returns the exit status. */
	int (*run)(const struct cu_command *command, int argc, char **argv);
};

/* An option of a subcommand, for getopt_long and the help. */
struct cu_option {
	const char *name;     /* without the "--" */
	int value;	      /* what cu_getopt() returns; a letter is also the short option */
	const char *argument; /* the name of its argument in the help; NULL: takes none */
	const char *help;     /* NULL: for culimbo's own use, in no list */
};

/* What cu_getopt() returns beside the options' values. */
enum { CU_DONE = -1, CU_EXIT_HELP = -2, CU_EXIT_USAGE = -3 };

/*
 * Returns the next option of @command, like getopt_long().  If the arguments are a
 * CMD, it stops at the first word that is no option.  It adds --help and -h to every subcommand.
 * CU_EXIT_HELP: it has printed the help.  CU_EXIT_USAGE: it has printed an error.
 */
int cu_getopt(const struct cu_command *command, int argc, char **argv);

/* Prints a sentence to stderr, in lines of a terminal's width. */
void cu_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints "culimbo SUB: text" to stderr, likewise. */
void cu_error(const struct cu_command *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Does the same, and prints how to get help.  Returns CU_USAGE. */
int cu_usage_error(const struct cu_command *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Prints the help of @command, for "culimbo help SUB" and --help. */
void cu_print_command_help(const struct cu_command *command);

/*
 * For "did you mean": called with one @name after the other, keeps in *best the one nearest to
 * @word of @length letters.  The caller sets *best to NULL and *best_distance to SIZE_MAX first;
 * *best stays NULL if no name is near.
 */
void cu_nearer(const char *word, size_t length, const char *name, const char **best,
	       size_t *best_distance);

/*
 * All subcommands, in the order of the help; NULL at the end.  main() sets it before it runs
 * one.  This file names no subcommand, so that each of them may use it.
 */
extern const struct cu_command *const *cu_commands;
/* The exit statuses of @command, for the help. */
const struct cu_exit *cu_exits(const struct cu_command *command);

#endif

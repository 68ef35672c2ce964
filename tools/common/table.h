/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of the listing subcommands, in the way of util-linux.
 *
 * One array of struct cu_column a subcommand (cu_command.columns): from it come
 * the table, its JSON, the names that -o takes, the help, the man page and the
 * shells' completions.
 *
 * No control byte and no broken UTF-8 of a cell reaches the output, whoever
 * chose the text.  A table of 100,000 lines takes well below a second.
 */
#ifndef CU_TABLE_H
#define CU_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct cu_command;

enum cu_type {
	CU_TEXT,
	CU_NUMBER,  /* JSON: a number */
	CU_BYTES,   /* people: 1.5M, or as it is with --bytes; JSON: a number */
	CU_SECONDS, /* given in ns; people: 2m3s; JSON: a number of seconds */
	CU_BOOLEAN, /* people: yes or no; JSON: true or false */
	CU_HEX,	    /* 0x..., also in JSON, whose numbers lose bits */
};

/* How a column is shown. */
enum { CU_HIDDEN = 1, /* only by -o */ CU_WRAP = 2, CU_CUT = 4, /* on a narrow terminal */
       CU_IF_ANY = 8, /* left out of a table for people when no line has something in it */
       CU_LEFT = 16, /* a number that is a name */
       CU_BELOW = 32, /* the last column: where the terminal is too narrow, its text goes below the line */
       CU_KEY_BYTES = 64 /* in JSON its name ends in "_bytes" */ };

struct cu_column {
	const char *name; /* upper case; keys.h has its name in JSON; NULL at the end */
	enum cu_type type;
	int flags;
	const char *help;
};

/* What the options of CU_TABLE_OPTIONS have said. */
struct cu_format {
	const char *output; /* of -o; NULL: the default columns */
	bool json, raw, bytes, noheadings;
};

enum { CU_OPTION_JSON = 1000, CU_OPTION_RAW, CU_OPTION_BYTES, CU_OPTION_NOHEADINGS, CU_OPTION_DIR };

/* To stand in the options of any subcommand. */
#define CU_JSON_OPTION                                                                         \
	{ "json", CU_OPTION_JSON, NULL, "print JSON: sizes in bytes, times in seconds" }
#define CU_BYTES_OPTION { "bytes", CU_OPTION_BYTES, NULL, "print sizes in bytes" }

/* To stand in those of a listing subcommand. */
#define CU_TABLE_OPTIONS                                                                       \
	{ "output", 'o', "COL[,..]", "show these columns; +COL[,..]: these too" },              \
	CU_JSON_OPTION,                                                                         \
	{ "raw", CU_OPTION_RAW, NULL, "for scripts: columns separated by one space" },           \
	CU_BYTES_OPTION,                                                                        \
	{ "noheadings", CU_OPTION_NOHEADINGS, NULL, "print no line of column names" }

/* True when @got is one of them, and noted in *format. */
bool cu_format_option(struct cu_format *format, int got);

/* One cell: set one of these, by the column's type; nothing set: none ("-", null). */
struct cu_cell {
	bool set;
	const char *text; /* copied */
	uint64_t number;
};
static inline void cu_cell_number(struct cu_cell *cell, uint64_t number)
{
	cell->number = number;
	cell->set = true;
}
static inline void cu_cell_text(struct cu_cell *cell, const char *text)
{
	cell->text = text;
	cell->set = text && *text;
}

struct cu_table;

/*
 * A table of @command's columns, named @name in JSON.  NULL after a complaint:
 * then *status is the exit status.
 */
struct cu_table *cu_table_new(const struct cu_command *command, const char *name,
			      const struct cu_format *format, int *status);
/* Whether column @column is shown: for those that cost something to know. */
bool cu_table_shows(const struct cu_table *table, unsigned int column);
/* One line; @fill is asked for each column that is shown. */
typedef void cu_fill_fn(struct cu_cell *cell, unsigned int column, const void *row);
void cu_table_line(struct cu_table *table, cu_fill_fn *fill, const void *row);
/* Prints it and frees it.  Returns the exit status, after a complaint if not CU_OK. */
int cu_table_end(struct cu_table *table);

/* Frees it unprinted. */
void cu_table_drop(struct cu_table *table);

/* A command's column by name; -1: none, *nearest is then the nearest one, or NULL. */
int cu_column_find(const struct cu_column *columns, const char *name, size_t length,
		   const char **nearest);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of the listing subcommands, in the way of util-linux.
 *
 * Each subcommand has one array of struct cu_column (cu_command.columns).  The table,
 * its JSON, the names for -o, the help, the man page and the shells' completions are
 * made from it.
 *
 * A table for people is at most as wide as COLUMNS says, or without it the terminal.
 * What had to be left out for that is said on stderr.
 *
 * No control byte and no broken UTF-8 of a cell reaches the output, whatever the
 * text's origin.  A table of 100,000 lines takes well below a second.
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
	CU_BYTES,   /* people: 1.5M, or a plain number with --bytes; JSON: a number */
	CU_SECONDS, /* given in ns; people: 2m3s; JSON: a number of seconds */
	CU_BOOLEAN, /* people: yes or no; JSON: true or false */
	CU_HEX,	    /* 0x..., also in JSON, whose numbers lose bits */
};

/* How a column is shown. */
enum { CU_HIDDEN = 1, /* only by -o */
       CU_WRAP = 2, CU_CUT = 4, /* of a narrow table the cells are wrapped, or cut */
       CU_IF_ANY = 8, /* left out of a table for people if it is empty in all lines */
       CU_LEFT = 16, /* to the left: a number that is a name */
       CU_BELOW = 32, /* one column at most: of a narrow table its text goes below the line */
       CU_KEY_BYTES = 64 /* in JSON its name ends in "_bytes" */ };
/*
 * A narrow table leaves the column out if there is no room for it, those with the lowest @n, from 1
 * to 15, first; not if -o names it.
 */
#define CU_DROP(n) ((n) << 8)
#define CU_DROP_OF(flags) ((unsigned int)(flags) >> 8 & 15)

struct cu_column {
	const char *name; /* upper case; keys.h has the name in JSON; NULL at the end */
	enum cu_type type;
	int flags;
	const char *help;
};

/* The values of the options of CU_TABLE_OPTIONS. */
struct cu_format {
	const char *output; /* the argument of -o; NULL: the default columns */
	bool json, raw, bytes, noheadings;
	const char *time; /* in JSON: when this was so; NULL: it is not said */
};

enum { CU_OPTION_JSON = 1000, CU_OPTION_RAW, CU_OPTION_BYTES, CU_OPTION_NOHEADINGS, CU_OPTION_DIR };

/* For the options of any subcommand. */
#define CU_JSON_OPTION                                                                         \
	{ "json", CU_OPTION_JSON, NULL, "print JSON: sizes in bytes, times in seconds" }
#define CU_BYTES_OPTION { "bytes", CU_OPTION_BYTES, NULL, "print sizes in bytes" }

/* For the options of a listing subcommand. */
#define CU_TABLE_OPTIONS                                                                       \
	{ "output", 'o', "COL[,..]", "show these columns; +COL[,..]: these too" },              \
	CU_JSON_OPTION,                                                                         \
	{ "raw", CU_OPTION_RAW, NULL, "for scripts: columns separated by one space" },           \
	CU_BYTES_OPTION,                                                                        \
	{ "noheadings", CU_OPTION_NOHEADINGS, NULL, "print no line of column names" }

/* Returns true if @got is one of them, and notes it in *format. */
bool cu_format_option(struct cu_format *format, int got);

/* A cell.  Set one of these, by the column's type; if none is set the cell is empty ("-", null). */
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
 * Returns a table of @command's columns, named @name in JSON; NULL after an error
 * message, with the exit status in *status.
 */
struct cu_table *cu_table_new(const struct cu_command *command, const char *name,
			      const struct cu_format *format, int *status);
/* Returns true if column @column is shown: ask before you compute an expensive value. */
bool cu_table_shows(const struct cu_table *table, unsigned int column);
/* Adds a line, and calls @fill for each column that is shown. */
typedef void cu_fill_fn(struct cu_cell *cell, unsigned int column, const void *row);
void cu_table_line(struct cu_table *table, cu_fill_fn *fill, const void *row);
/* Prints the table and frees it.  Returns the exit status, after an error message if not CU_OK. */
int cu_table_end(struct cu_table *table);

/*
 * Returns how wide a table may be; 0: as wide as it is.  As POSIX has it, COLUMNS is stronger than
 * the terminal.
 */
unsigned int cu_table_room(void);

/* Frees the table unprinted. */
void cu_table_drop(struct cu_table *table);

/* Returns a command's column by name; -1: none, and *nearest is the nearest name, or NULL. */
int cu_column_find(const struct cu_column *columns, const char *name, size_t length,
		   const char **nearest);

#endif

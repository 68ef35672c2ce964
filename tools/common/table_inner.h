/* SPDX-License-Identifier: Apache-2.0 */
/* A table before it is printed, for table.c, and for table_fit.c, which makes it narrow. */
#ifndef CU_TABLE_INNER_H
#define CU_TABLE_INNER_H

#include <stddef.h>

#include "tools/common/table.h"

#define COLUMNS_MOST 40
struct cu_table {
	const struct cu_command *command;
	const struct cu_column *columns;
	const char *name;
	struct cu_format format;
	unsigned int shown[COLUMNS_MOST], n; /* indices into columns, in the order of output */
	unsigned int asked_for[COLUMNS_MOST], asked; /* columns that -o names */
	char **cell;			     /* lines * n, in the pools; NULL: none */
	struct pool {
		struct pool *next;
		size_t used, size;
		char text[];
	} *pool;
	size_t lines, room;
	bool failed; /* out of memory */
};

/* Returns what a table for people has for a cell. */
static inline const char *cu_for_people(const char *cell)
{
	return cell ? cell : "-";
}

/* Removes all columns but the @kept ones that stand at @from, of the order of output. */
void cu_table_keep(struct cu_table *table, const unsigned int *from, unsigned int kept);
/* Returns the width of the column that stands at @at. */
size_t cu_table_width(const struct cu_table *table, unsigned int at);
/* Returns true if -o names the column. */
bool cu_table_is_asked_for(const struct cu_table *table, unsigned int column);
/* Returns true if it has columns whose cells libsmartcols wraps. */
bool cu_table_wraps(const struct cu_table *table);
/* Returns how wide the table may be if it is wider, else 0. */
unsigned int cu_table_narrow(const struct cu_table *table);
/*
 * Makes a table fit into @room.  Command lines lose the folder of the program; a text goes below
 * its line; columns are left out; and texts are cut, the longest first.  *left_out, of @size bytes,
 * gets the names of the columns that were left out.
 */
void cu_table_fit(struct cu_table *table, unsigned int room, char *left_out, size_t size);

#endif

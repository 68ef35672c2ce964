/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo blocks --sort, --limit, --group-by`, and `culimbo ps --sort`: sorts lines by a
 * column, and groups lines that are equal in some columns.
 *
 * Both read the cells by the command's own fill function, so they work for each of its columns.
 */
#ifndef CU_BLOCKS_ORDER_H
#define CU_BLOCKS_ORDER_H

#include <stddef.h>

#include "tools/common/table.h"

/* Returns the column of @command with the name @name; -1 after an error message. */
int cu_sort_column(const struct cu_command *command, const char *name);
/*
 * Sorts the @n rows of @size bytes each at @rows by @column, which has type @type: numbers from
 * the largest, texts from A to Z, empty cells last.  Equal rows keep their order.  Returns
 * false without memory.
 */
bool cu_sort_rows(void *rows, size_t n, size_t size, cu_fill_fn *fill, unsigned int column,
		  enum cu_type type);

enum { CU_GROUP_COLUMNS = 8 };

/* Groups of lines that are equal in some columns. */
struct cu_groups;

/*
 * Begins groups of lines that are equal in the columns @list: names of columns of @command,
 * separated by commas.  Returns NULL after an error message.
 */
struct cu_groups *cu_groups_new(const struct cu_command *command, const char *list);
/* Adds a line, and @bytes to the sum of its group.  Returns false without memory. */
bool cu_groups_add(struct cu_groups *groups, cu_fill_fn *fill, const void *row, uint64_t bytes);
/* Prints at most @limit groups, the most bytes first.  Returns the exit status. */
int cu_groups_print(struct cu_groups *groups, const struct cu_format *format, size_t limit);
void cu_groups_free(struct cu_groups *groups);

#endif

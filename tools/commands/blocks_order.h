/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo blocks --sort, --limit, --group-by`, and `culimbo ps --sort`: lines in the order of a column, and what many
 * lines have in common.
 *
 * Both read a line by the command's own fill function, so that they know each of its columns.
 */
#ifndef CU_BLOCKS_ORDER_H
#define CU_BLOCKS_ORDER_H

#include <stddef.h>

#include "tools/common/table.h"

/* The column of @command that is called @name; -1 after a complaint. */
int cu_sort_column(const struct cu_command *command, const char *name);
/*
 * Sorts the @n rows of @size bytes each at @rows by @column, whose type is @type: numbers from
 * the largest, texts from A to Z, what has none last; equal ones stay as they were.  Returns
 * false without memory.
 */
bool cu_sort_rows(void *rows, size_t n, size_t size, cu_fill_fn *fill, unsigned int column,
		  enum cu_type type);

enum { CU_GROUP_COLUMNS = 8 };

/* Lines that are equal in some columns. */
struct cu_groups;

/*
 * @list: names of columns of @command, with commas between, of which equal lines are one.
 * NULL after a complaint.
 */
struct cu_groups *cu_groups_new(const struct cu_command *command, const char *list);
/* One line; @bytes is what it adds to the sum of its group.  Returns false without memory. */
bool cu_groups_add(struct cu_groups *groups, cu_fill_fn *fill, const void *row, uint64_t bytes);
/* Prints the table of groups, the most bytes first, @limit of them at most.  Returns the exit status. */
int cu_groups_print(struct cu_groups *groups, const struct cu_format *format, size_t limit);
void cu_groups_free(struct cu_groups *groups);

#endif

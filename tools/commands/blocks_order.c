/* SPDX-License-Identifier: Apache-2.0 */
/* The order and the groups of `culimbo blocks`: see blocks_order.h. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_FUNCTION HASH_OAT /* clang warns that uthash's default falls through cases */
#include <uthash.h>

#include "tools/commands/blocks_order.h"
#include "tools/common/cli.h"

/* ----------------------------------------------------------------------- order */
struct key {
	bool set;
	uint64_t number;
	char *text;
	size_t at; /* the row's place before the sort */
};

static int by_key(const void *x, const void *y)
{
	const struct key *a = x, *b = y;
	int order = 0;

	if (a->set != b->set)
		return a->set ? -1 : 1;
	if (a->set && a->text)
		order = strcmp(a->text, b->text);
	else if (a->set)
		order = (a->number < b->number) - (a->number > b->number);
	return order ? order : (a->at > b->at) - (a->at < b->at);
}

int cu_sort_column(const struct cu_command *command, const char *name)
{
	const char *nearest;
	int column = cu_column_find(command->columns, name, strlen(name), &nearest);

	if (column < 0 && nearest)
		cu_usage_error(command, "cannot sort by '%s'; did you mean '%s'?", name, nearest);
	else if (column < 0)
		cu_usage_error(command, "cannot sort by '%s'", name);
	return column;
}

bool cu_sort_rows(void *rows, size_t n, size_t size, cu_fill_fn *fill, unsigned int column,
		  enum cu_type type)
{
	struct key *key = calloc(n + 1, sizeof(*key));
	char *sorted = malloc(n * size + 1), *from = rows;
	bool done = key && sorted;

	for (size_t i = 0; i < n && done; i++) {
		struct cu_cell cell = { 0 };

		fill(&cell, column, from + i * size);
		key[i] = (struct key){ .set = cell.set, .number = cell.number, .at = i };
		if (cell.set && type == CU_TEXT) {
			key[i].text = strdup(cell.text);
			done = key[i].text != NULL;
		}
	}
	if (done) {
		qsort(key, n, sizeof(*key), by_key);
		for (size_t i = 0; i < n; i++)
			memcpy(sorted + i * size, from + key[i].at * size, size);
		memcpy(rows, sorted, n * size);
	}
	for (size_t i = 0; i < n && key; i++)
		free(key[i].text);
	free(key);
	free(sorted);
	return done;
}

/* ---------------------------------------------------------------------- groups */
struct group {
	UT_hash_handle hh;
	uint64_t blocks, bytes;
	struct cu_cell cell[CU_GROUP_COLUMNS];
	char name[]; /* the hash's key: the text of all cells, concatenated */
};

struct cu_groups {
	struct cu_command command; /* the caller's, with the columns below */
	struct cu_column column[CU_GROUP_COLUMNS + 3];
	unsigned int from[CU_GROUP_COLUMNS], n; /* columns of the caller's command */
	struct group *all;
};

struct cu_groups *cu_groups_new(const struct cu_command *command, const char *list)
{
	struct cu_groups *groups = calloc(1, sizeof(*groups));
	const char *end, *nearest;

	if (!groups) {
		cu_error(command, "%s", strerror(ENOMEM));
		return NULL;
	}
	for (;; list = end + 1) {
		int column;

		end = list + strcspn(list, ",");
		column = cu_column_find(command->columns, list, (size_t)(end - list), &nearest);
		if (column < 0 && nearest)
			cu_usage_error(command, "cannot group by '%.*s'; did you mean '%s'?", (int)(end - list),
				       list, nearest);
		else if (column < 0)
			cu_usage_error(command, "cannot group by '%.*s'", (int)(end - list), list);
		else if (groups->n == CU_GROUP_COLUMNS)
			cu_usage_error(command, "cannot group by more than %d columns", CU_GROUP_COLUMNS);
		if (column < 0 || groups->n == CU_GROUP_COLUMNS) {
			free(groups);
			return NULL;
		}
		groups->column[groups->n] = command->columns[column];
		groups->column[groups->n].flags &= ~(CU_HIDDEN | CU_DROP(15));
		groups->from[groups->n++] = (unsigned int)column;
		if (!*end)
			break;
	}
	groups->column[groups->n] = (struct cu_column){ "BLOCKS", CU_NUMBER, 0, "how many there are" };
	groups->column[groups->n + 1] = (struct cu_column){ "SUM", CU_BYTES, 0, "the size of these" };
	groups->command = *command;
	groups->command.columns = groups->column;
	return groups;
}

bool cu_groups_add(struct cu_groups *groups, cu_fill_fn *fill, const void *row, uint64_t bytes)
{
	struct group *group;
	char name[1024];
	size_t length = 0, begin[CU_GROUP_COLUMNS];
	struct cu_cell cell[CU_GROUP_COLUMNS] = { 0 };

	for (unsigned int i = 0; i < groups->n; i++) {
		size_t room = sizeof(name) - length;
		int wrote = 0;

		fill(&cell[i], groups->from[i], row);
		begin[i] = length;
		if (cell[i].set && groups->column[i].type == CU_TEXT)
			wrote = snprintf(name + length, room, "%s", cell[i].text);
		else if (cell[i].set)
			wrote = snprintf(name + length, room, "%llu", (unsigned long long)cell[i].number);
		/* a text that is too long is cut, and so equals others with the same beginning */
		length += (size_t)wrote < room ? (size_t)wrote + 1 : room;
		name[length - 1] = 0;
		if (length == sizeof(name))
			length--;
	}
	HASH_FIND(hh, groups->all, name, length, group);
	if (!group) {
		group = calloc(1, sizeof(*group) + length);
		if (!group)
			return false;
		memcpy(group->name, name, length);
		for (unsigned int i = 0; i < groups->n; i++) {
			group->cell[i] = cell[i];
			if (cell[i].set && groups->column[i].type == CU_TEXT)
				group->cell[i].text = group->name + begin[i];
		}
		HASH_ADD(hh, groups->all, name, length, group);
	}
	group->blocks++;
	group->bytes += bytes;
	return true;
}

static int by_bytes(const struct group *a, const struct group *b)
{
	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? 1 : -1;
	if (a->blocks != b->blocks)
		return a->blocks < b->blocks ? 1 : -1;
	return strcmp(a->name, b->name);
}

struct line {
	const struct cu_groups *groups;
	const struct group *group;
};

static void fill_line(struct cu_cell *cell, unsigned int column, const void *data)
{
	const struct line *line = data;

	if (column < line->groups->n)
		*cell = line->group->cell[column];
	else
		cu_cell_number(cell, column == line->groups->n ? line->group->blocks : line->group->bytes);
}

int cu_groups_print(struct cu_groups *groups, const struct cu_format *format, size_t limit)
{
	struct cu_table *table;
	int status;

	table = cu_table_new(&groups->command, "groups", format, &status);
	if (!table)
		return status;
	HASH_SORT(groups->all, by_bytes);
	for (const struct group *group = groups->all; group && limit; group = group->hh.next, limit--)
		cu_table_line(table, fill_line, &(struct line){ groups, group });
	return cu_table_end(table);
}

void cu_groups_free(struct cu_groups *groups)
{
	struct group *group, *next;

	if (!groups)
		return;
	HASH_ITER(hh, groups->all, group, next) {
		HASH_DEL(groups->all, group);
		free(group);
	}
	free(groups);
}

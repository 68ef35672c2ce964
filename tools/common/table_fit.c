/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that are wider than the terminal: see table_inner.h. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/common/scan.h"
#include "tools/common/table_inner.h"
#include "tools/common/text.h"

void cu_table_keep(struct cu_table *table, const unsigned int *from, unsigned int kept)
{
	unsigned int shown[COLUMNS_MOST];
	char *cell[COLUMNS_MOST];

	for (size_t line = 0; line < table->lines; line++) {
		for (unsigned int i = 0; i < kept; i++)
			cell[i] = table->cell[line * table->n + from[i]];
		for (unsigned int i = 0; i < kept; i++)
			table->cell[line * kept + i] = cell[i];
	}
	for (unsigned int i = 0; i < kept; i++)
		shown[i] = table->shown[from[i]];
	for (unsigned int i = 0; i < kept; i++)
		table->shown[i] = shown[i];
	table->n = kept;
}

size_t cu_table_width(const struct cu_table *table, unsigned int at)
{
	size_t width = table->format.noheadings ? 0 : strlen(table->columns[table->shown[at]].name);

	for (size_t line = 0; line < table->lines; line++) {
		size_t its = cu_width(cu_for_people(table->cell[line * table->n + at]));

		width = its > width ? its : width;
	}
	return width;
}

unsigned int cu_table_room(void)
{
	const char *columns = getenv("COLUMNS");
	struct winsize size;
	long long room = 0;

	if (columns && cu_number(columns, &room) && room > 0 && room <= 100000)
		return (unsigned int)room;
	return isatty(STDOUT_FILENO) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) ? size.ws_col : 0;
}

unsigned int cu_table_narrow(const struct cu_table *table)
{
	unsigned int room = table->format.json || table->format.raw ? 0 : cu_table_room();
	size_t all = 0;

	for (unsigned int i = 0; room && i < table->n; i++)
		all += cu_table_width(table, i) + (i > 0);
	return all > room ? room : 0;
}

/* Returns a command line without the folder of its program, which says least. */
static const char *without_folder(const char *command)
{
	const char *from = command, *end = command + strcspn(command, " ");

	for (const char *c = command; *command == '/' && c < end; c++)
		if (*c == '/' && c + 1 < end)
			from = c + 1;
	return from;
}

/* Ends @text where it is as wide as @width. */
static void cut_text(char *text, size_t width)
{
	size_t at = 0, all = 0;

	while (text[at]) {
		char letter[8];
		size_t bytes = 1, its;

		while ((text[at + bytes] & 0xc0) == 0x80 && bytes < sizeof(letter) - 1)
			bytes++;
		memcpy(letter, text + at, bytes);
		letter[bytes] = 0;
		its = cu_width(letter);
		if (all + its > width)
			break;
		all += its;
		at += bytes;
	}
	text[at] = 0;
}

bool cu_table_is_asked_for(const struct cu_table *table, unsigned int column)
{
	for (unsigned int i = 0; i < table->asked; i++)
		if (table->asked_for[i] == column)
			return true;
	return false;
}

/* Returns how wide all columns are together: of those that can be cut, at most @most. */
static size_t width_of_all(const struct cu_table *table, const size_t *width, const bool *left_out, size_t most)
{
	size_t all = 0;

	for (unsigned int i = 0; i < table->n; i++) {
		const struct cu_column *column = &table->columns[table->shown[i]];
		size_t its = width[i], least = strlen(column->name);

		if (column->flags & CU_CUT && its > most)
			its = most > least ? most : least;
		if (!left_out[i])
			all += (all > 0) + its;
	}
	return all;
}

/* Cuts the cells of the columns that can be cut to @most. */
static void cut_cells(struct cu_table *table, size_t most)
{
	for (unsigned int i = 0; i < table->n; i++)
		for (size_t line = 0; line < table->lines && table->columns[table->shown[i]].flags & CU_CUT; line++) {
			char *text = table->cell[line * table->n + i];

			if (text && cu_width(text) > most)
				cut_text(text, most);
		}
}

void cu_table_fit(struct cu_table *table, unsigned int room, char *names, size_t size)
{
	enum { CUT_TO_AT_LEAST = 14 };
	unsigned int from[COLUMNS_MOST], kept = 0, below = COLUMNS_MOST;
	bool left_out[COLUMNS_MOST] = { false };
	size_t width[COLUMNS_MOST], most, used = 0;

	for (unsigned int i = 0; i < table->n; i++) {
		for (size_t line = 0; line < table->lines && table->columns[table->shown[i]].flags & CU_CUT; line++) {
			char **cell = &table->cell[line * table->n + i];

			if (*cell)
				*cell += without_folder(*cell) - *cell;
		}
		width[i] = cu_table_width(table, i);
		if (table->columns[table->shown[i]].flags & CU_BELOW)
			below = i;
	}
	if (below < table->n && table->n > 1 && width_of_all(table, width, left_out, SIZE_MAX) > room)
		left_out[below] = true;
	else
		below = COLUMNS_MOST;
	for (unsigned int rank = 1; rank <= CU_DROP_OF(~0); rank++)
		for (unsigned int i = 0; i < table->n; i++) {
			const struct cu_column *column = &table->columns[table->shown[i]];

			if (CU_DROP_OF(column->flags) != rank || left_out[i] || cu_table_is_asked_for(table, table->shown[i]) ||
			    width_of_all(table, width, left_out, CUT_TO_AT_LEAST) <= room)
				continue;
			left_out[i] = true;
			if (used < size)
				used += (size_t)snprintf(names + used, size - used, "%s%s", used ? ", " : "",
							 column->name);
		}
	for (most = room; most > 1 && width_of_all(table, width, left_out, most) > room; most--)
		;
	if (most == 1) /* it does not fit: -o names too many columns */
		most = CUT_TO_AT_LEAST;
	cut_cells(table, most);
	for (unsigned int i = 0; i < table->n; i++)
		if (!left_out[i])
			from[kept++] = i;
	if (below < table->n)
		from[kept++] = below;
	cu_table_keep(table, from, kept);
}

bool cu_table_wraps(const struct cu_table *table)
{
	for (unsigned int i = 0; i < table->n; i++)
		if (table->columns[table->shown[i]].flags & CU_WRAP)
			return true;
	return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of the listing subcommands: see table.h. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/nearest.h"
#include "tools/common/cli.h"
#include "tools/common/keys.h"
#include "tools/common/smartcols.h"
#include "tools/common/table_inner.h"
#include "tools/common/text.h"

/*
 * libsmartcols takes 10 us a line (it decodes each cell twice), so this file writes longer tables
 */
#define SMART_LINES 2000
#define POOL 65536 /* bytes of cells that are allocated at a time */

/* -------------------------------------------------------------------- options */
bool cu_format_option(struct cu_format *format, int got)
{
	switch (got) {
	case 'o':
		format->output = optarg;
		return true;
	case CU_OPTION_JSON:
		return format->json = true;
	case CU_OPTION_RAW:
		return format->raw = true;
	case CU_OPTION_BYTES:
		return format->bytes = true;
	case CU_OPTION_NOHEADINGS:
		return format->noheadings = true;
	default:
		return false;
	}
}

int cu_column_find(const struct cu_column *columns, const char *name, size_t length,
		   const char **nearest)
{
	size_t best = (size_t)-1;

	*nearest = NULL;
	for (int i = 0; columns[i].name; i++) {
		size_t its = strlen(columns[i].name), distance;

		if (cl_same_word(name, length, columns[i].name, its))
			return i;
		distance = cl_word_distance(name, length, columns[i].name, its);
		if (distance < best && cl_word_near(distance, its)) {
			best = distance;
			*nearest = columns[i].name;
		}
	}
	return -1;
}

/* Returns false after an error message. */
static bool choose(struct cu_table *table, const char *list)
{
	const char *end, *nearest;

	if (!list || *list == '+') {
		for (unsigned int i = 0; table->columns[i].name; i++)
			if (!(table->columns[i].flags & CU_HIDDEN))
				table->shown[table->n++] = i;
		if (!list)
			return true;
		list++;
	}
	for (;; list = end + 1) {
		int column;

		end = list + strcspn(list, ",");
		column = cu_column_find(table->columns, list, (size_t)(end - list), &nearest);
		if (column < 0) {
			if (nearest)
				cu_usage_error(table->command,
					       "unknown column '%.*s'; did you mean '%s'?",
					       (int)(end - list), list, nearest);
			else
				cu_usage_error(table->command, "unknown column '%.*s'",
					       (int)(end - list), list);
			return false;
		}
		if (table->n == COLUMNS_MOST || table->asked == COLUMNS_MOST) {
			cu_usage_error(table->command, "too many columns: %d at most", COLUMNS_MOST);
			return false;
		}
		table->asked_for[table->asked++] = (unsigned int)column;
		/*
		 * a JSON name must be unique: a default column that is requested again keeps its
		 * place
		 */
		if (!cu_table_shows(table, (unsigned int)column))
			table->shown[table->n++] = (unsigned int)column;
		if (!*end)
			return true;
	}
}

/* ---------------------------------------------------------------------- lines */
struct cu_table *cu_table_new(const struct cu_command *command, const char *name,
			      const struct cu_format *format, int *status)
{
	struct cu_table *table;

	*status = CU_USAGE;
	if (format->json && format->raw) {
		cu_usage_error(command, "--json and --raw exclude each other");
		return NULL;
	}
	setlocale(LC_CTYPE, ""); /* for the width of letters */
	table = calloc(1, sizeof(*table));
	if (!table) {
		cu_error(command, "cannot make the table: %s", strerror(ENOMEM));
		*status = CU_FAILED;
		return NULL;
	}
	table->command = command;
	table->columns = command->columns;
	table->name = name;
	table->format = *format;
	if (choose(table, format->output))
		return table;
	free(table);
	return NULL;
}

bool cu_table_shows(const struct cu_table *table, unsigned int column)
{
	for (unsigned int i = 0; i < table->n; i++)
		if (table->shown[i] == column)
			return true;
	return false;
}

/* Returns NULL without memory. */
static char *keep(struct cu_table *table, size_t size)
{
	struct pool *pool = table->pool;

	if (!pool || pool->size - pool->used < size) {
		size_t room = size > POOL ? size : POOL;

		pool = malloc(sizeof(*pool) + room);
		if (!pool)
			return NULL;
		*pool = (struct pool){ .next = table->pool, .size = room };
		table->pool = pool;
	}
	pool->used += size;
	return pool->text + pool->used - size;
}

static char *format_cell(struct cu_table *table, const struct cu_column *column,
			 const struct cu_cell *cell)
{
	bool exact = table->format.json || table->format.bytes;
	char text[64];
	size_t length;
	char *copy;

	if (!cell->set)
		return NULL;
	switch (column->type) {
	case CU_TEXT:
		length = strlen(cell->text);
		copy = keep(table, length + 1);
		if (copy)
			cu_clean_for(copy, length + 1, cell->text, length, table->format.json);
		return copy;
	case CU_BYTES:
		if (!exact) {
			cu_bytes_short(text, cell->number);
			break;
		}
		__attribute__((fallthrough));
	case CU_NUMBER:
		snprintf(text, sizeof(text), "%" PRIu64, cell->number);
		break;
	case CU_SECONDS:
		if (table->format.json)
			snprintf(text, sizeof(text), "%" PRIu64 ".%03" PRIu64,
				 cell->number / 1000000000, cell->number / 1000000 % 1000);
		else
			cu_duration(text, cell->number);
		break;
	case CU_BOOLEAN:
		snprintf(text, sizeof(text), "%s", table->format.json ? cell->number ? "1" : "0" :
						   cell->number ? "yes" : "no");
		break;
	case CU_HEX:
		snprintf(text, sizeof(text), "0x%" PRIx64, cell->number);
		break;
	}
	length = strlen(text) + 1;
	copy = keep(table, length);
	return copy ? memcpy(copy, text, length) : NULL;
}

void cu_table_line(struct cu_table *table, cu_fill_fn *fill, const void *row)
{
	if (table->lines == table->room) {
		size_t room = table->room ? 2 * table->room : 64;
		char **more = realloc(table->cell, room * table->n * sizeof(*more));

		if (!more) {
			table->failed = true;
			return;
		}
		table->cell = more;
		table->room = room;
	}
	for (unsigned int i = 0; i < table->n; i++) {
		struct cu_cell cell = { 0 };
		char **to = &table->cell[table->lines * table->n + i];

		fill(&cell, table->shown[i], row);
		*to = format_cell(table, &table->columns[table->shown[i]], &cell);
		table->failed |= cell.set && !*to;
	}
	table->lines++;
}

/* ------------------------------------------------------------------- printing */
static bool is_number(const struct cu_column *column)
{
	return column->type != CU_TEXT && column->type != CU_BOOLEAN && !(column->flags & CU_LEFT);
}

/* Removes CU_IF_ANY columns that are empty in all lines. */
static void drop_empty(struct cu_table *table)
{
	unsigned int kept = 0, from[COLUMNS_MOST];

	if (table->format.json || table->format.raw)
		return;
	for (unsigned int i = 0; i < table->n; i++) {
		bool any = !(table->columns[table->shown[i]].flags & CU_IF_ANY) ||
			   cu_table_is_asked_for(table, table->shown[i]);

		for (size_t line = 0; line < table->lines && !any; line++)
			any = table->cell[line * table->n + i] != NULL;
		if (any)
			from[kept++] = i;
	}
	cu_table_keep(table, from, kept);
}

/* The next functions print what libsmartcols would, of any width, in one pass. */
static void pad(size_t n)
{
	while (n--)
		putchar_unlocked(' ');
}

/* Prints @text in lines of @width columns, indented by @indent columns. */
static void put_below(const char *text, size_t indent, size_t width)
{
	size_t at = 0;

	while (*text) {
		size_t bytes = strcspn(text, " "), word = 0;
		char copy[256];

		snprintf(copy, sizeof(copy), "%.*s", (int)bytes, text);
		word = cu_width(copy);
		if (at && at + 1 + word > width) {
			putchar_unlocked('\n');
			at = 0;
		}
		if (at)
			putchar_unlocked(' ');
		else
			pad(indent);
		at = (at ? at + 1 : indent) + word;
		printf("%.*s", (int)bytes, text);
		text += bytes + strspn(text + bytes, " ");
	}
	putchar_unlocked('\n');
}

/*
 * Narrows the widest columns between the first and the last of @n until all fit into @room.  A
 * longer text then shifts only the cells behind it on its own line.
 */
static void make_narrow(const struct cu_table *table, size_t *width, unsigned int n, size_t room)
{
	for (;;) {
		unsigned int widest = 0;
		size_t all = n - 1;

		for (unsigned int i = 0; i < n; i++) {
			all += width[i];
			if (i && i + 1 < n && width[i] > strlen(table->columns[table->shown[i]].name) &&
			    (!widest || width[i] > width[widest]))
				widest = i;
		}
		if (all <= room || !widest)
			return;
		width[widest]--;
	}
}

/*
 * @room is the width that a narrow table may have, else 0.  If it has a column that goes below the
 * lines, that is the last one.
 */
static void print_long_table(const struct cu_table *table, unsigned int room)
{
	bool below = room && table->columns[table->shown[table->n - 1]].flags & CU_BELOW;
	unsigned int n = below ? table->n - 1 : table->n;
	size_t width[COLUMNS_MOST];

	for (unsigned int i = 0; i < n; i++)
		width[i] = cu_table_width(table, i);
	if (below)
		make_narrow(table, width, n, room);
	for (size_t line = table->format.noheadings ? 1 : 0; line <= table->lines; line++) {
		size_t at = 0, start = 0; /* @at: where the cursor is; @start: where this column begins */

		for (unsigned int i = 0; i < n; start += width[i++] + 1) {
			const struct cu_column *column = &table->columns[table->shown[i]];
			const char *text = line ? cu_for_people(table->cell[(line - 1) * table->n + i]) :
						  column->name;
			size_t its = cu_width(text), free_width = its < width[i] ? width[i] - its : 0;

			/* behind a text that is too long for its column there may be no room */
			if (below && at > start && at + its > room) {
				putchar_unlocked('\n');
				pad(start);
				at = start;
			}
			at += (its < width[i] ? width[i] : its) + 1;
			if (is_number(column))
				pad(free_width);
			fputs_unlocked(text, stdout);
			if (i + 1 == n)
				putchar_unlocked('\n');
			else
				pad(is_number(column) ? 1 : free_width + 1);
		}
		if (below && line && table->cell[line * table->n - 1])
			put_below(table->cell[line * table->n - 1], 4, room);
	}
}

static void print_long_raw(const struct cu_table *table)
{
	for (size_t line = table->format.noheadings ? 1 : 0; line <= table->lines; line++)
		for (unsigned int i = 0; i < table->n; i++) {
			const char *text = line ? cu_for_people(table->cell[(line - 1) * table->n + i]) :
						  table->columns[table->shown[i]].name;

			for (; *text; text++)
				if (*text == ' ' || *text == '\\' || (unsigned char)*text >= 0x7f)
					printf("\\x%02x", (unsigned char)*text);
				else
					putchar_unlocked(*text);
			putchar_unlocked(i + 1 == table->n ? '\n' : ' ');
		}
}

static void print_member(const char *key, const struct cu_column *column, const char *text)
{
	fputs_unlocked("         \"", stdout);
	fputs_unlocked(key, stdout);
	fputs_unlocked("\": ", stdout);
	if (!text)
		fputs_unlocked("null", stdout);
	else if (column->type == CU_BOOLEAN)
		fputs_unlocked(*text == '1' ? "true" : "false", stdout);
	else if (column->type == CU_TEXT || column->type == CU_HEX)
		cu_json_text(text);
	else
		fputs_unlocked(text, stdout);
}

static void print_begin(const struct cu_table *table)
{
	puts("{");
	if (table->format.time)
		printf("   \"time\": \"%s\",\n", table->format.time);
	printf("   \"%s\": ", table->name);
}

/* Prints JSON.  libsmartcols could print only one name of a member. */
static void print_json(const struct cu_table *table)
{
	const char *key[COLUMNS_MOST];
	char name[COLUMNS_MOST][48];

	for (unsigned int i = 0; i < table->n; i++) {
		const char *from = table->columns[table->shown[i]].name;
		bool unit = table->columns[table->shown[i]].flags & CU_KEY_BYTES;
		size_t at = 0;

		snprintf(name[i], sizeof(name[i]), "%s%s", from, unit ? "_bytes" : "");
		for (; name[i][at]; at++)
			name[i][at] = (char)cl_lower(name[i][at]);
		key[i] = cu_key_of(name[i], table->columns[table->shown[i]].type);
	}
	print_begin(table);
	puts("[");
	for (size_t line = 0; line < table->lines; line++) {
		fputs_unlocked(line ? ",{\n" : "      {\n", stdout);
		for (unsigned int i = 0; i < table->n; i++) {
			const struct cu_column *column = &table->columns[table->shown[i]];
			const char *text = table->cell[line * table->n + i];

			if (key[i]) {
				print_member(key[i], column, text);
				fputs_unlocked(",\n", stdout);
			}
			print_member(name[i], column, text);
			fputs_unlocked(i + 1 == table->n ? "\n" : ",\n", stdout);
		}
		fputs_unlocked("      }", stdout);
	}
	fputs_unlocked("\n   ]\n}\n", stdout);
}

static int print_smart(struct cu_table *table, const struct cu_smartcols *lib)
{
	struct libscols_table *smart = lib->scols_new_table();
	int error = -ENOMEM;

	if (!smart)
		return -ENOMEM;
	lib->scols_table_enable_raw(smart, table->format.raw);
	lib->scols_table_enable_noheadings(smart, table->format.noheadings);
	for (unsigned int i = 0; i < table->n; i++) {
		const struct cu_column *column = &table->columns[table->shown[i]];
		int flags = table->format.raw ? 0 : (is_number(column) ? SCOLS_FL_RIGHT : 0) |
					  (column->flags & CU_WRAP ? SCOLS_FL_WRAP : 0);
		struct libscols_column *new = lib->scols_table_new_column(
			/*
			 * a whole number: libsmartcols does not make such a column narrower than
			 * its cells
			 */
			smart, column->name, column->flags & CU_WRAP ? 0.5 : 1, flags);

		if (!new)
			goto out;
	}
	for (size_t line = 0; line < table->lines; line++) {
		struct libscols_line *new = lib->scols_table_new_line(smart, NULL);

		if (!new)
			goto out;
		for (unsigned int i = 0; i < table->n; i++) {
			const char *cell = table->cell[line * table->n + i];

			/* in raw output readers would take two blanks for one */
			if (!cell)
				cell = "-";
			if (lib->scols_line_set_data(new, i, cell))
				goto out;
		}
	}
	error = lib->scols_print_table(smart);
out:
	lib->scols_unref_table(smart);
	return error;
}

/*
 * Without libsmartcols a table has the same text.  Only long texts are not wrapped to fit the
 * terminal; one line says so.
 */
static int print_short(struct cu_table *table)
{
	const char *why;
	const struct cu_smartcols *lib = cu_smartcols(&why);

	if (lib)
		return print_smart(table, lib);
	if (cu_table_narrow(table))
		cu_error(table->command, "the table is wider than the terminal: libsmartcols is missing (Debian: libsmartcols1): %s",
			 why);
	if (table->format.raw)
		print_long_raw(table);
	else
		print_long_table(table, 0);
	return 0;
}

void cu_table_drop(struct cu_table *table)
{
	struct pool *next;

	for (struct pool *pool = table->pool; pool; pool = next) {
		next = pool->next;
		free(pool);
	}
	free(table->cell);
	free(table);
}

int cu_table_end(struct cu_table *table)
{
	const struct cu_command *command = table->command;
	int error = table->failed ? -ENOMEM : 0;
	unsigned int room = 0;
	char left_out[400] = "";

	if (!error) {
		drop_empty(table);
		room = table->lines && table->n && !cu_table_wraps(table) ? cu_table_narrow(table) : 0;
	}
	if (room)
		cu_table_fit(table, room, left_out, sizeof(left_out));
	if (!error && table->format.json && !table->lines) {
		print_begin(table);
		puts("[]\n}");
	} else if (!error && !table->lines)
		;
	else if (!error && table->format.json)
		print_json(table);
	else if (!error && table->lines > SMART_LINES && table->format.raw)
		print_long_raw(table);
	else if (!error && (table->lines > SMART_LINES || room))
		print_long_table(table, room);
	else if (!error)
		error = print_short(table);
	if (*left_out) {
		fflush(stdout);
		fprintf(stderr, "No room in %u columns for %s; -o +COL shows a column.\n", room, left_out);
	}
	cu_table_drop(table);
	if (!error)
		return CU_OK;
	cu_error(command, "cannot make the table: %s", strerror(-error));
	return CU_FAILED;
}

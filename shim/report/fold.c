/* SPDX-License-Identifier: Apache-2.0 */
/* Folds long lines: see fold.h. */
#include <stdbool.h>
#include <string.h>

#include "shim/report/fold.h"

enum { INDENT = sizeof(CL_FOLD_INDENT) - 1, FRAME = 6 };

/*
 * A line is broken between two facts ("; ") rather than at a comma, and at a comma rather than between two words.  But
 * a better break is not taken if the line would end before this column.
 */
enum { AT_FACT = CL_FOLD_COLUMNS / 2, AT_COMMA = CL_FOLD_COLUMNS * 3 / 4 };

/* Returns the length of the colour sequence at @at, which takes no column of the screen; 0: there is none. */
static size_t colour(const char *at, const char *end)
{
	const char *m = end - at > 2 && at[0] == '\033' && at[1] == '[' ? memchr(at, 'm', (size_t)(end - at)) : NULL;

	return m ? (size_t)(m + 1 - at) : 0;
}

/* Returns true if @line is one of numbers for scripts, as "culimbo: SUMMARY pid=...". */
static bool is_of_numbers(const char *line, size_t n)
{
	static const char ours[] = "culimbo: ";

	return n > sizeof(ours) && !memcmp(line, ours, sizeof(ours) - 1) && line[sizeof(ours) - 1] >= 'A' &&
	       line[sizeof(ours) - 1] <= 'Z' && line[sizeof(ours)] >= 'A' && line[sizeof(ours)] <= 'Z';
}

size_t cl_fold(const char *line, size_t n, int rest, size_t *next)
{
	size_t column = rest ? INDENT : 0, begin = 0, word = 0, comma = 0, fact = 0;

	*next = n;
	while (begin < n && line[begin] == ' ')
		begin++;
	if (!rest && (begin == FRAME || is_of_numbers(line, n)))
		return n;
	for (size_t i = 0; i < n;) {
		size_t hidden = colour(line + i, line + n);

		if (hidden) {
			i += hidden;
			continue;
		}
		if (i > begin && line[i] == ' ' && column <= CL_FOLD_COLUMNS) {
			word = i;
			if (line[i - 1] == ';' && column > AT_FACT)
				fact = i;
			if (line[i - 1] == ',' && column > AT_COMMA)
				comma = i;
		}
		/* in UTF-8 only the first byte of a letter takes a column */
		column += ((unsigned char)line[i] & 0xc0) != 0x80;
		if (column > CL_FOLD_COLUMNS && word) {
			*next = (fact ? fact : comma ? comma : word) + 1;
			return *next - 1;
		}
		/* a word that is longer than a line is not broken: the line ends behind it */
		if (column > CL_FOLD_COLUMNS && line[i] == ' ' && i > begin) {
			*next = i + 1;
			return i;
		}
		i++;
	}
	return n;
}

unsigned int cl_fold_lines(const char *line, size_t n)
{
	unsigned int lines = 0;
	size_t next;

	n -= n && line[n - 1] == '\n';
	do {
		cl_fold(line, n, lines > 0, &next);
		line += next;
		n -= next;
		lines++;
	} while (n);
	return lines;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the text report that are longer than CL_FOLD_COLUMNS are folded at blanks.  What follows begins
 * with CL_FOLD_INDENT, as no other line of a report does.  Frames are not folded: each has one line, to
 * which names are added later.  Nor are lines of numbers ("culimbo: SUMMARY"), for scripts.  A word is never broken.
 */
#ifndef CL_FOLD_H
#define CL_FOLD_H

#include <stddef.h>

/* A finding has 15 lines at most (fit.h), so they cannot be much shorter. */
enum { CL_FOLD_COLUMNS = 100 };
#define CL_FOLD_INDENT "        "

/*
 * Returns how many bytes of @line, which has @n and no end of line, stand on its first line.  *next becomes
 * where the rest begins, or @n.  @rest: @line is itself such a rest, which CL_FOLD_INDENT will precede.
 */
size_t cl_fold(const char *line, size_t n, int rest, size_t *next);
/* Returns how many lines @line becomes.  It may have an end of line, which is not counted. */
unsigned int cl_fold_lines(const char *line, size_t n);

#endif

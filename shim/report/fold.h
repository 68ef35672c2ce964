/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the text report that are longer than CL_FOLD_COLUMNS are folded at blanks.  A word is never broken.  The
 * second line and those after it begin with CL_FOLD_INDENT, as no other line of a report does.
 *
 * Two kinds of lines are not folded.  A frame keeps one line, because a command adds names to it later.  A line of
 * numbers ("culimbo: SUMMARY") keeps one line, because scripts read it.
 */
#ifndef CL_FOLD_H
#define CL_FOLD_H

#include <stddef.h>

/* Since a finding has 15 lines at most (fit.h), its lines cannot be much shorter. */
enum { CL_FOLD_COLUMNS = 100 };
#define CL_FOLD_INDENT "        "

/*
 * Folds @line, of @n bytes without an end of line, once.  Returns how many of its bytes stay on the first line.  *next
 * becomes where the next line begins, or @n if there is none.  @rest: @line is itself a second or later line, before
 * which CL_FOLD_INDENT will stand.
 */
size_t cl_fold(const char *line, size_t n, int rest, size_t *next);
/* Returns into how many lines @line is folded.  An end of line behind it does not count. */
unsigned int cl_fold_lines(const char *line, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Draws text on the screen of `culimbo top`, in looks that the terminal has. */
#ifndef CU_DRAW_H
#define CU_DRAW_H

#include <stdbool.h>

enum { PLAIN, TITLE, DIM, GOOD, DOUBTFUL, BAD, BARS, TRENDS, HEAD, HEAD_SORTED, LOOKS };

/* To be called once, after initscr(). */
void cu_draw_begin(void);
/* With true, everything is drawn reversed, for a selected line, until it is called with false. */
void cu_draw_chosen(bool chosen);
/* Fills line @y with blanks in look @how. */
void cu_draw_blank(int y, int how);
/*
 * Draws as much of @text as fits into @width columns from column @x on.  Returns the column
 * behind it.
 */
int cu_draw(int y, int x, int width, int how, const char *text);
/*
 * Draws @text, whose parts have three blanks between them, behind column @x of line *@y.  A part
 * that does not fit begins the next line, which *@y then is; on a screen of few lines nothing from
 * there on is drawn.
 * Returns the column after it.
 */
int cu_draw_parts(int *y, int x, int how, const char *text);
/* As cu_draw(), aligned to the right of these columns. */
void cu_draw_right(int y, int x, int width, int how, const char *text);

#endif

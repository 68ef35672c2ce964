/* SPDX-License-Identifier: Apache-2.0 */
/* Text on the screen of `culimbo top`, in the looks that its terminal has. */
#ifndef CU_DRAW_H
#define CU_DRAW_H

#include <stdbool.h>

enum { PLAIN, TITLE, DIM, GOOD, DOUBTFUL, BAD, BARS, TRENDS, HEAD, HEAD_SORTED, LOOKS };

/* To be called once, after initscr(). */
void cu_draw_begin(void);
/* Until it is called with false, all is drawn the other way round: a line that is chosen. */
void cu_draw_chosen(bool chosen);
/* Fills line @y with blanks in look @how. */
void cu_draw_blank(int y, int how);
/* Draws as much of @text as @width columns take, from column @x; returns where it ends. */
int cu_draw(int y, int x, int width, int how, const char *text);
/*
 * Draws @text, whose parts have three blanks between them, behind column @x of line *@y.  A part
 * that does not fit begins the next line, which *@y then is, unless the screen has few lines.
 * Returns the column after it.
 */
int cu_draw_parts(int *y, int x, int how, const char *text);
/* The same, at the right of these columns. */
void cu_draw_right(int y, int x, int width, int how, const char *text);

#endif

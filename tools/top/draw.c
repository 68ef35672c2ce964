/* SPDX-License-Identifier: Apache-2.0 */
/* Text on the screen of `culimbo top`: see draw.h. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "tools/common/text.h"
#include "tools/top/draw.h"
/* included last: its names are common words */
#include "tools/top/curses.h"

static attr_t look_of[LOOKS], more; /* more: added to all that is drawn now */

void cu_draw_begin(void)
{
	bool colours = has_colors() && !getenv("NO_COLOR");
	short back = -1;

	look_of[PLAIN] = A_NORMAL;
	look_of[TITLE] = A_BOLD;
	look_of[DIM] = A_DIM;
	look_of[GOOD] = A_NORMAL;
	look_of[DOUBTFUL] = A_BOLD;
	look_of[BAD] = A_BOLD;
	look_of[BARS] = A_NORMAL;
	look_of[TRENDS] = A_NORMAL;
	look_of[HEAD] = A_REVERSE;
	look_of[HEAD_SORTED] = A_REVERSE | A_BOLD | A_UNDERLINE;
	if (!colours || start_color() == ERR)
		return;
	if (use_default_colors() == ERR)
		back = COLOR_BLACK;
	init_pair(1, COLOR_GREEN, back);
	init_pair(2, COLOR_YELLOW, back);
	init_pair(3, COLOR_RED, back);
	init_pair(4, COLOR_CYAN, back);
	look_of[GOOD] = COLOR_PAIR(1);
	look_of[DOUBTFUL] = COLOR_PAIR(2);
	look_of[BAD] = COLOR_PAIR(3) | A_BOLD;
	look_of[BARS] = COLOR_PAIR(2);
	look_of[TRENDS] = COLOR_PAIR(4);
}

void cu_draw_chosen(bool chosen)
{
	more = chosen ? A_REVERSE : 0;
}

void cu_draw_blank(int y, int how)
{
	mvhline(y, 0, (chtype)' ' | look_of[how] | more, COLS);
}

int cu_draw(int y, int x, int width, int how, const char *text)
{
	mbstate_t state = { 0 };
	int used = 0;

	if (y < 0 || y >= LINES || x >= COLS)
		return x;
	if (width > COLS - x)
		width = COLS - x;
	attrset(look_of[how] | more);
	while (*text) {
		wchar_t c[2] = { 0 };
		size_t n = mbrtowc(c, text, strlen(text), &state);
		int w;

		if (n == (size_t)-1 || n == (size_t)-2 || !n) {
			c[0] = '?'; /* no UTF-8 here */
			n = 1;
			memset(&state, 0, sizeof(state));
		}
		w = wcwidth(c[0]);
		if (w < 0)
			w = 0;
		if (used + w > width)
			break;
		mvaddwstr(y, x + used, c);
		used += w;
		text += n;
	}
	attrset(A_NORMAL);
	return x + used;
}

int cu_draw_parts(int *y, int x, int how, const char *text)
{
	enum { BETWEEN = 3, FURTHER_IN = 2, FEW_LINES = 12 };

	for (;;) {
		const char *end = strstr(text, "   ");
		char part[320];

		snprintf(part, sizeof(part), "%.*s", end ? (int)(end - text) : (int)strlen(text), text);
		x += x ? BETWEEN : 0;
		if (x && x + (int)cu_width(part) > COLS) {
			if (LINES <= FEW_LINES)
				return x; /* nothing is better than half a word */
			++*y;
			x = FURTHER_IN;
		}
		x = cu_draw(*y, x, COLS, how, part);
		if (!end)
			return x;
		text = end + BETWEEN;
	}
}

void cu_draw_right(int y, int x, int width, int how, const char *text)
{
	int free_width = width - (int)cu_width(text);

	cu_draw(y, x + (free_width > 0 ? free_width : 0), width, how, text);
}

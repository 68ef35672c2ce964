/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncurses, which is loaded at its first use: see load.h.  The names of its functions and variables
 * stand for those of the loaded library.  Include this file last.
 */
#ifndef CU_CURSES_H
#define CU_CURSES_H

#define NCURSES_WIDECHAR 1
/* get functions instead of macros, so that they can be looked up */
#define NCURSES_NOMACROS 1
#include <curses.h>
#include <stdbool.h>
#include <term.h>

/* term.h defines macros with common names */
#undef columns
#undef lines

#define CU_CURSES(_) \
	_(attrset) _(cbreak) _(curs_set) _(endwin) _(erase) _(getch) _(has_colors) _(init_pair) _(initscr) \
	_(keypad) _(move) _(mvaddwstr) _(mvhline) _(noecho) _(nonl) _(refresh) _(set_escdelay) _(setupterm) \
	_(start_color) _(tigetstr) _(timeout) _(use_default_colors) _(COLOR_PAIR) \
	_(COLS) _(LINES) _(stdscr)

struct cu_curses {
#define CU_POINTER(name) __typeof__(name) *name##_;
	CU_CURSES(CU_POINTER)
#undef CU_POINTER
};
extern struct cu_curses cu_curses;

/* Returns false if it is missing, with the reason in *why. */
bool cu_curses_load(const char **why);

/* curses.c defines CU_CURSES_TABLE, since it needs the names themselves. */
#ifndef CU_CURSES_TABLE
#define COLOR_PAIR cu_curses.COLOR_PAIR_
#define attrset cu_curses.attrset_
#define cbreak cu_curses.cbreak_
#define curs_set cu_curses.curs_set_
#define endwin cu_curses.endwin_
#define erase cu_curses.erase_
#define getch cu_curses.getch_
#define has_colors cu_curses.has_colors_
#define init_pair cu_curses.init_pair_
#define initscr cu_curses.initscr_
#define keypad cu_curses.keypad_
#define move cu_curses.move_
#define mvaddwstr cu_curses.mvaddwstr_
#define mvhline cu_curses.mvhline_
#define noecho cu_curses.noecho_
#define nonl cu_curses.nonl_
#define refresh cu_curses.refresh_
#define set_escdelay cu_curses.set_escdelay_
#define setupterm cu_curses.setupterm_
#define start_color cu_curses.start_color_
#define tigetstr cu_curses.tigetstr_
#define timeout cu_curses.timeout_
#define use_default_colors cu_curses.use_default_colors_
#define COLS (*cu_curses.COLS_)
#define LINES (*cu_curses.LINES_)
#define stdscr (*cu_curses.stdscr_)
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The screen of `culimbo top`.  ncurses draws it, and redraws only what has changed.
 *
 * The terminal must be restored at the end, even if a signal ends the command.
 */
#include "config.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/common/text.h"
#include "tools/top/bars.h"
#include "tools/top/batch.h"
#include "tools/top/draw.h"
#include "tools/top/pane.h"
#include "tools/top/screen.h"
/* included last: its names are common words */
#include "tools/top/curses.h"

/* A column is shown from the width on that leaves a dozen columns for the command, the last one. */
struct place {
	int column, width, x;
	bool right;
};
enum { PLACES = 12 };

static int lay_out(struct place *place)
{
	static const struct {
		int column, width, from; /* from: shown on screens with at least so many columns */
		bool right;
	} wanted[PLACES] = {
		{ PID, 7, 0, true },	    { STATE, 7, 50, false },   { LIMBOBYTES, 10, 0, true },
		{ BAR, 12, 104, false },	    { TREND, 10, 70, false },  { LIMBO, 7, 120, true },
		{ HELD, 6, 40, true },	    { EXPORTED, 8, 78, true }, { IMPORTED, 8, 88, true },
		{ PINS, 10, 60, true },	    { AGE, 7, 128, true },     { COMMAND, 0, 0, false },
	};
	int n = 0, x = 0;

	for (int i = 0; i < PLACES; i++) {
		if (COLS < wanted[i].from)
			continue;
		place[n] = (struct place){ wanted[i].column, wanted[i].width, x, wanted[i].right };
		if (wanted[i].column == TREND && COLS >= 112)
			place[n].width = 20;
		if (wanted[i].column == TREND && COLS > 140)
			place[n].width += COLS - 140 > 40 ? 40 : COLS - 140;
		if (wanted[i].column == COMMAND)
			place[n].width = COLS - x > 0 ? COLS - x : 0;
		x += place[n].width + 1;
		n++;
	}
	return n;
}

static const char *title_of(int column)
{
	return column == LIMBOBYTES ? "IN LIMBO" : column == BAR ? "" : cu_top_columns[column].name;
}

static int state_look(const struct cu_process *p)
{
	return p->error || p->state == CL_DEAD ? BAD : p->state == CL_ALIVE ? GOOD : DOUBTFUL;
}

/*
 * Returns the visible part of @p's command line; if it doesn't fit, without the program's
 * folders.
 */
static const char *command_in(const struct cu_process *p, int width)
{
	const char *text = p->command;
	size_t word = strcspn(text, " "), length = strlen(text);

	if (width < 0 || length <= (size_t)width)
		return text;
	for (size_t i = word; i > 0; i--)
		if (text[i - 1] == '/')
			return i < word ? text + i : text;
	return text;
}

static void draw_row(int y, const struct cu_row *row, const struct place *place, int places)
{
	const struct cu_process *p = &row->process;
	char text[SAMPLES * 4];

	for (int i = 0; i < places; i++) {
		const struct place *at = &place[i];
		int how = PLAIN;

		*text = 0;
		if (at->column == STATE) {
			cu_draw(y, at->x, at->width, state_look(p), cu_state_word(p));
			continue;
		}
		if (at->column == COMMAND) {
			cu_draw(y, at->x, at->width, p->error ? BAD : PLAIN,
			     p->error ? cu_process_note(p) : command_in(p, at->width));
			continue;
		}
		if (p->error)
			continue;
		switch (at->column) {
		case PID:
			snprintf(text, sizeof(text), "%u", p->who.pid);
			break;
		case LIMBOBYTES:
			cu_bytes_long(text, p->limbo_bytes);
			how = p->limbo_bytes ? TITLE : DIM;
			break;
		case BAR:
			cu_draw_bar(text, sizeof(text), (unsigned int)at->width, p->limbo_bytes,
				    cu_live.most);
			how = BARS;
			break;
		case TREND:
			cu_draw_trend(text, sizeof(text), (unsigned int)at->width,
				      row->history == SIZE_MAX ? NULL :
								 &cu_live.history[row->history]);
			how = TRENDS;
			break;
		case LIMBO:
			snprintf(text, sizeof(text), "%" PRIu64, p->limbo);
			break;
		case HELD:
			snprintf(text, sizeof(text), "%" PRIu64, p->held);
			break;
		case EXPORTED:
			snprintf(text, sizeof(text), "%" PRIu64, p->blocks);
			break;
		case IMPORTED:
			snprintf(text, sizeof(text), "%" PRIu64, p->imported);
			break;
		case PINS:
			cu_bytes_long(text, p->pin_bytes);
			how = p->pin_bytes ? BAD : how;
			break;
		case AGE:
			cu_duration(text, p->age / 1000000000 * 1000000000);
			if (p->age < 1000000000)
				snprintf(text, sizeof(text), "0s");
			else if (strstr(text, ".0s"))
				strcpy(strstr(text, ".0s"), "s");
			break;
		default:
			break;
		}
		if (!strcmp(text, "0"))
			how = DIM;
		if (at->right)
			cu_draw_right(y, at->x, at->width, how, text);
		else
			cu_draw(y, at->x, at->width, how, text);
	}
}

static const char *const help_lines[] = {
	"l  sort by bytes in limbo     b  by blocks in limbo    h  by blocks held",
	"e  by bytes exported          i  by blocks imported    a  by age",
	"n  by bytes pinned            p  by pid                c  by command",
	"/  show only what has a text in command, pid or state (empty: all)",
	"r  the other way round        space  stand still       + -  slower, faster",
	"arrows, PgUp, PgDn, Home, End  select a process",
	"Enter  what it shares, who holds it, from where in the code   Esc  back",
	"g  have it give back what nobody holds (culimbo collect)",
	"?  this help           q  quit          a wider terminal shows more columns",
};

static void draw_screen(uint64_t delay, const char *asking, bool help)
{
	struct place place[PLACES];
	int places = lay_out(place), y = 0, x, visible;
	char text[320], when[16], every[24];
	time_t now = time(NULL);
	struct tm tm;

	erase();
	strftime(when, sizeof(when), "%H:%M:%S", localtime_r(&now, &tm));
	cu_duration(every, delay);
	x = cu_draw(y, 0, COLS, TITLE, "culimbo top");
	snprintf(text, sizeof(text), "  %s, every %s%s  %s", when, every,
		 cu_live.paused ? ", standing still" : "", cu_directory());
	cu_draw(y++, x, COLS, cu_live.paused ? DOUBTFUL : DIM, text);
	cu_say_sum(text, sizeof(text));
	x = cu_draw_parts(&y, 0, PLAIN, text);
	if (cu_live.unread) {
		snprintf(text, sizeof(text), "%u file%s not readable", cu_live.unread,
			 cu_live.unread == 1 ? "" : "s");
		cu_draw_parts(&y, x, BAD, text);
	}
	y++;
	if (*cu_live.filter && !asking) {
		snprintf(text, sizeof(text), "only: %s  (%zu of %zu)", cu_live.filter, cu_live.rows,
			 cu_live.scan.processes);
		cu_draw(y, 0, COLS, DOUBTFUL, text);
	}
	y++;
	/* a small screen shows only processes */
	for (unsigned int gpu = 0; gpu < cu_live.scan.gpus.n && (int)gpu < LINES / 4 - 2; gpu++) {
		cu_gpu_say(&cu_live.scan.gpus.gpu[gpu], text, sizeof(text));
		cu_draw_parts(&y, 0, PLAIN, text);
		y++;
	}
	cu_draw_blank(y, HEAD);
	for (int i = 0; i < places; i++) {
		int how = place[i].column == cu_live.sort ? HEAD_SORTED : HEAD;

		if (place[i].right)
			cu_draw_right(y, place[i].x, place[i].width, how, title_of(place[i].column));
		else
			cu_draw(y, place[i].x, place[i].width, how, title_of(place[i].column));
	}
	y++;
	visible = LINES - y - 1;
	if (help)
		visible -= (int)(sizeof(help_lines) / sizeof(*help_lines)) + 1;
	if (visible < 0)
		visible = 0;
	if (cu_live.selected < cu_live.first)
		cu_live.first = cu_live.selected;
	if (visible && cu_live.selected >= cu_live.first + (size_t)visible)
		cu_live.first = cu_live.selected - (size_t)visible + 1;
	if (cu_live.first + (size_t)visible > cu_live.rows)
		cu_live.first = cu_live.rows > (size_t)visible ? cu_live.rows - (size_t)visible : 0;
	for (size_t i = cu_live.first; i < cu_live.rows && i < cu_live.first + (size_t)visible; i++) {
		cu_draw_chosen(i == cu_live.selected);
		if (i == cu_live.selected)
			cu_draw_blank(y, PLAIN);
		draw_row(y++, &cu_live.row[i], place, places);
		cu_draw_chosen(false);
	}
	if (!cu_live.rows)
		cu_draw(y++, 2, COLS, DIM,
		     *cu_live.filter ? "no process has that text" :
				   "no process shares GPU memory under culimbo; start one: culimbo run -- CMD");
	if (help)
		for (size_t i = 0; i < sizeof(help_lines) / sizeof(*help_lines); i++)
			cu_draw(LINES - 1 - (int)(sizeof(help_lines) / sizeof(*help_lines)) + (int)i, 1, COLS,
			     PLAIN, help_lines[i]);
	if (asking) {
		x = cu_draw(LINES - 1, 0, COLS, TITLE, "only those with: ");
		x = cu_draw(LINES - 1, x, COLS, PLAIN, asking);
		move(LINES - 1, x < COLS ? x : COLS - 1);
	} else {
		/* what does not fit goes below the screen */
		int last = LINES - 1;

		cu_draw_parts(&last, 0, DIM,
			      "q quit   ? help   Enter details   g collect   / filter   l b h e i n a p c sort");
		if (cu_live.rows > (size_t)visible && COLS > 100) {
			snprintf(text, sizeof(text), "%zu-%zu of %zu", cu_live.first + 1,
				 cu_live.first + (size_t)visible, cu_live.rows);
			cu_draw_right(LINES - 1, COLS - 24, 23, DIM, text);
		}
	}
	curs_set(asking != NULL);
	refresh();
}

/*
 * Names the selected process for `culimbo show` and `culimbo collect`.  Returns false if there is
 * none.
 */
static bool selected_name(char *to, size_t size)
{
	const struct cu_process *p;
	char file[16];

	if (cu_live.selected >= cu_live.rows)
		return false;
	p = &cu_live.row[cu_live.selected].process;
	cu_file_word(file, p->file_id);
	if (p->file_id)
		snprintf(to, size, "%s", file);
	else
		snprintf(to, size, "%u", p->who.pid);
	return true;
}

static volatile sig_atomic_t told_to_end;

static void on_end(int signal)
{
	told_to_end = signal;
}

static bool sort_by(int key)
{
	static const struct {
		int key, column;
	} keys[] = { { 'l', LIMBOBYTES }, { 'b', LIMBO }, { 'h', HELD }, { 'e', EXPORTED },
		     { 'i', IMPORTED },	  { 'n', PINS },	  { 'a', AGE },	  { 'p', PID },	 { 'c', COMMAND } };

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (keys[i].key == key) {
			cu_live.sort = keys[i].column;
			cu_top_arrange();
			return true;
		}
	return false;
}

/* Handles a key while the user types a filter.  Returns false when that is finished. */
static bool edit_filter(int key, const char *before)
{
	size_t n = strlen(cu_live.filter);

	switch (key) {
	case '\n':
	case '\r':
	case KEY_ENTER:
		return false;
	case 27:
		strcpy(cu_live.filter, before);
		cu_top_arrange();
		return false;
	case KEY_BACKSPACE:
	case 127:
	case 8:
		while (n && ((unsigned char)cu_live.filter[n - 1] & 0xc0) == 0x80)
			n--;
		if (n)
			cu_live.filter[n - 1] = 0;
		break;
	case 21: /* ^U */
		*cu_live.filter = 0;
		break;
	default:
		if (key >= ' ' && key < 256 && key != 127 && n + 1 < sizeof(cu_live.filter)) {
			cu_live.filter[n] = (char)key;
			cu_live.filter[n + 1] = 0;
		}
	}
	cu_top_arrange();
	return true;
}

int cu_top_screen(const struct cu_command *command, uint64_t delay, long long times)
{
	struct sigaction end = { .sa_handler = on_end };
	bool asking = false, help = false;
	char before[sizeof(cu_live.filter)];
	uint64_t next = 0;
	int key, status = CU_OK;

	if (!initscr())
		return cu_top_batch(command, &(struct cu_format){ 0 }, times < 0 ? 1 : times,
				    delay);
	sigaction(SIGTERM, &end, NULL);
	sigaction(SIGHUP, &end, NULL);
	sigaction(SIGINT, &end, NULL);
	cbreak();
	noecho();
	nonl();
	keypad(stdscr, TRUE);
	set_escdelay(50);
	cu_draw_begin();
	while (!told_to_end) {
		size_t page = LINES > 8 ? (size_t)LINES - 8 : 1;
		uint64_t now = cl_now();
		char name[40];

		if (now >= next && !cu_live.paused) {
			if (times == 0)
				break;
			times -= times > 0;
			if (!cu_top_look(command)) {
				status = CU_FAILED;
				break;
			}
			next = cl_now() + delay;
		}
		if (cu_pane_is_open())
			cu_pane_draw();
		else
			draw_screen(delay, asking ? cu_live.filter : NULL, help);
		now = cl_now();
		timeout(cu_live.paused ? 1000 : next > now ? (int)((next - now) / 1000000) + 1 : 0);
		key = getch();
		if (key == ERR || key == KEY_RESIZE)
			continue;
		if (cu_pane_is_open() && (cu_pane_key(key) || (key != 'q' && key != 'Q')))
			continue;
		if (asking) {
			asking = edit_filter(key, before);
			continue;
		}
		if (sort_by(key))
			continue;
		switch (key) {
		case 'q':
		case 'Q':
			told_to_end = 1;
			break;
		case 'r':
			cu_live.backwards = !cu_live.backwards;
			cu_top_arrange();
			break;
		case '/':
			strcpy(before, cu_live.filter);
			asking = true;
			break;
		case ' ':
			cu_live.paused = !cu_live.paused;
			break;
		case '+':
			delay = delay < 60000000000ull ? delay * 2 : delay;
			break;
		case '-':
			delay = delay > 200000000 ? delay / 2 : delay;
			next = cl_now();
			break;
		case '?':
			help = !help;
			break;
		case 27:
			help = false;
			break;
		case '\n':
		case '\r':
		case KEY_ENTER:
		case KEY_RIGHT:
			if (selected_name(name, sizeof(name)))
				cu_pane_open("show", name);
			break;
		case 'g':
			if (!cu_live.looks_only && selected_name(name, sizeof(name)))
				cu_pane_open("collect", name);
			break;
		case KEY_DOWN:
			cu_top_select(cu_live.selected + 1);
			break;
		case KEY_UP:
			cu_top_select(cu_live.selected - (cu_live.selected > 0));
			break;
		case KEY_NPAGE:
			cu_top_select(cu_live.selected + page);
			break;
		case KEY_PPAGE:
			cu_top_select(cu_live.selected > page ? cu_live.selected - page : 0);
			break;
		case KEY_HOME:
			cu_top_select(0);
			break;
		case KEY_END:
			cu_top_select(cu_live.rows);
			break;
		default:
			break;
		}
	}
	endwin();
	cu_pane_close_all();
	return status;
}

bool cu_top_has_screen(const struct cu_command *command)
{
	const char *term = getenv("TERM"), *address, *why;
	int error;

	if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) || !term || !*term || !strcmp(term, "dumb"))
		return false;
	if (!cu_curses_load(&why)) {
		cu_error(command, "one table and no screen: ncurses is missing (Debian: libncursesw6; Fedora: ncurses-libs): %s",
			 why);
		return false;
	}
	if (setupterm(term, STDOUT_FILENO, &error))
		return false;
	address = tigetstr("cup");
	return address && address != (char *)-1;
}

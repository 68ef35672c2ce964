/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo top`: the processes that share, live.
 *
 * On a terminal a full screen that ncurses keeps (what has not changed is not
 * drawn again); where there is none, or a dumb one, plain tables one after the
 * other, as top -b prints them.  The terminal is given back as it was, also when
 * a signal ends us.
 */
#include "config.h"

#define NCURSES_WIDECHAR 1
#include <ctype.h>
#include <curses.h>
#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

/* term.h takes common words for macros */
#undef columns
#undef lines

#include "tools/commands/commands.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"

enum { OPTION_BATCH = 'b', OPTION_TIMES = 'n', OPTION_DELAY = 'd', OPTION_SORT = 's',
       OPTION_FILTER = 'f' };
enum { SAMPLES = 120 };

enum { PID, STATE, LIMBOBYTES, BAR, TREND, LIMBO, HELD, EXPORTED, EXPORTEDBYTES, IMPORTED, AGE, COMMAND };

static const struct cu_column table[] = {
	[PID] = { "PID", CU_NUMBER, 0, "its process id" },
	[STATE] = { "STATE", CU_TEXT, 0, "as `culimbo ps` has it" },
	[LIMBOBYTES] = { "LIMBOBYTES", CU_BYTES, 0, "what it has freed and the driver has not" },
	[BAR] = { "BAR", CU_TEXT, CU_HIDDEN, "the same, of the most that any has" },
	[TREND] = { "TREND", CU_TEXT, 0, "the same over time, the newest at the right, of its own most" },
	[LIMBO] = { "LIMBO", CU_NUMBER, 0, "blocks in limbo" },
	[HELD] = { "HELD", CU_NUMBER, 0, "of its blocks, those that others hold" },
	[EXPORTED] = { "EXPORTED", CU_NUMBER, 0, "blocks that it exports and has not freed" },
	[EXPORTEDBYTES] = { "EXPORTEDBYTES", CU_BYTES, CU_HIDDEN, "what these take" },
	[IMPORTED] = { "IMPORTED", CU_NUMBER, 0, "blocks of others that it holds" },
	[AGE] = { "AGE", CU_SECONDS, 0, "for how long it has shared" },
	[COMMAND] = { "COMMAND", CU_TEXT, 0, "its command line" },
	{ .name = NULL },
};

/* ------------------------------------------------------------------ what is known */
/* Of each process that was seen, how many bytes were in its limbo. */
struct history {
	struct cl_witness who;
	uint32_t file_id;
	uint64_t sample[SAMPLES]; /* a ring; the newest at [(n - 1) % SAMPLES] */
	uint64_t n;
	bool seen; /* in the last scan */
};

struct row {
	struct cu_process process; /* its holders are gone with the scan */
	size_t history;
};

struct top {
	struct cu_scan scan;
	struct row *row;
	size_t rows;
	struct history *history;
	size_t histories;
	uint64_t most, limbo, limbo_bytes, held, exported, exported_bytes;
	unsigned int unread;
	int sort;
	bool backwards, paused, ascii;
	char filter[64];
	size_t first; /* row at the top of the screen */
};

static struct top top;

static int compare_rows(const void *x, const void *y)
{
	const struct cu_process *a = &((const struct row *)x)->process;
	const struct cu_process *b = &((const struct row *)y)->process;
	int64_t order = 0;

	if (!a->error != !b->error)
		return a->error ? 1 : -1;
#define BY(what) order = (a->what < b->what) - (a->what > b->what)
	switch (top.sort) {
	case LIMBOBYTES:
		BY(limbo_bytes);
		break;
	case LIMBO:
		BY(limbo);
		break;
	case HELD:
		BY(held);
		break;
	case EXPORTED:
		BY(bytes);
		break;
	case IMPORTED:
		BY(imported);
		break;
	case AGE:
		BY(age);
		break;
	case COMMAND:
		order = strcmp(a->command, b->command);
		break;
	default:
		break;
	}
#undef BY
	if (!order)
		order = (a->who.pid > b->who.pid) - (a->who.pid < b->who.pid);
	if (!order)
		order = (a->file_id > b->file_id) - (a->file_id < b->file_id);
	return (int)(top.backwards ? -order : order);
}

/* Its history; SIZE_MAX without memory. */
static size_t history_of(const struct cu_process *p)
{
	struct history *more;
	size_t i;

	for (i = 0; i < top.histories; i++) {
		const struct history *h = &top.history[i];

		if (h->file_id == p->file_id && h->who.pid == p->who.pid &&
		    h->who.start_time == p->who.start_time)
			return i;
	}
	/* one of who has gone is used again */
	for (i = 0; i < top.histories; i++)
		if (!top.history[i].seen)
			break;
	if (i == top.histories) {
		more = realloc(top.history, (i + 1) * sizeof(*more));
		if (!more)
			return SIZE_MAX;
		top.history = more;
		top.histories++;
	}
	top.history[i] = (struct history){ .who = p->who, .file_id = p->file_id };
	return i;
}

static bool passes_filter(const struct cu_process *p)
{
	char pid[16];

	if (!*top.filter)
		return true;
	snprintf(pid, sizeof(pid), "%u", p->who.pid);
	return strcasestr(p->command, top.filter) || strstr(pid, top.filter) ||
	       strcasestr(cu_state_word(p), top.filter);
}

static void arrange(void)
{
	top.rows = 0;
	for (size_t i = 0; i < top.scan.processes; i++) {
		struct row row = { .process = top.scan.process[i], .history = SIZE_MAX };

		if (!row.process.error)
			row.history = history_of(&row.process);
		if (passes_filter(&row.process))
			top.row[top.rows++] = row;
	}
	if (top.rows)
		qsort(top.row, top.rows, sizeof(*top.row), compare_rows);
}

/* Looks again.  False after a complaint. */
static bool look(const struct cu_command *command)
{
	struct row *rows;
	int fd = cu_directory_open(command), error;

	if (fd < 0 && fd != -ENOENT)
		return false;
	cu_scan_free(&top.scan);
	error = cu_scan(&top.scan, fd, 0);
	if (fd >= 0)
		close(fd);
	rows = realloc(top.row, (top.scan.processes + 1) * sizeof(*rows));
	if (error || !rows) {
		cu_error(command, "cannot read %s: %s", cu_directory(), strerror(ENOMEM));
		return false;
	}
	top.row = rows;
	for (size_t i = 0; i < top.histories; i++)
		top.history[i].seen = false;
	top.most = top.limbo = top.limbo_bytes = top.held = top.exported = top.exported_bytes = 0;
	top.unread = 0;
	for (size_t i = 0; i < top.scan.processes; i++) {
		const struct cu_process *p = &top.scan.process[i];
		size_t at;

		if (p->error) {
			top.unread++;
			continue;
		}
		at = history_of(p);
		if (at != SIZE_MAX) {
			struct history *h = &top.history[at];

			h->seen = true;
			h->sample[h->n++ % SAMPLES] = p->limbo_bytes;
		}
		top.limbo += p->limbo;
		top.limbo_bytes += p->limbo_bytes;
		top.held += p->held;
		top.exported += p->blocks;
		top.exported_bytes += p->bytes;
		if (p->limbo_bytes > top.most)
			top.most = p->limbo_bytes;
	}
	arrange();
	return true;
}

/* ------------------------------------------------------------- bars and sparklines */
/* @width columns, @part of @whole of them full; with UTF-8 by eighths. */
static void draw_bar(char *to, size_t size, unsigned int width, uint64_t part, uint64_t whole)
{
	static const char *const eighth[] = { " ", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
	unsigned int eighths = whole ? (unsigned int)((double)part / (double)whole * width * 8 + 0.5) : 0;
	size_t at = 0;

	if (part && !eighths)
		eighths = 1;
	*to = 0;
	for (unsigned int i = 0; i < width && at + 4 < size; i++) {
		unsigned int here = eighths > 8 * i ? eighths - 8 * i : 0;
		const char *sign = here >= 8 ? (top.ascii ? "#" : "█") :
				   top.ascii ? (here >= 4 ? "#" : here ? "-" : " ") :
					       eighth[here];

		at += (size_t)snprintf(to + at, size - at, "%s", sign);
	}
}

/* The last @width samples, of the most among them. */
static void draw_trend(char *to, size_t size, unsigned int width, const struct history *h)
{
	static const char *const level[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
	static const char ascii_level[] = "_.-=+*%#";
	uint64_t most = 0, n = h ? h->n < SAMPLES ? h->n : SAMPLES : 0;
	size_t at = 0;

	if (n > width)
		n = width;
	for (uint64_t i = 0; i < n; i++)
		if (h->sample[(h->n - 1 - i) % SAMPLES] > most)
			most = h->sample[(h->n - 1 - i) % SAMPLES];
	*to = 0;
	for (unsigned int i = 0; i < width && at + 4 < size; i++) {
		uint64_t v;
		unsigned int l;

		if (i + n < width) {
			at += (size_t)snprintf(to + at, size - at, " ");
			continue;
		}
		v = h->sample[(h->n - (width - i)) % SAMPLES];
		if (!v) {
			at += (size_t)snprintf(to + at, size - at, "%s", top.ascii ? "_" : "▁");
			continue;
		}
		l = 1 + (unsigned int)((double)v / (double)most * 6.99);
		if (top.ascii)
			at += (size_t)snprintf(to + at, size - at, "%c", ascii_level[l > 7 ? 7 : l]);
		else
			at += (size_t)snprintf(to + at, size - at, "%s", level[l > 7 ? 7 : l]);
	}
}

static void say_sum(char *to, size_t size)
{
	char limbo[24], exported[24];

	cu_bytes_long(limbo, top.limbo_bytes);
	cu_bytes_long(exported, top.exported_bytes);
	snprintf(to, size,
		 "%zu process%s   limbo %s in %" PRIu64 " block%s   exported %s in %" PRIu64
		 " block%s   held by others %" PRIu64,
		 top.scan.processes - top.unread,
		 top.scan.processes - top.unread == 1 ? "" : "es", limbo, top.limbo,
		 top.limbo == 1 ? "" : "s", exported, top.exported, top.exported == 1 ? "" : "s",
		 top.held);
}

/* ----------------------------------------------------------------------- batch */
static void fill(struct cu_cell *cell, unsigned int column, const void *data)
{
	const struct row *row = data;
	const struct cu_process *p = &row->process;
	static char text[SAMPLES * 4];

	if (column == STATE)
		cu_cell_text(cell, cu_state_word(p));
	if (column == COMMAND)
		cu_cell_text(cell, p->error ? cu_process_note(p) : p->command);
	if (p->error)
		return;
	switch (column) {
	case PID:
		cu_cell_number(cell, p->who.pid);
		break;
	case LIMBOBYTES:
		cu_cell_number(cell, p->limbo_bytes);
		break;
	case BAR:
		draw_bar(text, sizeof(text), 10, p->limbo_bytes, top.most);
		cu_cell_text(cell, text);
		break;
	case TREND:
		draw_trend(text, sizeof(text), 10, row->history == SIZE_MAX ? NULL : &top.history[row->history]);
		cu_cell_text(cell, text + strspn(text, " "));
		break;
	case LIMBO:
		cu_cell_number(cell, p->limbo);
		break;
	case HELD:
		cu_cell_number(cell, p->held);
		break;
	case EXPORTED:
		cu_cell_number(cell, p->blocks);
		break;
	case EXPORTEDBYTES:
		cu_cell_number(cell, p->bytes);
		break;
	case IMPORTED:
		cu_cell_number(cell, p->imported);
		break;
	case AGE:
		cu_cell_number(cell, p->age);
		break;
	default:
		break;
	}
}

static int batch(const struct cu_command *command, const struct cu_format *format, long long times,
		 uint64_t delay)
{
	char sum[256], when[32];
	int status = CU_OK;

	for (long long i = 0; (times < 0 || i < times) && status == CU_OK; i++) {
		time_t now = time(NULL);
		struct cu_table *lines;
		struct tm tm;

		if (i) {
			struct timespec t = { (time_t)(delay / 1000000000), (long)(delay % 1000000000) };

			nanosleep(&t, NULL);
			putchar('\n');
		}
		if (!look(command))
			return CU_FAILED;
		lines = cu_table_new(command, "processes", format, &status);
		if (!lines)
			return status;
		if (!format->json && !format->raw && !format->noheadings) {
			say_sum(sum, sizeof(sum));
			strftime(when, sizeof(when), "%H:%M:%S", localtime_r(&now, &tm));
			printf("culimbo top - %s  %s\n", when, sum);
		}
		for (size_t row = 0; row < top.rows; row++)
			cu_table_line(lines, fill, &top.row[row]);
		status = cu_table_end(lines);
		if (fflush(stdout) && status == CU_OK)
			status = CU_FAILED; /* (said at the end) */
	}
	return status;
}

/* ---------------------------------------------------------------------- screen */
enum { PLAIN, TITLE, DIM, GOOD, DOUBTFUL, BAD, BARS, TRENDS, HEAD, HEAD_SORTED };
static attr_t look_of[HEAD_SORTED + 1];

static void make_looks(void)
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

/* Draws as much of @text as @width columns take, from column @x; returns where it ends. */
static int draw(int y, int x, int width, int how, const char *text)
{
	mbstate_t state = { 0 };
	int used = 0;

	if (y < 0 || y >= LINES || x >= COLS)
		return x;
	if (width > COLS - x)
		width = COLS - x;
	attrset(look_of[how]);
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

static void draw_right(int y, int x, int width, int how, const char *text)
{
	int free_width = width - (int)cu_width(text);

	draw(y, x + (free_width > 0 ? free_width : 0), width, how, text);
}

/* What fits: each from where a dozen columns of the command, which has what is left, remain. */
struct place {
	int column, width, x;
	bool right;
};
enum { PLACES = 11 };

static int lay_out(struct place *place)
{
	static const struct {
		int column, width, from; /* on screens of so many columns */
		bool right;
	} wanted[PLACES] = {
		{ PID, 8, 0, true },	    { STATE, 7, 50, false },   { LIMBOBYTES, 10, 0, true },
		{ BAR, 12, 96, false },	    { TREND, 12, 66, false },  { LIMBO, 7, 120, true },
		{ HELD, 7, 40, true },	    { EXPORTED, 8, 72, true }, { IMPORTED, 8, 80, true },
		{ AGE, 7, 112, true },	    { COMMAND, 0, 0, false },
	};
	int n = 0, x = 0;

	for (int i = 0; i < PLACES; i++) {
		if (COLS < wanted[i].from)
			continue;
		place[n] = (struct place){ wanted[i].column, wanted[i].width, x, wanted[i].right };
		if (wanted[i].column == TREND && COLS >= 104)
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
	return column == LIMBOBYTES ? "IN LIMBO" : column == BAR ? "" : table[column].name;
}

static int state_look(const struct cu_process *p)
{
	return p->error || p->state == CL_DEAD ? BAD : p->state == CL_ALIVE ? GOOD : DOUBTFUL;
}

/* What is seen of @p's command line: where it doesn't fit, the program without its folders. */
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

static void draw_row(int y, const struct row *row, const struct place *place, int places)
{
	const struct cu_process *p = &row->process;
	char text[SAMPLES * 4];

	for (int i = 0; i < places; i++) {
		const struct place *at = &place[i];
		int how = PLAIN;

		*text = 0;
		if (at->column == STATE) {
			draw(y, at->x, at->width, state_look(p), cu_state_word(p));
			continue;
		}
		if (at->column == COMMAND) {
			draw(y, at->x, at->width, p->error ? BAD : PLAIN,
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
			draw_bar(text, sizeof(text), (unsigned int)at->width, p->limbo_bytes, top.most);
			how = BARS;
			break;
		case TREND:
			draw_trend(text, sizeof(text), (unsigned int)at->width,
				   row->history == SIZE_MAX ? NULL : &top.history[row->history]);
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
			draw_right(y, at->x, at->width, how, text);
		else
			draw(y, at->x, at->width, how, text);
	}
}

static const char *const help_lines[] = {
	"l  sort by bytes in limbo     b  by blocks in limbo    h  by blocks held",
	"e  by bytes exported          i  by blocks imported    a  by age",
	"p  by pid                     c  by command            r  the other way round",
	"/  show only what has a text in command, pid or state (empty: all)",
	"space  stand still     + -  slower, faster     arrows, PgUp, PgDn  scroll",
	"?  this help           q  quit",
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
	x = draw(y, 0, COLS, TITLE, "culimbo top");
	snprintf(text, sizeof(text), "  %s, every %s%s  %s", when, every,
		 top.paused ? ", standing still" : "", cu_directory());
	draw(y++, x, COLS, top.paused ? DOUBTFUL : DIM, text);
	say_sum(text, sizeof(text));
	x = draw(y, 0, COLS, PLAIN, text);
	if (top.unread) {
		snprintf(text, sizeof(text), "   %u file%s not readable", top.unread, top.unread == 1 ? "" : "s");
		draw(y, x, COLS, BAD, text);
	}
	y++;
	if (*top.filter && !asking) {
		snprintf(text, sizeof(text), "only: %s  (%zu of %zu)", top.filter, top.rows,
			 top.scan.processes);
		draw(y, 0, COLS, DOUBTFUL, text);
	}
	y++;
	attrset(look_of[HEAD]);
	mvhline(y, 0, (chtype)' ' | look_of[HEAD], COLS);
	for (int i = 0; i < places; i++) {
		int how = place[i].column == top.sort ? HEAD_SORTED : HEAD;

		if (place[i].right)
			draw_right(y, place[i].x, place[i].width, how, title_of(place[i].column));
		else
			draw(y, place[i].x, place[i].width, how, title_of(place[i].column));
	}
	y++;
	visible = LINES - y - 1;
	if (help)
		visible -= (int)(sizeof(help_lines) / sizeof(*help_lines)) + 1;
	if (visible < 0)
		visible = 0;
	if (top.first + (size_t)visible > top.rows)
		top.first = top.rows > (size_t)visible ? top.rows - (size_t)visible : 0;
	for (size_t i = top.first; i < top.rows && i < top.first + (size_t)visible; i++)
		draw_row(y++, &top.row[i], place, places);
	if (!top.rows)
		draw(y++, 2, COLS, DIM,
		     *top.filter ? "no process has that text" :
				   "no process shares GPU memory under culimbo; start one: culimbo run -- CMD");
	if (help)
		for (size_t i = 0; i < sizeof(help_lines) / sizeof(*help_lines); i++)
			draw(LINES - 1 - (int)(sizeof(help_lines) / sizeof(*help_lines)) + (int)i, 1, COLS,
			     PLAIN, help_lines[i]);
	if (asking) {
		x = draw(LINES - 1, 0, COLS, TITLE, "only those with: ");
		x = draw(LINES - 1, x, COLS, PLAIN, asking);
		move(LINES - 1, x < COLS ? x : COLS - 1);
	} else {
		draw(LINES - 1, 0, COLS, DIM,
		     "q quit   / filter   l b h e i a p c sort   r reverse   space pause   ? help");
		if (top.rows > (size_t)visible && COLS > 100) {
			snprintf(text, sizeof(text), "%zu-%zu of %zu", top.first + 1,
				 top.first + (size_t)visible, top.rows);
			draw_right(LINES - 1, COLS - 24, 23, DIM, text);
		}
	}
	curs_set(asking != NULL);
	refresh();
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
		     { 'i', IMPORTED },	  { 'a', AGE },	  { 'p', PID },	 { 'c', COMMAND } };

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (keys[i].key == key) {
			top.sort = keys[i].column;
			arrange();
			return true;
		}
	return false;
}

/* One key while the filter is typed.  False: that is over. */
static bool edit_filter(int key, const char *before)
{
	size_t n = strlen(top.filter);

	switch (key) {
	case '\n':
	case '\r':
	case KEY_ENTER:
		return false;
	case 27:
		strcpy(top.filter, before);
		arrange();
		return false;
	case KEY_BACKSPACE:
	case 127:
	case 8:
		while (n && ((unsigned char)top.filter[n - 1] & 0xc0) == 0x80)
			n--;
		if (n)
			top.filter[n - 1] = 0;
		break;
	case 21: /* ^U */
		*top.filter = 0;
		break;
	default:
		if (key >= ' ' && key < 256 && key != 127 && n + 1 < sizeof(top.filter)) {
			top.filter[n] = (char)key;
			top.filter[n + 1] = 0;
		}
	}
	arrange();
	return true;
}

static int screen(const struct cu_command *command, uint64_t delay, long long times)
{
	struct sigaction end = { .sa_handler = on_end };
	bool asking = false, help = false;
	char before[sizeof(top.filter)];
	uint64_t next = 0;
	int key, status = CU_OK;

	if (!initscr())
		return batch(command, &(struct cu_format){ 0 }, times < 0 ? 1 : times, delay);
	sigaction(SIGTERM, &end, NULL);
	sigaction(SIGHUP, &end, NULL);
	sigaction(SIGINT, &end, NULL);
	cbreak();
	noecho();
	nonl();
	keypad(stdscr, TRUE);
	set_escdelay(50);
	make_looks();
	while (!told_to_end) {
		uint64_t now = cl_now();

		if (now >= next && !top.paused) {
			if (times == 0)
				break;
			times -= times > 0;
			if (!look(command)) {
				status = CU_FAILED;
				break;
			}
			next = cl_now() + delay;
		}
		draw_screen(delay, asking ? top.filter : NULL, help);
		now = cl_now();
		timeout(top.paused ? 1000 : next > now ? (int)((next - now) / 1000000) + 1 : 0);
		key = getch();
		if (key == ERR || key == KEY_RESIZE)
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
			top.backwards = !top.backwards;
			arrange();
			break;
		case '/':
			strcpy(before, top.filter);
			asking = true;
			break;
		case ' ':
			top.paused = !top.paused;
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
		case KEY_DOWN:
			top.first++;
			break;
		case KEY_UP:
			top.first -= top.first > 0;
			break;
		case KEY_NPAGE:
			top.first += (size_t)(LINES > 8 ? LINES - 8 : 1);
			break;
		case KEY_PPAGE: {
			size_t page = (size_t)(LINES > 8 ? LINES - 8 : 1);

			top.first -= top.first > page ? page : top.first;
			break;
		}
		default:
			break;
		}
	}
	endwin();
	return status;
}

/* Whether the terminal can place a cursor; a dumb one can't. */
static bool has_screen(void)
{
	const char *term = getenv("TERM"), *move;
	int error;

	if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) || !term || !*term || !strcmp(term, "dumb") ||
	    setupterm(term, STDOUT_FILENO, &error))
		return false;
	move = tigetstr("cup");
	return move && move != (char *)-1;
}

static int run_top(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { 0 };
	uint64_t delay = 1000000000;
	const char *dir = NULL, *nearest;
	bool plain = false;
	long long times = -1;
	int got, status;

	top.sort = LIMBOBYTES;
	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_BATCH:
			plain = true;
			break;
		case OPTION_TIMES:
			if (!cu_number(optarg, &times) || !times)
				return cu_usage_error(command, "'%s' is no number of times", optarg);
			break;
		case OPTION_DELAY:
			if (!cu_read_wait(optarg, &delay) || delay < 50000000)
				return cu_usage_error(command, "'%s' is no delay: 50ms at least, 2s, 1m", optarg);
			break;
		case OPTION_SORT: {
			int column = cu_column_find(table, optarg, strlen(optarg), &nearest);

			if (column == STATE || column == BAR || column == TREND)
				column = -1;
			if (column < 0 && nearest)
				return cu_usage_error(command, "cannot sort by '%s'; did you mean '%s'?", optarg,
						      nearest);
			if (column < 0)
				return cu_usage_error(command, "cannot sort by '%s'", optarg);
			top.sort = column == EXPORTEDBYTES ? EXPORTED : column;
			break;
		}
		case OPTION_FILTER:
			snprintf(top.filter, sizeof(top.filter), "%s", optarg);
			break;
		case CU_OPTION_DIR:
			dir = optarg;
			break;
		default:
			if (!cu_format_option(&format, got))
				return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	setlocale(LC_CTYPE, "");
	top.ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
	cu_directory_set(command, dir);
	if (!plain && !format.json && !format.raw && !format.output && !format.noheadings && has_screen())
		status = screen(command, delay, times);
	else
		status = batch(command, &format, times < 0 && !plain ? 1 : times, delay);
	cu_scan_free(&top.scan);
	free(top.row);
	free(top.history);
	return status;
}

static const struct cu_option options[] = {
	{ "batch", OPTION_BATCH, NULL, "print tables one after the other, as into a file" },
	{ "iterations", OPTION_TIMES, "N", "end after N looks" },
	{ "delay", OPTION_DELAY, "DURATION", "time between two looks (default 1s)" },
	{ "sort", OPTION_SORT, "LIMBOBYTES|LIMBO|HELD|EXPORTED|IMPORTED|AGE|PID|COMMAND",
	  "sort by this column (default LIMBOBYTES)" },
	{ "filter", OPTION_FILTER, "TEXT", "only those with TEXT in command, pid or state" },
	CU_TABLE_OPTIONS,
	CU_DIR_OPTION,
	{ .name = NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo top", "live; ? shows the keys, q quits" },
	{ "culimbo top --batch -n 60 -d 1s > limbo.log", "a minute of it, into a file" },
	{ "culimbo top -n 1 --json", "once, for a script" },
	{ .line = NULL },
};

const struct cu_command cu_top = {
	.name = "top",
	.arguments = "",
	.summary = "show the processes that share, live, and how their limbos grow",
	.help = "Shows the processes that share GPU memory, again and again: what waits in the limbo\n"
		"of each, as a bar (of the most that any has) and over time.  Keys sort, filter, pause\n"
		"and quit; ? shows them.  Where stdout is no terminal, or a dumb one, it prints one\n"
		"table, or with `--batch` one after the other.",
	.options = options,
	.columns = table,
	.examples = examples,
	.run = run_top,
};

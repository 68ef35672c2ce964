/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the output of another subcommand over the screen: see pane.h. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/common/text.h"
#include "tools/top/draw.h"
#include "tools/top/pane.h"
/* included last: its names are common words */
#include "tools/top/curses.h"

enum { DEEP = 16, MOST = 1 << 22 /* bytes of output */ };

struct pane {
	char what[16], whom[40];
	char *text, *folded, **line; /* line: pointers into folded */
	size_t lines, at, first;
	int columns; /* so many has the screen that it is folded for */
};

static struct pane panes[DEEP];
static int open_panes;

/* ------------------------------------------------------------------ its text */
static char *read_all(int fd)
{
	size_t length = 0, room = 4096;
	char *text = malloc(room);

	while (text) {
		ssize_t n;

		if (length + 1 == room) {
			char *larger = room < MOST ? realloc(text, 2 * room) : NULL;

			if (!larger)
				break;
			text = larger;
			room *= 2;
		}
		n = read(fd, text + length, room - length - 1);
		if (n > 0)
			length += (size_t)n;
		else if (!n || errno != EINTR)
			break;
	}
	if (text)
		text[length] = 0;
	return text;
}

/* Returns what `culimbo WHAT WHOM` prints to stdout and stderr; NULL if it could not be run. */
static char *output_of(const char *what, const char *whom)
{
	char self[] = "culimbo", word[16], name[40];
	char *const argv[] = { self, word, name, NULL };
	posix_spawn_file_actions_t actions;
	char *text = NULL;
	int fd[2], error;
	pid_t pid;

	snprintf(word, sizeof(word), "%s", what);
	snprintf(name, sizeof(name), "%s", whom);
	if (pipe2(fd, O_CLOEXEC))
		return NULL;
	if (!posix_spawn_file_actions_init(&actions)) {
		error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
		error = error ? error : posix_spawn_file_actions_adddup2(&actions, fd[1], 1);
		error = error ? error : posix_spawn_file_actions_adddup2(&actions, fd[1], 2);
		error = error ? error : posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
		posix_spawn_file_actions_destroy(&actions);
		close(fd[1]);
		if (!error) {
			text = read_all(fd[0]);
			close(fd[0]);
			while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
				;
			return text;
		}
	} else {
		close(fd[1]);
	}
	close(fd[0]);
	return NULL;
}

static void drop(struct pane *pane)
{
	free(pane->text);
	free(pane->folded);
	free(pane->line);
	*pane = (struct pane){ .text = NULL };
}

static bool has_hex(const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isxdigit((unsigned char)text[i]))
			return false;
	return true;
}

/* Finds the block that @line names, "0a1b2c:17", or the process, "  4711 (" or "  pid 4711". */
static bool leads_to(const char *line, char *whom, size_t size)
{
	size_t n;

	for (const char *at = strchr(line, ':'); at; at = strchr(at + 1, ':')) {
		n = strspn(at + 1, "0123456789");
		if (!n || n > 7 || at - line < 6 || !has_hex(at - 6, 6) ||
		    (at - line > 6 && at[-7] != ' ') || (at[1 + n] && at[1 + n] != ' '))
			continue;
		snprintf(whom, size, "%.6s:%.*s", at - 6, (int)n, at + 1);
		return true;
	}
	/* a line at the left edge names the pane's own subject */
	if (*line != ' ')
		return false;
	line += strspn(line, " ");
	if (!strncmp(line, "pid ", 4)) {
		line += 4 + strspn(line + 4, " ");
		n = strspn(line, "0123456789");
		if (line[n])
			return false;
	} else {
		n = strspn(line, "0123456789");
		if (strncmp(line + n, " (", 2) != 0)
			return false;
	}
	if (!n || n > 10)
		return false;
	snprintf(whom, size, "%.*s", (int)n, line);
	return true;
}

static bool leads_on(const struct pane *pane, size_t line, char *whom, size_t size)
{
	return line < pane->lines && leads_to(pane->line[line], whom, size) && strcmp(whom, pane->whom) != 0;
}

/*
 * Folds the lines of the text that are wider than the screen; a value goes on in its own column.  Returns false
 * if there is no memory.
 */
static bool fold(struct pane *pane)
{
	size_t size = 0, width = COLS > 20 ? (size_t)COLS : 20;
	FILE *to;

	free(pane->folded);
	pane->folded = NULL;
	pane->columns = COLS;
	to = open_memstream(&pane->folded, &size);
	if (!to)
		return false;
	for (const char *line = pane->text, *next; *line; line = next) {
		size_t n = strcspn(line, "\n"), indent = strspn(line, " "), further = indent + 16;
		char *copy = strndup(line, n);

		next = line + n + (line[n] == '\n');
		if (n <= further || line[further - 1] != ' ' || line[further] == ' ' || further + 20 > width)
			further = indent + 2 < width ? indent + 2 : 0;
		cu_put_within(to, width, 0, further, copy ? copy : "");
		free(copy);
	}
	return !fclose(to) && pane->folded;
}

static void fill(struct pane *pane)
{
	char whom[40], *next;
	size_t at = 0;

	free(pane->line);
	pane->line = NULL;
	pane->lines = pane->first = 0;
	if (!fold(pane))
		return;
	for (const char *c = pane->folded; *c; c++)
		pane->lines += *c == '\n' || !c[1];
	pane->line = calloc(pane->lines + 1, sizeof(*pane->line));
	if (!pane->line)
		pane->lines = 0;
	for (char *line = pane->folded; at < pane->lines; line = next) {
		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = 0;
		pane->line[at++] = line;
	}
	/* select the first line that leads on */
	for (pane->at = 0; pane->at < pane->lines && !leads_on(pane, pane->at, whom, sizeof(whom));)
		pane->at++;
	if (pane->at == pane->lines)
		pane->at = 0;
}

void cu_pane_open(const char *what, const char *whom)
{
	struct pane *pane = &panes[open_panes];

	if (open_panes == DEEP)
		return;
	/* reading debug information, or waiting for an answer, can take a second or two */
	cu_draw_blank(LINES - 1, PLAIN);
	cu_draw(LINES - 1, 0, COLS, TITLE, "one moment ...");
	refresh();
	snprintf(pane->what, sizeof(pane->what), "%s", what);
	snprintf(pane->whom, sizeof(pane->whom), "%s", whom);
	pane->text = output_of(what, whom);
	if (!pane->text)
		return;
	fill(pane);
	open_panes++;
}

bool cu_pane_is_open(void)
{
	return open_panes > 0;
}

static void close_one(void)
{
	if (open_panes)
		drop(&panes[--open_panes]);
}

void cu_pane_close_all(void)
{
	while (open_panes)
		close_one();
}

/* ------------------------------------------------------------------ on the screen */
void cu_pane_draw(void)
{
	struct pane *pane = &panes[open_panes - 1];
	size_t visible = LINES > 2 ? (size_t)LINES - 2 : 1;
	char head[80], whom[40];

	if (pane->columns != COLS)
		fill(pane);
	if (pane->at < pane->first)
		pane->first = pane->at;
	if (pane->at >= pane->first + visible)
		pane->first = pane->at - visible + 1;
	erase();
	cu_draw_blank(0, HEAD);
	snprintf(head, sizeof(head), "culimbo %s %s", pane->what, pane->whom);
	cu_draw(0, 0, COLS, HEAD, head);
	for (size_t i = pane->first; i < pane->lines && i < pane->first + visible; i++) {
		int y = 1 + (int)(i - pane->first);

		cu_draw_chosen(i == pane->at);
		if (i == pane->at)
			cu_draw_blank(y, PLAIN);
		cu_draw(y, 0, COLS, leads_on(pane, i, whom, sizeof(whom)) ? TITLE : PLAIN, pane->line[i]);
		cu_draw_chosen(false);
	}
	cu_draw(LINES - 1, 0, COLS, DIM,
		"Enter: what the line names   Esc back   arrows   r again   q quit");
	curs_set(0);
	refresh();
}

bool cu_pane_key(int key)
{
	struct pane *pane = &panes[open_panes - 1];
	size_t page = LINES > 3 ? (size_t)LINES - 3 : 1;
	char what[16], whom[40];

	switch (key) {
	case 27:
	case KEY_LEFT:
	case KEY_BACKSPACE:
	case 127:
	case 8:
		close_one();
		return true;
	case '\n':
	case '\r':
	case KEY_ENTER:
	case KEY_RIGHT:
		if (leads_on(pane, pane->at, whom, sizeof(whom)))
			cu_pane_open("show", whom);
		return true;
	case 'r':
		memcpy(what, pane->what, sizeof(what));
		memcpy(whom, pane->whom, sizeof(whom));
		close_one();
		cu_pane_open(what, whom);
		return true;
	case KEY_DOWN:
		pane->at += pane->at + 1 < pane->lines;
		return true;
	case KEY_UP:
		pane->at -= pane->at > 0;
		return true;
	case KEY_NPAGE:
		pane->at = pane->at + page < pane->lines ? pane->at + page : pane->lines ? pane->lines - 1 : 0;
		return true;
	case KEY_PPAGE:
		pane->at -= pane->at > page ? page : pane->at;
		return true;
	case KEY_HOME:
		pane->at = 0;
		return true;
	case KEY_END:
		pane->at = pane->lines ? pane->lines - 1 : 0;
		return true;
	default:
		return false;
	}
}

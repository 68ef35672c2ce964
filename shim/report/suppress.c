/* SPDX-License-Identifier: Apache-2.0 */
/* Suppressions: see suppress.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/report/report_table.h"
#include "shim/report/suppress.h"

enum { TEXT_SIZE = 1 << 20 };

static size_t memory_size(void)
{
	return TEXT_SIZE + CL_SUPPRESSIONS * sizeof(struct cl_suppression);
}

/* Writes the classes of findings to @to, comma-separated. */
static void list_classes(char *to, size_t size)
{
	size_t n = 0;

	for (int c = 0; c < CL_REPORT_CLASSES && n < size; c++)
		if (cl_report_classes[c].what & CL_REPORT_FOUND)
			n += (size_t)snprintf(to + n, size - n, "%s%s", n ? ", " : "", cl_report_classes[c].name);
}

/* Returns the class of findings that is called @name, of @length letters, or NULL. */
static const char *class_of(const char *name, size_t length)
{
	for (int c = 0; c < CL_REPORT_CLASSES; c++)
		if ((cl_report_classes[c].what & CL_REPORT_FOUND) && strlen(cl_report_classes[c].name) == length &&
		    !strncmp(cl_report_classes[c].name, name, length))
			return cl_report_classes[c].name;
	return NULL;
}

static const char *const types[] = { "leak:", "stack:" };

/* Returns which of `types` @line begins with; -1: none. */
static int type_of(const char *line)
{
	for (int i = 0; i < 2; i++)
		if (!strncmp(line, types[i], strlen(types[i])))
			return i;
	return -1;
}

/* What is wrong with a line.  There is one report at a time in a process. */
static char wrong_class[768];

/* Takes the pattern from one line, NUL-terminated.  Returns what is wrong with the line, or NULL. */
static const char *read_line(struct cl_suppressions *s, char *line)
{
	const char *class = NULL, *colon;
	size_t length;
	int type;

	line += strspn(line, " \t");
	for (length = strlen(line); length && strchr(" \t\r", line[length - 1]);)
		line[--length] = 0;
	if (!*line || *line == '#')
		return NULL;
	type = type_of(line);
	colon = strchr(line, ':');
	if (type < 0 && colon && (type = type_of(colon + 1)) >= 0) {
		length = (size_t)(colon - line);
		class = class_of(line, length);
		if (!class) {
			int n = snprintf(wrong_class, sizeof(wrong_class), CL_SUPPRESS_NO_CLASS ": '%.*s' is none of ",
					 (int)(length < 64 ? length : 64), line);

			s->unknown++;
			list_classes(wrong_class + n, sizeof(wrong_class) - (size_t)n);
			return wrong_class;
		}
		line += length + 1;
	}
	if (type < 0)
		return "is no suppression: CLASS:stack:PATTERN;... and CLASS:leak:PATTERN are";
	line += strlen(types[type]);
	/* an empty pattern would match everything, which nobody means */
	if (!*line || (type == 1 && (*line == ';' || strstr(line, ";;") || !line[strspn(line, ".;")])))
		return "has no pattern";
	if (s->n == CL_SUPPRESSIONS)
		return "is one too many: it and the lines after it are ignored";
	s->list[s->n++] = (struct cl_suppression){ .pattern = line, .class = class, .stack = type == 1 };
	return NULL;
}

int cl_suppress_read(struct cl_suppressions *s, const char *path,
		     void (*warn)(const char *path, unsigned int line, const char *what))
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), err = 0;
	size_t n = 0;
	ssize_t got;
	void *memory;

	memset(s, 0, sizeof(*s));
	if (fd < 0)
		return -errno;
	memory = mmap(NULL, memory_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		err = -errno;
		close(fd);
		return err;
	}
	s->list = memory;
	s->size = memory_size();
	s->text = (char *)memory + CL_SUPPRESSIONS * sizeof(struct cl_suppression);
	while (n < TEXT_SIZE - 1) {
		got = read(fd, s->text + n, TEXT_SIZE - 1 - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			err = -errno;
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	close(fd);
	if (err) {
		cl_suppress_free(s);
		return err;
	}
	for (unsigned int line = 1, at = 0; at < n; line++) {
		size_t length = strcspn(s->text + at, "\n");
		const char *wrong;

		s->text[at + length] = 0;
		wrong = read_line(s, s->text + at);
		if (wrong && warn)
			warn(path, line, wrong);
		if (s->n == CL_SUPPRESSIONS && wrong)
			break;
		at += (unsigned int)length + 1;
	}
	return 0;
}

void cl_suppress_free(struct cl_suppressions *s)
{
	if (s->list)
		munmap(s->list, s->size);
	memset(s, 0, sizeof(*s));
}

/* As cl_suppress_match(), with a pattern that ends before @end. */
static bool match(const char *pattern, const char *end, const char *name)
{
	bool from_start = pattern < end && *pattern == '^';
	const char *again = NULL, *from = NULL, *p = pattern + from_start, *s = name;

	if (!name || !*name)
		return false;
	/* only the last star is tried again, so this takes quadratic time at worst */
	if (!from_start) {
		again = p;
		from = s;
	}
	for (;;) {
		bool last = p + 1 == end;

		if (p < end && *p == '*') {
			again = ++p;
			from = s;
		} else if (p == end || (*p == '$' && last && !*s)) {
			return true;
		} else if (*s && *p == *s && !(*p == '$' && last)) {
			p++;
			s++;
		} else if (*s && again && *from) {
			p = again;
			s = ++from;
		} else {
			return false;
		}
	}
}

bool cl_suppress_match(const char *pattern, const char *name)
{
	return match(pattern, pattern + strlen(pattern), name);
}

/* Returns true if a name of the frame that begins at @names matches the pattern up to @end. */
static bool match_frame(const char *pattern, const char *end, const char *const *names)
{
	for (; *names; names++)
		if (match(pattern, end, *names))
			return true;
	return false;
}

static const char *const *next_frame(const char *const *names)
{
	while (*names)
		names++;
	return names + 1;
}

/* Returns true if the patterns match the stack that begins at @frame and ends with two NULLs. */
static bool match_stack(const char *pattern, const char *const *frame)
{
	const char *again = NULL;
	const char *const *from = frame;

	/* only the last "..." is tried again, as in match() */
	while (*pattern) {
		size_t length = strcspn(pattern, ";");
		const char *next = pattern + length + (pattern[length] == ';');

		if (length == 3 && !strncmp(pattern, "...", 3)) {
			again = pattern = next;
			from = frame;
		} else if (*frame && match_frame(pattern, pattern + length, frame)) {
			pattern = next;
			frame = next_frame(frame);
		} else if (again && *from) {
			pattern = again;
			frame = from = next_frame(from);
		} else {
			return false;
		}
	}
	return true;
}

/* @names of @n end with two NULLs. */
static bool match_stacks(const char *pattern, const char *const *names, unsigned int n)
{
	const char *const *at = names;

	if (n < 2 || names[n - 1] || names[n - 2])
		return false;
	while (at < names + n) {
		if (*at && match_stack(pattern, at))
			return true;
		while (*at)
			at = next_frame(at);
		at++;
	}
	return false;
}

struct cl_suppression *cl_suppress_find(const struct cl_suppressions *s, const char *class,
					const char *const *names, unsigned int n)
{
	for (unsigned int i = 0; i < s->n; i++) {
		struct cl_suppression *one = &s->list[i];

		if (class ? !one->class || strcmp(one->class, class) : one->class != NULL)
			continue;
		if (one->stack && match_stacks(one->pattern, names, n))
			return one;
		for (unsigned int j = 0; !one->stack && j < n; j++)
			if (cl_suppress_match(one->pattern, names[j]))
				return one;
	}
	return NULL;
}

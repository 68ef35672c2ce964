/* SPDX-License-Identifier: Apache-2.0 */
/* Suppressions: see suppress.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/report/suppress.h"

enum { TEXT_SIZE = 1 << 20 };

static size_t memory_size(void)
{
	return TEXT_SIZE + CL_SUPPRESSIONS * sizeof(struct cl_suppression);
}

/* Takes the pattern from one line, NUL-terminated.  Returns what is wrong with the line, or NULL. */
static const char *read_line(struct cl_suppressions *s, char *line)
{
	static const char type[] = "leak:";
	size_t length;

	line += strspn(line, " \t");
	for (length = strlen(line); length && strchr(" \t\r", line[length - 1]);)
		line[--length] = 0;
	if (!*line || *line == '#')
		return NULL;
	if (strncmp(line, type, sizeof(type) - 1))
		return "is no suppression: leak:PATTERN is";
	line += sizeof(type) - 1;
	/* an empty pattern would match everything, which nobody means */
	if (!*line)
		return "has no pattern";
	if (s->n == CL_SUPPRESSIONS)
		return "is one too many: it and the lines after it are ignored";
	s->list[s->n++] = (struct cl_suppression){ .pattern = line };
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

bool cl_suppress_match(const char *pattern, const char *name)
{
	bool from_start = *pattern == '^';
	const char *again = NULL, *from = NULL, *p = pattern + from_start, *s = name;

	if (!name || !*name)
		return false;
	/* only the last star is tried again, so this takes quadratic time at worst */
	if (!from_start) {
		again = p;
		from = s;
	}
	for (;;) {
		if (*p == '*') {
			again = ++p;
			from = s;
		} else if (!*p || (*p == '$' && !p[1] && !*s)) {
			return true;
		} else if (*s && *p == *s && !(*p == '$' && !p[1])) {
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

struct cl_suppression *cl_suppress_find(const struct cl_suppressions *s, const char *const *names,
					unsigned int n)
{
	for (unsigned int i = 0; i < s->n; i++)
		for (unsigned int j = 0; j < n; j++)
			if (cl_suppress_match(s->list[i].pattern, names[j]))
				return &s->list[i];
	return NULL;
}

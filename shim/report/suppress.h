/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suppressions: findings that a user knows of and does not want to see.
 *
 *   # comment
 *   CLASS:stack:PATTERN;PATTERN;...
 *   CLASS:leak:PATTERN
 *
 * A line hides findings of one class only, such as not-closed: another bug at the same place has
 * another class.  A line without a class, as in LeakSanitizer, hides findings of every class.  This
 * release still reads such lines.
 *
 * With leak:, a finding is suppressed if PATTERN occurs in the function, the module's path, the source file or
 * "MODULE+0xOFFSET" of any frame of its stacks, as far as the reporting process knows them.  `*`
 * stands for any text; `^` at the start and `$` at the end of a pattern stand for the start and the
 * end of the name.
 *
 * stack: hides less.  Its patterns must match the frames of one of the finding's stacks one
 * by one, from the innermost outwards.  "..." stands for any number of frames, and so does the end.
 *
 * Blocks that other processes hold are the holders' bug.  A line with such a class is matched with the
 * stacks of their opens, and hides a finding only if it, or another such line, matches every holder.
 *
 * No malloc: the file is kept in memory from mmap(), at most 1 MiB and CL_SUPPRESSIONS patterns of
 * it.  One thread at a time.
 */
#ifndef CL_SUPPRESS_H
#define CL_SUPPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CL_SUPPRESSIONS 1024u

struct cl_suppression {
	const char *pattern;	/* without the words before it */
	const char *class;	/* JSON's name of it; NULL: all */
	bool stack;		/* stack:, not leak: */
	uint64_t blocks, bytes; /* that it suppressed; 0: never matched */
};

struct cl_suppressions {
	struct cl_suppression *list;
	unsigned int n;
	unsigned int unknown; /* lines with a class that does not exist */
	char *text;
	size_t size;
};

/*
 * Reads @path.  Returns 0, or -errno: then there are no suppressions.  Calls @warn, if not NULL,
 * for each line that is no suppression, and for the first that is one too many: it and all after it are ignored.
 */
int cl_suppress_read(struct cl_suppressions *suppressions, const char *path,
		     void (*warn)(const char *path, unsigned int line, const char *what));
void cl_suppress_free(struct cl_suppressions *suppressions);

/* Returns true if @name, which may be NULL, contains @pattern. */
bool cl_suppress_match(const char *pattern, const char *name);
/*
 * Returns the first suppression of @class (NULL: the first without a class) that matches any of the @n
 * @names, or NULL.  A NULL ends the names of a frame, and one more NULL those of a stack.
 */
struct cl_suppression *cl_suppress_find(const struct cl_suppressions *suppressions, const char *class,
					const char *const *names, unsigned int n);

/* What @warn gets for a line with a class that does not exist begins with this. */
#define CL_SUPPRESS_NO_CLASS "names no class of findings"

/* The name of a frame of which nothing is known but its address: no pattern but `*` matches it. */
#define CL_SUPPRESS_NAMELESS "\1"

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suppressions: findings that a user knows of and does not want to see.
 *
 *   # comment
 *   leak:PATTERN
 *   stack:PATTERN;PATTERN;...
 *
 * The first form is LeakSanitizer's.  A finding is suppressed if PATTERN occurs in the function, the module's path, the source file or
 * "MODULE+0xOFFSET" of any frame of its stacks, as far as the reporting process knows them.  `*`
 * stands for any text; `^` at the start and `$` at the end of a pattern stand for the start and the
 * end of the name.
 *
 * The second form hides less: its patterns must match the frames of one of the finding's stacks one
 * by one, from the innermost outwards.  "..." stands for any number of frames, and so does the end.
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
	const char *pattern;	/* without the word before it */
	bool stack;		/* the second form */
	uint64_t blocks, bytes; /* that it suppressed; 0: never matched */
};

struct cl_suppressions {
	struct cl_suppression *list;
	unsigned int n;
	char *text;
	size_t size;
};

/*
 * Reads @path.  Returns 0, or -errno: then there are no suppressions.  Calls @warn, if not NULL,
 * for each line that is no suppression or is one too many.
 */
int cl_suppress_read(struct cl_suppressions *suppressions, const char *path,
		     void (*warn)(const char *path, unsigned int line, const char *what));
void cl_suppress_free(struct cl_suppressions *suppressions);

/* Returns true if @name, which may be NULL, contains @pattern. */
bool cl_suppress_match(const char *pattern, const char *name);
/*
 * Returns the first suppression that matches any of the @n @names, or NULL.  A NULL ends the names of
 * a frame, and one more NULL those of a stack.
 */
struct cl_suppression *cl_suppress_find(const struct cl_suppressions *suppressions,
					const char *const *names, unsigned int n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suppressions in LeakSanitizer's form: which findings a user knows of and does
 * not want to see.
 *
 *   # comment
 *   leak:PATTERN
 *
 * A finding is suppressed when PATTERN is found in the function, the module's
 * path, the source file or "MODULE+0xOFFSET" of any frame of its stacks, as far
 * as they are known to who asks.  `*` stands for any text, `^` at the start and
 * `$` at the end of a pattern for those of the name.
 *
 * No malloc: the file is kept in memory got by mmap(), at most 1 MiB of it, at
 * most CL_SUPPRESSIONS patterns.  One thread at a time.
 */
#ifndef CL_SUPPRESS_H
#define CL_SUPPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CL_SUPPRESSIONS 1024u

struct cl_suppression {
	const char *pattern;
	uint64_t blocks, bytes; /* that it suppressed; 0: never matched */
};

struct cl_suppressions {
	struct cl_suppression *list;
	unsigned int n;
	char *text;
	size_t size;
};

/*
 * Reads @path.  Returns 0 or -errno (then there are none); lines that are no
 * suppression are given to @warn with their number, as are patterns too many.
 */
int cl_suppress_read(struct cl_suppressions *suppressions, const char *path,
		     void (*warn)(const char *path, unsigned int line, const char *what));
void cl_suppress_free(struct cl_suppressions *suppressions);

/* Whether @name (may be NULL) holds @pattern, as above. */
bool cl_suppress_match(const char *pattern, const char *name);
/* The first that matches any of the @n @names, or NULL. */
struct cl_suppression *cl_suppress_find(const struct cl_suppressions *suppressions,
					const char *const *names, unsigned int n);

#endif

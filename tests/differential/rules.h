/* SPDX-License-Identifier: Apache-2.0 */
/* What may differ: the rules of doc/differences.md, see rules.c. */
#ifndef DIFFERENTIAL_RULES_H
#define DIFFERENTIAL_RULES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Reads the list at @path.  An entry is a line that begins with "| `RULE`".  False: it can't be
 * read, or an entry names no rule of ours, or names one again, or none is there: then @error says
 * which, with its line.
 */
bool rules_read(const char *path, char *error, size_t room);

/* Whether the rule of a line's reason is on the list. */
bool rules_allow(const char *rule);

/* Calls @each for each rule by which lines may differ. */
void rules_each(void (*each)(const char *rule, bool listed));

#endif

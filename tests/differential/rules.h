/* SPDX-License-Identifier: Apache-2.0 */
/* The allowed differences: the rules of doc/differences.md, see rules.c. */
#ifndef DIFFERENTIAL_RULES_H
#define DIFFERENTIAL_RULES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Reads the list at @path.  An entry is a line that begins with "| `RULE`".  Returns false when the file
 * cannot be read, has no entry, or has an entry without a rule or with a rule that is already listed.  Then @error
 * has the reason and the line.
 */
bool rules_read(const char *path, char *error, size_t room);

/* True when the rule of a line's reason is on the list. */
bool rules_allow(const char *rule);

/* Calls @each for each rule by which lines may differ. */
void rules_each(void (*each)(const char *rule, bool listed));

#endif

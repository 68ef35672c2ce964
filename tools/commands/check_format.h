/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the findings of `culimbo check` in forms that CI systems read: JUnit's XML, and the
 * annotations of GitHub's actions.  Both are made from the JSON Lines (doc/report-format.md), so
 * all forms have the same numbers and places.
 */
#ifndef CU_CHECK_FORMAT_H
#define CU_CHECK_FORMAT_H

#include <stdbool.h>
#include <stdio.h>

enum cu_check_format { CU_CHECK_TEXT, CU_CHECK_JSON, CU_CHECK_JUNIT, CU_CHECK_GITHUB, CU_CHECK_FORMATS };

/* Parses "text|json|junit|github".  Returns false if @word is none of them. */
bool cu_check_format_read(const char *word, enum cu_check_format *format);
/*
 * Reads JSON Lines from @from's position on, and writes them to @to as @format, JUnit's or
 * GitHub's.  @cmd is the command that was run; @failed is why it counts as failed, or NULL.
 */
void cu_check_format_write(enum cu_check_format format, FILE *from, FILE *to, const char *cmd,
			   const char *failed);

#endif

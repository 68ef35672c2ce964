/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `culimbo check` has found, in the forms that CI systems read: JUnit's XML, and the
 * annotations of GitHub's actions.  Both are made of the JSON Lines (doc/report-format.md), so that
 * each number and place is the same in all forms.
 */
#ifndef CU_CHECK_FORMAT_H
#define CU_CHECK_FORMAT_H

#include <stdbool.h>
#include <stdio.h>

enum cu_check_format { CU_CHECK_TEXT, CU_CHECK_JSON, CU_CHECK_JUNIT, CU_CHECK_GITHUB, CU_CHECK_FORMATS };

/* "text|json|junit|github"; false: @word is none of them. */
bool cu_check_format_read(const char *word, enum cu_check_format *format);
/*
 * Writes what stands in @from, JSON Lines from where it is, to @to as @format, JUnit's or GitHub's.
 * @cmd is what was run, and @failed why it counts as failed: NULL, it does not.
 */
void cu_check_format_write(enum cu_check_format format, FILE *from, FILE *to, const char *cmd,
			   const char *failed);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints lines of reports without names: adds functions and source files, cuts stacks at main(),
 * and colours them for a terminal.
 */
#ifndef CU_NAMES_H
#define CU_NAMES_H

#include <stdbool.h>
#include <stdio.h>

#include "tools/common/symbols.h"

struct cu_names {
	/* set by the caller */
	struct cu_symbols *symbols; /* NULL: no names */
	FILE *to;
	bool full;   /* all frames */
	bool colour;

	bool behind_main; /* within a stack */
};

/* Prints @line, of text or of JSON Lines, which ends with a newline. */
void cu_names_line(struct cu_names *names, const char *line);
/* Does so for each line of @text. */
void cu_names_text(struct cu_names *names, char *text);

#endif

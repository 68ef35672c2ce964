/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds names to a report, applies suppressions, and joins what another process says of the same
 * blocks.  A process that writes a report when it ends knows no functions and files; this code
 * does.
 *
 * The report has the form "both" (shim/report/report.h): text, with an object of JSON behind each
 * part of it.  The objects decide which parts of the text stay, so each number in
 * the result is exact.
 */
#ifndef CU_KNOWN_H
#define CU_KNOWN_H

#include <stdio.h>

#include "shim/report/report.h"
#include "tools/common/sides.h"
#include "tools/common/symbols.h"

struct cu_known {
	/* set by the caller */
	struct cu_symbols *symbols;
	struct cl_suppressions *suppressions; /* counts its matches; NULL: none */
	struct cl_emit *generate;	      /* not NULL: gets suppressions for the findings; nothing goes to `to` */
	FILE *to;			      /* gets the report with names */
	bool json;			      /* write the objects, not the text */
	unsigned int top;		      /* groups a class; 0: all */
	const struct cu_sides *sides;	      /* all reports, joined; NULL: don't join them */
	bool whole;			      /* write reports without a finding as well */
	bool all;			      /* write groups that need no action as well */
	bool full_stacks, colour;	      /* of the text */

	uint64_t findings, suppressed; /* of the last report */
};

/*
 * Writes the report @text, which it changes.  A report without findings left is written only if
 * `whole`.  False: no memory.
 */
bool cu_known_take(struct cu_known *known, char *text);

#endif

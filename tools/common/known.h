/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A report that is to be told with names, suppressions, and what another process says of the same
 * blocks.  The process that has written it at its end knew no functions and files: they are known here.
 *
 * Its form is "both" (shim/report/report.h): text, with an object of JSON behind each
 * part of it.  The objects decide, the text is cut as they say; so each number in
 * what is left is exact.
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
	struct cl_suppressions *suppressions; /* matches are counted in it; NULL: none */
	struct cl_emit *generate;	      /* not NULL: what is found goes there as suppressions, and nothing to `to` */
	FILE *to;			      /* with names added */
	bool json;			      /* the objects, not the text */
	unsigned int top;		      /* groups a class; 0: all */
	const struct cu_sides *sides;	      /* what the reports say together; NULL: each is by itself */
	bool whole;			      /* also reports without a finding */
	bool all;			      /* also what needs nothing to be done */
	bool full_stacks, colour;	      /* of the text */

	uint64_t findings, suppressed; /* of the report taken last */
};

/* Takes @text, which is changed.  What has no findings left is not written, unless `whole`.  False: no memory. */
bool cu_known_take(struct cu_known *known, char *text);

#endif

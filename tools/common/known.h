/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suppressions in a report that a process has written at its end, where it knew
 * no functions and files: they are known here.
 *
 * Its form is "both" (shim/report/report.h): text, with an object of JSON behind each
 * part of it.  The objects decide, the text is cut as they say; so each number in
 * what is left is exact.
 */
#ifndef CU_KNOWN_H
#define CU_KNOWN_H

#include <stdio.h>

#include "shim/report/report.h"
#include "tools/common/symbols.h"

struct cu_known {
	/* set by the caller */
	struct cu_symbols *symbols;
	struct cl_suppressions *suppressions; /* matches are counted in it; NULL: none */
	struct cl_emit *generate;	      /* not NULL: what is found goes there as suppressions, and nothing to `to` */
	FILE *to;			      /* with names added */
	bool json;			      /* the objects, not the text */
	unsigned int top;		      /* groups a class, of the text */

	uint64_t findings, suppressed; /* of the report taken last */
};

/* Takes @text, which is changed.  What has no findings left is not written.  False: no memory. */
bool cu_known_take(struct cu_known *known, char *text);

#endif

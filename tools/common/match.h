/* SPDX-License-Identifier: Apache-2.0 */
/* Suppressions of findings that are known by their objects: by the same rules as shim/report/report.c has. */
#ifndef CU_MATCH_H
#define CU_MATCH_H

#include "tools/common/known.h"

/* Returns the suppression that hides @object, a group of @class, or NULL. */
struct cl_suppression *cu_match_find(struct cu_known *known, char *object, const char *class);
/* Prints suppressions for @object, a group of @class, to known->generate. */
void cu_match_generate(struct cu_known *known, char *object, int class);

#endif

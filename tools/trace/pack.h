/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CU_PACK_H
#define CU_PACK_H

#include "tools/trace/trace.h"

/*
 * Gives each block and each open a row of its process, with as few rows as possible and no overlap
 * within a row.  Begins and ends must be known.  Returns 0 or -ENOMEM.
 */
int cu_trace_pack(struct cu_trace *t);

#endif

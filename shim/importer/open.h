/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening what others export, before and after the driver's call.  The front door
 * (shim.c) calls these; no lock is held.
 */
#ifndef CL_OPEN_H
#define CL_OPEN_H

#include "shim/importer/lookup.h"
#include "shim/importer/mappings.h"

/* As cl_open_begin(), of what there is no hold of: it is refused, unmanaged, or kept without one. */
CUresult cl_open_unheld(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind);
/* The first half of an open.  CUDA_SUCCESS: ask the driver, then cl_open_end(). */
static inline CUresult cl_open_begin(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind)
{
	*o = (struct cl_opening){ .hold = resolved->hold };
	return o->hold ? CUDA_SUCCESS : cl_open_unheld(o, resolved, kind);
}

/* The second half: the driver has opened @key.  False: it must be closed again, and refused. */
bool cl_open_end(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind, uint64_t key);
/* What is not opened after all. */
void cl_open_give_up(const struct cl_opening *o);
/* @resolved may not be opened: notes that, and returns what the driver would say to a wrong pointer. */
CUresult cl_open_refuse(const struct cl_resolved *resolved, enum cl_kind kind);

#endif

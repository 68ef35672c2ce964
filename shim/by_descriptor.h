/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program shares by descriptors and fabric handles.  The driver keeps what a
 * descriptor shares as long as anybody has it, so culimbo only counts: exports and imports, each for
 * itself, with bytes, device and call stack, as notes in this process's file.  Nothing tells which
 * import is of which export, and nothing is guessed.
 *
 * What must hold: no result of a driver call depends on this file.  A count may be too small if a
 * table here is full.  Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_BY_DESCRIPTOR_H
#define CL_BY_DESCRIPTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <cuda.h>
#include "shim/shm/layout.h"

/*
 * The driver has accepted @call, CL_CALL_EXPORT or one behind it in enum cl_call.  This makes the process one
 * that shares.  @handle is the allocation's, or 0 for a pool.
 */
void cl_descriptor_note(enum cl_call call, CUmemGenericAllocationHandle handle);

/* cuMemCreate() has made @handle with a type of handle to share it by.  Also if nothing is shared. */
void cl_descriptor_created(CUmemGenericAllocationHandle handle, size_t size);

/* Returns true if an import is not mapped yet; costs one load.  Only then mapped() is called. */
extern atomic_uint cl_descriptors_waiting;
static inline bool cl_descriptor_imports_wait(void)
{
	return atomic_load_explicit(&cl_descriptors_waiting, memory_order_relaxed);
}
/* @handle was mapped, with @size bytes: if it is an import, they are added to its note, once. */
void cl_descriptor_mapped(CUmemGenericAllocationHandle handle, size_t size);

#endif

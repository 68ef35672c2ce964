/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual handle: 64 bytes of ours for cuIpcOpenMemHandle(), of memory that CUDA does not share so.
 *
 * The driver does not know it.  Where a driver's handle has the number of bytes, it has 0, so that a process
 * without culimbo gets an error.  The record has bytes 8 to 55, as of a driver's handle, and an open
 * compares them.  The first 8 bytes are not compared: they say where the pointer lies.
 */
#ifndef CL_VIRTUAL_HANDLE_H
#define CL_VIRTUAL_HANDLE_H

#include <stdbool.h>
#include <string.h>
#include "shim/shm/layout.h"

#define CL_VIRTUAL_MARK UINT64_C(0x3154524956554c43) /* "CLUVIRT1" */

struct cl_virtual_handle {
	uint64_t offset;	/* of the pointer, in the reservation */
	uint32_t pid;		/* of the exporter, as in a driver's handle */
	uint32_t zero;
	uint64_t bytes, more;	/* 0 */
	uint64_t reservation;	/* its number, which its exporter uses once */
	uint64_t mark;
	uint64_t size;		/* of the reservation */
	uint64_t stamp;
};
_Static_assert(sizeof(struct cl_virtual_handle) == 64, "a handle");
_Static_assert(offsetof(struct cl_virtual_handle, mark) == 40, "all versions");

static inline bool cl_is_virtual_handle(const void *handle)
{
	uint64_t mark;

	memcpy(&mark, (const char *)handle + offsetof(struct cl_virtual_handle, mark), sizeof mark);
	return __builtin_expect(mark == CL_VIRTUAL_MARK, 0);
}

#endif

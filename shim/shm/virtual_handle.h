/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual handle: 64 bytes of ours for cuIpcOpenMemHandle(), of memory that CUDA does not share so.
 *
 * The driver does not know it.  Where a driver's handle has the number of bytes, it has 0, so that a process
 * without culimbo gets an error.  The record has bytes 8 to 55, as of a driver's handle, and an open
 * compares them.  The first 8 bytes are not compared: they say where the pointer lies, and count the changes.
 *
 * Programs keep what they have opened by the bytes of its handle, and open nothing where they get the same bytes again,
 * as CUDA's own handles allow.  An open of a virtual handle also takes what is mapped beside the allocation that it
 * names.  So two handles of a reservation have different bytes if something was mapped or unmapped in it between them.
 * An old handle is good as long as the allocation that it names is mapped.
 */
#ifndef CL_VIRTUAL_HANDLE_H
#define CL_VIRTUAL_HANDLE_H

#include <stdbool.h>
#include <string.h>
#include "shim/shm/layout.h"

#define CL_VIRTUAL_MARK UINT64_C(0x3154524956554c43) /* "CLUVIRT1" */
/* Memory that lies further from the beginning of its reservation has no virtual handle.  No GPU has so many addresses. */
#define CL_VIRTUAL_OFFSET_BITS 48

struct cl_virtual_handle {
	uint64_t offset : CL_VIRTUAL_OFFSET_BITS; /* of the pointer, in the reservation */
	uint64_t changes : 16;	/* of the mappings in the reservation between handles of it, from 0 after UINT16_MAX */
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

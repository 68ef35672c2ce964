/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a stamp lies in the 64 bytes of a handle.
 *
 * A memory handle of the driver: bytes 12 to 15 have the stamp's lower half, bytes 4 to 7 its upper half.  The driver
 * leaves 12 to 15 zero, and in 4 to 7 the upper half of an address in the exporter; no process reads either (measured
 * on a machine with two GPUs: fresh and repeated opens, with another block of the exporter open, from both GPUs, blocks of
 * 1 KiB to 1 GiB).  A stamp's lower half is never 0, since it has the file's id: so bytes 12 to 15 tell whether there is
 * one.  Bytes 56 to 63 are no place for it.  The driver fills them for blocks of a multiple of 512 MiB where GPUs are
 * joined by a fabric, and there a process on another GPU is refused any handle in which they are not the driver's own
 * (measured).
 *
 * All else has its stamp in bytes 56 to 63: the handle of an event, a virtual handle, and the data of a pool's block in
 * the form of a handle (pool_data.h).
 */
#ifndef CL_HANDLE_H
#define CL_HANDLE_H

#include <string.h>
#include "shim/shm/layout.h"

enum { CL_STAMP_LOW = 12, CL_STAMP_HIGH = 4, CL_STAMP_WHOLE = 56 };

/* Returns the stamp of @handle, of @kind, or 0. */
static inline uint64_t cl_handle_stamp(const void *handle, enum cl_kind kind)
{
	const char *bytes = (const char *)handle;
	uint32_t low, high;
	uint64_t stamp;

	if (kind != CL_MEMORY) {
		memcpy(&stamp, bytes + CL_STAMP_WHOLE, sizeof stamp);
		return stamp;
	}
	memcpy(&low, bytes + CL_STAMP_LOW, sizeof low);
	memcpy(&high, bytes + CL_STAMP_HIGH, sizeof high);
	return low ? (uint64_t)high << 32 | low : 0;
}

/* Writes @stamp into @handle.  0 takes a stamp away, and leaves what the driver made, but for bytes 4 to 7 of memory's. */
static inline void cl_handle_put_stamp(void *handle, enum cl_kind kind, uint64_t stamp)
{
	char *bytes = (char *)handle;
	uint32_t low = (uint32_t)stamp, high = (uint32_t)(stamp >> 32);

	if (kind != CL_MEMORY) {
		memcpy(bytes + CL_STAMP_WHOLE, &stamp, sizeof stamp);
		return;
	}
	memcpy(bytes + CL_STAMP_LOW, &low, sizeof low);
	memcpy(bytes + CL_STAMP_HIGH, &high, sizeof high);
}

/*
 * Returns true if the driver has left room for a stamp in its @handle.  Of an address the uppermost byte may be a tag, and
 * the one below is zero.
 */
static inline bool cl_handle_has_room(const void *handle, enum cl_kind kind)
{
	const char *bytes = (const char *)handle;
	uint32_t low;

	if (kind != CL_MEMORY)
		return !cl_handle_stamp(handle, kind);
	memcpy(&low, bytes + CL_STAMP_LOW, sizeof low);
	return !low && !bytes[CL_STAMP_HIGH + 2];
}

#endif

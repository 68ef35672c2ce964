/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When CUDA refuses to share or to open memory, or a handle of culimbo's is not opened, this process writes a note: how
 * the memory was made, its size, the call stack, and what would share it.  A note is no misuse: libraries ask for handles
 * to see whether there are any.
 *
 * A library may ask at each message that it sends.  So the memory that was refused last is remembered.
 * When it is refused again, the count of its first note goes up, and culimbo does not ask the driver how
 * the memory was made.  A refusal at another place in the program, or of later memory at the same
 * address, is counted there, too.
 *
 * No free, hold or open depends on these notes.  Any thread may call these functions.  It must hold no
 * lock, since the driver is asked.
 */
#ifndef CL_REFUSED_H
#define CL_REFUSED_H

#include <stdbool.h>
#include <cuda.h>
#include "shim/shm/layout.h"

struct cl_resolved;

/* cuIpcGetMemHandle() of @dptr gave @result.  errno may change, here and in cl_refused_open(): CL_DOOR keeps it. */
void cl_refused_handle(CUdeviceptr dptr, CUresult result);
/* Returns true if a handle of @dptr was refused before and may be again.  Takes no lock. */
bool cl_refused_before(CUdeviceptr dptr);
/*
 * cuIpcGetMemHandle() of @dptr, of which cl_refused_before() is true, gave @result.  Notes it and returns
 * true if that was its result before; else the caller must do all that a new one takes.  Keeps errno.
 */
bool cl_refused_again(CUdeviceptr dptr, CUresult result);
void cl_refused_forget(void); /* in a forked child */
/*
 * The driver's cuIpcOpenMemHandle() of @handle, which @resolved is about, gave @result.  @arguments: it refuses its other
 * arguments with any handle.
 */
void cl_refused_open(const struct cl_resolved *resolved, const CUipcMemHandle *handle, CUresult result, bool arguments);
/*
 * The same of a handle that culimbo has made, of memory that process @pid made as @made: the driver or culimbo has
 * refused it.  @size: of the allocation in bytes; 0: not known.  A stale handle is a finding, and none of these.
 */
void cl_refused_open_of_ours(enum cl_made made, uint32_t pid, uint64_t size, CUresult result, enum cl_why why);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA refuses to share or to open is noted: how the memory was made, its size, the call stack,
 * and what would share it.  It is a note, never a finding: libraries ask for handles to see whether
 * there are any.
 *
 * Nothing is decided by it.  Called only after the driver refused, within CL_DOOR, which keeps errno.
 * Any thread; no lock may be held, since the driver is asked.
 */
#ifndef CL_REFUSED_H
#define CL_REFUSED_H

#include <cuda.h>

struct cl_resolved;

/* cuIpcGetMemHandle() of @dptr gave @result. */
void cl_refused_handle(CUdeviceptr dptr, CUresult result);
/* The driver's cuIpcOpenMemHandle() of @handle, which @resolved is about, gave @result. */
void cl_refused_open(const struct cl_resolved *resolved, const CUipcMemHandle *handle, CUresult result);

#endif

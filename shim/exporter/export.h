/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports: what this process shares.
 *
 * A block is known to us from its first export on, by its base address.  From then on
 * freeing it is a matter of free.h.  The front door (shim.c) calls these; no lock is held.
 */
#ifndef CL_EXPORT_H
#define CL_EXPORT_H

#include <stdbool.h>
#include "shim/driver/driver.h"

struct cl_block;

enum cl_export_as {
	CL_EXPORT_DONE,	      /* exported again */
	CL_EXPORT_NEW,	      /* the driver has given the handle of what is not known by @dptr */
	CL_EXPORT_NOT_SIMPLY, /* nothing has been done */
};
/*
 * Of a block that was exported before and is the same still, all there is to do is
 * to ask the driver and to look at what we know: one lock (two where the limbo has
 * any), and nothing is waited for under it, so that no thread is cancelled there.
 */
enum cl_export_as cl_export_simply(CUipcMemHandle *handle, CUdeviceptr dptr);
/*
 * The same of any block: it gets a record, and @handle what leads to it.  CUDA_ERROR_OUT_OF_MEMORY
 * without asking the driver: there is no memory to note it.
 */
CUresult cl_export_carefully(CUipcMemHandle *handle, CUdeviceptr dptr);
/* After CL_EXPORT_NEW: the same, with what the driver has given.  Without memory @handle is wiped. */
CUresult cl_export_new(CUipcMemHandle *handle, CUdeviceptr dptr);

/*
 * Before the driver is asked for a handle of @event.  CUDA_SUCCESS with *prepared for one of the
 * next two, NULL for what was exported before; CUDA_ERROR_INVALID_HANDLE: the program has
 * destroyed it, and that is noted; CUDA_ERROR_OUT_OF_MEMORY: there is no memory to note it.
 */
CUresult cl_export_event_begin(CUevent event, struct cl_block **prepared);
/* The driver has refused. */
void cl_export_event_refused(struct cl_block *prepared);
/* The driver has given @handle. */
CUresult cl_export_event(CUipcEventHandle *handle, CUevent event, struct cl_block *prepared);

#endif

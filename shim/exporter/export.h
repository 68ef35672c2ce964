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

enum cl_export_as {
	CL_EXPORT_DONE,	      /* exported again, or refused */
	CL_EXPORT_NEW,	      /* the driver has given the handle of what is not known by @dptr */
	CL_EXPORT_NOT_SIMPLY, /* nothing has been done */
};
/*
 * Of a block that was exported before and is the same still, all there is to do is
 * to ask the driver and to look at what we know: one lock (two where the limbo has
 * any), and nothing is waited for under it, so that no thread is cancelled there.
 */
enum cl_export_as cl_export_simply(CUipcMemHandle *handle, CUdeviceptr dptr);
/* After CL_EXPORT_NOT_SIMPLY.  CL_EXPORT_DONE with *result, or CL_EXPORT_NEW. */
enum cl_export_as cl_export_carefully(CUipcMemHandle *handle, CUdeviceptr dptr, CUresult *result);
/* After CL_EXPORT_NEW: notes the block, and gives @handle what leads to it. */
CUresult cl_export_new(CUipcMemHandle *handle, CUdeviceptr dptr);

/*
 * Before the driver is asked for a handle of @event.  True: the program has destroyed it, and
 * that is noted; the driver would crash on it (measured).  *known: it was exported before.
 */
bool cl_export_event_was_freed(CUevent event, bool *known);
/* The driver has given @handle.  @known: as above. */
CUresult cl_export_event(CUipcEventHandle *handle, CUevent event, bool known);

#endif

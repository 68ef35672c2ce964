/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the hooks in preload/ ask of the shim: the whole contract between the two.
 *
 * Each function here stands behind one driver call: it takes that call's
 * arguments, calls the real driver through cl_driver (shim/driver/driver.h) itself,
 * and returns what the program is to see.  All may be called by any thread.
 * None holds a lock of ours while it is in the driver.
 *
 * The hooks call these only when cl_sharing() is true, except for those that
 * make it true, export and import, and those that say so.  So a process that shares nothing pays one
 * load and a branch.
 */
#ifndef CL_SHIM_H
#define CL_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/context_end.h"
#include "shim/diag/trace.h"
#include "shim/driver/driver.h"
#include "shim/driver/gate.h"
#include "shim/driver/green.h"
#include "shim/life.h"
#include "shim/reclaim/callbacks.h"
#include "shim/reclaim/reclaim.h"
#include "shim/self/sharing.h"

/* ------------------------------------------------------------------- memory */
CUresult cl_memory_export(CUipcMemHandle *handle, CUdeviceptr dptr);
/* @open is the form that the program called: cl_driver.cuIpcOpenMemHandle or _v2 */
CUresult cl_memory_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			  CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int));
CUresult cl_memory_close(CUdeviceptr dptr);
CUresult cl_memory_free(CUdeviceptr dptr);
/* @per_thread: the _ptsz form, whose stream 0 is the thread's own */
CUresult cl_memory_free_async(CUdeviceptr dptr, CUstream stream, bool per_thread);
/*
 * A process that shares is about to allocate.  Where no collector thread runs
 * (CULIMBO_COLLECTOR=inline) its work is done first; else two loads.
 */
void cl_memory_allocates(void);
/* Also where nothing is shared: a pointer into a memory pool was exported, which nothing protects. */
void cl_pool_exported(void);

/* ------------------------------------------------------------------- events */
CUresult cl_event_export(CUipcEventHandle *handle, CUevent event);
CUresult cl_event_import(CUevent *event, CUipcEventHandle handle);
/* @destroy is the form that the program called: cl_driver.cuEventDestroy or _v2 */
CUresult cl_event_destroy(CUevent event, CUresult (*destroy)(CUevent));
/* Any event was made: see cl_import_event_is_new(). */
void cl_event_is_new(CUevent event);
/* Also where nothing is shared: an interprocess event was made, in the current context. */
void cl_event_created(CUevent event);

#endif

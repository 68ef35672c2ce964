/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole contract between the hooks in preload/ and the shim: this header and those that it includes.
 *
 * A hook calls one of these functions in place of its driver call.  The function takes that call's
 * arguments, calls the real driver through cl_driver (shim/driver/driver.h) itself,
 * and returns the result for the program.  Any thread may call it.  No lock of ours is held
 * during a call to the driver.
 *
 * A hook calls these functions only when cl_sharing() is true.  The exceptions are export and
 * import, which make it true, and functions whose comment says so, here or in one of these headers.  So
 * a process that shares nothing pays one load and a branch.  A forked child starts as a process that shares nothing.
 */
#ifndef CL_SHIM_H
#define CL_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/by_descriptor.h"
#include "shim/context_end.h"
#include "shim/diag/trace.h"
#include "shim/driver/driver.h"
#include "shim/driver/gate.h"
#include "shim/driver/green.h"
#include "shim/life.h"
#include "shim/pool_handles.h"
#include "shim/reclaim/callbacks.h"
#include "shim/reclaim/reclaim.h"
#include "shim/self/sharing.h"
#include "shim/virtual.h"

/* ------------------------------------------------------------------- memory */
CUresult cl_memory_export(CUipcMemHandle *handle, CUdeviceptr dptr);
/* @open is the form that the program called: cl_driver.cuIpcOpenMemHandle or _v2. */
CUresult cl_memory_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			  CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int));
CUresult cl_memory_close(CUdeviceptr dptr);
CUresult cl_memory_free(CUdeviceptr dptr);
/* @per_thread: the program called the _ptsz form, in which stream 0 is the thread's own. */
CUresult cl_memory_free_async(CUdeviceptr dptr, CUstream stream, bool per_thread);
/*
 * Called before an allocation of a process that shares.  If no collector thread runs
 * (CULIMBO_COLLECTOR=inline), does the collector's work first.  Else costs two loads.
 */
void cl_memory_allocates(void);

/* -------------------------------------------------- blocks of pools, by pointer */
CUresult cl_pool_pointer_export(CUmemPoolPtrExportData *data, CUdeviceptr dptr);
/* *@told, if that is not NULL, becomes true if the import is stale and was reported as such, and false else. */
CUresult cl_pool_pointer_import(CUdeviceptr *dptr, CUmemoryPool pool, CUmemPoolPtrExportData *data, bool *told);
/* In place of cuMemPoolImportFromShareableHandle(): counts the program as a user of the pool (importer/pool_uses.h). */
CUresult cl_pool_import(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags);
/* Before it decides, the driver knows of all frees of imports that the program has made. */
CUresult cl_pool_destroy(CUmemoryPool pool);

/* ------------------------------------------------------------------- events */
CUresult cl_event_export(CUipcEventHandle *handle, CUevent event);
CUresult cl_event_import(CUevent *event, CUipcEventHandle handle);
/* @destroy is the form that the program called: cl_driver.cuEventDestroy or _v2. */
CUresult cl_event_destroy(CUevent event, CUresult (*destroy)(CUevent));
/* The program has created @event, of any kind: see cl_import_event_created(). */
void cl_event_created(CUevent event);
/* Created as an interprocess event, in the current context.  Also if nothing is shared. */
void cl_shareable_event_created(CUevent event);
/* As cl_event_destroy(), in a process that shares nothing. */
CUresult cl_unshared_event_destroy(CUevent event, CUresult (*destroy)(CUevent));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a block that the program frees: all that the driver's free would wait for is
 * waited for, the block goes into the limbo, and back to the driver when nobody can have it any
 * more.
 *
 * The front door (shim.c) calls these; no lock is held.  False: it is none that this process has
 * exported, nothing was done, and the driver is to be called.  True: it is done, with *result.
 */
#ifndef CL_FREE_H
#define CL_FREE_H

#include <stdbool.h>
#include "shim/driver/driver.h"

bool cl_free_memory(CUdeviceptr dptr, CUresult *result);
/* @bare: the form of cuMemFreeAsync() that the program called; @per_thread: its stream 0 is the thread's own. */
bool cl_free_memory_async(CUdeviceptr dptr, CUstream stream, bool per_thread,
			  CUresult (*bare)(CUdeviceptr, CUstream), CUresult *result);
/* @destroy: the form of cuEventDestroy() that the program called. */
bool cl_free_event(CUevent event, CUresult (*destroy)(CUevent), CUresult *result);

#endif

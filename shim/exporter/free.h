/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program frees a block or destroys an event.  A block that nobody holds or can still open
 * goes to the driver at once.  Another goes into the limbo, after a wait for all that the
 * driver's free would wait for; a stream-ordered free leaves a fence instead of waiting.  A block of a
 * pool is freed by the same calls: its address tells which of the two it is.
 *
 * The front door (shim.c) calls these functions, from any thread and without a lock of ours.  They
 * return true if the free is done, and *result is what the program gets.  They return false if
 * this process has not exported the block: nothing was done, and the caller calls the driver.
 */
#ifndef CL_FREE_H
#define CL_FREE_H

#include <stdbool.h>
#include "shim/driver/driver.h"

struct cl_exporter;

bool cl_free_memory(struct cl_exporter *ex, CUdeviceptr dptr, CUresult *result);
/* @bare: the form of cuMemFreeAsync() that was called.  @per_thread: its stream 0 is the thread's own. */
bool cl_free_memory_async(struct cl_exporter *ex, CUdeviceptr dptr, CUstream stream,
			  bool per_thread, CUresult (*bare)(CUdeviceptr, CUstream),
			  CUresult *result);
/* @destroy: the form of cuEventDestroy() that the program called. */
bool cl_free_event(struct cl_exporter *ex, CUevent event, CUresult (*destroy)(CUevent),
		   CUresult *result);

#endif

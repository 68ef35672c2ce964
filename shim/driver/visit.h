/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A visit to the driver by a thread of ours, or on an errand of ours: to give back, to ask, to destroy.
 *
 * Who visits has passed the gate (gate.h) and holds no lock of ours.
 */
#ifndef CL_VISIT_H
#define CL_VISIT_H

#include <stdbool.h>
#include "shim/driver/driver.h"

/*
 * From begin() to end() @ctx is current (NULL: whatever was), and the thread's capture mode
 * is relaxed: our frees are not part of what some thread of the program is capturing,
 * and must not spoil it.
 */
struct cl_visit {
	CUstreamCaptureMode mode;
	bool exchanged, pushed;
};
struct cl_visit cl_visit_begin(CUcontext ctx);
void cl_visit_end(struct cl_visit *visit);

/*
 * A stream of our own of @ctx, of @device and current, to free on; it waits for no other stream.
 * NULL: none can be had.
 */
CUstream cl_free_stream(CUcontext ctx, CUdevice device);
/* @ctx has ended, and its streams with it; NULL: one of @device has whose handle is not known. */
void cl_free_stream_forget_locked(CUcontext ctx, CUdevice device);

void cl_visit_forget(void); /* in a forked child */

#endif

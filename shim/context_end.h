/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context, for all who have something of it. */
#ifndef CL_CONTEXT_END_H
#define CL_CONTEXT_END_H

#include <stdbool.h>
#include "shim/driver/driver.h"

/*
 * Around a call that may destroy contexts.  cl_context_end_begin() returns
 * when nothing of ours is in the driver with @ctx (NULL: any context of
 * @device, a primary one) and keeps it so; cl_context_end_done() forgets what
 * went with it when @gone, and must follow in the same thread.
 */
void cl_context_end_begin(CUcontext ctx, CUdevice device);
void cl_context_end_done(CUcontext ctx, CUdevice device, bool gone);

/* The primary context of @device has ended by a call of ours: see cl_context_lost. */
void cl_context_end_lost(CUdevice device);

#endif

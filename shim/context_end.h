/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context, for all who have something of it. */
#ifndef CL_CONTEXT_END_H
#define CL_CONTEXT_END_H

#include <stdbool.h>
#include "shim/driver/context.h"

/*
 * Around a call that may destroy contexts.  cl_context_end_begin() returns
 * when nothing of ours is in the driver with @ctx (NULL: the primary context of
 * @device) and keeps it so; cl_context_end_done() forgets what
 * went with it when @gone, and must follow in the same thread.
 */
struct cl_context_end cl_context_end_begin(CUcontext ctx, CUdevice device);
void cl_context_end_done(const struct cl_context_end *end, bool gone);

/* A context has ended without such a call: see cl_context_lost. */
void cl_context_end_lost(const struct cl_context_end *end);

#endif

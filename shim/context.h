/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: which are primary, and what goes with one that ends (see cl_context_end_begin). */
#ifndef CL_CONTEXT_H
#define CL_CONTEXT_H

#include <stdbool.h>
#include "shim/driver.h"

/*
 * Whether @ctx is the primary context of @device: such contexts end by
 * cuDevicePrimaryCtxRelease and Reset, which name the device.  Asks the driver
 * once for each context; no lock of ours may be held.
 */
bool cl_context_is_primary(CUcontext ctx, CUdevice device);

/*
 * This thread's current context, its device and whether it is primary.  False, and
 * 0 in all of them: there is none, or the driver does not say its device.  Asks the driver for the device once for each
 * context that a thread comes to; no lock of ours may be held.
 */
bool cl_context_current(CUcontext *ctx, CUdevice *device, bool *primary);
/*
 * The same without whether it is primary, for a process that does not share yet: that
 * question retains the primary context for a moment, and nobody waits there who releases
 * it, so that it would live on after what is the last time for the program.
 */
bool cl_context_current_unasked(CUcontext *ctx, CUdevice *device);

void cl_contexts_forget(void); /* in a forked child */

#endif

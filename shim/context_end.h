/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks call these functions before and after a driver call that may end a context.  Any thread may call
 * them.  It must hold no lock of ours.
 */
#ifndef CL_CONTEXT_END_H
#define CL_CONTEXT_END_H

#include <stdbool.h>
#include "shim/driver/context.h"

/*
 * A hook calls begin() before and done() after a driver call that may end the context @ctx, or the
 * primary context of @device if @ctx is NULL.  begin() waits until no thread is in a visit to that
 * context, and no visit begins until done().  done() must follow in the same thread.  Until then the thread
 * is not cancelled: others wait for the end of the context.  So of several ends the last one that began is
 * done first.  If @gone, done() forgets all that belonged to the context.
 */
struct cl_context_end cl_context_end_begin(CUcontext ctx, CUdevice device);
void cl_context_end_done(const struct cl_context_end *end, bool gone);

/* Does what done() does for a context that has ended without begin(): see cl_context_on_lost. */
void cl_context_end_lost(const struct cl_context_end *end);
/*
 * A release has ended the primary context of @device, though the program seemed to keep a reference:
 * it has released others past our hooks.  Forgets the references, and what belonged to the context.
 * @last: cl_context_last() before the release.
 */
void cl_primary_ended_past_us(CUdevice device, uint64_t last);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the limbo forgets when a context ends, or the driver has dropped a block without us.
 *
 * Functions that end in _locked want cl_exports_lock held; the others take it.
 */
#ifndef CL_CONTEXT_LOSS_H
#define CL_CONTEXT_LOSS_H

#include "shim/limbo/limbo.h"

/*
 * After cl_context_open(): forgets what belongs to each of @dead, through .next, and frees those.
 * @gone: a context has ended, whether there is an object of it or not.  Returns whether the
 * collector has something to look at.
 */
bool cl_limbo_contexts_ended(struct cl_context *dead, bool gone);

/*
 * The driver has dropped what @block names: it leaves the list that its state has it on.
 * True: holders keep its record, and the collector must be awake by CL_REAP_EVERY from now at the latest, as for
 * what waits for them in the limbo: it may sleep for good, or not have been started.
 */
bool cl_limbo_forget_block_locked(struct cl_block *block);

#endif

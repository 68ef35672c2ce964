/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes back the holds of processes that ended without giving them back.  Any thread may call
 * cl_limbo_reap(), without a lock of ours.  Nothing here makes a CUDA call.
 */
#ifndef CL_REAP_H
#define CL_REAP_H

#include <stdint.h>
#include "shim/limbo/limbo.h"
#include "shim/self/locks.h"
#include "shim/shm/slot.h"

struct cl_reap {
	struct cl_lock lock;
	struct cl_slot_watch watch[CL_SLOTS];
};

/* Reaps dead holders.  Returns how many may be dead but are not known to be: reap again soon. */
unsigned int cl_limbo_reap(struct cl_exporter *ex);
/* The same when the process ends, with cl_exports_lock: does nothing if another thread reaps. */
void cl_limbo_reap_at_end_locked(struct cl_exporter *ex);

#endif

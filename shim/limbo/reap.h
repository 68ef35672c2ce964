/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes back the holds of processes that ended without giving them back.  Any thread may call
 * cl_limbo_reap(), without a lock of ours.  Nothing here makes a CUDA call.
 */
#ifndef CL_REAP_H
#define CL_REAP_H

#include <stdint.h>
#include "shim/limbo/limbo.h"

/* Reaps dead holders.  Returns how many may be dead but are not known to be: reap again soon. */
unsigned int cl_limbo_reap(void);
/* The same when the process ends, with cl_exports_lock: does nothing if another thread reaps. */
void cl_limbo_reap_at_end_locked(void);

void cl_reap_forget(void); /* in a forked child */

#endif

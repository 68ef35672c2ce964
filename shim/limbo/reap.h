/* SPDX-License-Identifier: Apache-2.0 */
/* The dead: holds of processes that ended without giving them back. */
#ifndef CL_REAP_H
#define CL_REAP_H

#include <stdint.h>
#include "shim/limbo/limbo.h"

/* Holds taken back from the dead, for a report without our file: who held what, of the first few. */
enum { CL_RECLAIMED = 32 };
extern struct cl_about cl_reclaimed[CL_RECLAIMED];
extern unsigned int cl_reclaimed_n;

/* Looks for dead holders of this process's blocks.  Returns how many are still settling. */
unsigned int cl_limbo_reap(void);
/* The same at the end of the process, where nothing may be waited for. */
void cl_limbo_reap_at_end_locked(void);

void cl_reap_forget(void); /* in a forked child */

#endif

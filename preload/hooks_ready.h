/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the hooks ready: finds the driver and fills the hook table. */
#ifndef CL_HOOKS_READY_H
#define CL_HOOKS_READY_H

#include <stdbool.h>

/*
 * Finds the driver and fills the hook table if that was not done yet.  Returns true if the table is
 * filled, false if no libcuda is loaded: call again later.  Costs one load once it is filled.
 * Any thread, also before our constructor; changes dlerror().
 */
bool cl_hooks_ready(void);

#endif

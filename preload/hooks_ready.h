/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks are ready when the driver was found: for who answers with their stubs. */
#ifndef CL_HOOKS_READY_H
#define CL_HOOKS_READY_H

#include <stdbool.h>

/*
 * Whether the driver was found and the hook table is filled; tries to do so.  One load when it
 * was.  Any thread, also before our constructor.
 */
bool cl_hooks_ready(void);

#endif

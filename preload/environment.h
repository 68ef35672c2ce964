/* SPDX-License-Identifier: Apache-2.0 */
/* The options of this process, which are read once, from the environment that it was started with. */
#ifndef CL_ENVIRONMENT_H
#define CL_ENVIRONMENT_H

#include <stdbool.h>

/*
 * CULIMBO_DISABLE, or why we step aside by ourselves: everything is to be the driver's own.
 * Reads the options if nobody has yet.  Any thread, also before our constructor.
 */
bool cl_environment_disables(void);

/* Says what is wrong with an option.  After the above; any thread. */
void cl_environment_complain(void);

#endif

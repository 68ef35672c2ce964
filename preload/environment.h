/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the options of this process once, from the environment that it was started with. */
#ifndef CL_ENVIRONMENT_H
#define CL_ENVIRONMENT_H

#include <stdbool.h>

/*
 * Returns true if culimbo must do nothing in this process: CULIMBO_DISABLE is set, the program is
 * setuid, or this is the second copy of culimbo.  Reads the options if they were not read
 * yet.  Any thread, also before our constructor.
 */
bool cl_environment_disables(void);

/* Logs a warning for each option that is wrong.  Call cl_environment_disables() first.  Any thread. */
void cl_environment_complain(void);

#endif

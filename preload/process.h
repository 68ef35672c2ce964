/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the process, as seen from the preload: options, the first use of CUDA, the end. */
#ifndef CL_PROCESS_H
#define CL_PROCESS_H

#include <stdbool.h>

/* CULIMBO_DISABLE: everything is to be the driver's own.  Reads the options if nobody has yet. */
bool cl_process_disabled(void);

/* The driver was found: now, and not in every shell under us, say what is wrong with an option, or with us. */
void cl_process_uses_driver(void);

/* To be called before each call that may make this process one that shares. */
void cl_process_may_share(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two dlsym that are not ours.  Nothing here calls the exported one.
 *
 * Any thread, also before our constructor; one that was found is remembered.
 */
#ifndef CL_REAL_DLSYM_H
#define CL_REAL_DLSYM_H

#include "shim/driver/driver.h"

/* libc's own, whoever else exports one.  Never NULL. */
cl_dlsym_fn *cl_real_dlsym(void);

/* The next dlsym after ours in the program's order: libc's, or another interposer's. */
cl_dlsym_fn *cl_next_dlsym(void);
/* The same for the thunk, which asks cl_next_dlsym() only while this is NULL. */
extern _Atomic(cl_dlsym_fn *) cl_next_dlsym_found;

#endif

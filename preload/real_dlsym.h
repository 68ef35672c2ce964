/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two dlsym() functions that are not ours: libc's, and the next one in the search order.
 *
 * Any thread, also before our constructor; no lock of ours is taken.  Each is looked up only once.
 */
#ifndef CL_REAL_DLSYM_H
#define CL_REAL_DLSYM_H

#include "shim/driver/driver.h"

/* Returns libc's own dlsym, even if other libraries export one.  Never NULL. */
cl_dlsym_fn *cl_real_dlsym(void);

/* Returns the next dlsym after ours in the search order: libc's, or another interposer's.  Never NULL. */
cl_dlsym_fn *cl_next_dlsym(void);
/* For the thunk: the next dlsym, or NULL as long as cl_next_dlsym() was not called. */
extern _Atomic(cl_dlsym_fn *) cl_next_dlsym_found;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym, as we export it (dlsym_thunk_*.S, dlsym.c), and the two that are not ours.
 */
#ifndef CL_DLSYM_H
#define CL_DLSYM_H

#include <stdint.h>
#include "shim/driver/driver.h"

/* libc's own, whoever else exports one.  Never NULL.  Any thread, also before our constructor. */
cl_dlsym_fn *cl_real_dlsym(void);

/* The next dlsym after ours in the program's order: libc's, or another interposer's. */
cl_dlsym_fn *cl_next_dlsym(void);
/* The same for the thunk, which asks cl_next_dlsym() only while this is NULL. */
extern _Atomic(cl_dlsym_fn *) cl_next_dlsym_found;

/* To be called when the program's own libraries are loaded, before it loads others. */
void cl_dlsym_begin(void);

/* What the thunk does after cl_dlsym_route(): return @address, or jump on as if we were not there. */
struct cl_dlsym_answer {
	void *address;
	uintptr_t jump_on;
};
struct cl_dlsym_answer cl_dlsym_route(void *handle, const char *name, const void *caller);

#endif

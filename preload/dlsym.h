/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym, as we export it (dlsym_thunk_*.S, dlsym.c).  Any thread.
 */
#ifndef CL_DLSYM_H
#define CL_DLSYM_H

#include <stdint.h>

/* To be called when the program's own libraries are loaded, before it loads others. */
void cl_dlsym_begin(void);

/* What the thunk does after cl_dlsym_route(): return @address, or jump on as if we were not there. */
struct cl_dlsym_answer {
	void *address;
	uintptr_t jump_on;
};
struct cl_dlsym_answer cl_dlsym_route(void *handle, const char *name, const void *caller);

#endif

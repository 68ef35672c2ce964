/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dlsym() that we export: dlsym_thunk_*.S calls dlsym.c.  Any thread; no lock of ours is taken.
 */
#ifndef CL_DLSYM_H
#define CL_DLSYM_H

#include <stdint.h>

/* Counts the objects that the program was started with.  Called by our constructor. */
void cl_dlsym_begin(void);

/* Tells the thunk what to do: return .address, or if .jump_on jump to the next dlsym. */
struct cl_dlsym_answer {
	void *address;
	uintptr_t jump_on;
};
/* Answers dlsym(@handle, @name), called from @caller.  @name begins with "cu" and a capital letter. */
struct cl_dlsym_answer cl_dlsym_route(void *handle, const char *name, const void *caller);

#endif

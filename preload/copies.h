/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles two copies of this library in one process, such as one that /etc/ld.so.preload names and
 * one of a build that LD_PRELOAD names.  Calls of a linked program would reach one copy and calls
 * through dlsym() the other, so that each would see half of them.  So the first copy does all the
 * work, and the second behaves as with CULIMBO_DISABLE=1.  Any thread; no lock is taken.
 */
#ifndef CL_COPIES_H
#define CL_COPIES_H

#include <stdbool.h>

/* Returns true if another copy comes before this one in the search order.  Makes no system call. */
bool cl_copies_is_second(void);

/* In the first copy: logs a warning if there is a second one. */
void cl_copies_say(void);

#endif

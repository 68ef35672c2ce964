/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two copies of this library in one process: one of the system and one of a build, say, by
 * LD_PRELOAD and /etc/ld.so.preload.  Linked calls would lead to the one and looked-up calls to
 * the other, so that each would know half.  So the one that comes first does all, and the other
 * is as with CULIMBO_DISABLE=1.  No system call; any thread.
 */
#ifndef CL_COPIES_H
#define CL_COPIES_H

#include <stdbool.h>

/* Whether another copy comes before this one. */
bool cl_copies_is_second(void);

/* Says, in the first, that there is a second. */
void cl_copies_say(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody else's wrappers of the driver's calls.  One that finds the driver by dlsym() comes to
 * our hooks.  One that finds it by libc's own dlsym goes past them: a block that is freed so may
 * be given to another while processes have it open.  That can't be mended from here, and which
 * of the two a wrapper does can't be seen; so it is said whose it is.
 */
#ifndef CL_WRAPPED_H
#define CL_WRAPPED_H

/*
 * Says it, if there are any, of the calls that must not be missed.  Once; when the process is
 * about to share, in a hook.  Any thread.
 */
void cl_wrapped_say(void);

#endif

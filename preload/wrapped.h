/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another library's wrappers of driver calls.  A wrapper that finds the driver by dlsym() reaches
 * our hooks.  A wrapper that finds it by libc's own dlsym bypasses them: then the driver may reuse a
 * freed block while other processes map it.  We can't prevent that, and can't see
 * which of the two a wrapper does.  So a warning names its library.
 */
#ifndef CL_WRAPPED_H
#define CL_WRAPPED_H

/*
 * Logs a warning if there are wrappers of calls that culimbo must not miss.  Does so once in the life
 * of the process.  A hook calls this before the process begins to share.  Any thread.
 */
void cl_wrapped_say(void);

#endif

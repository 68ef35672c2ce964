/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the driver that need no context, in a thread whose current context has ended: a second thread, which has no
 * context, makes them.
 *
 * What must hold: the current context of the program's thread stays what it was, and no capture of the program
 * becomes invalid: the program has not made these calls.
 *
 * No lock of ours may be held.
 */
#ifndef CL_ELSEWHERE_H
#define CL_ELSEWHERE_H

/*
 * Calls @call with @arg.  If the current context has ended, this happens in a thread of its own, which has no context:
 * the driver refuses cuMemFree() of a pool's block with CUDA_ERROR_CONTEXT_IS_DESTROYED in an ended context, and not
 * without one (measured); and an ended context could not be made current again afterwards.
 * Returns 0; or the errno value of pthread_create(), and @call was not called.
 */
int cl_without_ended_context(void (*call)(void *), void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of our own.
 *
 * What must hold: no signal of the program is handled in one of them.  None of them has the scheduling class of
 * the thread that happens to create it, or is bound to that thread's processors alone: other processes wait for
 * what our threads give back, and a thread that is real-time or bound to one processor is so for its own work.
 */
#ifndef CL_THREAD_H
#define CL_THREAD_H

#include <pthread.h>

/*
 * Starts a thread, in which all signals are blocked, with a stack of 1 MiB.  Its class is SCHED_OTHER, and its
 * processors are those of the process's main thread and of the caller, unless the system forbids that.  Returns 0, or the errno
 * value of pthread_create().
 */
int cl_thread_start(pthread_t *thread, void *(*main)(void *), void *arg);
/* The first call in such a thread: sets its name, and its nice value to 0, unless the system forbids that. */
void cl_thread_begin(void);

#endif

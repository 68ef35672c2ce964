/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of our own.
 *
 * What must hold: no signal of the program is handled in one of them.
 */
#ifndef CL_THREAD_H
#define CL_THREAD_H

#include <pthread.h>
#include <signal.h>
#include "shim/base/old_libc.h"

/* Starts a thread in which all signals are blocked.  Returns 0, or the errno value of pthread_create(). */
static inline int cl_thread_start(pthread_t *thread, void *(*main)(void *), void *arg)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(thread, NULL, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

#endif

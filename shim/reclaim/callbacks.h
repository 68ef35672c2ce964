/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free-memory callbacks: functions that the program has registered, which give back memory of
 * its own when an allocation fails.  reclaim.c decides when they are asked.  Any thread.
 */
#ifndef CL_CALLBACKS_H
#define CL_CALLBACKS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * A function of the program.  It gives back memory of its own and returns the number of bytes, 0
 * for none.  @bytes is what was asked for.
 */
typedef size_t cl_free_memory_fn(size_t bytes, void *data);

enum { CL_CALLBACKS = 64 };
/*
 * Returns 0, -EINVAL if there is no function, -EEXIST if that pair is registered already, or
 * -ENOSPC if CL_CALLBACKS are registered.
 */
int cl_callbacks_register(cl_free_memory_fn *callback, void *data);
/* Returns 0, or -ENOENT if the pair is not registered.  A thread that is just calling the callbacks may still call it. */
int cl_callbacks_unregister(cl_free_memory_fn *callback, void *data);
/*
 * Calls all callbacks, in the order in which they were registered, without a lock.  Returns true if
 * any says that it gave memory back.  An allocation that a callback makes does not ask the
 * callbacks: see cl_callbacks_inside().
 */
bool cl_callbacks_ask(size_t bytes);
/* Returns true if this thread is inside a callback. */
bool cl_callbacks_inside(void);
void cl_callbacks_forget(void); /* in a forked child: the callbacks stay registered, the lock is new */

#endif

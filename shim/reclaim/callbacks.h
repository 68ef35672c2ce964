/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free-memory callbacks: what the program has registered to be asked for memory of its own
 * when an allocation fails.  When they are asked is in reclaim.c.
 */
#ifndef CL_CALLBACKS_H
#define CL_CALLBACKS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Of a program: gives back memory of its own and returns the number of bytes,
 * 0 for none.  @bytes: what was asked for.
 */
typedef size_t cl_free_memory_fn(size_t bytes, void *data);

enum { CL_CALLBACKS = 64 };
/* 0, -EINVAL (no function), -EEXIST (that pair is registered), -ENOSPC (CL_CALLBACKS are). */
int cl_callbacks_register(cl_free_memory_fn *callback, void *data);
/* 0, or -ENOENT.  A run that another thread has begun may still call it. */
int cl_callbacks_unregister(cl_free_memory_fn *callback, void *data);
/*
 * Asks all, in the order in which they were registered, for @bytes.  Whether any says that it
 * gave memory back.  An allocation that a callback makes asks nobody: cl_callbacks_inside().
 */
bool cl_callbacks_ask(size_t bytes);
/* Whether this thread is inside a callback. */
bool cl_callbacks_inside(void);
void cl_callbacks_forget(void); /* in a forked child: they stay registered, the lock is new */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free-memory callbacks: who is asked when an allocation fails.
 *
 * First the limbo of this process, then what the program registered, then the
 * host's other exporters, and as the last resort the blocks that could not be
 * tracked; see cl_callbacks_run() in shim.h.
 */
#ifndef CL_CALLBACKS_H
#define CL_CALLBACKS_H

#include <stddef.h>
#include "shim/shim.h"

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
void cl_callbacks_forget(void); /* in a forked child: they stay registered, the lock is new */

#endif

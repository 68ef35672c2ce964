/* SPDX-License-Identifier: Apache-2.0 */
/*
 * culimbo.h: what a program may ask of libculimbo.so.
 *
 * No program needs any of this: under LD_PRELOAD=libculimbo.so CUDA IPC is made
 * safe without it.  A program that should also run without the library looks
 * the functions up:
 *
 *	culimbo_register_free_memory_callback_fn *reg =
 *		dlsym(RTLD_DEFAULT, "culimbo_register_free_memory_callback");
 *	if (reg)
 *		reg(give_back, my_cache);
 *
 * Another links with -lculimbo (pkg-config culimbo).
 */
#ifndef CULIMBO_H
#define CULIMBO_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library, such as "0.1.0".  Never NULL; lives as long as the process. */
typedef const char *culimbo_version_fn(void);
const char *culimbo_version(void);

/*
 * A free-memory callback: gives device memory back that the program can do
 * without, such as a cache of its own.
 *
 * Runs when a device allocation of this process has failed for lack of memory,
 * or another call that needs device memory (it makes a context or a stream,
 * loads code, instantiates a graph), in the thread that made it, with that
 * thread's current context, if it has one; afterwards the call is tried again.  It runs after culimbo has given back what it
 * held itself, and before other processes are asked.
 *
 * @bytes	about how much was asked for; 0 if that is not known (it was no
 *		allocation), or if what ran out was not memory but interprocess
 *		events
 * @data	as registered
 *
 * Returns the number of bytes that it released: 0 if none.  If nobody released
 * any, the program gets to see the failure.
 *
 * It may call any CUDA function, frees above all.  An allocation that fails
 * inside it runs no callbacks.  Two threads whose allocations fail at once may
 * run it at the same time.  It must return: by no exception, no longjmp().
 */
typedef size_t culimbo_free_memory_fn(size_t bytes, void *data);

/*
 * Registers @fn to be called with @data.  The same pair may be registered once.
 * Callbacks run in the order they were registered.
 *
 * Returns 0, or a negative errno: -EINVAL if @fn is NULL, -EEXIST if the pair
 * is registered, -ENOSPC if there is no room for one more (64).  Any thread may
 * call it, but no signal handler.  A forked child inherits what is registered.
 */
typedef int culimbo_register_free_memory_callback_fn(culimbo_free_memory_fn *fn, void *data);
int culimbo_register_free_memory_callback(culimbo_free_memory_fn *fn, void *data);

/*
 * Takes a registered pair out.  An allocation that failed in another thread
 * just before may still call it once, so the code of @fn and what @data points
 * to must outlive that.
 *
 * Returns 0, or -ENOENT if the pair is not registered.  As above for threads.
 */
typedef int culimbo_unregister_free_memory_callback_fn(culimbo_free_memory_fn *fn, void *data);
int culimbo_unregister_free_memory_callback(culimbo_free_memory_fn *fn, void *data);

#ifdef __cplusplus
}
#endif

#endif

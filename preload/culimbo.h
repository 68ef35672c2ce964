/* SPDX-License-Identifier: Apache-2.0 */
/*
 * culimbo.h: the functions that libculimbo.so offers to programs.
 *
 * No program needs them: LD_PRELOAD=libculimbo.so makes CUDA IPC safe in
 * unmodified programs.  A program that should also run without the library looks
 * the functions up:
 *
 *	culimbo_register_free_memory_callback_fn *reg =
 *		dlsym(RTLD_DEFAULT, "culimbo_register_free_memory_callback");
 *	if (reg)
 *		reg(give_back, my_cache);
 *
 * A program that always runs with the library links with -lculimbo (pkg-config culimbo).
 */
#ifndef CULIMBO_H
#define CULIMBO_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the library's version, such as "0.1.0".  Never NULL; stays valid.  Any thread. */
typedef const char *culimbo_version_fn(void);
const char *culimbo_version(void);

/*
 * A free-memory callback: a function of the program that frees device memory that
 * the program can do without, such as a cache.
 *
 * culimbo calls it when a device allocation of this process has failed for lack of
 * memory, or another call that needs device memory: one that creates a context or a
 * stream, loads code or instantiates a graph.  It runs in the thread that made the
 * call, with that thread's current context, if there is one.  It runs after culimbo has
 * freed the blocks that it held back itself, and before culimbo asks other processes.
 * Afterwards culimbo makes the failed call again.
 *
 * @bytes	about how many bytes the call needs; 0 if that is not known, or if
 *		interprocess events ran out and not memory
 * @data	the value that was registered
 *
 * Returns the number of bytes that it freed: 0 if none.  If neither a callback nor
 * culimbo nor another process freed any, the program gets the error.
 *
 * It may call any CUDA function, above all to free memory.  An allocation that fails
 * inside it runs no callbacks.  Two threads whose allocations fail at once may
 * run it at the same time.  It must return, and not leave by an exception or longjmp().
 */
typedef size_t culimbo_free_memory_fn(size_t bytes, void *data);

/*
 * Registers @fn: culimbo calls it with @data.  The pair of @fn and @data may be
 * registered only once.  Callbacks run in the order in which they were registered.
 *
 * Returns 0, or a negative errno: -EINVAL if @fn is NULL, -EEXIST if the pair
 * is registered already, -ENOSPC if 64 pairs are registered.  Any thread may
 * call it, but no signal handler.  A forked child keeps the registered callbacks.
 */
typedef int culimbo_register_free_memory_callback_fn(culimbo_free_memory_fn *fn, void *data);
int culimbo_register_free_memory_callback(culimbo_free_memory_fn *fn, void *data);

/*
 * Removes a registered pair.  If an allocation failed in another thread just
 * before, that thread may still call @fn once.  So the code of @fn and the data
 * that @data points to must stay valid until then.
 *
 * Returns 0, or -ENOENT if the pair is not registered.  Any thread may call it,
 * but no signal handler.
 */
typedef int culimbo_unregister_free_memory_callback_fn(culimbo_free_memory_fn *fn, void *data);
int culimbo_unregister_free_memory_callback(culimbo_free_memory_fn *fn, void *data);

#ifdef __cplusplus
}
#endif

#endif

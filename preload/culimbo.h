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
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the library's version, such as "1.0.0".  Never NULL; stays valid.  Any thread. */
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

/*
 * Collects: looks for importers that have died, and gives the driver back each freed block that
 * nobody holds and whose CULIMBO_GRACE is over.  culimbo does so by itself; a program that is
 * about to need memory may want to wait for it.  It ends no grace, so a handle that is
 * on its way can still be opened.  Waits for CULIMBO_PRESSURE_WAIT at most, and only while a
 * holder is dying or another thread is giving blocks back.
 *
 * Returns 1 if something came free, by this call or meanwhile, else 0.  Any thread may call it,
 * also in a free-memory callback, but no signal handler.
 */
typedef int culimbo_collect_fn(void);
int culimbo_collect(void);

/*
 * Writes the report that a process writes when it ends (culimbo(7)) to the descriptor @fd, of
 * what is known now.  Nothing is written elsewhere, and CULIMBO_REPORT does not matter.
 *
 * @format	"text" or NULL, or "jsonl": an object a line (doc/report-format.md)
 *
 * Returns the number of findings, or a negative errno: -EINVAL if @format is another, -EBADF
 * if @fd is not open, or the error of the write.  While the report is made, other threads that
 * share, free and open wait; they don't wait for the write.  Any thread may call it, but
 * no signal handler.
 */
typedef int culimbo_report_fn(int fd, const char *format);
int culimbo_report(int fd, const char *format);

/* What culimbo has counted in this process.  A forked child begins at 0. */
struct culimbo_stats {
	/* so far; events count as blocks of 0 bytes */
	uint64_t exports;	  /* handles made */
	uint64_t opens, closes;	  /* of handles of other processes */
	uint64_t kept;		  /* freed blocks that culimbo kept for a while */
	uint64_t returned;	  /* of these: given back to the driver */
	uint64_t returned_bytes;
	uint64_t refused;	  /* opens that were refused: the block had been freed */
	uint64_t dead_holders;	  /* importers that ended without closing */
	uint64_t short_of_memory; /* calls for which the driver had no device memory at first */
	uint64_t findings;	  /* what the report calls findings: misuse, and what was taken back */
	/* now */
	uint64_t open;		  /* blocks of other processes that this one has open */
	uint64_t open_bytes;
	uint64_t limbo;		  /* freed blocks that culimbo keeps */
	uint64_t limbo_bytes;
	uint64_t held;		  /* of these: only because somebody has them open */
	uint64_t held_bytes;
};

/*
 * Fills in *@stats.  @size is sizeof *@stats as the program was compiled.  Later versions add
 * members at the end: what only the program knows is 0, what only the library knows is left out.
 *
 * Returns 0, or -EINVAL if @stats is NULL or @size is 0.  Any thread may call it, but no
 * signal handler.
 */
typedef int culimbo_stats_fn(struct culimbo_stats *stats, size_t size);
int culimbo_stats(struct culimbo_stats *stats, size_t size);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of other processes' pools that this process has opened by a handle (shm/pool_handle.h).  To the program such a
 * block is memory that cuIpcOpenMemHandle() has opened.  To the driver it is an import of a pool's pointer, and
 * pool_imports.h counts each open as one.
 *
 * What must hold:
 *  - An open ends with its close, or with the context in which the program opened it.
 *  - The program's cuMemFree() of an address at which all was opened by handles is refused, as the driver refuses to
 *    free any memory that was opened (measured).
 *  - If the program has also imported the same block by its pointer, its frees end these imports, and its closes end
 *    the opens.
 *  - A process without such opens does not pay for them: cl_pool_opens_any() is one load.
 *
 * Any thread may call these functions.  It must hold no lock of ours.  Fork: cl_pool_opens_forget().
 */
#ifndef CL_POOL_OPENS_H
#define CL_POOL_OPENS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/context.h"
#include "shim/driver/driver.h"
#include "shim/importer/imported_pools.h"

struct cl_exporter;

extern _Atomic uint64_t cl_pool_opens_n;
static inline bool cl_pool_opens_any(void)
{
	/* relaxed: a thread that uses what another has opened has synchronised with it */
	return __builtin_expect(atomic_load_explicit(&cl_pool_opens_n, memory_order_relaxed) != 0, 0);
}

/*
 * prepare() comes before the import, and makes room for one open.  Returns NULL if there is no memory.  If the import
 * fails, discard() frees that room.
 */
struct cl_pool_open *cl_pool_open_prepare(void);
void cl_pool_open_discard(struct cl_pool_open *open);
/*
 * The driver has imported @address from @pool, while the context @name was current.  The open takes over @open, and
 * the caller's reference to @pool.
 */
void cl_pool_open_add(struct cl_pool_open *open, CUdeviceptr address, const struct cl_context_name *name,
		      struct cl_imported_pool *pool);
/*
 * Closes one open of @address, of the current context if it has one.  Returns false if there is none.  Else *result is
 * what the program gets, and our use of the pool is over if this was its last open.  *wake: see cl_pool_import_free().
 */
bool cl_pool_open_close(struct cl_exporter *ex, CUdeviceptr address, CUresult *result, bool *wake);
/* Gives back the caller's reference to @pool, for which it has opened no block.  Our use of it may be over then. */
void cl_pool_open_gives_up(struct cl_exporter *ex, struct cl_imported_pool *pool);
/* Returns true if @address was opened by a handle, and not every open of it is closed. */
bool cl_pool_open_is_open(CUdeviceptr address);
/* The same.  cl_imports_lock is held. */
bool cl_pool_open_is_open_locked(CUdeviceptr address);
/* Returns true if all that is open at @address was opened by handles: a free of it is refused. */
bool cl_pool_open_refuses_free(CUdeviceptr address);
/*
 * Returns true if @address lies in a block that was opened by a handle.  Then *base and *size are the block's, as the
 * driver tells them, and *context is a context in which it was opened, or NULL if none is known.
 */
bool cl_pool_open_find(CUdeviceptr address, CUdeviceptr *base, size_t *size, CUcontext *context);
/* @context has ended: closes all opens of it, and ends our use of the pools that have none. */
void cl_pool_opens_lost(struct cl_exporter *ex, struct cl_context *context);
/* Instead: they belong to no context from now on, and stay open. */
void cl_pool_opens_outlive(struct cl_context *context);

void cl_pool_opens_forget(void); /* in a forked child */

#endif

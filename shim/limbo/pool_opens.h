/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of other processes' pools that this process has opened by a handle (shm/pool_handle.h).  For the driver
 * each is an import of a pool's pointer, and pool_imports.h counts it as one.  For the program it is memory
 * that cuIpcOpenMemHandle() has opened.
 *
 * What must hold:
 *  - It ends with the last close, or with the context in which it was opened.  A free of it is refused, as the
 *    driver refuses that of any opened memory (measured).
 *  - If the program has imported the same block by its pointer as well, each of its frees is of such an import,
 *    and each close of an open.
 *  - Without such opens nobody pays: cl_pool_opens_any() is one load.
 *
 * Any thread may call these functions, without a lock of ours.  Fork: cl_pool_opens_forget().
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

/* Comes before the import: makes room for one open.  Returns NULL without memory.  A failed one is discarded. */
struct cl_pool_open *cl_pool_open_prepare(void);
void cl_pool_open_discard(struct cl_pool_open *open);
/* The driver has imported @address, in the context @name, from @pool, of which the open has one reference. */
void cl_pool_open_add(struct cl_pool_open *open, CUdeviceptr address, const struct cl_context_name *name,
		      struct cl_imported_pool *pool);
/*
 * Closes one open of @address.  Returns false if there is none.  Else *result is the program's, and
 * *unused the pool to be destroyed, or NULL.  *wake: see cl_pool_import_free().
 */
bool cl_pool_open_close(struct cl_exporter *ex, CUdeviceptr address, CUresult *result, CUmemoryPool *unused, bool *wake);
/* Returns true if something is open at @address so. */
bool cl_pool_open_is_open(CUdeviceptr address);
/* The same.  cl_imports_lock is held. */
bool cl_pool_open_is_open_locked(CUdeviceptr address);
/* Returns true if all that is open at @address was opened by handles: a free of it is refused. */
bool cl_pool_open_refuses_free(CUdeviceptr address);
/*
 * Returns true if @address lies in what was opened by a handle.  *base and *size are as the driver says, *context is
 * one in which it was opened, NULL if that is not known.
 */
bool cl_pool_open_find(CUdeviceptr address, CUdeviceptr *base, size_t *size, CUcontext *context);
/* @context has ended: closes what was opened there. */
void cl_pool_opens_lost(struct cl_exporter *ex, struct cl_context *context);

void cl_pool_opens_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of other processes' pools that this process imports by a pointer and frees again.
 *
 * The driver does not count imports: a second import of one pointer gives the same address, and the first
 * free unmaps it (measured).  So we count them, and only the last free goes to the driver.
 *
 * What must hold:
 *  - Until each stream in which the program has freed an import has reached that free, the driver does not
 *    unmap the block, and the exporter does not get it back.  So each stream-ordered free leaves a fence.  If
 *    all earlier fences are reached, the last free goes to the driver at once.  If not, the collector
 *    unmaps when they are.
 *  - A free in a stream cannot be finished at once.  What remains to be done when the stream has reached it is
 *    called its rest: this process gives up its hold, and after the last free the driver unmaps the import.
 *    The collector's thread does the rests that are due, and a free wakes it.  Without that thread each
 *    hooked call does them: cl_collector_called().
 *  - A free for which no fence could be made leaves a rest that is never done: its import stays mapped, as
 *    a block of ours without a fence (cl_block.unfenced) stays in the limbo.
 *  - If only such rests keep the driver from destroying an imported pool, the program's destroy of it returns
 *    CUDA_SUCCESS, and the driver destroys the pool when they are done.
 *  - An import and a free of one pointer are never in the driver together: each takes a turn (turns.h).
 *  - The program's free of an address frees what has come there last.  That is an import, or a block which this
 *    process has exported since, if the driver has unmapped the import without our knowledge.
 *  - With CULIMBO_MODE=observe frees are not counted: each one goes to the driver.
 *
 * Any thread may call these functions.  It must hold no lock of ours, but for those that end in _locked: their
 * caller holds cl_imports_lock.
 */
#ifndef CL_POOL_IMPORTS_H
#define CL_POOL_IMPORTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/blocks/address_filter.h"
#include "shim/driver/driver.h"
#include "shim/importer/turns.h"
#include "shim/shm/layout.h"

struct cl_exporter;
struct cl_mapping;

struct cl_pool_imports {
	struct cl_address_filter filter; /* of the addresses of imports */
	_Atomic uint64_t n;	  /* imports; changed under cl_imports_lock */
	uint64_t came;		  /* how many imports there have ever been; under cl_imports_lock */
	_Atomic uint64_t rests;	  /* of frees with a fence, how many are not done */
};

/* A call to import a pointer, from its begin to its end. */
struct cl_pool_importing {
	struct cl_exporter *ex;
	struct cl_turn turn;
	CUmemoryPool pool;
	/*
	 * If this process has exported the block itself, the block's stamp, for which cl_pool_own_open() was
	 * called.  Else its .file_id is 0.
	 */
	struct cl_stamp own;
	bool added; /* cl_pool_import_added_locked() was called, so the turn is over */
	bool told;  /* the import was reported as stale, so that nothing more is to be said of it */
};
/*
 * A cl_open_added_fn for cl_open_pool_end().  The driver has mapped an import, which was added to the mappings as
 * @mapping, or @mapping is NULL if there was no memory.  From now on a free of its address finds it.  Ends the turn.
 * All imports at one address together keep a block of this process open once: so if an earlier one does that already,
 * @importing->own stays set, and the caller must close it.
 */
void cl_pool_import_added_locked(struct cl_mapping *mapping, void *importing);
/* Returns true if some import is open at @address. */
bool cl_pool_import_is_open(CUdeviceptr address);
/* Returns the import that came to @address last, or NULL if there is none or a block of ours has come there since. */
struct cl_pool_import *cl_pool_import_find_locked(CUdeviceptr address);

/*
 * The program frees @dptr, by cuMemFree(), or in @stream by @bare, the form of cuMemFreeAsync() that it called.
 * Returns false if there is no import at @dptr: then nothing was done.  Else *result is what the program gets, and
 * *wake becomes true if the caller must have the collector run soon; the caller has set it to false.
 */
bool cl_pool_import_free(struct cl_exporter *ex, CUdeviceptr dptr, CUresult *result, bool *wake);
bool cl_pool_import_free_async(struct cl_exporter *ex, CUdeviceptr dptr, CUstream stream, bool per_thread,
			       CUresult (*bare)(CUdeviceptr, CUstream), CUresult *result, bool *wake);
/*
 * any_of() returns false if this process certainly has no import of a pool's block.  may_be() returns false if it
 * certainly has none at @address.  They take no lock.
 */
static inline bool cl_pool_imports_any_of(const struct cl_pool_imports *imports)
{
	/* relaxed: a thread that frees what another has imported has synchronised with it */
	return atomic_load_explicit(&imports->n, memory_order_relaxed) != 0;
}
static inline bool cl_pool_import_may_be(const struct cl_pool_imports *imports, CUdeviceptr address)
{
	return __builtin_expect(cl_pool_imports_any_of(imports), 0) && cl_block_may_be(&imports->filter, address);
}
#define cl_pool_imports_any(ex) cl_pool_imports_any_of(&(ex)->pool_imports)
/* This process is about to export a block at @address: so an import that we know there was unmapped past our hooks. */
void cl_pool_import_cover(struct cl_exporter *ex, CUdeviceptr address);
/* The program frees @dptr, where no import is open.  If one was closed there lately, reports a second close. */
void cl_pool_import_freed_again(CUdeviceptr dptr);

/*
 * This process imports a block that it has exported itself.  The driver allows that, and maps it at another address
 * (measured).  open() keeps the block from the driver until close() was called with the same @stamp as often as
 * open().  open() returns 0, or -ESTALE if the generation of @stamp is over or @handle, the export data in the form
 * of a handle, is not the block's.  close() returns true if the block may go now: the caller wakes the collector.
 */
int cl_pool_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle);
bool cl_pool_own_close(struct cl_exporter *ex, struct cl_stamp stamp);

/* Returns true if some free of an import has a rest, and a fence for it, that is not done yet. */
static inline bool cl_pool_imports_any_left_of(const struct cl_pool_imports *imports)
{
	return atomic_load(&imports->rests) != 0;
}
#define cl_pool_imports_any_left(ex) cl_pool_imports_any_left_of(&(ex)->pool_imports)
/*
 * Does the rests whose fences were reached.  Each collection calls it.  Returns true if a block of this process may
 * have come free.
 */
bool cl_pool_imports_passed(struct cl_exporter *ex);

#endif

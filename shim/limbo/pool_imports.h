/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of other processes' pools that this process has imported by a pointer, and frees again.
 *
 * The driver does not count imports: the second of one pointer gives the same address, and the first
 * free unmaps it (measured).  So we count them, and the driver unmaps at the last free.
 *
 * What must hold:
 *  - The driver does not unmap, and the exporter does not get its block back, before every stream in
 *    which the program has freed an import has reached that free.  So each stream-ordered free
 *    leaves a fence.  The last free goes to the driver at once if no earlier one has a fence that is
 *    still to be reached; else the collector unmaps when all are.
 *  - A free in a stream cannot be finished at once.  What remains to be done is called its rest: when
 *    the stream has reached the free, the exporter gets its hold back.  If it was the last counted
 *    free, the driver unmaps the import.  The collector's thread does the rests that are due, and a
 *    free wakes it.  Without that thread each hooked call does them: cl_collector_called().
 *    A free for which no fence could be made leaves a rest that is never done: its import stays mapped, as
 *    an own block without a fence (cl_block.unfenced) stays in the limbo.
 *  - While only such rests keep the driver from destroying an imported pool, the program's destroy
 *    gives 0, and the driver destroys it when they are done.
 *  - An import and a free of one pointer are never in the driver together.  Each takes a turn (turns.h).
 *  - A free at an address goes to what has come there last: an import, or a block that this process
 *    has exported since, if the driver unmapped the import past us.
 *  - With CULIMBO_MODE=observe nothing is counted: each free goes to the driver.
 *
 * Any thread may call these functions, without a lock of ours.  The caller of one that ends in
 * _locked holds cl_imports_lock.
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
	uint64_t ending;	  /* imported pools that end when their imports are unmapped; under cl_imports_lock */
	struct cl_address_filter filter; /* of the addresses of imports */
	_Atomic uint64_t n;	  /* imports; changed under cl_imports_lock */
	uint64_t came;		  /* how many imports there were at all; under cl_imports_lock */
	_Atomic uint64_t rests;	  /* how many are not done */
};

/* An import that is in the driver. */
struct cl_pool_importing {
	struct cl_exporter *ex;
	struct cl_turn turn;
	CUmemoryPool pool;
	/*
	 * The stamp of the block, if this process exported it: cl_pool_own_open() has then opened it.  Else
	 * .file_id is 0.
	 */
	struct cl_stamp own;
	bool added;
};
/*
 * The driver has mapped an import, which cl_open_pool_end() has added to the mappings as @mapping; NULL: it
 * had no memory for that.  Ends the turn.  From now on a free of its address is found.  @importing->own stays set if
 * the caller must close it: a block of our own is open once for all imports at one address.  A
 * cl_open_added_fn.
 */
void cl_pool_import_added_locked(struct cl_mapping *mapping, void *importing);
/* Returns true if some import is open at @address. */
bool cl_pool_import_is_open(CUdeviceptr address);
/* Returns what was imported at @address last, or NULL. */
struct cl_pool_import *cl_pool_import_find_locked(CUdeviceptr address);

/*
 * The program frees @dptr by cuMemFree(), or in @stream by @bare, a form of cuMemFreeAsync().  Returns
 * false if no import is open there, having done nothing.  Else *result is what the program gets, and
 * *wake, false before, is true if the caller must have the collector run soon.
 */
bool cl_pool_import_free(struct cl_exporter *ex, CUdeviceptr dptr, CUresult *result, bool *wake);
bool cl_pool_import_free_async(struct cl_exporter *ex, CUdeviceptr dptr, CUstream stream, bool per_thread,
			       CUresult (*bare)(CUdeviceptr, CUstream), CUresult *result, bool *wake);
/*
 * Returns false if this process certainly has no import that it could free; and none at @address.  Takes
 * no lock.
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
/* This process is about to export a block at @address: an import there was unmapped past us. */
void cl_pool_import_cover(struct cl_exporter *ex, CUdeviceptr address);
/* The program frees @dptr, and no import is open there: reports that if its last import was closed lately. */
void cl_pool_import_freed_again(CUdeviceptr dptr);

/*
 * This process imports a block of its own, which the driver allows and maps at another address
 * (measured).  open() has the block kept until close() is called with the same stamp; as many
 * closes as opens.  open() returns 0, or -ESTALE if the driver may have the block back.  @handle:
 * the data in the form of a handle.  close() returns true if the collector has something to do.
 */
int cl_pool_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle);
bool cl_pool_own_close(struct cl_exporter *ex, struct cl_stamp stamp);

/* Returns true if some free of an import has left something that is not done yet. */
static inline bool cl_pool_imports_any_left_of(const struct cl_pool_imports *imports)
{
	return atomic_load(&imports->rests) != 0;
}
#define cl_pool_imports_any_left(ex) cl_pool_imports_any_left_of(&(ex)->pool_imports)
/*
 * The program destroys the imported @pool, which the driver has refused.  Returns true if only frees
 * that we keep back are the reason: the driver destroys it after them.
 */
bool cl_pool_imports_destroy_later(struct cl_exporter *ex, CUmemoryPool pool);

/*
 * Does what is due for imports whose fences were reached.  A collection calls it.  Returns true if a
 * block of our own may have come free.
 */
bool cl_pool_imports_passed(struct cl_exporter *ex);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of imported pools: see pool_ends.h. */
#include "shim/importer/mappings.h"
#include "shim/importer/pool_uses.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/pool_ends.h"
#include "shim/limbo/pool_imports.h"
#include "shim/self/self.h"

/* The imports of one pool, by what the program has done with them. */
struct imports {
	uint64_t open;	/* by the program, which has not freed them */
	uint64_t left;	/* known to the driver at all */
};

/* Counts the imports of @pool.  Takes no turn. */
static struct imports count_locked(CUmemoryPool pool, bool await)
{
	struct imports n = { 0 };
	struct cl_mapping *mapping;
	struct cl_link *oldest, *next;

	CL_TABLE_EACH (&cl_mappings[CL_POOL], oldest, next)
		CL_CHAIN_EACH (mapping, (struct cl_mapping *)oldest, struct cl_mapping, node) {
			struct cl_pool_import *import = (struct cl_pool_import *)mapping;

			if (import->pool != pool || import->phase == CL_IMPORT_COVERED)
				continue;
			import->awaited |= await;
			n.left++;
			n.open += import->phase == CL_IMPORT_OPEN && mapping->opens > import->by_handle;
		}
	return n;
}

static bool program_has_one_open(CUmemoryPool pool)
{
	bool has;

	cl_lock(&cl_imports_lock);
	has = count_locked(pool, false).open;
	cl_unlock(&cl_imports_lock);
	return has;
}

/*
 * The driver has refused to destroy @pool for @user.  Returns true if the only reason is that we keep frees back: then the
 * driver will destroy it after these.  Returns false if the program still has an import of @pool open, or without memory.
 */
static bool destroy_later(struct cl_exporter *ex, enum cl_pool_user user, CUmemoryPool pool)
{
	struct imports n;
	bool later;

	cl_lock(&cl_imports_lock);
	n = count_locked(pool, false);
	cl_lock(&cl_exports_lock);
	/* the use is over before the last of these frees can be done: both need one of the locks */
	later = cl_own_pool_destroy_imported(&ex->blocks.own_pools, (uint64_t)(uintptr_t)pool, n.open ? 0 : n.left);
	if (later)
		cl_pool_use_postpone_locked(user, pool);
	cl_unlock(&cl_exports_lock);
	if (later)
		count_locked(pool, true);
	cl_unlock(&cl_imports_lock);
	return later;
}

static bool is_ending(struct cl_exporter *ex, CUmemoryPool pool)
{
	bool ends;

	cl_lock(&cl_exports_lock);
	ends = cl_own_pool_is_ending(&ex->blocks.own_pools, (uint64_t)(uintptr_t)pool);
	cl_unlock(&cl_exports_lock);
	return ends;
}

/*
 * Returns true if the driver is to destroy @pool later already, because it was destroyed before and frees are kept back.
 * Then the use of @user is over as well, if it has one: *over.
 */
static bool ends_already(struct cl_exporter *ex, enum cl_pool_user user, CUmemoryPool pool, bool *over)
{
	bool ends;

	cl_lock(&cl_imports_lock);
	cl_lock(&cl_exports_lock);
	ends = cl_own_pool_is_ending(&ex->blocks.own_pools, (uint64_t)(uintptr_t)pool);
	*over = ends && cl_pool_use_postpone_locked(user, pool);
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
	return ends;
}

CUresult cl_pool_end_programs(struct cl_exporter *ex, CUmemoryPool pool)
{
	bool over, refused;
	CUresult result;

	/* the driver would refuse it, but is not asked */
	if ((is_ending(ex, pool) || cl_pool_use_ends_without_driver(pool)) && program_has_one_open(pool))
		return CUDA_ERROR_INVALID_VALUE;
	/* it was destroyed before: that counts only if the program has imported it again since */
	if (ends_already(ex, CL_POOL_PROGRAM, pool, &over))
		return over ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	result = cl_pool_use_end(CL_POOL_PROGRAM, pool, &refused);
	if (result != CUDA_ERROR_INVALID_VALUE || !refused || !cl_pool_imports_any_left(ex))
		return result;
	/* a collection unmaps the imports whose streams have reached their frees */
	cl_limbo_collect(ex, false);
	if (destroy_later(ex, CL_POOL_PROGRAM, pool))
		return CUDA_SUCCESS;
	return cl_pool_use_end(CL_POOL_PROGRAM, pool, &refused);
}

void cl_pool_end_later(struct cl_exporter *ex, CUmemoryPool pool)
{
	bool over;

	/* if there is nothing to wait for, the import is owed, and the end of the pool's next user destroys it */
	if (!ends_already(ex, CL_POOL_OPENS, pool, &over) && !destroy_later(ex, CL_POOL_OPENS, pool))
		cl_pool_use_destroy_owed(pool);
}

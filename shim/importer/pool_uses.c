/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses imported pools: see pool_uses.h. */
#include <stdlib.h>

#include "shim/base/log.h"
#include "shim/base/table.h"
#include "shim/importer/pool_uses.h"
#include "shim/importer/turns.h"
#include "shim/self/self.h"

/* An imported pool.  Only the thread that has the turn adds, changes or removes one. */
struct use {
	struct cl_link link; /* its key: the pool's handle */
	uint64_t opens;	     /* imports of ours whose use is not over */
	uint64_t program;    /* likewise, of the program */
	uint64_t imports;    /* that the driver counts.  Those over both others are owed: the driver is to destroy them */
};
static struct cl_table uses = CL_TABLE_BEGIN(uses); /* under cl_imports_lock */

/* Even, so that it is no key of a pointer's turn (cl_turn_key()), nor of a pool's (imported_pools.c). */
enum { TURN = 2 };

static uint64_t key_of(CUmemoryPool pool)
{
	return (uint64_t)(uintptr_t)pool;
}

static struct use *find_locked(CUmemoryPool pool)
{
	struct cl_link *link = cl_table_find(&uses, key_of(pool));

	while (link && link->key != key_of(pool))
		link = link->next;
	return (struct use *)(void *)link;
}

static struct use *find(CUmemoryPool pool)
{
	struct use *use;

	cl_lock(&cl_imports_lock);
	use = find_locked(pool);
	cl_unlock(&cl_imports_lock);
	return use;
}

/* Counts an import of @pool, which the driver has given @user.  Returns @fresh if that was not needed, else NULL. */
static struct use *count_locked(enum cl_pool_user user, CUmemoryPool pool, struct use *fresh)
{
	struct use *use = find_locked(pool);

	if (!use) {
		use = fresh;
		fresh = NULL;
		use->link.key = key_of(pool);
		cl_table_add(&uses, &use->link);
	}
	use->imports++;
	if (user == CL_POOL_PROGRAM)
		use->program++;
	else
		use->opens++;
	return fresh;
}

CUresult cl_pool_use_begin(enum cl_pool_user user, CUmemoryPool *pool, void *shareable,
			   CUmemAllocationHandleType type, unsigned long long flags)
{
	struct use *fresh = calloc(1, sizeof *fresh);
	struct cl_turn turn;
	CUresult result;

	if (!fresh)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cl_turn_begin(&turn, TURN);
	result = cl_driver.cuMemPoolImportFromShareableHandle(pool, shareable, type, flags);
	cl_lock(&cl_imports_lock);
	if (result == CUDA_SUCCESS)
		fresh = count_locked(user, *pool, fresh);
	cl_turn_end_locked(&turn);
	cl_unlock(&cl_imports_lock);
	free(fresh);
	return result;
}

/* True if the driver is to destroy imports of @use: none of our opens maps a block of the pool, so it may not refuse. */
static bool owes(const struct use *use)
{
	return !use->opens && use->imports > use->program;
}

/* Has the driver destroy what @use owes.  The caller has the turn. */
static CUresult destroy(struct use *use, bool *refused)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)use->link.key;
	CUresult result;

	while (owes(use)) {
		result = cl_driver.cuMemPoolDestroy(pool);
		*refused = result != CUDA_SUCCESS;
		if (*refused) {
			cl_log(CL_LOG_DEBUG, "the driver does not destroy the imported memory pool %#llx yet (CUDA error %d)",
			       (unsigned long long)use->link.key, (int)result);
			return result;
		}
		cl_lock(&cl_imports_lock);
		use->imports--;
		cl_unlock(&cl_imports_lock);
	}
	if (!use->imports) {
		cl_lock(&cl_imports_lock);
		cl_table_remove(&uses, &use->link);
		cl_unlock(&cl_imports_lock);
		free(use);
	}
	return CUDA_SUCCESS;
}

static void add_program(struct use *use, int by)
{
	cl_lock(&cl_imports_lock);
	use->program += (uint64_t)by;
	cl_unlock(&cl_imports_lock);
}

/* Does cl_pool_use_end() in the turn. */
static CUresult end(enum cl_pool_user user, struct use *use, bool *refused)
{
	CUresult result;

	if (user == CL_POOL_PROGRAM && !use->program)
		return CUDA_ERROR_INVALID_VALUE;
	cl_lock(&cl_imports_lock);
	if (user == CL_POOL_PROGRAM)
		use->program--;
	else if (use->opens)
		use->opens--;
	cl_unlock(&cl_imports_lock);
	result = destroy(use, refused);
	if (*refused && user == CL_POOL_PROGRAM)
		add_program(use, 1);
	return result;
}

CUresult cl_pool_use_end(enum cl_pool_user user, CUmemoryPool pool, bool *refused)
{
	struct use *use = find(pool);
	struct cl_turn turn;
	CUresult result;

	*refused = false;
	/* a pool of this process, which no import concerns, needs no turn */
	if (use) {
		cl_turn_begin(&turn, TURN);
		use = find(pool);
		result = use ? end(user, use, refused) : CUDA_SUCCESS;
		cl_turn_end(&turn);
	}
	if (use)
		return result;
	result = cl_driver.cuMemPoolDestroy(pool);
	*refused = result != CUDA_SUCCESS;
	return result;
}

void cl_pool_use_leave(CUmemoryPool pool)
{
	struct cl_turn turn;
	struct use *use;

	cl_turn_begin(&turn, TURN);
	use = find(pool);
	if (use && use->program)
		add_program(use, -1);
	cl_turn_end(&turn);
}

CUresult cl_pool_use_destroy_unused(CUmemoryPool pool)
{
	CUresult result = CUDA_SUCCESS;
	bool refused = false;
	struct cl_turn turn;
	struct use *use;

	if (!find(pool))
		return cl_driver.cuMemPoolDestroy(pool);
	cl_turn_begin(&turn, TURN);
	use = find(pool);
	if (!use)
		result = cl_driver.cuMemPoolDestroy(pool);
	else
		result = destroy(use, &refused);
	cl_turn_end(&turn);
	return result;
}

/* Writes what is known of @pool to @copy.  Returns false if nothing is. */
static bool look(CUmemoryPool pool, struct use *copy)
{
	const struct use *use;

	cl_lock(&cl_imports_lock);
	use = find_locked(pool);
	if (use)
		*copy = *use;
	cl_unlock(&cl_imports_lock);
	return use;
}

bool cl_pool_use_is_programs(CUmemoryPool pool)
{
	struct use use;

	return look(pool, &use) && use.program;
}

bool cl_pool_use_ends_without_driver(CUmemoryPool pool)
{
	struct use use;

	return look(pool, &use) && use.program && use.opens;
}

void cl_pool_uses_forget(void)
{
	uses = (struct cl_table)CL_TABLE_BEGIN(uses);
}

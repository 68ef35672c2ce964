/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses imported pools: see pool_uses.h. */
#include <stdlib.h>

#include "shim/base/log.h"
#include "shim/base/table.h"
#include "shim/importer/pool_uses.h"
#include "shim/self/self.h"

/* An imported pool. */
struct use {
	struct cl_link link; /* its key: the pool's handle */
	uint64_t opens;	     /* imports of ours whose use is not over */
	uint64_t program;    /* likewise, of the program */
	uint64_t later;	     /* imports whose use is over, and that cl_pool_use_destroy_postponed() is to destroy */
	uint64_t destroying; /* imports that a thread is just having destroyed */
	uint64_t imports;    /* all that the driver counts; those over the others are owed: the driver is to destroy them */
};
static struct cl_table uses = CL_TABLE_BEGIN(uses); /* under cl_imports_lock */

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

/* Counts an import of @pool, which the driver has given @user.  Returns @fresh if that was not needed, else NULL. */
static struct use *count_locked(enum cl_pool_user user, CUmemoryPool pool, struct use *fresh)
{
	struct use *use = find_locked(pool);

	if (!use) {
		use = fresh;
		fresh = NULL;
		if (!use) /* no memory: its destroy goes to the driver, too */
			return NULL;
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
	CUresult result = cl_driver.cuMemPoolImportFromShareableHandle(pool, shareable, type, flags);
	struct use *fresh;

	if (result != CUDA_SUCCESS)
		return result;
	fresh = calloc(1, sizeof *fresh);
	cl_lock(&cl_imports_lock);
	fresh = count_locked(user, *pool, fresh);
	cl_unlock(&cl_imports_lock);
	free(fresh);
	return result;
}

/* Returns how many imports of @use are owed. */
static uint64_t owed(const struct use *use)
{
	return use->imports - use->opens - use->program - use->later - use->destroying;
}

/* Has the driver destroy what @use owes.  Releases the lock meanwhile, and may free @use.  Returns the first refusal. */
static CUresult destroy_locked(struct use *use)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)use->link.key;
	CUresult result = CUDA_SUCCESS;

	/* while our opens map blocks of the pool it would refuse */
	while (result == CUDA_SUCCESS && !use->opens && owed(use)) {
		use->destroying++; /* nobody else frees @use meanwhile */
		cl_unlock(&cl_imports_lock);
		result = cl_driver.cuMemPoolDestroy(pool);
		if (result != CUDA_SUCCESS)
			cl_log(CL_LOG_DEBUG, "the driver does not destroy the imported memory pool %#llx yet (CUDA error %d)",
			       (unsigned long long)key_of(pool), (int)result);
		cl_lock(&cl_imports_lock);
		use->destroying--;
		use->imports -= result == CUDA_SUCCESS;
	}
	if (!use->imports && !use->destroying) {
		cl_table_remove(&uses, &use->link);
		free(use);
	}
	return result;
}

CUresult cl_pool_use_end(enum cl_pool_user user, CUmemoryPool pool, bool *refused)
{
	CUresult result;
	struct use *use;

	cl_lock(&cl_imports_lock);
	use = find_locked(pool);
	if (!use) {
		cl_unlock(&cl_imports_lock);
		result = cl_driver.cuMemPoolDestroy(pool);
		*refused = result != CUDA_SUCCESS;
		return result;
	}
	*refused = false;
	if (user == CL_POOL_PROGRAM && !use->program) {
		cl_unlock(&cl_imports_lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (user == CL_POOL_PROGRAM)
		use->program--;
	else if (use->opens)
		use->opens--;
	result = destroy_locked(use);
	*refused = result != CUDA_SUCCESS;
	/* what the driver has refused to destroy is still there, and so is @use */
	if (*refused && user == CL_POOL_PROGRAM)
		use->program++;
	cl_unlock(&cl_imports_lock);
	return result;
}

bool cl_pool_use_postpone_locked(enum cl_pool_user user, CUmemoryPool pool)
{
	struct use *use = find_locked(pool);

	if (!use || !(user == CL_POOL_PROGRAM ? use->program : owed(use)))
		return false;
	if (user == CL_POOL_PROGRAM)
		use->program--;
	use->later++;
	return true;
}

CUresult cl_pool_use_destroy_owed(CUmemoryPool pool)
{
	CUresult result = CUDA_SUCCESS;
	struct use *use;

	cl_lock(&cl_imports_lock);
	use = find_locked(pool);
	if (use)
		result = destroy_locked(use);
	cl_unlock(&cl_imports_lock);
	return result;
}

CUresult cl_pool_use_destroy_postponed(CUmemoryPool pool)
{
	struct use *use;

	cl_lock(&cl_imports_lock);
	use = find_locked(pool);
	if (use)
		use->later = 0;
	cl_unlock(&cl_imports_lock);
	return use ? cl_pool_use_destroy_owed(pool) : cl_driver.cuMemPoolDestroy(pool);
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

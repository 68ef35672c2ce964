/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses the pools of other processes that this process has imported: the program, which imported a pool by its
 * descriptor, or our opens of legacy handles (imported_pools.h), or both.
 *
 * The driver gives a pool that is imported already the same handle once more, and counts: the last destroy ends it.  But
 * it refuses to destroy while any block of the pool is imported in this process, whoever has imported it (both measured,
 * doc/measurements.md).  So the program would get refusals because of our opens, and we because of the program's.
 *
 * What must hold:
 *  - The program's destroy succeeds while our opens use the pool; the driver does it after the last of them.
 *  - Each import is destroyed once.  A destroy of ours that the driver refuses is owed, and done with the next one.
 *  - If the program alone imports a pool, each of its calls reaches the driver as without culimbo.
 *
 * Any thread may call these functions.  It must hold no lock of ours.  Fork: cl_pool_uses_forget().
 */
#ifndef CL_POOL_USES_H
#define CL_POOL_USES_H

#include <stdbool.h>
#include "shim/driver/driver.h"

enum cl_pool_user { CL_POOL_PROGRAM, CL_POOL_OPENS };

/* Has the driver import a pool, as cuMemPoolImportFromShareableHandle(), and counts it for @user. */
CUresult cl_pool_use_begin(enum cl_pool_user user, CUmemoryPool *pool, void *shareable,
			   CUmemAllocationHandleType type, unsigned long long flags);
/*
 * Ends a use by @user.  Returns CUDA_SUCCESS if it is over; the driver has then destroyed @pool if nobody else uses it.
 * Returns CUDA_ERROR_INVALID_VALUE if others use @pool and @user does not.  Else returns the driver's refusal, and sets
 * *refused: then the program still has its use; ours is over, and its import is owed, so that the next end destroys it.
 */
CUresult cl_pool_use_end(enum cl_pool_user user, CUmemoryPool pool, bool *refused);
/*
 * The program's use of @pool, or one of ours that the driver has refused to destroy, is over, and its import waits for
 * destroy_postponed().  Returns false if there is no such use.  The caller holds cl_imports_lock.
 */
bool cl_pool_use_postpone_locked(enum cl_pool_user user, CUmemoryPool pool);
/* Has the driver destroy the postponed imports of @pool, and what is owed.  A pool that nobody has imported is destroyed. */
CUresult cl_pool_use_destroy_postponed(CUmemoryPool pool);
/* Has the driver destroy what is owed of @pool, if anything. */
CUresult cl_pool_use_destroy_owed(CUmemoryPool pool);

/* Returns true if the program uses @pool. */
bool cl_pool_use_is_programs(CUmemoryPool pool);
/* Returns true if the end of the program's use of @pool would not go to the driver. */
bool cl_pool_use_ends_without_driver(CUmemoryPool pool);

void cl_pool_uses_forget(void); /* in a forked child */

#endif

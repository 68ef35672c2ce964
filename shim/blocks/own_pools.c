/* SPDX-License-Identifier: Apache-2.0 */
/* The memory pools of which this process has exported blocks: see own_pools.h. */
#include <stdlib.h>

#include "shim/base/descriptor.h"
#include "shim/blocks/own_pools.h"
#include "shim/self/self.h"

static struct cl_list *list_of(struct cl_own_pools *pools, uint8_t phase)
{
	switch (phase) {
	case CL_OWN_POOL_LIVE:
		return &pools->live;
	case CL_OWN_POOL_ENDING:
		return &pools->ending;
	case CL_OWN_POOL_READY:
		return &pools->ready;
	default:
		return NULL;
	}
}

static void drop_kept(struct cl_own_pools *pools, struct cl_own_pool *pool)
{
	if (!pool->kept.ino)
		return;
	cl_list_remove(&pools->keeping, &pool->keeps);
	cl_own_fd_close(&pool->kept);
	pool->kept = (struct cl_own_fd){ .fd = -1 };
}

/* Moves @pool to @phase, and frees it if nothing leads to it any more. */
static void set_phase(struct cl_own_pools *pools, struct cl_own_pool *pool, enum cl_own_pool_phase phase)
{
	struct cl_list *from = list_of(pools, pool->phase), *to = list_of(pools, phase);

	if (from)
		cl_list_remove(from, &pool->node);
	pool->phase = (uint8_t)phase;
	if (to)
		cl_list_add(to, &pool->node);
	else if (!pool->blocks) {
		drop_kept(pools, pool);
		free(pool);
	}
}

static struct cl_own_pool *find(const struct cl_list *list, uint64_t handle)
{
	struct cl_own_pool *pool;

	CL_LIST_EACH (pool, list, struct cl_own_pool, node)
		if (pool->handle == handle)
			break;
	return pool;
}

struct cl_own_pool *cl_own_pool_get(struct cl_own_pools *pools, uint64_t handle)
{
	struct cl_own_pool *pool = handle ? find(&pools->live, handle) : NULL;

	if (!pool && handle) {
		pool = calloc(1, sizeof *pool);
		if (pool) {
			pool->handle = handle;
			cl_list_add(&pools->live, &pool->node);
		}
	}
	if (pool)
		pool->blocks++;
	return pool;
}

void cl_own_pool_put(struct cl_own_pools *pools, struct cl_own_pool *pool)
{
	/* an ENDING pool becomes READY, and cl_own_pool_take_ready() frees that */
	if (pool && !--pool->blocks && (pool->phase == CL_OWN_POOL_LIVE || pool->phase == CL_OWN_POOL_DEAD))
		set_phase(pools, pool, CL_OWN_POOL_DEAD);
}

void cl_own_pool_entered(struct cl_own_pool *pool)
{
	if (pool)
		pool->in_limbo++;
}

void cl_own_pool_left(struct cl_own_pools *pools, struct cl_own_pool *pool)
{
	if (pool && !--pool->in_limbo && pool->phase == CL_OWN_POOL_ENDING)
		set_phase(pools, pool, CL_OWN_POOL_READY);
}

bool cl_own_pool_would_wait(const struct cl_own_pools *pools, uint64_t handle)
{
	const struct cl_own_pool *pool = find(&pools->live, handle);

	return pool && pool->in_limbo && !cl_own_pool_is_ending(pools, handle);
}

enum cl_own_pool_end cl_own_pool_destroy(struct cl_own_pools *pools, uint64_t handle,
					 struct cl_own_pool **pool)
{
	*pool = NULL;
	if (cl_own_pool_is_ending(pools, handle))
		return CL_OWN_POOL_AGAIN;
	*pool = find(&pools->live, handle);
	if (!*pool)
		return CL_OWN_POOL_NOW;
	if ((*pool)->in_limbo) {
		(*pool)->in_limbo++;
		set_phase(pools, *pool, CL_OWN_POOL_ENDING);
		return CL_OWN_POOL_LATER;
	}
	(*pool)->blocks++; /* it stays LIVE until the driver has answered */
	return CL_OWN_POOL_NOW;
}

void cl_own_pool_destroyed(struct cl_own_pools *pools, struct cl_own_pool *pool, bool gone)
{
	if (!pool)
		return;
	if (gone && pool->phase == CL_OWN_POOL_LIVE)
		set_phase(pools, pool, CL_OWN_POOL_DEAD);
	cl_own_pool_put(pools, pool);
}

bool cl_own_pool_is_ending(const struct cl_own_pools *pools, uint64_t handle)
{
	return find(&pools->ending, handle) || find(&pools->ready, handle);
}

bool cl_own_pool_destroy_imported(struct cl_own_pools *pools, uint64_t handle, uint64_t imports)
{
	struct cl_own_pool *pool = imports && !find(&pools->ending, handle) ? calloc(1, sizeof *pool) : NULL;

	if (!pool)
		return false;
	pool->handle = handle;
	pool->in_limbo = imports;
	pool->phase = CL_OWN_POOL_ENDING;
	cl_list_add(&pools->ending, &pool->node);
	return true;
}

bool cl_own_pool_keep(struct cl_own_pools *pools, uint64_t handle, int fd)
{
	struct cl_own_pool *pool = find(&pools->live, handle);

	if (!pool)
		return false;
	drop_kept(pools, pool);
	if (fd >= 0)
		pool->kept = cl_own_fd_of(cl_fd_move_high(fd, &cl_self_known.room));
	if (pool->kept.ino)
		cl_list_add(&pools->keeping, &pool->keeps);
	return true;
}

void cl_own_pools_forget(struct cl_own_pools *pools)
{
	struct cl_own_pool *pool = CL_LIST_FIRST(&pools->keeping, struct cl_own_pool, keeps);

	/* bounded: a child without fork handlers may have got the list half changed */
	for (uint64_t n = pools->keeping.n; pool && n; n--) {
		cl_own_fd_close(&pool->kept);
		pool = CL_LIST_NEXT(pool, struct cl_own_pool, keeps);
	}
}

void cl_own_pool_left_imported(struct cl_own_pools *pools, uint64_t handle)
{
	cl_own_pool_left(pools, find(&pools->ending, handle));
}

uint64_t cl_own_pool_take_ready(struct cl_own_pools *pools)
{
	struct cl_own_pool *pool = CL_LIST_FIRST(&pools->ready, struct cl_own_pool, node);
	uint64_t handle = pool ? pool->handle : 0;

	if (pool)
		set_phase(pools, pool, CL_OWN_POOL_DEAD);
	return handle;
}

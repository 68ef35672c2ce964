/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process under torture: stream-ordered memory shared by legacy handles, which culimbo makes with CULIMBO_SHARE=all.
 *
 * An exporter allocates from the default pool, or from one of two pools of its own that it has not asked to be
 * shareable.  One of these keeps freed memory, the other returns it.  Now and then it destroys one, with blocks of it
 * alive, in limbos and open.  It frees blocks in the order of a busy stream, too.  Any process opens the handles, as
 * those of other memory.
 *
 * It checks: An exporter without the option is refused as without culimbo.  A copy that is queued before the
 * exporter's free reads the block.  At the end the default pool of every second process, which frees its blocks by
 * cuMemFreeAsync() alone, has got each block back.
 */
#include "tests/torture/player.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLAYER_FILE PLAYER_ASYNC

enum { OWN_POOLS = 2, COPIED = 512 /* words */ };

static CUmemoryPool own_pools[OWN_POOLS]; /* NULL: none */
static uint64_t copied[COPIED];

bool shares_all(void)
{
	const char *share = getenv("CULIMBO_SHARE");

	return share && !strcmp(share, "all");
}

/* ------------------------------------------------------------------------- pools */
static void end_pool(uint32_t number)
{
	if (!own_pools[number])
		return;
	free_blocks_from(own_pools[number]);
	SURE(cu.cuMemPoolDestroy(own_pools[number]));
	own_pools[number] = NULL;
	COUNT(async_ended);
}

void end_async(void)
{
	for (uint32_t i = 0; i < OWN_POOLS; i++)
		end_pool(i);
}

/* Pool 0 keeps all freed memory, pool 1 none. */
static CUmemoryPool own_pool(uint32_t number)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	uint64_t threshold = number ? 0 : UINT64_MAX;

	if (own_pools[number])
		return own_pools[number];
	if (!SURE(cu.cuMemPoolCreate(&own_pools[number], &properties)))
		return own_pools[number] = NULL;
	SURE(cu.cuMemPoolSetAttribute(own_pools[number], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	return own_pools[number];
}

/* Has another threshold set, and reads it again: what culimbo sets is not seen. */
static void play_threshold(CUmemoryPool pool)
{
	uint64_t threshold = dice(3) ? (uint64_t)dice(64) << 20 : UINT64_MAX, is = 1;

	if (!SURE(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold)) ||
	    !SURE(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &is)) || is == threshold)
		return;
	fprintf(stderr, "torture: ERROR %u: a pool's threshold is %llu, and %llu was set\n", here, (unsigned long long)is,
		(unsigned long long)threshold);
	COUNT(errors);
}

void do_async(void)
{
	uint32_t number = dice(OWN_POOLS);
	CUmemoryPool pool = own_pools[number];

	if (!table->asyncs)
		return;
	if (dice(4) == 0 && !SURE(cu.cuDeviceGetDefaultMemPool(&pool, 0)))
		return;
	if (!pool)
		return;
	if (dice(3) == 0)
		play_threshold(pool);
	else if (pool == own_pools[number] && dice(2))
		end_pool(number);
	else
		SURE(cu.cuMemPoolTrimTo(pool, 0));
}

bool is_counted(const struct block *block)
{
	return here % 2 == 0 && block->async && !block->from;
}

/*
 * What the default pool keeps after an export does not go back to the device before the process ends (fact 31).  What
 * cuMemFree() has freed counts as used for good (measured), so only a process that uses it for no block of this pool says
 * what is used.
 */
void async_tell(void)
{
	uint64_t reserved = 0, used = 0;
	CUmemoryPool pool;

	if (!table->asyncs || !SURE(cu.cuDeviceGetDefaultMemPool(&pool, 0)) ||
	    !SURE(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved)) ||
	    !SURE(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used)))
		return;
	atomic_store(&me->pool_used, here % 2 == 0 ? used : 0);
	atomic_store(&me->pool_kept, reserved);
}

/* ------------------------------------------------------------------------- blocks */
CUresult async_alloc(struct block *block, uint64_t bytes)
{
	uint32_t from = dice(OWN_POOLS + 2);
	CUmemoryPool pool = from < OWN_POOLS ? own_pool(from) : NULL;
	CUresult result;

	if (pool)
		result = CALL(cu.cuMemAllocFromPoolAsync(&block->address, bytes, pool, stream));
	else
		result = CALL(cu.cuMemAllocAsync(&block->address, bytes, stream));
	block->from = pool;
	if (!result && !SURE(cu.cuStreamSynchronize(stream)))
		result = CUDA_ERROR_UNKNOWN;
	return result;
}

bool async_export(struct block *block)
{
	CUresult result = CALL(cu.cuIpcGetMemHandle(&block->handle, block->address + dice(2) * (block->bytes / 2)));

	if (!shares_all()) {
		COUNT(async_bare);
		if (result != CUDA_ERROR_INVALID_VALUE)
			complain("cuIpcGetMemHandle of stream-ordered memory, which is not shared here", result);
		return false;
	}
	if (result) {
		complain("cuIpcGetMemHandle of stream-ordered memory", result);
		return false;
	}
	COUNT(async_exports);
	return true;
}

static void CUDA_CB dawdle(void *ms)
{
	usleep((useconds_t)(uintptr_t)ms * 1000);
}

bool async_free_behind_a_copy(const struct block *block)
{
	const struct gift gift = { .place = here, .life = my_life, .serial = block->serial, .kind = GIFT_ASYNC };
	uint64_t words = block->bytes / 8 < COPIED ? block->bytes / 8 : COPIED;
	bool right;

	if (dice(2))
		SURE(cu.cuLaunchHostFunc(stream, dawdle, (void *)(uintptr_t)dice(20)));
	right = SURE(copy_in_stream(copied, block->address, 8 * words, stream)) &&
		SURE(cu.cuMemFreeAsync(block->address, stream)) && SURE(cu.cuStreamSynchronize(stream));
	if (right)
		check_words(copied, words, &gift, "by a copy queued before the exporter's stream-ordered free");
	COUNT(async_copies);
	return right;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process under torture: pools shared by descriptor, and their blocks shared by pointer.
 *
 * An exporter has up to two pools: one keeps freed memory, the other returns it to the driver.  Now and
 * then it destroys one, with blocks of it alive, in limbos and imported.  A pool's descriptor
 * travels with each gift.  An importer imports a pool once, remembers some, and passes them on.
 *
 * Rule: Exporters import no pool blocks.  Without culimbo such pages return only when the importer ends
 * (fact 31), and exporters live until all memory is back.
 */
#include "tests/torture/player.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PLAYER_FILE PLAYER_POOL

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

enum { OWN_POOLS = 2, KNOWN_POOLS = 16, COPIED = 512 /* words */ };

/* A pool of this process or of another. */
struct pool {
	CUmemoryPool handle; /* NULL: none */
	int fd;
	uint32_t place, life;
	uint64_t serial;
};

static struct pool own_pools[OWN_POOLS], known_pools[KNOWN_POOLS];
static uint64_t pools_made;
static uint64_t copied[COPIED];

/* ------------------------------------------------------------------- one's own */
static void end_pool(struct pool *pool)
{
	if (!pool->handle)
		return;
	free_blocks_from(pool->handle);
	SURE(cu.cuMemPoolDestroy(pool->handle));
	close(pool->fd);
	pool->handle = NULL;
	COUNT(pools_ended);
}

void end_pools(void)
{
	for (int i = 0; i < OWN_POOLS; i++)
		end_pool(&own_pools[i]);
}

/* Pool 0 keeps all freed memory, pool 1 none. */
static struct pool *own_pool(uint32_t number)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = POSIX_FD,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	uint64_t threshold = number ? 0 : UINT64_MAX;
	struct pool *pool = &own_pools[number];

	if (pool->handle)
		return pool;
	if (!SURE(cu.cuMemPoolCreate(&pool->handle, &properties))) {
		pool->handle = NULL;
		return NULL;
	}
	if (!SURE(cu.cuMemPoolSetAttribute(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold)) ||
	    !SURE(cu.cuMemPoolExportToShareableHandle(&pool->fd, pool->handle, POSIX_FD, 0)) ||
	    /* else the descriptor, and with it the pool's memory, outlives an exec */
	    fcntl(pool->fd, F_SETFD, FD_CLOEXEC)) {
		cu.cuMemPoolDestroy(pool->handle);
		pool->handle = NULL;
		return NULL;
	}
	pool->place = here;
	pool->life = my_life;
	pool->serial = ++pools_made;
	return pool;
}

CUresult pool_alloc(struct block *block, uint64_t bytes)
{
	bool kept = table->pools == POOLS_KEPT || dice(table->pools == POOLS_MOST ? 2 : 4);
	struct pool *pool = own_pool(!kept);
	CUresult result;

	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY; /* SURE() reports it */
	result = CALL(cu.cuMemAllocFromPoolAsync(&block->address, bytes, pool->handle, stream));
	if (!result && !SURE(cu.cuStreamSynchronize(stream)))
		result = CUDA_ERROR_UNKNOWN;
	block->pool = pool->serial;
	block->from = pool->handle;
	return result;
}

bool pool_export(struct block *block)
{
	CUmemPoolPtrExportData data;

	/* the driver leaves some bytes unset; fill them with garbage */
	memset(&data, (int)dice(256), sizeof(data));
	if (!SURE(cu.cuMemPoolExportPointer(&data, block->address)))
		return false;
	memcpy(&block->handle, &data, sizeof(block->handle));
	return true;
}

void do_pool(void)
{
	struct pool *pool = &own_pools[dice(OWN_POOLS)];

	if (dice(2))
		end_pool(pool);
	else if (pool->handle)
		SURE(cu.cuMemPoolTrimTo(pool->handle, 0));
}

/* -------------------------------------------------------------- in and out of gifts */
static struct pool *find(struct pool *pools, int n, const struct gift *gift)
{
	for (int i = 0; i < n; i++)
		if (pools[i].handle && pools[i].place == gift->place && pools[i].life == gift->life &&
		    pools[i].serial == gift->pool)
			return &pools[i];
	return NULL;
}

int pool_descriptor(const struct gift *gift)
{
	struct pool *pool = find(own_pools, OWN_POOLS, gift);

	if (!pool)
		pool = find(known_pools, KNOWN_POOLS, gift);
	return pool ? pool->fd : -1;
}

static bool in_use(const struct pool *pool)
{
	for (int i = 0; i < IMPORTS; i++)
		if (imports[i].address && imports[i].gift.kind == GIFT_POOL &&
		    find(known_pools, KNOWN_POOLS, &imports[i].gift) == pool)
			return true;
	return false;
}

/* Finds a place for one more pool; a pool without imports is dropped. */
static struct pool *room(void)
{
	struct pool *pool = NULL;

	for (int i = 0; i < KNOWN_POOLS; i++)
		if (!known_pools[i].handle)
			return &known_pools[i];
	for (uint32_t i = dice(KNOWN_POOLS), n = 0; n < KNOWN_POOLS && !pool; i++, n++)
		if (!in_use(&known_pools[i % KNOWN_POOLS]))
			pool = &known_pools[i % KNOWN_POOLS];
	if (!pool)
		return NULL;
	SURE(cu.cuMemPoolDestroy(pool->handle));
	close(pool->fd);
	pool->handle = NULL;
	return pool;
}

void pool_arrived(const struct gift *gift, int fd)
{
	struct pool *pool;
	CUresult result;

	/* an exporter does not use it, and passes it on at once */
	if (exporter()) {
		send_with(gift, EXPORTERS + dice(IMPORTERS), fd);
		close(fd);
		return;
	}
	pool = find(known_pools, KNOWN_POOLS, gift) ? NULL : room();
	if (!pool) {
		close(fd);
		return;
	}
	result = CALL(cu.cuMemPoolImportFromShareableHandle(&pool->handle, (void *)(intptr_t)fd, POSIX_FD, 0));
	if (result) {
		pool->handle = NULL;
		if (gift_alive(gift))
			complain("cuMemPoolImportFromShareableHandle", result);
		close(fd);
		return;
	}
	*pool = (struct pool){ pool->handle, fd, gift->place, gift->life, gift->pool };
}

/* -------------------------------------------------------------------- imports */
bool pool_import(const struct gift *gift, CUdeviceptr *address, CUresult *result)
{
	struct pool *pool = find(known_pools, KNOWN_POOLS, gift);
	CUmemPoolPtrExportData data;

	if (!pool)
		return false;
	memcpy(&data, gift->handle, sizeof(data));
	*result = CALL(cu.cuMemPoolImportPointer(address, pool->handle, &data));
	if (!*result)
		COUNT(pool_imports);
	return true;
}

static void CUDA_CB dawdle(void *ms)
{
	usleep((useconds_t)(uintptr_t)ms * 1000);
}

/* Frees in the order of a busy stream: a copy queued before the free must still read the block. */
static void free_behind_a_copy(const struct import *import)
{
	uint64_t words = import->gift.bytes / 8 < COPIED ? import->gift.bytes / 8 : COPIED;

	if (dice(2))
		SURE(cu.cuLaunchHostFunc(stream, dawdle, (void *)(uintptr_t)dice(20)));
	if (!SURE(copy_in_stream(copied, import->address, 8 * words, stream)) ||
	    !SURE(cu.cuMemFreeAsync(import->address, stream)) || !SURE(cu.cuStreamSynchronize(stream)))
		return;
	COUNT(pool_copies);
	check_words(copied, words, &import->gift, "by a copy queued before its stream-ordered free");
}

void pool_free_import(const struct import *import)
{
	switch (dice(4)) {
	case 0:
	case 1:
		SURE(cu.cuMemFree_v2(import->address));
		break;
	case 2:
		SURE(cu.cuMemFreeAsync(import->address, stream));
		break;
	default:
		free_behind_a_copy(import);
	}
}

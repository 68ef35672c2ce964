/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storm's pools, shared by pointer.  An exporter has one pool for its life.  Each thread of an
 * importer imports it once, and has a pool of its own, whose blocks it also imports.
 *
 * Rules: An exporter's pool exists before the exporter publishes anything.
 * At random a pool keeps the memory of freed blocks, or gives its pages back when it is empty.  If a block of these was
 * exported, neither the pool nor the device can use them until the pool is destroyed (doc/measurements.md: when the
 * device gets a shareable pool's memory back).  Some block of an exporter's pool is nearly always in use.  But the
 * threads of an importer export, free and wait thousands of times a second, and would leave a device without memory.  So
 * an importer's pool keeps its memory from the export number GIVES_BACK on.
 */
#include "tests/torture/storm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* ------------------------------------------------------------------ one's own */
enum { GIVES_BACK = 16 };
static CUmemoryPool own;
static _Atomic unsigned int exports; /* of an importer's pool */

static CUresult keep_memory(void)
{
	uint64_t all = UINT64_MAX;

	return cu.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
}

CUresult pool_make(CUdevice device)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = POSIX_FD,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };
	int fd = -1;
	CUresult result = cu.cuMemPoolCreate(&own, &properties);

	if (!result && dice(2))
		result = keep_memory();
	if (!result)
		result = cu.cuMemPoolExportToShareableHandle(&fd, own, POSIX_FD, 0);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for pidfd_getfd under Yama */
	atomic_store(&me->pool_fd, (uint64_t)getpid() << 32 | (uint32_t)fd);
	return result;
}

/* A pool's descriptor keeps the memory of exported blocks as long as the pool does (measured). */
CUresult pool_end(void)
{
	close((int)(uint32_t)atomic_load(&me->pool_fd));
	return cu.cuMemPoolDestroy(own);
}

CUresult pool_alloc(CUdeviceptr *address)
{
	CUresult result = cu.cuMemAllocFromPoolAsync(address, BYTES, own, NULL);

	return result ? result : cu.cuStreamSynchronize(NULL);
}

CUresult pool_export(CUipcMemHandle *handle, CUdeviceptr address)
{
	CUmemPoolPtrExportData data;
	CUresult result = CUDA_SUCCESS;

	if (here >= EXPORTERS && atomic_fetch_add(&exports, 1) + 1 == GIVES_BACK)
		result = keep_memory();
	memset(&data, 0x77, sizeof(data)); /* the driver leaves some bytes unset; fill them with garbage */
	if (!result)
		result = cu.cuMemPoolExportPointer(&data, address);
	memcpy(handle, &data, sizeof(*handle));
	return result;
}

/* -------------------------------------------------------------------- others' */
static pthread_mutex_t taken_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	CUmemoryPool pool; /* NULL: none */
	uint32_t life;
} taken[PLACES];

/* Returns the pool of @place in its life @life, or NULL when that life has ended. */
static CUmemoryPool take(uint32_t place, uint32_t life)
{
	struct place *from = &table->place[place];
	uint64_t where = atomic_load(&from->pool_fd);
	int pidfd, fd;

	if (taken[place].pool && taken[place].life == life)
		return taken[place].pool;
	pidfd = (int)syscall(SYS_pidfd_open, (pid_t)(where >> 32), 0);
	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, (int)(uint32_t)where, 0);
	if (pidfd >= 0)
		close(pidfd);
	/* it is still that life, so the descriptor belongs to it */
	if (fd < 0 || (atomic_load(&from->life) & 0xffff) != life || atomic_load(&from->pool_fd) != where) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	if (cu.cuMemPoolImportFromShareableHandle(&taken[place].pool, (void *)(intptr_t)fd, POSIX_FD, 0))
		taken[place].pool = NULL;
	taken[place].life = life;
	close(fd);
	return taken[place].pool;
}

bool pool_import(CUdeviceptr *address, const CUipcMemHandle *handle, uint32_t place, uint32_t life, CUresult *result)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool pool;

	pthread_mutex_lock(&taken_lock);
	pool = take(place, life);
	pthread_mutex_unlock(&taken_lock);
	if (!pool)
		return false;
	memcpy(&data, handle, sizeof(data));
	*result = cu.cuMemPoolImportPointer(address, pool, &data);
	return true;
}

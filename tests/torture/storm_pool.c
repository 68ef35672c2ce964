/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storm's pools, shared by pointer.  An exporter has one pool for its life.  Each thread of an
 * importer imports it once, and has a pool of its own, whose blocks it also imports.
 *
 * Rules: An exporter's pool exists before the exporter publishes anything.
 * An importer's pool keeps the memory of freed blocks.  The pages of an exported block that a pool gives back are
 * nobody's until the pool is destroyed (doc/measurements.md, fact 31), so an importer would lose half a device in the
 * two seconds that it lives.  An exporter's pool keeps its memory, or not, at random: it always has blocks, and seldom
 * gives pages back.
 */
#include "tests/torture/storm.h"

#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* ------------------------------------------------------------------ one's own */
static CUmemoryPool own;

CUresult pool_make(CUdevice device, bool keeps_all)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = POSIX_FD,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };
	uint64_t keep_all = UINT64_MAX;
	int fd = -1;
	CUresult result = cu.cuMemPoolCreate(&own, &properties);

	if (!result && keeps_all)
		result = cu.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all);
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
	CUresult result;

	memset(&data, 0x77, sizeof(data)); /* the driver leaves some bytes unset; fill them with garbage */
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

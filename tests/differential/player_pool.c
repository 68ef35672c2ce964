/* SPDX-License-Identifier: Apache-2.0 */
/* A player's calls on shared pools: see player.c. */
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/differential/play.h"

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemoryPool own[POOLS], taken[PLAYERS][POOLS];
static int own_fd[POOLS];

static CUresult make(const struct order *o, struct answer *a)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = POSIX_FD,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	uint64_t threshold = o->bytes, where[2];
	CUresult result = cu.cuMemPoolCreate(&own[o->slot], &properties);

	if (!result)
		result = cu.cuMemPoolSetAttribute(own[o->slot], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	if (!result)
		result = cu.cuMemPoolExportToShareableHandle(&own_fd[o->slot], own[o->slot], POSIX_FD, 0);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for pidfd_getfd under Yama */
	where[0] = (uint64_t)getpid();
	where[1] = (uint64_t)own_fd[o->slot];
	memcpy(a->handle, where, sizeof(where));
	return result;
}

static CUresult take(const struct order *o)
{
	int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)o->offset, 0);
	int fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, (int)o->bytes, 0);
	CUresult result;

	if (fd < 0)
		die("no descriptor of a pool");
	result = cu.cuMemPoolImportFromShareableHandle(&taken[o->other][o->slot], (void *)(intptr_t)fd, POSIX_FD, 0);
	close(fd);
	close(pidfd);
	return result;
}

CUresult pool_call(const struct order *o, struct answer *a, CUdeviceptr *address, CUstream stream)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr imported = 0;
	CUresult result;

	switch ((enum call)o->call) {
	case DO_POOL_NEW:
		return make(o, a);
	case DO_POOL_TAKE:
		return take(o);
	case DO_POOL_TRIM:
		return cu.cuMemPoolTrimTo(own[o->slot], 0);
	case DO_POOL_DESTROY:
		result = cu.cuMemPoolDestroy(own[o->slot]);
		/* a capture refuses it: then the pool goes on */
		if (!result)
			close(own_fd[o->slot]);
		return result;
	case DO_POOL_ALLOC:
		return cu.cuMemAllocFromPoolAsync(address, o->bytes, own[o->flags], stream);
	case DO_POOL_EXPORT:
		memset(&data, 0x77, sizeof(data)); /* the driver leaves some bytes unset; fill them with garbage */
		result = cu.cuMemPoolExportPointer(&data, *address + o->offset);
		memcpy(a->handle, &data, sizeof(a->handle));
		return result;
	default:
		memcpy(&data, o->handle, sizeof(data));
		result = cu.cuMemPoolImportPointer(&imported, taken[o->other / POOLS][o->other % POOLS], &data);
		/* reports whether the address is the same as before */
		if (!result && o->flags)
			snprintf(a->text, sizeof(a->text), "same=%d", imported == *address);
		if (!result)
			*address = imported;
		return result;
	}
}

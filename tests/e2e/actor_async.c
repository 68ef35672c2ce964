/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: stream-ordered memory, of the default pool and of pools of its own.
 */
#include "actor.h"

#include <unistd.h>

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemoryPool pool_of(uint64_t value)
{
	return (CUmemoryPool)(uintptr_t)value;
}

void do_a_pools(const struct wire_request *q)
{
	CUmemoryPool given = NULL, current = NULL;

	if (!SURE(cu.cuDeviceGetDefaultMemPool(&given, (CUdevice)q->a[0])) ||
	    !SURE(cu.cuDeviceGetMemPool(&current, (CUdevice)q->a[0])))
		return;
	reply.v[0] = (uintptr_t)given;
	reply.v[1] = (uintptr_t)current;
}

void do_a_set_pool(const struct wire_request *q)
{
	TIMED(cu.cuDeviceSetMemPool((CUdevice)q->a[0], pool_of(q->a[1])));
}

void do_a_new_pool(const struct wire_request *q)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = (CUmemAllocationHandleType)q->a[1],
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)q->a[0] } };
	CUmemoryPool pool = NULL;

	TIMED(cu.cuMemPoolCreate(&pool, &properties));
	reply.v[0] = (uintptr_t)pool;
}

void do_a_attribute(const struct wire_request *q)
{
	cuuint64_t value = q->a[3];

	if (q->a[2])
		TIMED(cu.cuMemPoolSetAttribute(pool_of(q->a[0]), (CUmemPool_attribute)q->a[1], &value));
	else
		TIMED(cu.cuMemPoolGetAttribute(pool_of(q->a[0]), (CUmemPool_attribute)q->a[1], &value));
	reply.v[0] = value;
}

void do_a_export_pool(const struct wire_request *q)
{
	int fd = -1;

	TIMED(cu.cuMemPoolExportToShareableHandle(&fd, pool_of(q->a[0]), FD, 0));
	if (!reply.result)
		close(fd);
}

void do_a_alloc(const struct wire_request *q)
{
	CUdeviceptr address = 0;

	TIMED(cu.cuMemAllocAsync(&address, q->a[0], (CUstream)(uintptr_t)q->a[1]));
	reply.v[0] = address;
}

void do_a_alloc_from(const struct wire_request *q)
{
	CUdeviceptr address = 0;

	TIMED(cu.cuMemAllocFromPoolAsync(&address, q->a[1], pool_of(q->a[0]), (CUstream)(uintptr_t)q->a[2]));
	reply.v[0] = address;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: stream-ordered memory, of the default pool and of pools of its own.
 */
#include "actor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
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

void do_a_access(const struct wire_request *q)
{
	CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)q->a[1] };
	CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_MAX;

	TIMED(cu.cuMemPoolGetAccess(&flags, pool_of(q->a[0]), &location));
	reply.v[0] = (uint64_t)flags;
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

/* ------------------------------------------------- threads that open blocks of one pool */
static CUipcMemHandle kept[2];

void do_a_keep(const struct wire_request *q)
{
	memcpy(&kept[q->a[0] % 2], q->handle, sizeof kept[0]);
}

struct opener {
	const struct wire_request *q;
	uint64_t number;
	pthread_barrier_t *all; /* NULL: each thread goes on as it likes */
	atomic_uint_fast64_t *opens, *wrong;
	atomic_int *error;
};

static void wait_for_all(const struct opener *me)
{
	if (me->all)
		pthread_barrier_wait(me->all);
}

static bool works(const struct opener *me, CUresult result)
{
	int none = 0;

	if (result)
		atomic_compare_exchange_strong(me->error, &none, (int)result);
	return !result;
}

static void *open_and_close(void *data)
{
	const struct opener *me = data;
	unsigned char want = (unsigned char)(me->q->a[2] + me->number % 2), byte;

	works(me, cu.cuCtxSetCurrent(primary));
	for (uint64_t i = 0; i < me->q->a[1]; i++) {
		CUdeviceptr address = 0;

		wait_for_all(me);
		if (works(me, cu.cuIpcOpenMemHandle_v2(&address, kept[me->number % 2], 1))) {
			byte = 0;
			works(me, cu.cuMemcpyDtoH_v2(&byte, address, 1));
			atomic_fetch_add(me->opens, 1);
			atomic_fetch_add(me->wrong, byte != want);
		}
		wait_for_all(me);
		if (address)
			works(me, cu.cuIpcCloseMemHandle(address));
	}
	return NULL;
}

void do_a_together(const struct wire_request *q)
{
	atomic_uint_fast64_t opens = 0, wrong = 0;
	struct opener opener[16];
	pthread_t thread[16];
	pthread_barrier_t all;
	atomic_int error = 0;
	unsigned int n = q->a[0] < 16 ? (unsigned int)q->a[0] : 16;

	pthread_barrier_init(&all, NULL, n);
	for (unsigned int i = 0; i < n; i++) {
		opener[i] = (struct opener){ q, i, q->a[3] ? &all : NULL, &opens, &wrong, &error };
		if (pthread_create(&thread[i], NULL, open_and_close, &opener[i]))
			_exit(99); /* the others would wait for it for ever */
	}
	for (unsigned int i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
	reply.result = atomic_load(&error);
	reply.v[0] = opens;
	reply.v[1] = wrong;
}

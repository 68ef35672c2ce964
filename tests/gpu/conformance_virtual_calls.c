/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker of the conformance program: commands on virtual memory, attributes of pointers and
 * descriptors, and calls during a cuMemFree that waits.
 */
#include "conformance_worker.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cuda.h>

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, bool with_descriptor)
{
	CUmemAllocationProp property;

	memset(&property, 0, sizeof(property));
	property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	property.requestedHandleTypes = with_descriptor ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
							: CU_MEM_HANDLE_TYPE_NONE;
	return driver.p_cuMemCreate(handle, bytes, &property, 0);
}

/* Maps several allocations side by side in one reservation.  The size of each is rounded up to 2 MiB. */
static CUresult new_parts(size_t bytes, unsigned int parts, bool with_descriptor)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	if (parts > sizeof(mine.part) / sizeof(mine.part[0]))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(driver.p_cuMemAddressReserve(&mine.part_base, parts * bytes, 0, 0, 0));
	mine.part_bytes = bytes;
	mine.parts = parts;
	for (unsigned int i = 0; i < parts; i++) {
		TRY(create(&mine.part[i], bytes, with_descriptor));
		TRY(driver.p_cuMemMap(mine.part_base + i * bytes, bytes, 0, mine.part[i], 0));
	}
	return driver.p_cuMemSetAccess(mine.part_base, parts * bytes, &access, 1);
}

static CUresult unmap_part(unsigned int i)
{
	if (!mine.part[i])
		return CUDA_SUCCESS;
	TRY(driver.p_cuMemUnmap(mine.part_base + i * mine.part_bytes, mine.part_bytes));
	TRY(driver.p_cuMemRelease(mine.part[i]));
	mine.part[i] = 0;
	return CUDA_SUCCESS;
}

static CUresult end_parts(void)
{
	for (unsigned int i = 0; i < mine.parts; i++)
		TRY(unmap_part(i));
	TRY(driver.p_cuMemAddressFree(mine.part_base, mine.parts * mine.part_bytes));
	mine.parts = 0;
	return CUDA_SUCCESS;
}

static CUresult retain(uint64_t pointer, unsigned int part, uint64_t *same)
{
	CUmemGenericAllocationHandle handle;

	TRY(driver.p_cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)pointer));
	*same = handle == mine.part[part];
	return driver.p_cuMemRelease(handle);
}

static CUresult send_descriptor(int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(fd))];
	struct iovec vector = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header;

	memset(control, 0, sizeof(control));
	header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	return sendmsg(between_workers[0], &message, MSG_NOSIGNAL) == 1 ? CUDA_SUCCESS
								      : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult dma_buf_of(uint64_t pointer, size_t bytes, uint64_t *descriptor)
{
	/* CUDA 11.7 and later declare the last argument but one as an enum; 1 is DMA_BUF_FD */
	CUresult(CUDAAPI *call)(void *, CUdeviceptr, size_t, int, unsigned long long) = NULL;
	void *found = optional("cuMemGetHandleForAddressRange");
	int fd = -1, has = 0;

	memcpy(&call, &found, sizeof(call));
	/* 124: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
	if (!call || driver.p_cuDeviceGetAttribute(&has, (CUdevice_attribute)124, 0) || !has)
		return CUDA_ERROR_NOT_SUPPORTED;
	TRY(call(&fd, (CUdeviceptr)pointer, bytes, 1, 0));
	*descriptor = (uint64_t)fd;
	return CUDA_SUCCESS;
}

/* ---- while a cuMemFree waits ---- */

/* The objects that the calls use, created before the free. */
struct objects {
	CUdeviceptr freed, shared, pooled, reserved;
	CUmemGenericAllocationHandle handle, created;
	int fd;
};

static CUresult make_objects(struct objects *o)
{
	CUipcMemHandle handle;
	int pool_fd;

	TRY(driver.p_cuMemAlloc_v2(&o->freed, 4 * MIB));
	TRY(driver.p_cuMemAlloc_v2(&o->shared, 4 * MIB));
	/* the first call in a process takes longer: up to 65 ms on an H200 */
	TRY(driver.p_cuIpcGetMemHandle(&handle, o->shared));
	TRY(new_parts(2 * MIB, 1, true));
	TRY(driver.p_cuMemPoolExportToShareableHandle(&pool_fd, mine.pool,
						      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(pool_fd);
	TRY(driver.p_cuMemAllocFromPoolAsync(&o->pooled, 1024, mine.pool, mine.stream));
	return driver.p_cuStreamSynchronize(mine.stream);
}

static CUresult call_meanwhile(enum not_waiting call, struct objects *o)
{
	CUresult (*get_id)(CUcontext, unsigned long long *) = NULL;
	CUmemPoolPtrExportData data;
	unsigned long long id;
	CUipcMemHandle handle;
	CUdeviceptr pointer;
	size_t bytes, total;
	CUresult result;
	void *found;

	switch (call) {
	case WHILE_cuIpcGetMemHandle:
		return driver.p_cuIpcGetMemHandle(&handle, o->shared);
	case WHILE_cuMemExportToShareableHandle:
		result = driver.p_cuMemExportToShareableHandle(&o->fd, mine.part[0],
							       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (result)
			o->fd = -1;
		return result;
	case WHILE_cuMemRetainAllocationHandle:
		return driver.p_cuMemRetainAllocationHandle(&o->handle, (void *)(uintptr_t)mine.part_base);
	case WHILE_cuMemCreate:
		return create(&o->created, 2 * MIB, true);
	case WHILE_cuMemPoolExportPointer:
		return driver.p_cuMemPoolExportPointer(&data, o->pooled);
	case WHILE_cuMemAllocFromPoolAsync:
		/* in an idle stream, as when the fact was measured */
		TRY(driver.p_cuMemAllocFromPoolAsync(&pointer, 1024, mine.pool, CU_STREAM_PER_THREAD));
		return driver.p_cuMemFreeAsync(pointer, CU_STREAM_PER_THREAD);
	case WHILE_cuMemGetAddressRange:
		return driver.p_cuMemGetAddressRange_v2(&pointer, &bytes, o->shared);
	case WHILE_cuMemAddressReserve:
		return driver.p_cuMemAddressReserve(&o->reserved, 2 * MIB, 0, 0, 0);
	case WHILE_cuMemGetInfo:
		return driver.p_cuMemGetInfo_v2(&bytes, &total);
	case WHILE_cuCtxGetId:
		found = optional("cuCtxGetId");
		memcpy(&get_id, &found, sizeof(get_id));
		return get_id ? get_id(mine.context, &id) : CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult all_meanwhile(struct objects *o, uint64_t limit, uint64_t *v)
{
#define X(call) WHILE_##call,
	static const enum not_waiting calls[] = { NOT_WAITING(X) };
#undef X

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		uint64_t from = now_ns(), took;
		CUresult result = call_meanwhile(calls[i], o);

		took = now_ns() - from;
		if (result == CUDA_ERROR_NOT_SUPPORTED)
			v[3] |= UINT64_C(1) << i;
		else if (result)
			return result;
		if (took > limit)
			v[0] |= UINT64_C(1) << i;
		if (took > v[1])
			v[1] = took;
	}
	return CUDA_SUCCESS;
}

/*
 * Runs a kernel for @ns.  Another thread frees a block behind it.  After a quarter of @ns this
 * thread makes the calls.  v[0]: a bit for each call of NOT_WAITING that took more than a quarter of @ns; v[1]:
 * the longest duration; v[2]: the duration of the free; v[3]: a bit for each call that this driver lacks.
 */
static CUresult while_freeing(uint64_t ns, enum wait wait, uint64_t *v)
{
	struct objects o = { .fd = -1 };
	CUdeviceptr allocated = 0;
	struct freeing freeing;
	CUevent event = NULL;
	CUresult result;
	pthread_t thread;
	uint64_t from, zero = 0;

	memset(&freeing, 0, sizeof(freeing));
	TRY(driver.p_cuMemPoolCreate(&mine.pool,
				     &(CUmemPoolProps){ .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
							.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
							.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } }));
	/* zero is the default threshold; both ways to create a pool set it explicitly */
	TRY(driver.p_cuMemPoolSetAttribute(mine.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &zero));
	TRY(make_objects(&o));
	freeing.pointer = o.freed;
	TRY(launch_spin(ns));
	if (pthread_create(&thread, NULL, free_in_thread, &freeing))
		return CUDA_ERROR_OPERATING_SYSTEM;
	nap(ns / 4);
	from = now_ns();
	if (wait == WAIT_NONE) {
		result = all_meanwhile(&o, ns / 4, v);
	} else {
		result = wait == WAIT_ALLOC
				 ? driver.p_cuMemAlloc_v2(&allocated, 1024)
				 : driver.p_cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
		v[1] = now_ns() - from;
	}
	pthread_join(thread, NULL);
	v[2] = freeing.ns;
	TRY(result);
	TRY(freeing.result);
	if (event)
		TRY(driver.p_cuEventDestroy_v2(event));
	if (allocated)
		TRY(driver.p_cuMemFree_v2(allocated));
	if (o.fd >= 0)
		close(o.fd);
	if (o.handle)
		TRY(driver.p_cuMemRelease(o.handle));
	if (o.created)
		TRY(driver.p_cuMemRelease(o.created));
	if (o.reserved)
		TRY(driver.p_cuMemAddressFree(o.reserved, 2 * MIB));
	TRY(end_parts());
	TRY(driver.p_cuMemFree_v2(o.shared));
	TRY(driver.p_cuMemFree_v2(o.pooled));
	return driver.p_cuMemPoolDestroy(mine.pool);
}

/* ---- all commands ---- */

/*
 * The calls that culimbo makes after a refused cuIpcGetMemHandle, while a stream of this thread
 * captures.  v: the result of cuIpcGetMemHandle and the end of its capture, then the same two for each call.
 */
static CUresult ask_in_capture(CUdeviceptr pointer, CUstreamCaptureMode mode, uint64_t *v)
{
	static const int attributes[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
					  17 /* MEMPOOL_HANDLE, which cuda.h of CUDA 11.2 lacks */,
					  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
					  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_CONTEXT,
					  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
					  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
	CUipcMemHandle handle;
	CUgraph graph = NULL;
	CUdeviceptr base;
	uint64_t value;
	size_t size;

	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, mode));
	v[0] = driver.p_cuIpcGetMemHandle(&handle, pointer);
	v[1] = driver.p_cuStreamEndCapture(mine.stream, &graph);
	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, mode));
	v[2] = driver.p_cuMemGetAddressRange_v2(&base, &size, pointer);
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
		if (!v[2])
			v[2] = driver.p_cuPointerGetAttribute(&value, (CUpointer_attribute)attributes[i], pointer);
	v[3] = driver.p_cuStreamEndCapture(mine.stream, &graph);
	/* an address that the driver does not know */
	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, mode));
	v[4] = driver.p_cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x10000);
	v[5] = driver.p_cuStreamEndCapture(mine.stream, &graph);
	return CUDA_SUCCESS;
}


CUresult virtual_call(const struct question *q, struct answer *r)
{
	CUdeviceptr pointer = 0;
	unsigned long long value = 0;
	CUresult result;
	size_t bytes = 0;
	int fd = -1;

	switch (q->verb) {
	case VIRTUAL_NEW:
		result = new_parts(q->a[0], (unsigned int)q->a[1], q->a[2] != 0);
		r->v[0] = mine.part_base;
		return result;
	case VIRTUAL_EXPORT:
		result = driver.p_cuMemExportToShareableHandle(&fd, mine.part[q->a[0]],
							       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		r->v[0] = (uint64_t)fd;
		return result;
	case VIRTUAL_RETAIN:
		return retain(q->a[0], (unsigned int)q->a[1], &r->v[0]);
	case VIRTUAL_UNMAP:
		return unmap_part((unsigned int)q->a[0]);
	case VIRTUAL_END:
		return end_parts();
	case VIRTUAL_TAKE:
		return vmm_take((pid_t)q->a[0], (int)q->a[1], q->a[2], (enum way)q->a[3], &r->v[0]);
	case SEND_DESCRIPTOR:
		return send_descriptor((int)q->a[0]);
	case CLOSE_DESCRIPTOR:
		return close((int)q->a[0]) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
	case DMA_BUF:
		return dma_buf_of(q->a[0], q->a[1], &r->v[0]);
	case RANGE:
		result = driver.p_cuMemGetAddressRange_v2(&pointer, &bytes, (CUdeviceptr)q->a[0]);
		r->v[0] = pointer;
		r->v[1] = bytes;
		return result;
	case ATTRIBUTE:
		result = driver.p_cuPointerGetAttribute(&value, (CUpointer_attribute)q->a[1],
							(CUdeviceptr)q->a[0]);
		r->v[0] = value;
		return result;
	case ASK_CAPTURING:
		return ask_in_capture((CUdeviceptr)q->a[0], (CUstreamCaptureMode)q->a[1], r->v);
	case WHILE_FREEING:
		return while_freeing(q->a[0], (enum wait)q->a[1], r->v);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

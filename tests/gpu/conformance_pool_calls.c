/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker of the conformance program: commands on pools and on pointers exported from them.
 */
#include "conformance_worker.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

/* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, which cuda.h of CUDA 11.2 lacks */
enum { MEMPOOL_HANDLE = 17 };

static CUresult new_pool(uint64_t threshold, int device)
{
	CUmemPoolProps properties;

	memset(&properties, 0, sizeof(properties));
	properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	properties.location.id = device;
	TRY(driver.p_cuMemPoolCreate(&mine.pool, &properties));
	return driver.p_cuMemPoolSetAttribute(mine.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
}

static CUresult take_pool(pid_t pid, int theirs)
{
	int fd = take_descriptor(pid, theirs, BY_PIDFD);
	CUresult result;

	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = driver.p_cuMemPoolImportFromShareableHandle(&mine.imported_pool, (void *)(intptr_t)fd,
							     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	close(fd);
	return result;
}

/* v[0]: the pointer; v[1]: 1 when it is from our own pool */
static CUresult alloc_current(size_t bytes, uint64_t *v)
{
	CUmemoryPool of = NULL, before;
	CUdeviceptr pointer;

	TRY(driver.p_cuDeviceGetDefaultMemPool(&before, 0));
	TRY(driver.p_cuDeviceSetMemPool(0, mine.pool));
	TRY(driver.p_cuMemAllocAsync(&pointer, bytes, mine.stream));
	TRY(driver.p_cuDeviceSetMemPool(0, before));
	TRY(driver.p_cuStreamSynchronize(mine.stream));
	TRY(driver.p_cuPointerGetAttribute(&of, (CUpointer_attribute)MEMPOOL_HANDLE, pointer));
	v[0] = pointer;
	v[1] = of == mine.pool;
	return CUDA_SUCCESS;
}

/* Returns the mean duration in ns of an allocation of 1 KiB and its free. */
static CUresult pair_cost(CUmemoryPool pool, uint64_t *ns)
{
	enum { PAIRS = 1000 };
	uint64_t from = now_ns();

	for (int i = 0; i < PAIRS; i++) {
		CUdeviceptr pointer;

		TRY(driver.p_cuMemAllocFromPoolAsync(&pointer, 1024, pool, mine.stream));
		TRY(driver.p_cuMemFreeAsync(pointer, mine.stream));
	}
	*ns = (now_ns() - from) / PAIRS;
	return driver.p_cuStreamSynchronize(mine.stream);
}

static CUresult costs(uint64_t *v)
{
	CUmemoryPool usual;

	TRY(driver.p_cuDeviceGetDefaultMemPool(&usual, 0));
	TRY(pair_cost(usual, &v[1]));
	TRY(pair_cost(mine.pool, &v[0]));
	return CUDA_SUCCESS;
}

/* What a capture does with an allocation from @pool, or by cuMemAllocAsync: v[0] the result, v[1] that of its end. */
static CUresult capture_one(CUmemoryPool pool, uint64_t *v)
{
	CUdeviceptr pointer = 0;
	CUgraph graph = NULL;

	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	v[0] = pool ? driver.p_cuMemAllocFromPoolAsync(&pointer, 1024, pool, mine.stream) :
		      driver.p_cuMemAllocAsync(&pointer, 1024, mine.stream);
	v[1] = driver.p_cuStreamEndCapture(mine.stream, &graph);
	return CUDA_SUCCESS;
}

/*
 * -> v[0], v[1]: from its own pool, which can be shared; v[2], v[3]: from the default pool; v[4], v[5]: by
 * cuMemAllocAsync while its own pool is the device's.
 */
static CUresult allocate_in_capture(uint64_t *v)
{
	CUmemoryPool usual;
	CUresult result;

	TRY(driver.p_cuDeviceGetDefaultMemPool(&usual, 0));
	TRY(capture_one(mine.pool, &v[0]));
	TRY(capture_one(usual, &v[2]));
	TRY(driver.p_cuDeviceSetMemPool(0, mine.pool));
	result = capture_one(NULL, &v[4]);
	TRY(driver.p_cuDeviceSetMemPool(0, usual));
	return result;
}

static CUmemPoolPtrExportData last_import; /* the data of the last POOL_IMPORT */

/* What a call in a capture needs, made before the capture begins. */
struct before_capture {
	CUmemoryPool pool;
	CUdeviceptr block;
};

static CUresult prepare(enum pool_call_in_capture call, struct before_capture *before)
{
	const CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };

	*before = (struct before_capture){ 0 };
	if (call == CAPTURED_FREE_PRIVATE) {
		TRY(driver.p_cuDeviceGetDefaultMemPool(&before->pool, 0));
		TRY(driver.p_cuMemAllocFromPoolAsync(&before->block, MIB, before->pool, mine.stream));
	} else if (call == CAPTURED_DESTROY || call == CAPTURED_DESTROY_USED) {
		TRY(driver.p_cuMemPoolCreate(&before->pool, &props));
	}
	if (call == CAPTURED_DESTROY_USED)
		TRY(driver.p_cuMemAllocFromPoolAsync(&before->block, MIB, before->pool, mine.stream));
	return driver.p_cuStreamSynchronize(mine.stream);
}

/*
 * Ends what prepare() made and the call, which gave @result, has not ended.  A block of a destroyed pool lives
 * on: if it were freed, the driver would read memory that it has freed itself (measured, doc/measurements.md).
 */
static CUresult clean_up(enum pool_call_in_capture call, const struct before_capture *before, CUresult result)
{
	bool is_destroy = call == CAPTURED_DESTROY || call == CAPTURED_DESTROY_USED;

	if (before->block && result)
		TRY(driver.p_cuMemFree_v2(before->block));
	return is_destroy && result ? driver.p_cuMemPoolDestroy(before->pool) : CUDA_SUCCESS;
}

static CUresult in_capture(enum pool_call_in_capture call, const struct before_capture *before, CUdeviceptr pointer,
			   CUstream other)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr got;
	int fd = -1;
	CUresult result;

	switch (call) {
	case CAPTURED_EXPORT:
		return driver.p_cuMemPoolExportPointer(&data, pointer);
	case CAPTURED_DESCRIPTOR:
		result = driver.p_cuMemPoolExportToShareableHandle(&fd, mine.pool,
								   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		close(fd);
		return result;
	case CAPTURED_IMPORT:
		return driver.p_cuMemPoolImportPointer(&got, mine.imported_pool, &last_import);
	case CAPTURED_ALLOC:
		return driver.p_cuMemAllocFromPoolAsync(&got, 1024, mine.pool, other);
	case CAPTURED_FREE:
		return driver.p_cuMemFree_v2(pointer);
	case CAPTURED_FREE_OTHER:
		return driver.p_cuMemFreeAsync(pointer, other);
	case CAPTURED_FREE_PRIVATE:
		return driver.p_cuMemFreeAsync(before->block, mine.stream);
	case CAPTURED_DESTROY:
	case CAPTURED_DESTROY_USED:
		return driver.p_cuMemPoolDestroy(before->pool);
	case CAPTURED_EXPORT_NONE:
		return driver.p_cuMemPoolExportPointer(&data, 0x10000);
	default:
		return driver.p_cuMemFreeAsync(pointer, mine.stream);
	}
}

struct in_thread {
	enum pool_call_in_capture call;
	const struct before_capture *before;
	CUresult result;
};
static void *in_thread(void *of)
{
	struct in_thread *in = of;

	in->result = driver.p_cuCtxSetCurrent(mine.context);
	if (!in->result)
		in->result = in_capture(in->call, in->before, 0, NULL);
	return NULL;
}

/* As in_capture(), in a thread that does not capture. */
static CUresult in_other_thread(enum pool_call_in_capture call, const struct before_capture *before)
{
	struct in_thread in = { .call = call, .before = before };
	pthread_t thread;

	if (pthread_create(&thread, NULL, in_thread, &in))
		return CUDA_ERROR_OPERATING_SYSTEM;
	pthread_join(thread, NULL);
	return in.result;
}

/*
 * q: enum pool_call_in_capture, the mode, a pointer, 1: another thread makes the call
 * -> v[0]: the call's result, v[1]: that of the capture's end
 */
static CUresult call_in_capture(const struct question *q, uint64_t *v)
{
	enum pool_call_in_capture call = (enum pool_call_in_capture)q->a[0];
	static CUstream other;
	struct before_capture before;
	CUgraph graph = NULL;

	if (!other)
		TRY(driver.p_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	TRY(prepare(call, &before));
	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, (CUstreamCaptureMode)q->a[1]));
	v[0] = q->a[3] ? in_other_thread(call, &before) : in_capture(call, &before, (CUdeviceptr)q->a[2], other);
	v[1] = driver.p_cuStreamEndCapture(mine.stream, &graph);
	TRY(clean_up(call, &before, (CUresult)v[0]));
	return driver.p_cuCtxSynchronize();
}

CUresult pool_call(const struct question *q, struct answer *r)
{
	static const CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
						.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemPoolPtrExportData data;
	CUdeviceptr pointer = 0;
	CUresult result;
	int fd;

	switch (q->verb) {
	case POOL_NEW:
		return new_pool(q->a[0], (int)q->a[1]);
	case POOL_SHARE:
		result = driver.p_cuMemPoolExportToShareableHandle(
			&fd, mine.pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		r->v[0] = (uint64_t)fd;
		return result;
	case POOL_TAKE:
		return take_pool((pid_t)q->a[0], (int)q->a[1]);
	case POOL_END:
		return driver.p_cuMemPoolDestroy(mine.pool);
	case POOL_LEAVE:
		return driver.p_cuMemPoolDestroy(mine.imported_pool);
	case POOL_TRIM:
		return driver.p_cuMemPoolTrimTo(mine.pool, 0);
	case POOL_ALLOC:
		TRY(driver.p_cuMemAllocFromPoolAsync(&pointer, q->a[0], mine.pool, mine.stream));
		r->v[0] = pointer;
		return driver.p_cuStreamSynchronize(mine.stream);
	case POOL_ALLOC_CURRENT:
		return alloc_current(q->a[0], r->v);
	case POOL_FREE:
		TRY(driver.p_cuMemFreeAsync((CUdeviceptr)q->a[0], mine.stream));
		return q->a[1] ? driver.p_cuStreamSynchronize(mine.stream) : CUDA_SUCCESS;
	case POOL_EXPORT:
		memset(&data, 0x5a, sizeof(data));
		result = driver.p_cuMemPoolExportPointer(&data, (CUdeviceptr)q->a[0]);
		memcpy(r->handle, &data, sizeof(data));
		return result;
	case POOL_IMPORT:
		memcpy(&data, q->handle, sizeof(data));
		last_import = data;
		result = driver.p_cuMemPoolImportPointer(&pointer, mine.imported_pool, &data);
		r->v[0] = pointer;
		return result;
	case POOL_ACCESS:
		return driver.p_cuMemPoolSetAccess(mine.imported_pool, &access, 1);
	case POOL_CAPTURE:
		return allocate_in_capture(r->v);
	case POOL_IN_CAPTURE:
		return call_in_capture(q, r->v);
	case POOL_COSTS:
		return costs(r->v);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

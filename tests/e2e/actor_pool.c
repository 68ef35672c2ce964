/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: shared memory pools, and pointers exported from them.
 */
#include "actor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemoryPool pool_of(uint64_t value)
{
	return (CUmemoryPool)(uintptr_t)value;
}

void do_pool_new(const struct wire_request *q)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = FD,
				      .location = { .type = q->a[1] ? CU_MEM_LOCATION_TYPE_HOST_NUMA :
								      CU_MEM_LOCATION_TYPE_DEVICE,
						    .id = (int)q->a[0] },
				      .maxSize = q->a[2] };
	cuuint64_t keeps = q->a[3] ? 0 : UINT64_MAX;
	CUmemoryPool pool = NULL;
	int fd = -1;

	if (!SURE(cu.cuMemPoolCreate(&pool, &properties)) ||
	    !SURE(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keeps)) ||
	    !SURE(cu.cuMemPoolExportToShareableHandle(&fd, pool, FD, 0)))
		return;
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for pidfd_getfd under Yama */
	reply.v[0] = (uintptr_t)pool;
	reply.v[1] = (uint64_t)fd;
}

void do_pool_take(const struct wire_request *q)
{
	int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)q->a[0], 0), fd;
	CUmemoryPool pool = NULL;

	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, (int)q->a[1], 0);
	if (fd < 0)
		complain("no descriptor from process %llu", (unsigned long long)q->a[0]);
	else
		TIMED(cu.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, FD, 0));
	reply.v[0] = (uintptr_t)pool;
	if (fd >= 0)
		close(fd);
	if (pidfd >= 0)
		close(pidfd);
}

void do_pool_destroy(const struct wire_request *q)
{
	if (q->a[1])
		close((int)q->a[1]);
	TIMED(cu.cuMemPoolDestroy(pool_of(q->a[0])));
}

void do_pool_trim(const struct wire_request *q)
{
	TIMED(cu.cuMemPoolTrimTo(pool_of(q->a[0]), q->a[1]));
}

void do_pool_access(const struct wire_request *q)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)q->a[1] },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	TIMED(cu.cuMemPoolSetAccess(pool_of(q->a[0]), &access, 1));
}

void do_pool_alloc(const struct wire_request *q)
{
	CUdeviceptr address = 0;

	TIMED(cu.cuMemAllocFromPoolAsync(&address, q->a[1], pool_of(q->a[0]), NULL));
	if (!reply.result)
		SURE(cu.cuStreamSynchronize(NULL));
	reply.v[0] = address;
}

/* Like do_claim(), for a pool. */
void do_pool_claim(const struct wire_request *q)
{
	uint64_t most = q->a[3], n = 0;
	CUdeviceptr *taken = calloc(most, sizeof(*taken));

	if (!taken) {
		complain("no memory");
		return;
	}
	while (n < most && !reply.v[0]) {
		CUresult result = cu.cuMemAllocFromPoolAsync(&taken[n], q->a[2], pool_of(q->a[0]), NULL);

		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			break;
		if (!sure(result, "cuMemAllocFromPoolAsync") || !SURE(cu.cuStreamSynchronize(NULL)))
			break;
		SURE(cu.cuMemsetD8_v2(taken[n], (unsigned char)q->a[4], q->a[2]));
		reply.v[0] = taken[n] == q->a[1];
		n++;
	}
	SURE(cu.cuStreamSynchronize(NULL));
	reply.v[1] = n;
	for (uint64_t i = 0; i < n; i++)
		if (taken[i] != q->a[1])
			SURE(cu.cuMemFree_v2(taken[i]));
	free(taken);
}

void do_pool_export(const struct wire_request *q)
{
	CUmemPoolPtrExportData data;

	/* the driver leaves some bytes unset; fill them with garbage */
	memset(&data, 0xee, sizeof(data));
	TIMED(cu.cuMemPoolExportPointer(&data, q->a[0]));
	memcpy(reply.handle, &data, 64);
}

void do_pool_import(const struct wire_request *q)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr address = 0;

	memcpy(&data, q->handle, 64);
	TIMED(cu.cuMemPoolImportPointer(&address, pool_of(q->a[0]), &data));
	reply.v[0] = address;
}

void do_no_context(const struct wire_request *q)
{
	(void)q;
	SURE(cu.cuCtxSetCurrent(NULL));
}

void do_stream_capture(const struct wire_request *q)
{
	TIMED(cu.cuStreamBeginCapture_v2((CUstream)(uintptr_t)q->a[0], (CUstreamCaptureMode)q->a[1]));
}

void do_stream_mode(const struct wire_request *q)
{
	CUstreamCaptureMode mode = (CUstreamCaptureMode)q->a[0];

	TIMED(cu.cuThreadExchangeStreamCaptureMode(&mode));
}

void do_stream_captured(const struct wire_request *q)
{
	CUgraph graph = NULL;

	TIMED(cu.cuStreamEndCapture((CUstream)(uintptr_t)q->a[0], &graph));
	if (graph)
		SURE(cu.cuGraphDestroy(graph));
}

/* What the graph has allocated stays.  The simulated driver has no launch: there the capture has allocated it. */
void do_stream_launched(const struct wire_request *q)
{
	CUstream stream = (CUstream)(uintptr_t)q->a[0];
	CUgraph graph = NULL;

	TIMED(cu.cuStreamEndCapture(stream, &graph));
#if CUDA_VERSION >= 12040
	CUgraphExec exec;

	if (graph && cu.cuGraphLaunch && SURE(cu.cuGraphInstantiateWithFlags(&exec, graph, 0)) &&
	    SURE(cu.cuGraphLaunch(exec, stream)))
		SURE(cu.cuStreamSynchronize(stream));
#else
	if (graph)
		SURE(cu.cuGraphDestroy(graph));
#endif
}

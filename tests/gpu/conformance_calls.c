/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker of the conformance program: commands on memory, events and captures that need several
 * calls or threads.
 */
#include "conformance_worker.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cuda.h>

static CUresult vmm_map(CUmemGenericAllocationHandle handle, size_t bytes, uint64_t *pointer)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr base;

	TRY(driver.p_cuMemAddressReserve(&base, bytes, 0, 0, 0));
	TRY(driver.p_cuMemMap(base, bytes, 0, handle, 0));
	TRY(driver.p_cuMemSetAccess(base, bytes, &access, 1));
	mine.vmm = handle;
	mine.vmm_base = base;
	mine.vmm_bytes = bytes;
	*pointer = base;
	return CUDA_SUCCESS;
}

CUresult vmm_new(size_t bytes, uint64_t *pointer, uint64_t *descriptor)
{
	CUmemAllocationProp property;
	CUmemGenericAllocationHandle handle;
	size_t granularity;
	int fd;

	memset(&property, 0, sizeof(property));
	property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	TRY(driver.p_cuMemGetAllocationGranularity(&granularity, &property,
						   CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	bytes = (bytes + granularity - 1) / granularity * granularity;
	TRY(driver.p_cuMemCreate(&handle, bytes, &property, 0));
	TRY(vmm_map(handle, bytes, pointer));
	TRY(driver.p_cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
						  0));
	*descriptor = (uint64_t)fd;
	return CUDA_SUCCESS;
}

enum { FABRIC = 8 /* CU_MEM_HANDLE_TYPE_FABRIC, of CUDA 12.3 */, FABRIC_BYTES = 2 << 20 };

CUresult fabric_new(uint64_t *pointer, unsigned char *name, uint64_t *supported)
{
	CUmemAllocationProp property;
	CUmemGenericAllocationHandle handle;
	CUresult result;
	int has = 0;

	/* 128: CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED; drivers before it give an error */
	if (driver.p_cuDeviceGetAttribute(&has, (CUdevice_attribute)128, 0))
		has = 0;
	*supported = (uint64_t)has;
	memset(&property, 0, sizeof(property));
	property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	property.requestedHandleTypes = (CUmemAllocationHandleType)FABRIC;
	TRY(driver.p_cuMemCreate(&handle, FABRIC_BYTES, &property, 0));
	result = vmm_map(handle, FABRIC_BYTES, pointer);
	return result ? result : driver.p_cuMemExportToShareableHandle(name, handle, (CUmemAllocationHandleType)FABRIC, 0);
}

CUresult fabric_take(const unsigned char *name, uint64_t *pointer)
{
	CUmemGenericAllocationHandle handle;

	TRY(driver.p_cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)name, (CUmemAllocationHandleType)FABRIC));
	return vmm_map(handle, FABRIC_BYTES, pointer);
}

static int receive_descriptor(void)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec vector = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header;
	int fd;

	if (recvmsg(between_workers[1], &message, MSG_DONTWAIT) != 1)
		return -1;
	header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

/* Copies a descriptor of process @pid into this process. */
int take_descriptor(pid_t pid, int theirs, enum way way)
{
	char path[64];
	int pidfd, fd;

	if (way == BY_MESSAGE)
		return receive_descriptor();
	if (way == BY_PROC) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, theirs);
		return open(path, O_RDWR | O_CLOEXEC);
	}
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, theirs, 0);
	if (pidfd >= 0)
		close(pidfd);
	return fd;
}

CUresult vmm_take(pid_t pid, int theirs, size_t bytes, enum way way, uint64_t *pointer)
{
	CUmemGenericAllocationHandle handle;
	int fd = take_descriptor(pid, theirs, way);
	CUresult result;

	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = driver.p_cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
							 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(fd);
	return result ? result : vmm_map(handle, bytes, pointer);
}

CUresult handle_beside(bool of_event, uint64_t what, unsigned char *handle)
{
	CUresult result, ended;
	CUipcEventHandle event;
	CUipcMemHandle memory;
	CUcontext beside;

	TRY(driver.p_cuCtxCreate_v2(&beside, 0, 0));
	if (of_event) {
		result = driver.p_cuIpcGetEventHandle(&event, (CUevent)(uintptr_t)what);
		memcpy(handle, &event, 64);
	} else {
		result = driver.p_cuIpcGetMemHandle(&memory, (CUdeviceptr)what);
		memcpy(handle, &memory, 64);
	}
	ended = driver.p_cuCtxDestroy_v2(beside);
	TRY(driver.p_cuCtxSetCurrent(mine.context));
	return result ? result : ended;
}

/* Kills @pid, then clears the block's first word each time its kernel wrote it.  Reports the time of the last write. */
CUresult kill_watch(pid_t pid, CUdeviceptr pointer, uint32_t theirs, uint64_t ns, uint64_t *last,
		    uint64_t *seen)
{
	uint64_t from = now_ns();
	uint32_t ours = 0, word;

	*last = *seen = 0;
	kill(pid, SIGKILL);
	TRY(driver.p_cuMemcpyHtoD_v2(pointer, &ours, 4));
	while (now_ns() - from < ns) {
		TRY(driver.p_cuMemcpyDtoH_v2(&word, pointer, 4));
		if (word != theirs)
			continue;
		*last = now_ns() - from;
		++*seen;
		TRY(driver.p_cuMemcpyHtoD_v2(pointer, &ours, 4));
	}
	return CUDA_SUCCESS;
}

void *free_in_thread(void *argument)
{
	struct freeing *f = argument;
	uint64_t from = now_ns();

	if (!f->bare)
		driver.p_cuCtxSetCurrent(mine.context);
	if (f->relaxed) {
		CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

		driver.p_cuThreadExchangeStreamCaptureMode(&mode);
	}
	f->result = f->event ? driver.p_cuEventDestroy_v2(f->event) : driver.p_cuMemFree_v2(f->pointer);
	f->ns = now_ns() - from;
	return NULL;
}

CUresult two_threads(CUdeviceptr pointer, uint64_t ns, uint64_t *v)
{
	struct freeing freeing = { .pointer = pointer };
	CUdeviceptr other;
	CUstream stream;
	pthread_t thread;
	uint64_t zero = 0, from;
	void *parameters[] = { &zero };

	TRY(driver.p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(launch_spin(ns));
	if (pthread_create(&thread, NULL, free_in_thread, &freeing))
		return CUDA_ERROR_OPERATING_SYSTEM;
	nap(ns / 8);
	from = now_ns();
	TRY(driver.p_cuMemAlloc_v2(&other, 4096));
	v[1] = now_ns() - from;
	from = now_ns();
	TRY(driver.p_cuLaunchKernel(mine.spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	v[2] = now_ns() - from;
	from = now_ns();
	TRY(driver.p_cuStreamSynchronize(stream));
	v[3] = now_ns() - from;
	pthread_join(thread, NULL);
	v[0] = freeing.ns;
	TRY(freeing.result);
	return driver.p_cuMemFree_v2(other);
}

CUresult capture(CUdeviceptr in_default_mode, CUdeviceptr in_relaxed_mode,
		 CUdeviceptr in_stream_order, uint64_t *v)
{
	struct freeing relaxed = { .pointer = in_relaxed_mode, .relaxed = true };
	struct freeing plain = { .pointer = in_default_mode };
	CUdeviceptr none;
	CUgraph graph;
	pthread_t thread;

	/* The relaxed mode first: a refused call may invalidate the capture. */
	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	if (!pthread_create(&thread, NULL, free_in_thread, &relaxed))
		pthread_join(thread, NULL);
	v[1] = (uint64_t)relaxed.result;
	v[2] = (uint64_t)driver.p_cuStreamEndCapture(mine.stream, &graph);
	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	if (!pthread_create(&thread, NULL, free_in_thread, &plain))
		pthread_join(thread, NULL);
	v[0] = (uint64_t)plain.result;
	v[3] = (uint64_t)driver.p_cuStreamEndCapture(mine.stream, &graph);
	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	v[4] = (uint64_t)driver.p_cuMemFreeAsync(in_stream_order, NULL);
	v[5] = (uint64_t)driver.p_cuStreamEndCapture(mine.stream, &graph);
	v[6] = (uint64_t)driver.p_cuMemAlloc_v2(&none, 0);
	TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	v[7] = (uint64_t)driver.p_cuMemAlloc_v2(&none, 0);
	v[8] = (uint64_t)driver.p_cuStreamEndCapture(mine.stream, &graph);
	return CUDA_SUCCESS;
}

/* For the two modes that may refuse: the result of the open and the end of the capture. */
CUresult open_capturing(const unsigned char *bytes, uint64_t *v)
{
	static const CUstreamCaptureMode modes[] = { CU_STREAM_CAPTURE_MODE_GLOBAL,
						     CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
						     CU_STREAM_CAPTURE_MODE_RELAXED };
	CUipcMemHandle handle;
	CUdeviceptr pointer;
	CUgraph graph;

	memcpy(&handle, bytes, sizeof(handle));
	for (unsigned int i = 0; i < 3; i++) {
		TRY(driver.p_cuStreamBeginCapture_v2(mine.stream, modes[i]));
		v[2 * i] = (uint64_t)driver.p_cuIpcOpenMemHandle_v2(&pointer, handle,
								  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
		v[2 * i + 1] = (uint64_t)driver.p_cuStreamEndCapture(mine.stream, &graph);
		if (!v[2 * i])
			TRY(driver.p_cuIpcCloseMemHandle(pointer));
	}
	return CUDA_SUCCESS;
}

CUresult event_orphan(bool destroy)
{
	CUcontext context;
	CUevent event;

	TRY(driver.p_cuCtxCreate_v2(&context, 0, 0));
	TRY(driver.p_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	TRY(driver.p_cuEventRecord(event, NULL));
	TRY(driver.p_cuCtxDestroy_v2(context));
	TRY(driver.p_cuCtxSetCurrent(mine.context));
	return destroy ? driver.p_cuEventDestroy_v2(event) : driver.p_cuEventQuery(event);
}

CUresult event_many(uint64_t most, uint64_t *made)
{
	for (*made = 0; *made < most; ++*made) {
		CUipcEventHandle handle;
		CUevent event;

		TRY(driver.p_cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
		TRY(driver.p_cuIpcGetEventHandle(&handle, event));
	}
	return CUDA_SUCCESS;
}

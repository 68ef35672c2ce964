/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that asks for a legacy handle of each kind of memory for which CUDA makes none, as a
 * library does that probes, and tries to open an invalid handle.  Prints its process id, waits for a
 * byte, and exits with 0.  "capture": it asks while a stream captures; the capture must stay valid.
 */
#include "bug.h"

#include <errno.h>

enum { MIB = 1 << 20 };

static CUdeviceptr reservation;

/* 2 MiB, mapped at the start of a reservation of 8. */
static CUdeviceptr make_virtual(CUmemAllocationHandleType type)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = type,
				     .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemAccessDesc access = { .location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;

	CHECK(cuMemAddressReserve(&reservation, 8 * MIB, 0, 0, 0));
	CHECK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
	CHECK(cuMemMap(reservation, 2 * MIB, 0, handle, 0));
	CHECK(cuMemSetAccess(reservation, 2 * MIB, &access, 1));
	return reservation;
}

__attribute__((noinline)) static void try_to_share(CUdeviceptr block, const char *what)
{
	CUipcMemHandle handle;
	CUresult result;

	errno = ENOTBLK;
	result = cuIpcGetMemHandle(&handle, block);
	if (result != CUDA_ERROR_INVALID_VALUE || errno != ENOTBLK) {
		fprintf(stderr, "%s: result %d, errno %d\n", what, result, errno);
		exit(2);
	}
}

/* A handle that no driver made, and flags that there are not. */
__attribute__((noinline)) static void try_to_open(void)
{
	CUipcMemHandle handle;
	CUdeviceptr block;
	CUresult result;

	memset(&handle, 0, sizeof(handle));
	errno = ENOTBLK;
	result = cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (result == CUDA_SUCCESS || errno != ENOTBLK) {
		fprintf(stderr, "open: result %d, errno %d\n", result, errno);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	int capture = argc > 1 && !strcmp(argv[1], "capture");
	CUdeviceptr alone, shareable, pooled, managed;
	CUstream stream;
	CUgraph graph;
	void *host;
	char byte;

	use_gpu();
	alone = make_virtual(CU_MEM_HANDLE_TYPE_NONE);
	shareable = make_virtual(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAllocAsync(&pooled, 3 * MIB, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuMemHostAlloc(&host, MIB / 2, 0));
	if (capture)
		CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 5; i++)
		try_to_share(alone + 4096, "virtual memory without a handle type");
	try_to_share(shareable, "virtual memory");
	try_to_share(pooled, "stream-ordered memory");
	try_to_share(managed, "managed memory");
	try_to_share((CUdeviceptr)(uintptr_t)host, "host memory");
	try_to_share((CUdeviceptr)(uintptr_t)&byte, "the stack");
	try_to_open();
	if (capture) {
		CHECK(cuStreamEndCapture(stream, &graph));
		CHECK(cuGraphDestroy(graph));
	}
	printf("%d\n", (int)getpid());
	fflush(stdout);
	if (read(0, &byte, 1) < 0)
		return 3;
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is linked with libcuda and also looks its calls up.  It exports a block by a
 * linked call and opens its own handle by a looked-up one.  The driver alone refuses that (201);
 * under culimbo it opens.  It is refused under two copies of culimbo that each see one of the
 * calls.  --shares-nothing: it only allocates.  --descriptors: it shares only by a descriptor;
 * --descriptors-first: by a descriptor before the rest.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(CUresult result, const char *call)
{
	if (result == CUDA_SUCCESS)
		return;
	printf("%s: %d\n", call, (int)result);
	exit(1);
}
#define MUST(call) must(call, #call)

static void share_by_descriptor(void)
{
	const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					   .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemGenericAllocationHandle handle;
	int fd;

	MUST(cuMemCreate(&handle, 2 << 20, &prop, 0));
	MUST(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
}

int main(int argc, char **argv)
{
	const char *option = argc > 1 ? argv[1] : "";
	CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int);
	CUipcMemHandle handle;
	CUdeviceptr block, opened;
	CUcontext ctx;
	Dl_info info;
	void *found = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuIpcOpenMemHandle_v2");

	memcpy(&open, &found, sizeof(open));
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
	MUST(cuCtxSetCurrent(ctx));
	MUST(cuMemAlloc(&block, 4096));
	if (strstr(option, "--descriptors"))
		share_by_descriptor();
	if (*option && strcmp(option, "--descriptors-first"))
		return 0;
	MUST(cuIpcGetMemHandle(&handle, block));
	printf("open %d\n", (int)open(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	printf("looked up in %s\n", dladdr(found, &info) ? info.dli_fname : "nothing");
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses UCX's memory hooks, as UCX's own transports do: it is told of
 * every allocation and free of device memory, whoever makes it, and by whichever of
 * the pointers that the program has.
 *
 *   ucx FOLDER-OF-UCX's-LIBRARIES  first | last  [culimbo]
 *
 * first: UCX installs its hooks, then the program takes its pointers to the driver's
 * calls.  last: the program takes them and uses them, then UCX installs its hooks.
 * culimbo: a block that was shared and is freed is kept, for each call goes on to
 * culimbo's hook.
 *
 * Prints a line for each way to call: what it is, how many events came, and whether they
 * named the block.  Ends with 0 when all was as it should be, with 1 when not, with 2
 * when it could not be tried.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucm/api/ucm.h>
#include "shim/driver/calls.h"

#define CHECK(call)                                                            \
	do {                                                                   \
		int check_result = (int)(call);                                \
                                                                               \
		if (check_result) {                                            \
			printf("%s: %d (line %d)\n", #call, check_result, __LINE__); \
			exit(2);                                               \
		}                                                              \
	} while (0)

/* --------------------------------------------------------------- what UCX tells */
static struct {
	unsigned int allocations, frees;
	uintptr_t allocated, freed;
	size_t bytes;
} seen;

static void told(ucm_event_type_t type, ucm_event_t *event, void *unused)
{
	if (type == UCM_EVENT_MEM_TYPE_ALLOC) {
		seen.allocations++;
		seen.allocated = (uintptr_t)event->mem_type.address;
	} else {
		seen.frees++;
		seen.freed = (uintptr_t)event->mem_type.address;
		seen.bytes = event->mem_type.size;
	}
}

static void *opened(const char *folder, const char *name, int how)
{
	char path[4096];
	void *library;

	snprintf(path, sizeof(path), "%s%s%s", folder, *folder ? "/" : "", name);
	library = dlopen(path, RTLD_NOW | how);
	if (!library) {
		printf("%s\n", dlerror());
		exit(2);
	}
	return library;
}

static void install(const char *folder)
{
	ucs_status_t (*set)(int, int, ucm_event_callback_t, void *);
	void *ucs = opened(folder, "libucs.so.0", RTLD_GLOBAL); /* it needs libucm */
	ucs_status_t status;

	opened(folder, "ucx/libucm_cuda.so.0", RTLD_GLOBAL);
	*(void **)&set = dlsym(ucs, "ucm_set_event_handler");
	status = set(UCM_EVENT_MEM_TYPE_ALLOC | UCM_EVENT_MEM_TYPE_FREE, 0, told, NULL);
	printf("ucm_set_event_handler: %d\n", (int)status);
	if (status != UCS_OK)
		exit(1);
}

/* ------------------------------------------------------------- the program's calls */
struct calls {
	CUresult (*allocate)(CUdeviceptr *, size_t);
	CUresult (*release)(CUdeviceptr);
	CUresult (*allocate_async)(CUdeviceptr *, size_t, CUstream);
	CUresult (*release_async)(CUdeviceptr, CUstream);
	CUresult (*export)(CUipcMemHandle *, CUdeviceptr);
};

static struct calls by_dlsym(void *driver)
{
	struct calls calls;

	*(void **)&calls.allocate = dlsym(driver, "cuMemAlloc_v2");
	*(void **)&calls.release = dlsym(driver, "cuMemFree_v2");
	*(void **)&calls.allocate_async = dlsym(driver, "cuMemAllocAsync");
	*(void **)&calls.release_async = dlsym(driver, "cuMemFreeAsync");
	*(void **)&calls.export = dlsym(driver, "cuIpcGetMemHandle");
	return calls;
}

static struct calls by_proc_address(void *driver)
{
	CUresult (*get)(const char *, void **, int, cuuint64_t);
	struct calls calls;

	*(void **)&get = dlsym(driver, "cuGetProcAddress");
	CHECK(get("cuMemAlloc", (void **)&calls.allocate, 12000, 0));
	CHECK(get("cuMemFree", (void **)&calls.release, 12000, 0));
	CHECK(get("cuMemAllocAsync", (void **)&calls.allocate_async, 12000, 0));
	CHECK(get("cuMemFreeAsync", (void **)&calls.release_async, 12000, 0));
	CHECK(get("cuIpcGetMemHandle", (void **)&calls.export, 12000, 0));
	return calls;
}

static struct calls by_linking(void)
{
	return (struct calls){ cuMemAlloc_v2, cuMemFree_v2, cuMemAllocAsync, cuMemFreeAsync,
			       cuIpcGetMemHandle };
}

/* Direct calls, not through pointers: UCX changes the tables of the program for these. */
static CUresult direct_allocate(CUdeviceptr *block, size_t bytes)
{
	return cuMemAlloc_v2(block, bytes);
}

static CUresult direct_release(CUdeviceptr block)
{
	return cuMemFree_v2(block);
}

static int failures;
static bool culimbo;

/* Returns whether the address of a freed block still names a block. */
static bool kept(CUdeviceptr block)
{
	CUdeviceptr base;
	size_t bytes;

	return cuMemGetAddressRange_v2(&base, &bytes, block) == CUDA_SUCCESS;
}

static void check(const char *way, const char *what, CUdeviceptr block, size_t bytes)
{
	int right = seen.allocations == 1 && seen.frees == 1 && seen.allocated == block &&
		    seen.freed == block && seen.bytes == bytes;

	printf("%s, %s: %u allocated, %u freed, %s\n", way, what, seen.allocations, seen.frees,
	       right ? "right" : "WRONG");
	failures += !right;
	memset(&seen, 0, sizeof(seen));
}

static void play(const char *way, struct calls calls)
{
	const size_t bytes = (size_t)4 << 20;
	CUipcMemHandle handle;
	CUdeviceptr block;

	memset(&seen, 0, sizeof(seen));
	CHECK(calls.allocate(&block, bytes));
	CHECK(calls.release(block));
	check(way, "freed", block, bytes);

	CHECK(calls.allocate(&block, bytes));
	CHECK(calls.export(&handle, block));
	CHECK(calls.release(block));
	check(way, "shared and freed", block, bytes);
	if (kept(block) != culimbo) {
		printf("%s: a freed block is%s kept\n", way, culimbo ? " not" : "");
		failures++;
	}

	CHECK(calls.allocate_async(&block, bytes, NULL));
	CHECK(calls.release_async(block, NULL));
	CHECK(cuStreamSynchronize(NULL));
	check(way, "freed in a stream", block, bytes);
}

/* The other ways to allocate that UCX patches, by the pointers that dlsym() gives. */
static void play_others(void *driver, struct calls calls)
{
	const CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
					    .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	const size_t bytes = (size_t)4 << 20;
	CUresult (*pitched)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
	CUresult (*managed)(CUdeviceptr *, size_t, unsigned int);
	CUresult (*from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	CUmemoryPool pool;
	CUdeviceptr block;
	size_t pitch;

	*(void **)&pitched = dlsym(driver, "cuMemAllocPitch_v2");
	*(void **)&managed = dlsym(driver, "cuMemAllocManaged");
	*(void **)&from_pool = dlsym(driver, "cuMemAllocFromPoolAsync");
	CHECK(pitched(&block, &pitch, 4096, bytes / 4096, 16));
	CHECK(calls.release(block));
	check("dlsym", "with a pitch", block, bytes);
	CHECK(managed(&block, bytes, CU_MEM_ATTACH_GLOBAL));
	CHECK(calls.release(block));
	check("dlsym", "managed", block, bytes);
	CHECK(cuMemPoolCreate(&pool, &properties));
	CHECK(from_pool(&block, bytes, pool, NULL));
	CHECK(calls.release_async(block, NULL));
	CHECK(cuStreamSynchronize(NULL));
	check("dlsym", "from a pool", block, bytes);
	CHECK(cuMemPoolDestroy(pool));
}

int main(int argc, char **argv)
{
	const char *folder = argv[1];
	struct calls direct = by_linking();
	struct calls found, asked;
	CUcontext context;
	CUdevice device;
	CUdeviceptr block;
	void *driver;

	setvbuf(stdout, NULL, _IONBF, 0);
	if (argc < 3)
		return 2;
	culimbo = argc > 3;
	if (!strcmp(argv[2], "first"))
		install(folder);
	driver = opened("", "libcuda.so.1", RTLD_GLOBAL);
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	found = by_dlsym(driver);
	asked = by_proc_address(driver);
	if (strcmp(argv[2], "first")) {
		CHECK(found.allocate(&block, 4096));
		CHECK(asked.release(block));
		CHECK(direct_allocate(&block, 4096));
		CHECK(direct_release(block));
		install(folder);
	}
	play("dlsym", found);
	play_others(driver, found);
	play("cuGetProcAddress", asked);
	play("linked, by pointer", direct);
	direct.allocate = direct_allocate;
	direct.release = direct_release;
	play("linked", direct);
	return failures != 0;
}

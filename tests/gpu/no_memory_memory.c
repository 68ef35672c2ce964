/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The no_memory program: calls on IPC, events, streams, pools, virtual and host memory, textures
 * and copies.
 */
#include "no_memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cuda.h>

static int open_memory(void)
{
	return (int)cu.cuIpcOpenMemHandle_v2(&my.pointer, my.shared.memory,
					     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}
static void close_memory(void)
{
	cu.cuIpcCloseMemHandle(my.pointer);
}
static int open_event(void)
{
	CUevent event;

	TRY(cu.cuIpcOpenEventHandle(&event, my.shared.event));
	my.many[0] = event;
	my.n = 1;
	return 0;
}

/* Creates many: the driver often has a few in reserve. */
static int events(unsigned int flags, unsigned int n)
{
	for (my.n = 0; my.n < n; my.n++) {
		CUevent event;

		TRY(cu.cuEventCreate(&event, flags));
		my.many[my.n] = event;
	}
	return 0;
}
static int one_event(void)
{
	return events(0, 1);
}
static int many_events(void)
{
	return events(0, MANY);
}
static int many_interprocess(void)
{
	return events(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, 2048);
}
static void destroy_events(void)
{
	while (my.n)
		cu.cuEventDestroy_v2(my.many[--my.n]);
}
static int streams(unsigned int n, bool priority)
{
	for (my.n = 0; my.n < n; my.n++) {
		CUstream stream;

		if (priority)
			TRY_IF(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, -1);
		else
			TRY(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		my.many[my.n] = stream;
	}
	return 0;
}
static int one_stream(void)
{
	return streams(1, false);
}
static int many_streams(void)
{
	return streams(256, false);
}
static int priority_streams(void)
{
	return streams(64, true);
}
static void destroy_streams(void)
{
	while (my.n)
		cu.cuStreamDestroy_v2(my.many[--my.n]);
}

static int create_pool(void)
{
	CUmemPoolProps props = device_pool();

	TRY_IF(cuMemPoolCreate, &my.pool, &props);
	return 0;
}
static void destroy_pool(void)
{
	cu.cuMemPoolDestroy(my.pool);
}
static int import_pool(void)
{
	if (!my.shared.has_pool)
		return NOT_THERE;
	TRY_IF(cuMemPoolImportFromShareableHandle, &my.pool, (void *)(intptr_t)pool_fd,
	       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	TRY_IF(cuMemPoolSetAccess, my.pool, &device_access, 1);
	return 0;
}
static int has_pool(void)
{
	TRY(with_stream());
	return import_pool();
}
static int import_pointer(void)
{
	TRY_IF(cuMemPoolImportPointer, &my.pointer, my.pool, &my.shared.pointer);
	return 0;
}
static void free_import(void)
{
	cu.cuMemFreeAsync(my.pointer, my.stream);
	cu.cuStreamSynchronize(my.stream);
}

static int reserve(void)
{
	TRY_IF(cuMemAddressReserve, &my.reserved, my.shared.bytes / 4, 0, 0, 0);
	return 0;
}
static void unreserve(void)
{
	cu.cuMemAddressFree(my.reserved, my.shared.bytes / 4);
}
static int import_vmm(void)
{
	if (!my.shared.has_vmm)
		return NOT_THERE;
	TRY_IF(cuMemImportFromShareableHandle, &my.handle, (void *)(intptr_t)vmm_fd,
	       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	return 0;
}
static void release_vmm(void)
{
	cu.cuMemRelease(my.handle);
}
static int has_vmm(void)
{
	TRY(with_context());
	TRY(import_vmm());
	return reserve();
}
static int map_vmm(void)
{
	TRY_IF(cuMemMap, my.reserved, my.shared.bytes / 4, 0, my.handle, 0);
	return 0;
}
static void unmap_vmm(void)
{
	cu.cuMemUnmap(my.reserved, my.shared.bytes / 4);
}
static int has_mapped(void)
{
	TRY(has_vmm());
	return map_vmm();
}
static int set_access(void)
{
	TRY_IF(cuMemSetAccess, my.reserved, my.shared.bytes / 4, &device_access, 1);
	return 0;
}
static int host_alloc(void)
{
	TRY_IF(cuMemAllocHost_v2, &my.host, 256 * MIB);
	return 0;
}
static int host_alloc_small(void)
{
	TRY_IF(cuMemHostAlloc, &my.host, 4096, CU_MEMHOSTALLOC_DEVICEMAP);
	return 0;
}
static void host_free(void)
{
	cu.cuMemFreeHost(my.host);
}
static int has_host(void)
{
	TRY(with_context());
	my.host = aligned_alloc(4096, 256 * MIB);
	if (!my.host)
		return NO_ANSWER;
	memset(my.host, 1, 256 * MIB);
	return 0;
}
static int host_register(void)
{
	TRY_IF(cuMemHostRegister_v2, my.host, 256 * MIB, CU_MEMHOSTREGISTER_DEVICEMAP);
	return 0;
}
static void host_unregister(void)
{
	cu.cuMemHostUnregister(my.host);
}

static int set_bytes(void)
{
	TRY_IF(cuMemsetD8_v2, my.small, 1, 4 * MIB);
	return (int)cu.cuCtxSynchronize();
}
static int copy_in(void)
{
	static unsigned char from[4 << 20];

	TRY_IF(cuMemcpyHtoD_v2, my.small, from, sizeof from);
	return 0;
}
static int copy_within(void)
{
	TRY_IF(cuMemcpyDtoD_v2, my.small, my.small + 2 * MIB, 2 * MIB);
	return (int)cu.cuCtxSynchronize();
}

static int textures(void)
{
	CUDA_RESOURCE_DESC what;
	CUDA_TEXTURE_DESC how;

	memset(&what, 0, sizeof what);
	memset(&how, 0, sizeof how);
	what.resType = CU_RESOURCE_TYPE_LINEAR;
	what.res.linear.devPtr = my.small;
	what.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
	what.res.linear.numChannels = 1;
	what.res.linear.sizeInBytes = 4096;
	for (my.n = 0; my.n < MANY; my.n++) {
		CUtexObject object;

		TRY_IF(cuTexObjectCreate, &object, &what, &how, NULL);
		my.many[my.n] = (void *)(uintptr_t)object;
	}
	return 0;
}
static void destroy_textures(void)
{
	while (my.n)
		cu.cuTexObjectDestroy((CUtexObject)(uintptr_t)my.many[--my.n]);
}

const struct call memory_calls[] = {
	{ "cuIpcOpenMemHandle", with_context, open_memory, close_memory },
	{ "cuIpcOpenEventHandle", with_context, open_event, destroy_events },
	{ "cuEventCreate, 1", with_context, one_event, destroy_events },
	{ "cuEventCreate, 4096", with_context, many_events, destroy_events },
	{ "cuEventCreate, 2048 interprocess", with_context, many_interprocess, destroy_events },
	{ "cuStreamCreate, 1", with_context, one_stream, destroy_streams },
	{ "cuStreamCreate, 256", with_context, many_streams, destroy_streams },
	{ "cuStreamCreateWithPriority, 64", with_context, priority_streams, destroy_streams },
	{ "cuMemPoolCreate", with_stream, create_pool, destroy_pool },
	{ "cuMemPoolImportFromShareableHandle", with_stream, import_pool, destroy_pool },
	{ "cuMemPoolImportPointer", has_pool, import_pointer, free_import },
	{ "cuMemAddressReserve", with_context, reserve, unreserve },
	{ "cuMemImportFromShareableHandle", with_context, import_vmm, release_vmm },
	{ "cuMemMap", has_vmm, map_vmm, unmap_vmm },
	{ "cuMemSetAccess", has_mapped, set_access, nothing },
	{ "cuMemAllocHost, 256 MiB", with_context, host_alloc, host_free },
	{ "cuMemHostAlloc, 4 KiB", with_context, host_alloc_small, host_free },
	{ "cuMemHostRegister, 256 MiB", has_host, host_register, host_unregister },
	{ "cuTexObjectCreate, 4096", with_block, textures, destroy_textures },
	{ "cuMemsetD8", with_block, set_bytes, nothing },
	{ "cuMemcpyHtoD, pageable", with_block, copy_in, nothing },
	{ "cuMemcpyDtoD", with_block, copy_within, nothing },
	{ NULL, NULL, NULL, NULL },
};

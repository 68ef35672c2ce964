/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which driver calls fail for lack of device memory?
 *
 *     no_memory [-v] [NAME...]       all calls, or those with one of these words in their name
 *
 * One process (the filler) takes the whole device with plain cuMemAlloc, in chunks that get
 * smaller until not even 512 bytes are left.  Another (the prober), fresh for each call, then
 * makes that call.  The filler frees all, and the prober makes the call again.  Each call is
 * tried three times: while the filler has all ("full"); while the prober has filled the rest
 * of its own chunks as well ("all full"); and when all is free ("free").  What the call takes
 * of the device then is told, too ("takes", as cuMemGetInfo says in the filler).
 *
 * What must hold: this process makes no CUDA call; every wait has a deadline; nothing stays
 * allocated, since each process that allocates ends before this one.  The exit status is 1 when
 * a call that failed for lack of memory fails with all memory free, too; 77 without a driver.
 *
 * Without the build tree: cc -std=gnu11 -D_GNU_SOURCE -I/usr/local/cuda/include no_memory.c -ldl
 *
 * The driver's types that old headers lack are void pointers here, so that CUDA 11.3 builds it.
 */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

#define MIB ((size_t)1 << 20)
#define CALL_DEADLINE_MS 60000
#define RUN_DEADLINE_S 540
#define NOT_THERE (-1)	/* this driver has no such call */
#define NO_ANSWER (-2)	/* it crashed, or did not come back */
#define OOM CUDA_ERROR_OUT_OF_MEMORY

/* ------------------------------------------------------------ the driver's calls */
/* With void pointers for the types that CUDA 11.3 has not. */
#define NEEDED_CALLS(X)                                                                        \
	X(cuInit, (unsigned int))                                                              \
	X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                         \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                   \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                            \
	X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                               \
	X(cuCtxDestroy_v2, (CUcontext))                                                        \
	X(cuCtxSetCurrent, (CUcontext))                                                        \
	X(cuCtxSynchronize, (void))                                                            \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                               \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                              \
	X(cuMemFree_v2, (CUdeviceptr))                                                         \
	X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                  \
	X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int))                \
	X(cuIpcCloseMemHandle, (CUdeviceptr))                                                  \
	X(cuIpcGetEventHandle, (CUipcEventHandle *, CUevent))                                  \
	X(cuIpcOpenEventHandle, (CUevent *, CUipcEventHandle))                                 \
	X(cuEventCreate, (CUevent *, unsigned int))                                            \
	X(cuEventDestroy_v2, (CUevent))                                                        \
	X(cuStreamCreate, (CUstream *, unsigned int))                                          \
	X(cuStreamDestroy_v2, (CUstream))                                                      \
	X(cuStreamSynchronize, (CUstream))

#define OTHER_CALLS(X)                                                                         \
	X(cuCtxSetLimit, (CUlimit, size_t))                                                    \
	X(cuCtxGetLimit, (size_t *, CUlimit))                                                  \
	X(cuModuleLoadData, (CUmodule *, const void *))                                        \
	X(cuModuleUnload, (CUmodule))                                                          \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                         \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))             \
	X(cuFuncLoad, (CUfunction))                                                            \
	X(cuLibraryLoadData, (void **, const void *, void *, void **, unsigned int, void *,    \
			      void **, unsigned int))                                          \
	X(cuLibraryUnload, (void *))                                                           \
	X(cuLibraryGetKernel, (void **, void *, const char *))                                 \
	X(cuLibraryGetModule, (CUmodule *, void *))                                            \
	X(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, void *, const char *))                 \
	X(cuKernelGetFunction, (CUfunction *, void *))                                         \
	X(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, \
			   unsigned int, unsigned int, unsigned int, CUstream, void **, void **)) \
	X(cuStreamCreateWithPriority, (CUstream *, unsigned int, int))                         \
	X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                            \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                           \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))           \
	X(cuGraphUpload, (CUgraphExec, CUstream))                                              \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                              \
	X(cuGraphExecDestroy, (CUgraphExec))                                                   \
	X(cuGraphDestroy, (CUgraph))                                                           \
	X(cuDeviceGraphMemTrim, (CUdevice))                                                    \
	X(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                           \
	X(cuMemPoolDestroy, (CUmemoryPool))                                                    \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                  \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                             \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))            \
	X(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                     \
	X(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *))     \
	X(cuMemPoolExportToShareableHandle,                                                    \
	  (void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long))               \
	X(cuMemPoolImportFromShareableHandle,                                                  \
	  (CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long))             \
	X(cuMemPoolSetAccess, (CUmemoryPool, const CUmemAccessDesc *, size_t))                 \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,   \
			unsigned long long))                                                   \
	X(cuMemRelease, (CUmemGenericAllocationHandle))                                        \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                             \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,                \
		     unsigned long long))                                                      \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                   \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))              \
	X(cuMemExportToShareableHandle,                                                        \
	  (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long)) \
	X(cuMemImportFromShareableHandle,                                                      \
	  (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                 \
	X(cuMulticastCreate, (CUmemGenericAllocationHandle *, const void *))                   \
	X(cuMemAllocHost_v2, (void **, size_t))                                                \
	X(cuMemFreeHost, (void *))                                                             \
	X(cuMemHostAlloc, (void **, size_t, unsigned int))                                     \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                \
	X(cuMemHostUnregister, (void *))                                                       \
	X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                 \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                \
	X(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                                 \
	X(cuTexObjectCreate, (CUtexObject *, const CUDA_RESOURCE_DESC *,                       \
			      const CUDA_TEXTURE_DESC *, const CUDA_RESOURCE_VIEW_DESC *))     \
	X(cuTexObjectDestroy, (CUtexObject))                                                   \
	X(cuDeviceGetDevResource, (CUdevice, void *, int))                                     \
	X(cuDevResourceGenerateDesc, (void **, void *, unsigned int))                          \
	X(cuGreenCtxCreate, (void **, void *, CUdevice, unsigned int))                         \
	X(cuGreenCtxDestroy, (void *))                                                         \
	X(cuGreenCtxStreamCreate, (CUstream *, void *, unsigned int, int))

static struct {
#define X(name, params) CUresult(CUDAAPI *name) params;
	NEEDED_CALLS(X) OTHER_CALLS(X)
#undef X
} cu;

static const char *load_driver(void)
{
	static const char *missing;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *found;

	if (!library)
		return "no libcuda.so.1";
#define X(name, params)                                 \
	found = dlsym(library, #name);                  \
	memcpy(&cu.name, &found, sizeof found);         \
	if (!found)                                     \
		missing = "libcuda.so.1 has no " #name;
	OTHER_CALLS(X)
	missing = NULL;
	NEEDED_CALLS(X)
#undef X
	return missing;
}

#define TRY(call)                        \
	do {                             \
		int tried = (int)(call); \
		if (tried)               \
			return tried;    \
	} while (0)
/* The same of a call that not every driver has. */
#define TRY_IF(name, ...)                             \
	do {                                          \
		if (!cu.name)                         \
			return NOT_THERE;             \
		TRY(cu.name(__VA_ARGS__));            \
	} while (0)

/* ------------------------------------------------------------------ filling */
/*
 * Takes all that plain allocations get, in chunks of @from bytes down to 512.  The
 * pieces are remembered in blocks of their own, for there may be many.
 */
struct pieces {
	CUdeviceptr *at;
	size_t n, room, bytes;
};

static int fill(struct pieces *p, size_t from)
{
	for (size_t chunk = from; chunk >= 512; chunk /= 2)
		for (;;) {
			CUdeviceptr got;
			CUresult result = cu.cuMemAlloc_v2(&got, chunk);

			if (result == OOM)
				break;
			if (result)
				return (int)result;
			if (p->n == p->room) {
				p->room = p->room ? 2 * p->room : 4096;
				p->at = realloc(p->at, p->room * sizeof *p->at);
				if (!p->at)
					abort();
			}
			p->at[p->n++] = got;
			p->bytes += chunk;
		}
	return 0;
}

static int empty(struct pieces *p)
{
	int result = 0;

	while (p->n) {
		int freed = (int)cu.cuMemFree_v2(p->at[--p->n]);

		if (freed)
			result = freed;
	}
	p->bytes = 0;
	return result;
}

/* ------------------------------------------------- what the filler shares with a prober */
#define SHARED_BYTES (1024 * MIB) /* less where the device is small: see share() */
struct shared {
	size_t bytes;
	CUipcMemHandle memory;
	CUipcEventHandle event;
	CUmemPoolPtrExportData pointer;
	bool has_pool, has_vmm;
};
/* Beside it two descriptors travel: of the pool, and of virtual memory. */
static int pool_fd = -1, vmm_fd = -1;

static CUmemAllocationProp device_memory(void)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
}

static CUmemPoolProps device_pool(void)
{
	return (CUmemPoolProps){
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
}

static const CUmemAccessDesc device_access = {
	.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

static int share_pool(struct shared *s)
{
	CUmemPoolProps props = device_pool();
	CUmemoryPool pool;
	CUdeviceptr block;

	TRY_IF(cuMemPoolCreate, &pool, &props);
	TRY_IF(cuMemPoolExportToShareableHandle, &pool_fd, pool,
	       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	TRY_IF(cuMemAllocFromPoolAsync, &block, s->bytes / 4, pool, NULL);
	TRY(cu.cuStreamSynchronize(NULL));
	TRY_IF(cuMemPoolExportPointer, &s->pointer, block);
	s->has_pool = true;
	return 0;
}

static int share_vmm(struct shared *s)
{
	CUmemAllocationProp prop = device_memory();
	CUmemGenericAllocationHandle handle;

	TRY_IF(cuMemCreate, &handle, s->bytes / 4, &prop, 0);
	TRY_IF(cuMemExportToShareableHandle, &vmm_fd, handle,
	       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	s->has_vmm = true;
	return 0;
}

static int share(struct shared *s)
{
	size_t available, total;
	CUdeviceptr block;
	CUevent event;

	TRY(cu.cuMemGetInfo_v2(&available, &total));
	s->bytes = SHARED_BYTES;
	while (s->bytes > available / 8)
		s->bytes /= 2;
	TRY(cu.cuMemAlloc_v2(&block, s->bytes));
	TRY(cu.cuIpcGetMemHandle(&s->memory, block));
	TRY(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	TRY(cu.cuIpcGetEventHandle(&s->event, event));
	(void)share_pool(s);
	(void)share_vmm(s);
	return 0;
}

/* ------------------------------------------------------------------- the calls */
static const char small_ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry tiny()\n{\n\tret;\n}\n";

static const char big_ptx[] = /* 64 MiB of device memory, and a kernel that refers to it */
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .global .align 8 .b8 big[67108864];\n"
	".visible .entry uses()\n{\n"
	"\t.reg .b64 %rd<2>;\n"
	"\tmov.u64 %rd1, big;\n"
	"\tst.global.u64 [%rd1], 1;\n"
	"\tret;\n}\n";

static const char deep_ptx[] = /* 16 KiB of local memory a thread: some GiB in all */
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry deep(.param .u64 where, .param .u32 index)\n{\n"
	"\t.local .align 8 .b8 depot[16384];\n"
	"\t.reg .b64 %rd<8>;\n\t.reg .b32 %r<4>;\n\t.reg .pred %p;\n"
	"\tld.param.u64 %rd1, [where];\n"
	"\tld.param.u32 %r1, [index];\n"
	"\tmov.u64 %rd2, depot;\n"
	"\tcvt.u64.u32 %rd3, %r1;\n"
	"\tadd.u64 %rd4, %rd2, %rd3;\n"
	"\tst.local.u8 [%rd4], %r1;\n"
	"\tld.local.u8 %r2, [depot+8];\n"
	"\tsetp.eq.u64 %p, %rd1, 0;\n"
	"\t@%p bra out;\n"
	"\tst.global.u8 [%rd1], %r2;\n"
	"out:\n"
	"\tret;\n}\n";

/* The prober's own state; a call of the table finds what its setup left here. */
#define MANY 4096
static struct {
	struct shared shared;
	CUcontext ctx;
	CUstream stream;
	CUmodule module;
	CUfunction function;
	CUgraph graph;
	CUgraphExec exec;
	CUmemoryPool pool;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr reserved, small, pointer;
	void *lib, *kernel, *host, *green, *descriptor;
	void *many[MANY];
	unsigned int n;
	size_t limit;
	_Alignas(16) unsigned char resource[1024]; /* a CUdevResource */
} my;

static int no_context(void)
{
	return 0;
}

static int with_context(void)
{
	TRY(cu.cuDevicePrimaryCtxRetain(&my.ctx, 0));
	TRY(cu.cuCtxSetCurrent(my.ctx));
	return (int)cu.cuCtxSynchronize();
}

static int with_stream(void)
{
	TRY(with_context());
	return (int)cu.cuStreamCreate(&my.stream, CU_STREAM_NON_BLOCKING);
}

static int with_block(void)
{
	TRY(with_stream());
	return (int)cu.cuMemAlloc_v2(&my.small, 4 * MIB);
}

/* Each call: try (0, or its error), and undo what a successful try did. */
static int retain(void)
{
	CUcontext ctx;

	return (int)cu.cuDevicePrimaryCtxRetain(&ctx, 0);
}
static void release(void)
{
	cu.cuDevicePrimaryCtxRelease_v2(0);
}

static int create_context(void)
{
	return (int)cu.cuCtxCreate_v2(&my.ctx, 0, 0);
}
static void destroy_context(void)
{
	cu.cuCtxDestroy_v2(my.ctx);
}

static int set_limit(CUlimit limit, size_t value)
{
	TRY_IF(cuCtxGetLimit, &my.limit, limit);
	TRY_IF(cuCtxSetLimit, limit, value);
	return (int)cu.cuCtxSynchronize();
}
static int limit_stack(void)
{
	return set_limit(CU_LIMIT_STACK_SIZE, 16384);
}
static void unlimit_stack(void)
{
	cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, my.limit);
}
static int limit_heap(void)
{
	return set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 512 * MIB);
}
static void unlimit_heap(void)
{
	cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, my.limit);
}
static int limit_printf(void)
{
	return set_limit(CU_LIMIT_PRINTF_FIFO_SIZE, 256 * MIB);
}
static void unlimit_printf(void)
{
	cu.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, my.limit);
}

static int load_small(void)
{
	TRY_IF(cuModuleLoadData, &my.module, small_ptx);
	return 0;
}
static int load_big(void)
{
	TRY_IF(cuModuleLoadData, &my.module, big_ptx);
	return 0;
}
static void unload(void)
{
	cu.cuModuleUnload(my.module);
}

static int has_small(void)
{
	TRY(with_stream());
	return load_small();
}
static int get_function(void)
{
	TRY_IF(cuModuleGetFunction, &my.function, my.module, "tiny");
	return 0;
}
static int load_function(void)
{
	TRY(get_function());
	TRY_IF(cuFuncLoad, my.function);
	return 0;
}
static int has_function(void)
{
	TRY(has_small());
	return get_function();
}
static int launch(void)
{
	TRY_IF(cuLaunchKernel, my.function, 1, 1, 1, 1, 1, 1, 0, my.stream, NULL, NULL);
	return (int)cu.cuStreamSynchronize(my.stream);
}
static int has_deep(void)
{
	TRY(with_stream());
	TRY_IF(cuModuleLoadData, &my.module, deep_ptx);
	TRY_IF(cuModuleGetFunction, &my.function, my.module, "deep");
	return 0;
}
static int launch_deep(void)
{
	CUdeviceptr nowhere = 0;
	unsigned int index = 8;
	void *params[] = { &nowhere, &index };

	TRY_IF(cuLaunchKernel, my.function, 1, 1, 1, 1, 1, 1, 0, my.stream, params, NULL);
	return (int)cu.cuStreamSynchronize(my.stream);
}
static void nothing(void)
{
}

static int load_library(const char *ptx)
{
	TRY_IF(cuLibraryLoadData, &my.lib, ptx, NULL, NULL, 0, NULL, NULL, 0);
	return 0;
}
static int library_small(void)
{
	return load_library(small_ptx);
}
static int library_big(void)
{
	return load_library(big_ptx);
}
static void unload_library(void)
{
	cu.cuLibraryUnload(my.lib);
}
static int has_library(void)
{
	TRY(with_context());
	return library_big();
}
static int library_module(void)
{
	TRY_IF(cuLibraryGetModule, &my.module, my.lib);
	return 0;
}
static int library_global(void)
{
	CUdeviceptr at;
	size_t size;

	TRY_IF(cuLibraryGetGlobal, &at, &size, my.lib, "big");
	return 0;
}
static int library_kernel(void)
{
	TRY_IF(cuLibraryGetKernel, &my.kernel, my.lib, "uses");
	return 0;
}
static int has_kernel(void)
{
	TRY(has_library());
	return library_kernel();
}
static int kernel_function(void)
{
	TRY_IF(cuKernelGetFunction, &my.function, my.kernel);
	return 0;
}

/* A graph of 64 launches, or of one allocation of 64 MiB. */
static int has_graph(void)
{
	TRY(has_function());
	TRY(launch());
	TRY_IF(cuStreamBeginCapture_v2, my.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	for (int i = 0; i < 64; i++)
		TRY_IF(cuLaunchKernel, my.function, 1, 1, 1, 1, 1, 1, 0, my.stream, NULL, NULL);
	TRY_IF(cuStreamEndCapture, my.stream, &my.graph);
	return 0;
}
static int has_allocating_graph(void)
{
	CUdeviceptr at;

	TRY(with_stream());
	TRY_IF(cuStreamBeginCapture_v2, my.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	TRY_IF(cuMemAllocAsync, &at, 64 * MIB, my.stream);
	TRY_IF(cuMemFreeAsync, at, my.stream);
	TRY_IF(cuStreamEndCapture, my.stream, &my.graph);
	return 0;
}
static int instantiate(void)
{
	TRY_IF(cuGraphInstantiateWithFlags, &my.exec, my.graph, 0);
	return 0;
}
static void destroy_exec(void)
{
	cu.cuGraphExecDestroy(my.exec);
}
static int has_exec(void)
{
	TRY(has_graph());
	return instantiate();
}
static int has_allocating_exec(void)
{
	TRY(has_allocating_graph());
	return instantiate();
}
static int upload_graph(void)
{
	TRY_IF(cuGraphUpload, my.exec, my.stream);
	return (int)cu.cuStreamSynchronize(my.stream);
}
static int launch_graph(void)
{
	TRY_IF(cuGraphLaunch, my.exec, my.stream);
	return (int)cu.cuStreamSynchronize(my.stream);
}
static void trim_graphs(void)
{
	if (cu.cuDeviceGraphMemTrim)
		cu.cuDeviceGraphMemTrim(0);
}

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

/* Many of a kind: one often comes out of what the driver has in hand. */
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
static int multicast(void)
{
	struct {
		unsigned int devices;
		size_t size;
		unsigned long long types, flags;
	} prop = { 1, 64 * MIB, 0, 0 };

	TRY_IF(cuMulticastCreate, &my.handle, &prop);
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

static int has_resource(void)
{
	TRY(with_context());
	TRY_IF(cuDeviceGetDevResource, 0, my.resource, 1 /* CU_DEV_RESOURCE_TYPE_SM */);
	TRY_IF(cuDevResourceGenerateDesc, &my.descriptor, my.resource, 1);
	return 0;
}
static int green(void)
{
	TRY_IF(cuGreenCtxCreate, &my.green, my.descriptor, 0, 1 /* CU_GREEN_CTX_DEFAULT_STREAM */);
	return 0;
}
static void destroy_green(void)
{
	cu.cuGreenCtxDestroy(my.green);
}
static int has_green(void)
{
	TRY(has_resource());
	return green();
}
static int green_stream(void)
{
	TRY_IF(cuGreenCtxStreamCreate, &my.stream, my.green, CU_STREAM_NON_BLOCKING, 0);
	return 0;
}
static void destroy_stream(void)
{
	cu.cuStreamDestroy_v2(my.stream);
}

static int allocate(void)
{
	return (int)cu.cuMemAlloc_v2(&my.pointer, 512);
}
static void deallocate(void)
{
	cu.cuMemFree_v2(my.pointer);
}

/* "all full" needs a context of the prober's own: those without one are tried only with the device full. */
static const struct call {
	const char *name;
	int (*setup)(void);
	int (*try)(void);
	void (*undo)(void);
} calls[] = {
	{ "cuMemAlloc, 512 bytes (the control)", with_context, allocate, deallocate },
	{ "cuDevicePrimaryCtxRetain", no_context, retain, release },
	{ "cuCtxCreate, the first", no_context, create_context, destroy_context },
	{ "cuCtxCreate, beside the primary one", with_context, create_context, destroy_context },
	{ "cuGreenCtxCreate", has_resource, green, destroy_green },
	{ "cuGreenCtxStreamCreate", has_green, green_stream, destroy_stream },
	{ "cuCtxSetLimit, stack 16 KiB", with_context, limit_stack, unlimit_stack },
	{ "cuCtxSetLimit, heap 512 MiB", with_context, limit_heap, unlimit_heap },
	{ "cuCtxSetLimit, printf 256 MiB", with_context, limit_printf, unlimit_printf },
	{ "cuModuleLoadData, small", with_context, load_small, unload },
	{ "cuModuleLoadData, 64 MiB", with_context, load_big, unload },
	{ "cuModuleGetFunction", has_small, get_function, nothing },
	{ "cuFuncLoad", has_small, load_function, nothing },
	{ "cuLibraryLoadData, small", with_context, library_small, unload_library },
	{ "cuLibraryLoadData, 64 MiB", with_context, library_big, unload_library },
	{ "cuLibraryGetModule, 64 MiB", has_library, library_module, nothing },
	{ "cuLibraryGetGlobal, 64 MiB", has_library, library_global, nothing },
	{ "cuLibraryGetKernel, 64 MiB", has_library, library_kernel, nothing },
	{ "cuKernelGetFunction, 64 MiB", has_kernel, kernel_function, nothing },
	{ "cuLaunchKernel, the first", has_function, launch, nothing },
	{ "cuLaunchKernel, local memory", has_deep, launch_deep, nothing },
	{ "cuGraphInstantiate, 64 launches", has_graph, instantiate, destroy_exec },
	{ "cuGraphInstantiate, allocates", has_allocating_graph, instantiate, destroy_exec },
	{ "cuGraphUpload, 64 launches", has_exec, upload_graph, nothing },
	{ "cuGraphUpload, allocates", has_allocating_exec, upload_graph, trim_graphs },
	{ "cuGraphLaunch, 64 launches", has_exec, launch_graph, nothing },
	{ "cuGraphLaunch, allocates", has_allocating_exec, launch_graph, trim_graphs },
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
	{ "cuMulticastCreate, 1 device", with_context, multicast, release_vmm },
	{ "cuMemAllocHost, 256 MiB", with_context, host_alloc, host_free },
	{ "cuMemHostAlloc, 4 KiB", with_context, host_alloc_small, host_free },
	{ "cuMemHostRegister, 256 MiB", has_host, host_register, host_unregister },
	{ "cuTexObjectCreate, 4096", with_block, textures, destroy_textures },
	{ "cuMemsetD8", with_block, set_bytes, nothing },
	{ "cuMemcpyHtoD, pageable", with_block, copy_in, nothing },
	{ "cuMemcpyDtoD", with_block, copy_within, nothing },
};
#define N_CALLS (sizeof calls / sizeof calls[0])

/* -------------------------------------------------------------- the processes */
struct answer {
	int result;
	size_t bytes;
};

/* Says @answer; ends with the process that asks. */
static void say(int to, int result, size_t bytes)
{
	struct answer answer = { result, bytes };

	if (write(to, &answer, sizeof answer) != (ssize_t)sizeof answer)
		_exit(1);
}

/* With two descriptors, -1: none. */
static void send_shared(int to, const struct shared *s)
{
	int fds[2] = { pool_fd, vmm_fd }, n = 0, sent[2];
	struct iovec what = { (void *)s, sizeof *s };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof fds)];
	} control;
	struct msghdr message = { .msg_iov = &what, .msg_iovlen = 1 };

	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			sent[n++] = fds[i];
	if (n) {
		memset(&control, 0, sizeof control);
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
		memcpy(CMSG_DATA(&control.head), sent, sizeof(int) * (size_t)n);
	}
	if (sendmsg(to, &message, 0) != (ssize_t)sizeof *s)
		_exit(1);
}

static bool receive_shared(int from, struct shared *s)
{
	int fds[2] = { -1, -1 }, n = 0;
	struct iovec what = { s, sizeof *s };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof fds)];
	} control;
	struct msghdr message = { .msg_iov = &what,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *head;

	if (recvmsg(from, &message, 0) != (ssize_t)sizeof *s)
		return false;
	head = CMSG_FIRSTHDR(&message);
	if (head)
		memcpy(fds, CMSG_DATA(head), head->cmsg_len - CMSG_LEN(0));
	pool_fd = s->has_pool ? fds[n++] : -1;
	vmm_fd = s->has_vmm ? fds[n] : -1;
	return true;
}

/* 'f': fill, 'e': empty, 'i': free memory. */
static void be_filler(int with)
{
	struct pieces pieces = { 0 };
	struct shared shared;
	size_t available, total;
	CUcontext ctx;
	char asked;
	int result = 1;

	memset(&shared, 0, sizeof shared);
	if (!load_driver() && !cu.cuInit(0)) {
		result = (int)cu.cuDevicePrimaryCtxRetain(&ctx, 0);
		if (!result)
			result = (int)cu.cuCtxSetCurrent(ctx);
		if (!result)
			result = share(&shared);
	}
	say(with, result, shared.bytes);
	send_shared(with, &shared);
	while (read(with, &asked, 1) == 1) {
		if (asked == 'f')
			result = fill(&pieces, 1024 * MIB);
		else if (asked == 'e')
			result = empty(&pieces);
		available = 0;
		if (asked == 'i')
			result = (int)cu.cuMemGetInfo_v2(&available, &total);
		say(with, result, asked == 'i' ? available : pieces.bytes);
	}
	empty(&pieces);
	_exit(0);
}

/* 't': tries the call and keeps what it gave; 'u': undoes that; 'f', 'e': fills up its own, empties. */
static void be_prober(int with, const struct call *call)
{
	struct pieces pieces = { 0 };
	int result = NO_ANSWER;
	char asked;

	if (!load_driver())
		result = (int)cu.cuInit(0);
	say(with, result ? result : call->setup(), 0);
	while (read(with, &asked, 1) == 1) {
		result = 0;
		if (asked == 't')
			result = call->try();
		if (asked == 't' && result && my.n) /* some of many were made */
			call->undo();
		else if (asked == 'u')
			call->undo();
		else if (asked == 'f')
			result = fill(&pieces, 64 * MIB);
		else if (asked == 'e')
			result = empty(&pieces);
		say(with, result, pieces.bytes);
	}
	_exit(0);
}

struct process {
	pid_t pid;
	int link;
};
static struct process filler;
static bool verbose;

static struct answer hear(const struct process *p)
{
	struct pollfd wait = { .fd = p->link, .events = POLLIN };
	struct answer answer = { NO_ANSWER, 0 };

	if (poll(&wait, 1, CALL_DEADLINE_MS) == 1 && read(p->link, &answer, sizeof answer) == sizeof answer)
		return answer;
	return (struct answer){ NO_ANSWER, 0 };
}

static struct answer ask(const struct process *p, char what)
{
	if (send(p->link, &what, 1, MSG_NOSIGNAL) != 1)
		return (struct answer){ NO_ANSWER, 0 };
	return hear(p);
}

static struct process start(const struct call *call)
{
	struct process p;
	int link[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link))
		abort();
	fflush(NULL);
	p.pid = fork();
	if (p.pid < 0)
		abort();
	if (p.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(link[0]);
		if (filler.pid && filler.link >= 0)
			close(filler.link);
		if (call)
			be_prober(link[1], call);
		be_filler(link[1]);
	}
	close(link[1]);
	p.link = link[0];
	return p;
}

static void end(struct process *p, bool kill_it)
{
	close(p->link);
	if (kill_it)
		kill(p->pid, SIGKILL);
	for (int waited = 0; waitpid(p->pid, NULL, WNOHANG) == 0; waited++) {
		if (waited == 10000)
			kill(p->pid, SIGKILL);
		poll(NULL, 0, 1);
	}
	p->link = -1;
}

static const char *word(int result, char room[16])
{
	if (result == 0)
		return "ok";
	if (result == OOM)
		return "MEMORY";
	if (result == NOT_THERE)
		return "-";
	if (result == NO_ANSWER)
		return "no answer";
	snprintf(room, 16, "error %d", result);
	return room;
}

static bool wanted(const char *name, char **words)
{
	for (char **w = words; *w; w++)
		if (strstr(name, *w))
			return true;
	return !*words;
}

/* One call with the device filled, and its own chunks as well when @own.  Its result then, *@later with all free. */
static int probe(const struct call *call, bool own, int *later, long long *takes)
{
	struct process p = start(call);
	struct answer set_up = hear(&p), full, mine, got = set_up, again, before, after;

	*later = set_up.result;
	*takes = 0;
	if (set_up.result) {
		end(&p, set_up.result == NO_ANSWER);
		return set_up.result;
	}
	full = ask(&filler, 'f');
	mine = own ? ask(&p, 'f') : full;
	got = ask(&p, 't');
	if (verbose)
		printf("#   %s: filled %zu KiB%s, rest %zu KiB\n", call->name, full.bytes >> 10,
		       own ? ", and by itself as well" : "", own ? mine.bytes >> 10 : 0);
	if (got.result == 0)
		ask(&p, 'u');
	if (own)
		ask(&p, 'e');
	ask(&filler, 'e');
	before = ask(&filler, 'i');
	again = ask(&p, 't');
	after = ask(&filler, 'i');
	*later = again.result;
	*takes = (long long)before.bytes - (long long)after.bytes;
	if (again.result == 0)
		ask(&p, 'u');
	end(&p, again.result == NO_ANSWER);
	return got.result;
}

int main(int argc, char **argv)
{
	const char *missing;
	struct answer ready;
	bool wrong = false;
	char **words = argv + 1;

	if (argc > 1 && !strcmp(argv[1], "-v")) {
		verbose = true;
		words++;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(RUN_DEADLINE_S);
	filler.link = -1;
	filler = start(NULL);
	ready = hear(&filler);
	if (ready.result || !receive_shared(filler.link, &my.shared)) {
		missing = "no driver, or no device that can be filled";
		printf("1..0 # SKIP %s (%d)\n", missing, ready.result);
		end(&filler, true);
		return 77;
	}
	printf("# the filler has %zu MiB free, and shares %zu MiB\n", ask(&filler, 'i').bytes >> 20,
	       my.shared.bytes >> 20);
	printf("%-38s %-10s %-10s %-10s %s\n", "call", "full", "all full", "free", "takes (KiB)");
	for (size_t i = 0; i < N_CALLS; i++) {
		const struct call *call = &calls[i];
		char room[3][16];
		int full, all, later, later2;
		long long takes, ignored;
		bool has_context = call->setup != no_context;

		if (!wanted(call->name, words))
			continue;
		full = probe(call, false, &later, &takes);
		all = has_context ? probe(call, true, &later2, &ignored) : full;
		if (!has_context)
			later2 = later;
		if (later == 0)
			later = later2;
		wrong |= (full == OOM || all == OOM) && later != 0;
		printf("%-38s %-10s %-10s %-10s %lld\n", call->name, word(full, room[0]),
		       has_context ? word(all, room[1]) : "", word(later, room[2]),
		       later == 0 ? takes >> 10 : 0);
	}
	end(&filler, false);
	printf("# %s\n", wrong ? "a call that failed for lack of memory fails with all free, too" :
				 "each call that failed for lack of memory works when all is free");
	return wrong;
}

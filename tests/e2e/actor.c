/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that uses CUDA: it does with the driver what it is told through its
 * standard input (wire.h), one request after the other, and says what came of it.
 *
 * It knows nothing of culimbo.  What must hold: it makes no thread and no call
 * of its own between requests, so that while none comes it is asleep in read(2)
 * with all that it holds; it writes nothing to stdout; each driver result is
 * passed on as it is.  What only it can judge (bytes) it compares completely.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_door.h"
#include "wire.h"

#define STEP ((size_t)1 << 20) /* bytes that are compared at a time */
#define PARTNER_MS 20000       /* no partner may be silent for longer */

static struct wire_reply reply;
static CUcontext primary;
static CUstream kernel_stream;
static CUfunction spin_function, fill_function;
static char **arguments;

/*
 * Two kernels: one only takes time, the other writes for so long.  (The
 * simulated driver knows them by their names.)
 */
static const char kernels[] =
	".version 6.4\n.target sm_70\n.address_size 64\n"
	".visible .entry culimbo_spin(.param .u64 p_ns)\n{\n"
	"	.reg .u64 %rd<8>;\n	.reg .pred %p<2>;\n"
	"	ld.param.u64 %rd1, [p_ns];\n"
	"	mov.u64 %rd2, %globaltimer;\n"
	"AGAIN:\n"
	"	mov.u64 %rd3, %globaltimer;\n"
	"	sub.u64 %rd4, %rd3, %rd2;\n"
	"	setp.lt.u64 %p1, %rd4, %rd1;\n"
	"	@%p1 bra AGAIN;\n"
	"	ret;\n}\n"
	".visible .entry culimbo_fill(.param .u64 p_dst, .param .u64 p_words, .param .u32 p_value,"
	" .param .u64 p_ns)\n{\n"
	"	.reg .u64 %rd<12>;\n	.reg .u32 %r<2>;\n	.reg .pred %p<3>;\n"
	"	ld.param.u64 %rd1, [p_dst];\n"
	"	ld.param.u64 %rd2, [p_words];\n"
	"	ld.param.u32 %r1, [p_value];\n"
	"	ld.param.u64 %rd3, [p_ns];\n"
	"	mov.u64 %rd4, %globaltimer;\n"
	"ROUND:\n"
	"	mov.u64 %rd5, 0;\n"
	"	mov.u64 %rd6, %rd1;\n"
	"WORD:\n"
	"	st.volatile.global.u32 [%rd6], %r1;\n"
	"	add.u64 %rd6, %rd6, 4;\n"
	"	add.u64 %rd5, %rd5, 1;\n"
	"	setp.lt.u64 %p1, %rd5, %rd2;\n"
	"	@%p1 bra WORD;\n"
	"	mov.u64 %rd7, %globaltimer;\n"
	"	sub.u64 %rd8, %rd7, %rd4;\n"
	"	setp.lt.u64 %p2, %rd8, %rd3;\n"
	"	@%p2 bra ROUND;\n"
	"	ret;\n}\n";

/* ------------------------------------------------------------------ helpers */
__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
	va_list args;

	if (*reply.complaint)
		return; /* the first says most */
	va_start(args, format);
	vsnprintf(reply.complaint, sizeof(reply.complaint), format, args);
	va_end(args);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Does one driver call and notes its time. */
#define TIMED(call)                                                                                \
	do {                                                                                       \
		uint64_t start = now_ns();                                                         \
		reply.result = (call);                                                             \
		reply.ns = now_ns() - start;                                                       \
	} while (0)

/* A driver call that belongs to the setting: its failure is a complaint. */
static bool sure(CUresult result, const char *call)
{
	const char *name = NULL;

	if (!result)
		return true;
	if (!reply.result)
		reply.result = result;
	cu.cuGetErrorName(result, &name);
	complain("%s: %s (%d)", call, name ? name : "?", result);
	return false;
}
#define SURE(call) sure((call), #call)

static void to_handle(void *driver_handle, const unsigned char *bytes)
{
	memcpy(driver_handle, bytes, 64);
}

/* How many of the @bytes at @address are not @value; the first such goes to *@foreign. */
static uint64_t compare(CUdeviceptr address, uint64_t bytes, unsigned char value,
			unsigned char *buffer, uint64_t *foreign)
{
	uint64_t differ = 0;

	for (uint64_t at = 0; at < bytes; at += STEP) {
		size_t n = bytes - at < STEP ? (size_t)(bytes - at) : STEP;

		if (!SURE(cu.cuMemcpyDtoH_v2(buffer, address + at, n)))
			return bytes;
		if (buffer[0] == value && !memcmp(buffer, buffer + 1, n - 1))
			continue;
		for (size_t i = 0; i < n; i++)
			if (buffer[i] != value && !differ++)
				*foreign = buffer[i];
	}
	return differ;
}

/* ------------------------------------------------------------------- memory */
static void do_begin(const struct wire_request *q)
{
	CUdevice device;

	(void)q;
	if (!SURE(cu.cuInit(0)) || !SURE(cu.cuDeviceGet(&device, 0)) ||
	    !SURE(cu.cuDevicePrimaryCtxRetain(&primary, device)))
		return;
	SURE(cu.cuCtxSetCurrent(primary));
}

static void do_alloc(const struct wire_request *q)
{
	CUdeviceptr address = 0;

	TIMED(cu.cuMemAlloc_v2(&address, q->a[0]));
	reply.v[0] = address;
}

static void do_alloc_kind(const struct wire_request *q)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr address = 0;
	size_t pitch;

	switch ((enum alloc_kind)q->a[0]) {
	case ALLOC_PLAIN:
		TIMED(cu.cuMemAlloc_v2(&address, q->a[1]));
		break;
	case ALLOC_PITCH:
		TIMED(cu.cuMemAllocPitch_v2(&address, &pitch, 1 << 20, q->a[1] >> 20, 4));
		break;
	case ALLOC_ASYNC:
		TIMED(cu.cuMemAllocAsync(&address, q->a[1], NULL));
		break;
	case ALLOC_CREATE:
		TIMED(cu.cuMemCreate(&handle, q->a[1], &property, 0));
		address = handle;
		break;
	}
	reply.v[0] = address;
}

static void do_free_kind(const struct wire_request *q)
{
	switch ((enum alloc_kind)q->a[0]) {
	case ALLOC_PLAIN:
	case ALLOC_PITCH:
		TIMED(cu.cuMemFree_v2(q->a[1]));
		break;
	case ALLOC_ASYNC:
		TIMED(cu.cuMemFreeAsync(q->a[1], NULL));
		SURE(cu.cuStreamSynchronize(NULL));
		break;
	case ALLOC_CREATE:
		TIMED(cu.cuMemRelease(q->a[1]));
		break;
	}
}

static void do_free(const struct wire_request *q)
{
	TIMED(cu.cuMemFree_v2(q->a[0]));
}

static void do_free_async(const struct wire_request *q)
{
	/* the stream of the kernels, when there are some: the free is in their order */
	TIMED(cu.cuMemFreeAsync(q->a[0], kernel_stream));
	if (!reply.result && q->a[1])
		SURE(cu.cuStreamSynchronize(kernel_stream));
}

static void do_fill(const struct wire_request *q)
{
	if (SURE(cu.cuMemsetD8_v2(q->a[0], (unsigned char)q->a[2], q->a[1])))
		SURE(cu.cuCtxSynchronize());
}

static void do_check(const struct wire_request *q)
{
	unsigned char *buffer = malloc(STEP);

	if (!buffer) {
		complain("no memory");
		return;
	}
	reply.v[0] = compare(q->a[0], q->a[1], (unsigned char)q->a[2], buffer, &reply.v[1]);
	free(buffer);
}

/*
 * Takes memory of the program's own, block by block, and overwrites each, until
 * it gets @address or has tried often enough: shows whether the driver has
 * that address to give, and does the harm if it has.  Gives back what it took
 * beside it.
 */
static void do_claim(const struct wire_request *q)
{
	uint64_t most = q->a[2], n = 0;
	CUdeviceptr *taken = calloc(most, sizeof(*taken));

	if (!taken) {
		complain("no memory");
		return;
	}
	while (n < most && !reply.v[0]) {
		CUresult result = cu.cuMemAlloc_v2(&taken[n], q->a[1]);

		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			break;
		if (!sure(result, "cuMemAlloc"))
			break;
		SURE(cu.cuMemsetD8_v2(taken[n], (unsigned char)q->a[3], q->a[1]));
		reply.v[0] = taken[n] == q->a[0];
		n++;
	}
	SURE(cu.cuCtxSynchronize());
	reply.v[1] = n;
	for (uint64_t i = 0; i < n; i++)
		if (taken[i] != q->a[0])
			SURE(cu.cuMemFree_v2(taken[i]));
	free(taken);
}

static void do_export(const struct wire_request *q)
{
	CUipcMemHandle handle;

	memset(&handle, 0xee, sizeof(handle));
	TIMED(cu.cuIpcGetMemHandle(&handle, q->a[0]));
	memcpy(reply.handle, &handle, 64);
}

static void do_open(const struct wire_request *q)
{
	CUdeviceptr address = 0;
	CUipcMemHandle handle;

	to_handle(&handle, q->handle);
	TIMED(cu.cuIpcOpenMemHandle_v2(&address, handle, (unsigned int)q->a[0]));
	reply.v[0] = address;
}

static void do_open_v1(const struct wire_request *q)
{
	CUdeviceptr address = 0;
	CUipcMemHandle handle;

	to_handle(&handle, q->handle);
	TIMED(cu.cuIpcOpenMemHandle(&address, handle, (unsigned int)q->a[0]));
	reply.v[0] = address;
}

static void do_close(const struct wire_request *q)
{
	TIMED(cu.cuIpcCloseMemHandle(q->a[0]));
}

static void do_meminfo(const struct wire_request *q)
{
	size_t free_bytes = 0, all = 0;

	(void)q;
	SURE(cu.cuMemGetInfo_v2(&free_bytes, &all));
	reply.v[0] = free_bytes;
	reply.v[1] = all;
}

/* Takes device memory, for good, until at most so much is free. */
static void do_hog(const struct wire_request *q)
{
	size_t free_bytes = 0, all;
	CUdeviceptr address;

	for (;;) {
		size_t piece;

		if (!SURE(cu.cuMemGetInfo_v2(&free_bytes, &all)) || free_bytes <= q->a[0])
			break;
		piece = (free_bytes - q->a[0]) & ~(((size_t)2 << 20) - 1);
		while (piece && cu.cuMemAlloc_v2(&address, piece))
			piece = piece / 2 & ~(((size_t)2 << 20) - 1);
		if (!piece)
			break;
	}
	reply.v[0] = free_bytes;
}

/* ------------------------------------------------- calls that need device memory */
static CUstream need_stream;
static CUgraph need_graph;
#if CUDA_VERSION >= 12040
static CUgraphExec need_exec;
#endif

static void do_need_begin(const struct wire_request *q)
{
	(void)q;
	if (!SURE(cu.cuStreamCreate(&need_stream, CU_STREAM_NON_BLOCKING)) ||
	    !SURE(cu.cuStreamBeginCapture_v2(need_stream, CU_STREAM_CAPTURE_MODE_RELAXED)) ||
	    !SURE(cu.cuStreamEndCapture(need_stream, &need_graph)))
		return;
#if CUDA_VERSION >= 12040
	SURE(cu.cuGraphInstantiateWithFlags(&need_exec, need_graph, 0));
#endif
}

/* What came with CUDA 11.4, 12 and 12.4. */
static void later_need(enum need need)
{
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
#if CUDA_VERSION >= 12040
	CUdevResourceDesc description;
	CUdevResource resource;
	CUfunction function;
	CUgraphExec exec;
	CUlibrary library;
	CUmodule module;
	CUkernel kernel;
	CUgreenCtx green;

	reply.result = CUDA_SUCCESS;
	if (need == NEED_GREEN) {
		if (!SURE(cu.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM)) ||
		    !SURE(cu.cuDevResourceGenerateDesc(&description, &resource, 1)))
			return;
		TIMED(cu.cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
		if (!reply.result)
			SURE(cu.cuGreenCtxDestroy(green));
	} else if (need == NEED_INSTANTIATE) {
		TIMED(cu.cuGraphInstantiateWithFlags(&exec, need_graph, 0));
		if (!reply.result)
			SURE(cu.cuGraphExecDestroy(exec));
	} else if (need == NEED_UPLOAD) {
		TIMED(cu.cuGraphUpload(need_exec, need_stream));
	} else { /* each time another library: one that is loaded needs no more */
		if (!SURE(cu.cuLibraryLoadData(&library, kernels, NULL, NULL, 0, NULL, NULL, 0)) ||
		    !SURE(cu.cuLibraryGetKernel(&kernel, library, "culimbo_spin")))
			return;
		if (need == NEED_LIBRARY)
			TIMED(cu.cuLibraryGetModule(&module, library));
		else
			TIMED(cu.cuKernelGetFunction(&function, kernel));
		SURE(cu.cuLibraryUnload(library));
	}
#else
	(void)need;
#endif
}

static void do_need(const struct wire_request *q)
{
	static size_t stack = 16384;
	CUcontext context;
	CUstream stream;
	CUmodule module;

	switch ((enum need)q->a[0]) {
	case NEED_PRIMARY:
		if (!SURE(cu.cuInit(0)))
			break;
		TIMED(cu.cuDevicePrimaryCtxRetain(&context, 0));
		if (!reply.result)
			SURE(cu.cuDevicePrimaryCtxRelease_v2(0));
		break;
	case NEED_CONTEXT:
		TIMED(cu.cuCtxCreate_v2(&context, 0, 0));
		if (!reply.result)
			SURE(cu.cuCtxDestroy_v2(context));
		break;
	case NEED_STACK:
		TIMED(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack));
		if (!reply.result)
			stack += 1024;
		break;
	case NEED_STREAM:
	case NEED_PRIORITY:
		if ((enum need)q->a[0] == NEED_STREAM)
			TIMED(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		else
			TIMED(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1));
		if (!reply.result)
			SURE(cu.cuStreamDestroy_v2(stream));
		break;
	case NEED_MODULE:
	case NEED_MODULE_EX:
		if ((enum need)q->a[0] == NEED_MODULE)
			TIMED(cu.cuModuleLoadData(&module, kernels));
		else
			TIMED(cu.cuModuleLoadDataEx(&module, kernels, 0, NULL, NULL));
		if (!reply.result)
			SURE(cu.cuModuleUnload(module));
		break;
	default:
		later_need((enum need)q->a[0]);
	}
}

/* ------------------------------------------------------------------- events */
static void do_event_create(const struct wire_request *q)
{
	CUevent event = NULL;

	TIMED(cu.cuEventCreate(&event, (unsigned int)q->a[0]));
	reply.v[0] = (uintptr_t)event;
}

static void do_event_export(const struct wire_request *q)
{
	CUipcEventHandle handle;

	memset(&handle, 0xee, sizeof(handle));
	TIMED(cu.cuIpcGetEventHandle(&handle, (CUevent)(uintptr_t)q->a[0]));
	memcpy(reply.handle, &handle, 64);
}

static void do_event_open(const struct wire_request *q)
{
	CUipcEventHandle handle;
	CUevent event = NULL;

	to_handle(&handle, q->handle);
	TIMED(cu.cuIpcOpenEventHandle(&event, handle));
	reply.v[0] = (uintptr_t)event;
}

static void do_event_destroy(const struct wire_request *q)
{
	TIMED(cu.cuEventDestroy_v2((CUevent)(uintptr_t)q->a[0]));
}

static void do_event_record(const struct wire_request *q)
{
	TIMED(cu.cuEventRecord((CUevent)(uintptr_t)q->a[0], kernel_stream));
}

static void do_event_sync(const struct wire_request *q)
{
	TIMED(cu.cuEventSynchronize((CUevent)(uintptr_t)q->a[0]));
}

static void do_event_query(const struct wire_request *q)
{
	TIMED(cu.cuEventQuery((CUevent)(uintptr_t)q->a[0]));
}

/* ------------------------------------------------------------------ kernels */
static bool kernels_ready(void)
{
	CUmodule module;

	if (kernel_stream)
		return true;
	return SURE(cu.cuModuleLoadData(&module, kernels)) &&
	       SURE(cu.cuModuleGetFunction(&spin_function, module, "culimbo_spin")) &&
	       SURE(cu.cuModuleGetFunction(&fill_function, module, "culimbo_fill")) &&
	       SURE(cu.cuStreamCreate(&kernel_stream, CU_STREAM_NON_BLOCKING));
}

static void do_spin(const struct wire_request *q)
{
	uint64_t ns = q->a[0];
	void *parameters[] = { &ns };

	if (kernels_ready())
		SURE(cu.cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, kernel_stream,
				       parameters, NULL));
}

static void do_fill_kernel(const struct wire_request *q)
{
	uint64_t destination = q->a[0], words = q->a[1], ns = q->a[3];
	uint32_t value = (uint32_t)q->a[2];
	void *parameters[] = { &destination, &words, &value, &ns };

	if (kernels_ready())
		SURE(cu.cuLaunchKernel(fill_function, 1, 1, 1, 1, 1, 1, 0, kernel_stream,
				       parameters, NULL));
}

static void do_kernel_query(const struct wire_request *q)
{
	(void)q;
	TIMED(cu.cuStreamQuery(kernel_stream));
}

static void do_kernel_wait(const struct wire_request *q)
{
	(void)q;
	TIMED(cu.cuStreamSynchronize(kernel_stream));
}

/* ------------------------------------------------------------------ streams */
static void do_stream_create(const struct wire_request *q)
{
	CUstream stream = NULL;

	TIMED(cu.cuStreamCreate(&stream, (unsigned int)q->a[0]));
	reply.v[0] = (uintptr_t)stream;
}

static void do_stream_spin(const struct wire_request *q)
{
	uint64_t ns = q->a[1];
	void *parameters[] = { &ns };

	if (kernels_ready())
		SURE(cu.cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0,
				       (CUstream)(uintptr_t)q->a[0], parameters, NULL));
}

static void do_stream_query(const struct wire_request *q)
{
	TIMED(cu.cuStreamQuery((CUstream)(uintptr_t)q->a[0]));
}

static void do_stream_free(const struct wire_request *q)
{
	CUstream stream = (CUstream)(uintptr_t)q->a[1];

	TIMED((q->a[2] ? cu.cuMemFreeAsync_ptsz : cu.cuMemFreeAsync)(q->a[0], stream));
}

static void do_device(const struct wire_request *q)
{
	CUcontext context;

	/* Once more for each call: this process keeps it. */
	if (SURE(cu.cuDevicePrimaryCtxRetain(&context, (CUdevice)q->a[0])))
		SURE(cu.cuCtxSetCurrent(context));
}

/* ----------------------------------------------------------------- contexts */
static void do_ctx_reset(const struct wire_request *q)
{
	(void)q;
	kernel_stream = NULL;
	TIMED(cu.cuDevicePrimaryCtxReset_v2(0));
}

static void do_ctx_again(const struct wire_request *q)
{
	(void)q;
	if (SURE(cu.cuDevicePrimaryCtxRetain(&primary, 0)))
		SURE(cu.cuCtxSetCurrent(primary));
}

static void do_ctx_release(const struct wire_request *q)
{
	(void)q;
	kernel_stream = NULL;
	TIMED(cu.cuDevicePrimaryCtxRelease_v2(0));
}

static void do_ctx_create(const struct wire_request *q)
{
	CUcontext context = NULL;

	(void)q;
	kernel_stream = NULL;
	TIMED(cu.cuCtxCreate_v2(&context, 0, 0));
	reply.v[0] = (uintptr_t)context;
}

static void do_ctx_destroy(const struct wire_request *q)
{
	kernel_stream = NULL;
	TIMED(cu.cuCtxDestroy_v2((CUcontext)(uintptr_t)q->a[0]));
	SURE(cu.cuCtxSetCurrent(primary));
}

/* All multiprocessors: what they are is of no interest here. */
static void do_green_begin(const struct wire_request *q)
{
#if CUDA_VERSION >= 12040
	CUdevResourceDesc description;
	CUdevResource resource;
	CUcontext context;
	CUgreenCtx green;

	(void)q;
	kernel_stream = NULL;
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
	if (!cu.cuGreenCtxCreate || !cu.cuCtxFromGreenCtx || !cu.cuGreenCtxDestroy ||
	    !cu.cuDeviceGetDevResource || !cu.cuDevResourceGenerateDesc)
		return;
	reply.result = CUDA_SUCCESS;
	if (!SURE(cu.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM)) ||
	    !SURE(cu.cuDevResourceGenerateDesc(&description, &resource, 1)) ||
	    !SURE(cu.cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM)) ||
	    !SURE(cu.cuCtxFromGreenCtx(&context, green)) || !SURE(cu.cuCtxSetCurrent(context)))
		return;
	reply.v[0] = (uintptr_t)green;
#else
	(void)q;
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
#endif
}

static void do_green_end(const struct wire_request *q)
{
#if CUDA_VERSION >= 12040
	unsigned int flags;
	int active = -1;

	kernel_stream = NULL;
	/* never current when it is destroyed: it would be a trap for the next call */
	SURE(cu.cuCtxSetCurrent(q->a[1] ? NULL : primary));
	TIMED(cu.cuGreenCtxDestroy((CUgreenCtx)(uintptr_t)q->a[0]));
	SURE(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
	reply.v[0] = (uint64_t)active;
#else
	(void)q;
	reply.result = CUDA_ERROR_NOT_SUPPORTED;
#endif
}

/* ---------------------------------------------------------------- processes */
__attribute__((noreturn)) static void become_new(void)
{
	execv("/proc/self/exe", arguments);
	_exit(126);
}

/* Ends as told; END_RETURN is up to main(). */
static void finish(enum ending how, int status)
{
	switch (how) {
	case END_EXIT:
		exit(status);
	case END__EXIT:
		_exit(status);
	case END__Exit:
		_Exit(status);
	case END_QUICK_EXIT:
		quick_exit(status);
	case END_EXEC:
		become_new();
	case END_RETURN:
		break;
	}
}

static void do_fork(const struct wire_request *q)
{
	int status = -1, null;
	pid_t child = fork();

	if (child == 0) {
		/* an exec'ed image finds no requests, and ends at once */
		null = open("/dev/null", O_RDONLY);
		if (null >= 0)
			dup2(null, STDIN_FILENO);
		finish((enum ending)q->a[0], 5);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		complain("fork: %s", strerror(errno));
	reply.v[0] = (uint64_t)(unsigned int)status;
}

/* A child has none of its parent's contexts: what does the driver say to it? */
static void do_fork_calls(const struct wire_request *q)
{
	CUipcMemHandle handle;
	CUdeviceptr address;
	uint64_t said[4];
	int status, to[2];
	pid_t child;

	if (pipe(to)) {
		complain("pipe: %s", strerror(errno));
		return;
	}
	child = fork();
	if (child == 0) {
		said[0] = cu.cuMemFree_v2(q->a[0]);
		said[1] = cu.cuIpcGetMemHandle(&handle, q->a[0]);
		said[2] = cu.cuIpcCloseMemHandle(q->a[1]);
		said[3] = cu.cuMemAlloc_v2(&address, 1024);
		_exit(write(to[1], said, sizeof(said)) != sizeof(said));
	}
	close(to[1]);
	if (child < 0 || waitpid(child, &status, 0) != child || status ||
	    read(to[0], reply.v, sizeof(reply.v)) != sizeof(reply.v))
		complain("the child came to no good end");
	close(to[0]);
}

static void do_exec(const struct wire_request *q)
{
	(void)q;
	become_new();
}

/*
 * Closes descriptors above 2, as daemons do: all of them, or those that lead to
 * CULIMBO_DIR (where the driver would not stand the loss of its own).
 */
static void do_close_fds(const struct wire_request *q)
{
	const char *ours = getenv("CULIMBO_DIR");
	char link[64], target[512];
	int last = 0, fds[4096];
	struct dirent *entry;
	DIR *directory = opendir("/proc/self/fd");

	if (!directory) {
		complain("/proc/self/fd: %s", strerror(errno));
		return;
	}
	while ((entry = readdir(directory)) && last < 4096) {
		int fd = atoi(entry->d_name);
		ssize_t n;

		if (*entry->d_name == '.' || fd <= 2 || fd == dirfd(directory))
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = 0;
		if (q->a[0] == CLOSE_ALL || (ours && strstr(target, ours)))
			fds[last++] = fd;
	}
	closedir(directory);
	for (int i = 0; i < last; i++)
		close(fds[i]);
	reply.v[0] = (uint64_t)last;
}

static void do_jail(const struct wire_request *q)
{
	char folder[512];

	(void)q;
	snprintf(folder, sizeof(folder), "%s/../jail.%d", getenv("CULIMBO_DIR"), (int)getpid());
	if (mkdir(folder, 0755) || chroot(folder) || chdir("/"))
		complain("chroot(%s): %s", folder, strerror(errno));
}

static void do_user(const struct wire_request *q)
{
	uid_t user = (uid_t)q->a[0];

	if (q->a[1] ? setresuid(user, user, user) : seteuid(user))
		complain("user %u: %s", (unsigned int)user, strerror(errno));
}

/* ------------------------------------------------------------ many at a time */
struct crew {
	uint64_t rounds, bytes, number;
	atomic_uint_fast64_t *messages, *refused, *foreign;
	atomic_int *error; /* the first driver error */
	const char *_Atomic *where;
};

static void note(struct crew *crew, CUresult result, const char *where)
{
	int none = 0;

	if (result && atomic_compare_exchange_strong(crew->error, &none, (int)result))
		atomic_store(crew->where, where);
}

static bool send_gift(const struct wire_gift *gift)
{
	struct pollfd ready = { .fd = WIRE_PARTNER_FD, .events = POLLOUT };

	return poll(&ready, 1, PARTNER_MS) == 1 &&
	       send(WIRE_PARTNER_FD, gift, sizeof(*gift), MSG_NOSIGNAL) == sizeof(*gift);
}

static void *producer(void *data)
{
	struct crew *crew = data;
	CUipcMemHandle handle;
	struct wire_gift gift;
	CUdeviceptr address;
	CUresult result;

	note(crew, cu.cuCtxSetCurrent(primary), "cuCtxSetCurrent");
	for (uint64_t i = 0; i < crew->rounds && !atomic_load(crew->error); i++) {
		memset(&gift, 0, sizeof(gift));
		gift.bytes = crew->bytes;
		gift.value = (uint32_t)(1 + (crew->number * 31 + i) % 250);
		result = cu.cuMemAlloc_v2(&address, gift.bytes);
		if (result) {
			note(crew, result, "cuMemAlloc");
			break;
		}
		note(crew, cu.cuMemsetD8_v2(address, (unsigned char)gift.value, gift.bytes),
		     "cuMemsetD8");
		note(crew, cu.cuCtxSynchronize(), "cuCtxSynchronize");
		note(crew, cu.cuIpcGetMemHandle(&handle, address), "cuIpcGetMemHandle");
		memcpy(gift.handle, &handle, 64);
		/* every second one stays with us: exported, never opened */
		if (i % 2 == 0) {
			if (!send_gift(&gift))
				note(crew, CUDA_ERROR_UNKNOWN, "the consumer takes nothing");
			atomic_fetch_add(crew->messages, 1);
		}
		note(crew, cu.cuMemFree_v2(address), "cuMemFree");
	}
	return NULL;
}

static void *consumer(void *data)
{
	struct crew *crew = data;
	struct pollfd ready = { .fd = WIRE_PARTNER_FD, .events = POLLIN };
	unsigned char *buffer = malloc(STEP);
	CUipcMemHandle handle;
	struct wire_gift gift;
	CUdeviceptr address;
	uint64_t foreign;

	if (!buffer)
		note(crew, CUDA_ERROR_OUT_OF_MEMORY, "malloc");
	note(crew, cu.cuCtxSetCurrent(primary), "cuCtxSetCurrent");
	while (buffer && !atomic_load(crew->error)) {
		if (poll(&ready, 1, PARTNER_MS) != 1) {
			note(crew, CUDA_ERROR_UNKNOWN, "the producer sends nothing");
			break;
		}
		if (recv(WIRE_PARTNER_FD, &gift, sizeof(gift), MSG_DONTWAIT) != sizeof(gift)) {
			if (errno == EAGAIN)
				continue; /* another thread had it */
			break;
		}
		if (!gift.bytes)
			break; /* the end, for one of us */
		atomic_fetch_add(crew->messages, 1);
		to_handle(&handle, gift.handle);
		if (cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) {
			atomic_fetch_add(crew->refused, 1);
			continue;
		}
		for (uint64_t at = 0; at < gift.bytes; at += STEP) {
			size_t n = gift.bytes - at < STEP ? (size_t)(gift.bytes - at) : STEP;

			note(crew, cu.cuMemcpyDtoH_v2(buffer, address + at, n), "cuMemcpyDtoH");
			foreign = 0;
			for (size_t b = 0; b < n; b++)
				foreign += buffer[b] != gift.value;
			if (foreign) {
				atomic_fetch_add(crew->foreign, 1);
				break;
			}
		}
		note(crew, cu.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle");
	}
	free(buffer);
	return NULL;
}

static void run_crew(void *(*member)(void *), const struct wire_request *q)
{
	atomic_uint_fast64_t messages = 0, refused = 0, foreign = 0;
	const char *_Atomic where = NULL;
	atomic_int error = 0;
	struct crew crew[64];
	pthread_t thread[64];
	uint64_t n = q->a[0] < 64 ? q->a[0] : 64;
	uint64_t started = 0;

	for (; started < n; started++) {
		crew[started] = (struct crew){ .rounds = q->a[1], .bytes = q->a[2],
					       .number = started, .messages = &messages,
					       .refused = &refused, .foreign = &foreign,
					       .error = &error, .where = &where };
		if (pthread_create(&thread[started], NULL, member, &crew[started])) {
			complain("pthread_create");
			break;
		}
	}
	for (uint64_t i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
	reply.result = atomic_load(&error);
	if (reply.result)
		complain("%s", atomic_load(&where) ? atomic_load(&where) : "?");
	reply.v[0] = messages;
	reply.v[1] = refused;
	reply.v[2] = foreign;
}

static void do_produce(const struct wire_request *q)
{
	static const struct wire_gift end;

	run_crew(producer, q);
	for (uint64_t i = 0; i < q->a[3]; i++)
		send_gift(&end);
}

static void do_consume(const struct wire_request *q)
{
	run_crew(consumer, q);
}

/* --------------------------------------------------------------------- main */
static void do_end(const struct wire_request *q)
{
	(void)q; /* main() sees to it */
}

static void (*const operations[])(const struct wire_request *q) = {
#define X(operation) [OP_##operation] = do_##operation,
	WIRE_OPERATIONS(X)
#undef X
};

int main(int argc, char **argv)
{
	struct wire_request request;
	const char *why;
	ssize_t n;

	(void)argc;
	arguments = argv;
	while ((n = read(STDIN_FILENO, &request, sizeof(request))) == sizeof(request)) {
		if (request.operation == OP_end) {
			finish((enum ending)request.a[0], (int)request.a[1]);
			return (int)request.a[1];
		}
		memset(&reply, 0, sizeof(reply));
		if (request.operation >= sizeof(operations) / sizeof(operations[0])) {
			complain("unknown request %u", request.operation);
		} else if (!cu.cuInit && (why = cuda_door_open())) {
			complain("%s", why);
			reply.result = -1;
		} else {
			operations[request.operation](&request);
		}
		if (write(STDIN_FILENO, &reply, sizeof(reply)) != sizeof(reply))
			return 3;
	}
	return n ? 3 : 0; /* the stage is gone */
}

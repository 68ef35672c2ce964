/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads in hooks: one in each family of them.
 */
#include "common.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>

/* Each function makes a round of calls to one family of hooks. */
static atomic_bool stop;
atomic_ulong rounds;

void share_and_free(void)
{
	CUipcMemHandle handle;
	CUdeviceptr address, own;

	MUST(cu.cuMemAlloc_v2(&address, SMALL));
	MUST(cu.cuIpcGetMemHandle(&handle, address));
	if (!bare) { /* the driver alone refuses a process's own handle */
		MUST(cu.cuIpcOpenMemHandle_v2(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		MUST(cu.cuIpcCloseMemHandle(own));
	}
	MUST(cu.cuMemFree_v2(address));
}
void open_and_close(void)
{
	unsigned int which = (unsigned int)atomic_load(&rounds) % GIFTS;
	unsigned char byte = 0;
	CUdeviceptr address;

	MUST(cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[which],
				      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cu.cuMemcpyDtoH_v2(&byte, address, 1));
	CHECK(byte == which + 1);
	MUST(cu.cuIpcCloseMemHandle(address));
}
static void open_event(void)
{
	CUevent event;

	MUST(cu.cuIpcOpenEventHandle(&event, gifts.event));
	MUST(cu.cuEventDestroy_v2(event));
}
static void share_event(void)
{
	CUipcEventHandle handle;
	CUevent event;

	MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	MUST(cu.cuIpcGetEventHandle(&handle, event));
	MUST(cu.cuEventDestroy_v2(event));
}
static void want_too_much(void)
{
	CUdeviceptr address;

	CHECK(cu.cuMemAlloc_v2(&address, (size_t)1 << 45) == CUDA_ERROR_OUT_OF_MEMORY);
}
void look_up(void)
{
	CHECK(dlsym(RTLD_DEFAULT, "cuNoSuchCall") == NULL);
	CHECK(dlsym(RTLD_DEFAULT, "getpid") != NULL);
}
static void free_on_stream(void)
{
	CUipcMemHandle handle;
	CUdeviceptr address;

	MUST(cu.cuMemAlloc_v2(&address, SMALL));
	MUST(cu.cuIpcGetMemHandle(&handle, address));
	MUST(cu.cuMemFreeAsync(address, NULL));
}
static void make_context(void)
{
	CUcontext ctx;

	MUST(cu.cuCtxCreate_v2(&ctx, 0, 0));
	MUST(cu.cuCtxDestroy_v2(ctx));
	MUST(cu.cuCtxSetCurrent(primary));
}
static void make_green_context(void)
{
#if CUDA_VERSION >= 12040
	CUdevResourceDesc description;
	CUdevResource resource;
	CUgreenCtx green;
	CUcontext ctx;

	if (!cu.cuDeviceGetDevResource || !cu.cuGreenCtxCreate)
		return;
	MUST(cu.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
	MUST(cu.cuDevResourceGenerateDesc(&description, &resource, 1));
	MUST(cu.cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	MUST(cu.cuCtxFromGreenCtx(&ctx, green));
	MUST(cu.cuCtxSetCurrent(ctx));
	share_event();
	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuGreenCtxDestroy(green));
#endif
}
void (*const families[FAMILIES])(void) = { share_and_free, open_and_close, open_event, share_event,
					  want_too_much,  look_up,	  free_on_stream,
					  make_context,	  make_green_context };

void *work(void *family)
{
	MUST(cu.cuCtxSetCurrent(primary));
	while (!atomic_load(&stop)) {
		(*(void (*const *)(void))family)();
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

pthread_t workers[2 * FAMILIES];
unsigned int workers_n;

void start_workers(void)
{
	begin();
	for (workers_n = 0; workers_n < FAMILIES; workers_n++)
		CHECK(!pthread_create(&workers[workers_n], NULL, work,
				      (void *)(uintptr_t)&families[workers_n]));
	while (atomic_load(&rounds) < 2 * FAMILIES)
		sched_yield();
}

void stop_workers(void)
{
	atomic_store(&stop, true);
	for (unsigned int i = 0; i < workers_n; i++)
		CHECK(!pthread_join(workers[i], NULL));
}

/* Waits for a child, which must end by itself with @status; it has set an alarm. */
void must_end(pid_t child, int status)
{
	int how;

	CHECK(child > 0);
	while (waitpid(child, &how, 0) < 0)
		CHECK(errno == EINTR);
	if (WIFSIGNALED(how) && WTERMSIG(how) == SIGALRM)
		dprintf(2, "# a child hangs\n");
	else if (!WIFEXITED(how) || WEXITSTATUS(how) != status)
		dprintf(2, "# a child's status is %#x instead of %d\n", how, status);
	CHECK(WIFEXITED(how) && WEXITSTATUS(how) == status);
}

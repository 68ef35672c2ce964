/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads that call at once, small stacks, and contexts that end among it.
 */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

/* --------------------------------------------------------------------- all at once */
void sixteen_threads(void)
{
	start_workers();
	for (; workers_n < 16; workers_n++)
		CHECK(!pthread_create(&workers[workers_n], NULL, work,
				      (void *)(uintptr_t)&families[workers_n % 2 ? 1 : 0]));
	unsigned long before = atomic_load(&rounds);

	while (atomic_load(&rounds) < before + 40000)
		sched_yield();
	stop_workers();
	CHECK(exporter_gets_all_back());
}

static void *open_and_close_often(void *unused)
{
	MUST(cu.cuCtxSetCurrent(primary));
	for (int i = 0; i < 500; i++) {
		unsigned char byte = 0;
		CUdeviceptr address;

		MUST(cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[0],
					      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		MUST(cu.cuMemcpyDtoH_v2(&byte, address, 1));
		CHECK(byte == 1);
		MUST(cu.cuIpcCloseMemHandle(address));
	}
	return unused;
}

void one_handle(void)
{
	pthread_t thread[2];

	begin();
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, open_and_close_often, NULL));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(exporter_gets_all_back());
}

/* Any thread may release the context last.  Another thread's block in the next one must be its own. */
static void *have_the_primary_one(void *name)
{
	char fill = *(const char *)name;

	for (int i = 0; i < 1000; i++) {
		CUipcMemHandle handle;
		CUdeviceptr address;
		CUcontext ctx;
		char byte;

		MUST(cu.cuDevicePrimaryCtxRetain(&ctx, 0));
		MUST(cu.cuCtxSetCurrent(ctx));
		MUST(cu.cuMemAlloc_v2(&address, SMALL));
		MUST(cu.cuIpcGetMemHandle(&handle, address));
		MUST(cu.cuMemsetD8_v2(address, (unsigned char)fill, SMALL));
		MUST(cu.cuMemcpyDtoH_v2(&byte, address, 1));
		CHECK(byte == fill);
		if (i % 2) /* the others go with it */
			MUST(cu.cuMemFree_v2(address));
		MUST(cu.cuCtxSetCurrent(NULL));
		MUST(cu.cuDevicePrimaryCtxRelease_v2(0));
	}
	return NULL;
}

void primary_ends(void)
{
	pthread_t thread[2];
	char names[] = { 'a', 'b' };

	begin();
	MUST(cu.cuCtxSetCurrent(NULL));
	MUST(cu.cuDevicePrimaryCtxRelease_v2(0));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, have_the_primary_one, &names[i]));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
}

/* --------------------------------------------------------------------- small stacks */
/* Every hook, and the first of each kind: a file and a collector are made, stacks walked, others asked for memory. */
static void *call_every_hook(void *unused)
{
	CUdeviceptr own, second, address;
	CUipcMemHandle handle;
	CUipcEventHandle event_handle;
	CUevent event;

	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuMemAlloc_v2(&own, SMALL));
	MUST(cu.cuMemAlloc_v2(&second, SMALL));
	MUST(cu.cuIpcGetMemHandle(&handle, own));
	MUST(cu.cuIpcGetMemHandle(&handle, second));
	MUST(cu.cuIpcGetMemHandle(&handle, own));
	MUST(cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[1], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cu.cuIpcCloseMemHandle(address));
	if (!bare) { /* refused there */
		MUST(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		MUST(cu.cuIpcCloseMemHandle(address));
	}
	CHECK(cu.cuIpcCloseMemHandle(address) != CUDA_SUCCESS);
	MUST(cu.cuIpcOpenEventHandle(&event, gifts.event));
	MUST(cu.cuEventDestroy_v2(event));
	MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	MUST(cu.cuIpcGetEventHandle(&event_handle, event));
	MUST(cu.cuEventDestroy_v2(event));
	MUST(cu.cuMemFree_v2(own));
	MUST(cu.cuMemFreeAsync(second, NULL));
	CHECK(cu.cuMemAlloc_v2(&own, (size_t)1 << 40) == CUDA_ERROR_OUT_OF_MEMORY);
	return unused;
}

void on_a_small_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	begin();
	CHECK(!pthread_attr_init(&attributes));
	CHECK(!pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN)));
	CHECK(!pthread_create(&thread, &attributes, call_every_hook, NULL));
	CHECK(!pthread_join(thread, NULL));
	CHECK(exporter_gets_all_back());
}

/* -------------------------------------------------------------- the simulated driver */
void free_in_anothers_stream(void)
{
	enum { LARGE = 4 << 20 };
	CUdeviceptr gone, there;
	CUcontext other;
	char byte;

	begin();
	MUST(cu.cuCtxCreate_v2(&other, 0, 0));
	MUST(cu.cuMemAlloc_v2(&gone, LARGE));
	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuMemFreeAsync(gone, NULL));
	MUST(cu.cuCtxDestroy_v2(other));
	MUST(cu.cuMemAlloc_v2(&there, LARGE));
	CHECK(there == gone); /* otherwise the test proves nothing */
	MUST(cu.cuMemsetD8_v2(there, 5, LARGE));
	MUST(cu.cuStreamSynchronize(NULL));
	MUST(cu.cuMemcpyDtoH_v2(&byte, there, 1));
	CHECK(byte == 5);
	MUST(cu.cuMemFree_v2(there));
}

/* What marks the place in that stream is no more when it would be looked at. */
void free_in_a_stream_that_ends(void)
{
	enum { LARGE = 4 << 20, BLOCKS = 8 };
	uint64_t until = now_ms() + 3000;
	size_t before, now, total;

	begin();
	MUST(cu.cuMemGetInfo_v2(&before, &total));
	for (int i = 0; i < BLOCKS; i++) {
		CUipcMemHandle handle;
		CUdeviceptr address;
		CUcontext other;

		MUST(cu.cuMemAlloc_v2(&address, LARGE));
		MUST(cu.cuIpcGetMemHandle(&handle, address));
		MUST(cu.cuCtxCreate_v2(&other, 0, 0));
		MUST(cu.cuMemFreeAsync(address, NULL));
		MUST(cu.cuCtxDestroy_v2(other));
		MUST(cu.cuCtxSetCurrent(primary));
	}
	do
		MUST(cu.cuMemGetInfo_v2(&now, &total));
	while (now + LARGE <= before && now_ms() < until && !usleep(500));
	CHECK(now + LARGE > before);
}

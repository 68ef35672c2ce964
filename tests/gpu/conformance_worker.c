/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker of the conformance program: loads the driver and runs one command at a time.
 */
#include "conformance_worker.h"
#include "kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

struct driver driver;
struct own mine;

const char *load_driver(void)
{
	static char missing[128];
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

	if (!library) {
		snprintf(missing, sizeof(missing), "no libcuda.so.1: %s", dlerror());
		return missing;
	}
#define X(name, params)                                                                            \
	{                                                                                          \
		void *found = dlsym(library, #name);                                               \
		if (!found) {                                                                      \
			snprintf(missing, sizeof(missing), "libcuda.so.1 has no " #name);          \
			return missing;                                                            \
		}                                                                                  \
		memcpy(&driver.p_##name, &found, sizeof(found));                                   \
	}
	DRIVER_CALLS(X)
#undef X
	return NULL;
}

/* Looks up a call that older drivers lack; NULL when it is missing. */
void *optional(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

static CUresult start(void)
{
	CUmodule module;

	TRY(driver.p_cuInit(0));
	TRY(driver.p_cuDevicePrimaryCtxRetain(&mine.context, 0));
	TRY(driver.p_cuCtxSetCurrent(mine.context));
	TRY(driver.p_cuStreamCreate(&mine.stream, CU_STREAM_NON_BLOCKING));
	TRY(driver.p_cuModuleLoadData(&module, timed_kernels));
	TRY(driver.p_cuModuleGetFunction(&mine.spin, module, "culimbo_spin"));
	TRY(driver.p_cuModuleGetFunction(&mine.fill, module, "culimbo_fill"));
	return CUDA_SUCCESS;
}

CUresult launch_spin(uint64_t ns)
{
	void *parameters[] = { &ns };

	return driver.p_cuLaunchKernel(mine.spin, 1, 1, 1, 1, 1, 1, 0, mine.stream, parameters, NULL);
}

static CUresult launch_fill(uint64_t pointer, uint64_t words, uint32_t value, uint64_t ns)
{
	void *parameters[] = { &pointer, &words, &value, &ns };

	return driver.p_cuLaunchKernel(mine.fill, 1, 1, 1, 1, 1, 1, 0, mine.stream, parameters, NULL);
}

static CUresult do_it(const struct question *q, struct answer *r)
{
	const unsigned int flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	CUdeviceptr pointer = 0;
	CUipcEventHandle event_handle;
	CUipcMemHandle handle;
	CUevent event = (CUevent)(uintptr_t)q->a[0];
	CUmemoryPool pool;
	CUresult result;
	uint32_t word = 0;
	size_t bytes, total;
	void *host = NULL;
	int fd;

	switch (q->verb) {
	case START:
		return start();
	case ALLOC:
		result = driver.p_cuMemAlloc_v2(&pointer, q->a[0]);
		r->v[0] = pointer;
		return result;
	case FREE:
		return driver.p_cuMemFree_v2((CUdeviceptr)q->a[0]);
	case FREE_ASYNC:
		TRY(driver.p_cuMemFreeAsync((CUdeviceptr)q->a[0], mine.stream));
		r->v[0] = (uint64_t)driver.p_cuIpcGetMemHandle(&handle, (CUdeviceptr)q->a[0]);
		TRY(driver.p_cuStreamSynchronize(mine.stream));
		r->v[1] = (uint64_t)driver.p_cuIpcGetMemHandle(&handle, (CUdeviceptr)q->a[0]);
		return CUDA_SUCCESS;
	case FREE_BARE: {
		struct freeing freeing = { .pointer = (CUdeviceptr)q->a[0], .bare = true };
		pthread_t thread;

		if (pthread_create(&thread, NULL, free_in_thread, &freeing))
			return CUDA_ERROR_OPERATING_SYSTEM;
		pthread_join(thread, NULL);
		return freeing.result;
	}
	case ALLOC_ASYNC:
		TRY(driver.p_cuMemAllocAsync(&pointer, q->a[0], mine.stream));
		r->v[0] = pointer;
		return driver.p_cuStreamSynchronize(mine.stream);
	case ALLOC_HOST:
		result = driver.p_cuMemAllocHost_v2(&host, q->a[0]);
		r->v[0] = (uint64_t)(uintptr_t)host;
		return result;
	case SET:
		TRY(driver.p_cuMemsetD32_v2((CUdeviceptr)q->a[0], (unsigned int)q->a[1], q->a[2]));
		return driver.p_cuStreamSynchronize(NULL);
	case READ:
		result = driver.p_cuMemcpyDtoH_v2(&word, (CUdeviceptr)q->a[0], 4);
		r->v[0] = word;
		return result;
	case FREE_MEMORY:
		result = driver.p_cuMemGetInfo_v2(&bytes, &total);
		r->v[0] = bytes;
		return result;
	case HANDLE:
		memset(&handle, 0xee, sizeof(handle)); /* so zeros in it are the driver's */
		result = driver.p_cuIpcGetMemHandle(&handle, (CUdeviceptr)q->a[0]);
		memcpy(r->handle, &handle, 64);
		return result;
	case HANDLE_BESIDE:
	case EVENT_BESIDE:
		return handle_beside(q->verb == EVENT_BESIDE, q->a[0], r->handle);
	case OPEN:
		memcpy(&handle, q->handle, 64);
		result = driver.p_cuIpcOpenMemHandle_v2(&pointer, handle,
							CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
		r->v[0] = pointer;
		return result;
	case CLOSE:
		return driver.p_cuIpcCloseMemHandle((CUdeviceptr)q->a[0]);
	case SPIN:
		return launch_spin(q->a[0]);
	case FILL:
		return launch_fill(q->a[0], q->a[1], (uint32_t)q->a[2], q->a[3]);
	case SYNC:
		return driver.p_cuCtxSynchronize();
	case VMM_NEW:
		return vmm_new(q->a[0], &r->v[0], &r->v[1]);
	case VMM_END:
		TRY(driver.p_cuMemUnmap(mine.vmm_base, mine.vmm_bytes));
		return driver.p_cuMemRelease(mine.vmm);
	case FABRIC_NEW:
		return fabric_new(&r->v[0], r->handle, &r->v[1]);
	case FABRIC_TAKE:
		return fabric_take(q->handle, &r->v[0]);
	case VMM_TAKE:
		return vmm_take((pid_t)q->a[0], (int)q->a[1], q->a[2], BY_PIDFD, &r->v[0]);
	case EXPORT_POOL:
		TRY(driver.p_cuDeviceGetDefaultMemPool(&pool, 0));
		return driver.p_cuMemPoolExportToShareableHandle(
			&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	case EVENT_NEW:
		result = driver.p_cuEventCreate(&event, flags);
		r->v[0] = (uint64_t)(uintptr_t)event;
		return result;
	case EVENT_END:
		return driver.p_cuEventDestroy_v2(event);
	case EVENT_RECORD:
		return driver.p_cuEventRecord(event, mine.stream);
	case EVENT_QUERY:
		return driver.p_cuEventQuery(event);
	case EVENT_HANDLE:
		result = driver.p_cuIpcGetEventHandle(&event_handle, event);
		memcpy(r->handle, &event_handle, 64);
		return result;
	case EVENT_OPEN:
		memcpy(&event_handle, q->handle, 64);
		result = driver.p_cuIpcOpenEventHandle(&event, event_handle);
		r->v[0] = (uint64_t)(uintptr_t)event;
		return result;
	case EVENT_MANY:
		return event_many(q->a[0], &r->v[0]);
	case KILL_WATCH:
		return kill_watch((pid_t)q->a[0], (CUdeviceptr)q->a[1], (uint32_t)q->a[2], q->a[3],
				  &r->v[0], &r->v[1]);
	case TWO_THREADS:
		return two_threads((CUdeviceptr)q->a[0], q->a[1], r->v);
	case CAPTURE:
		return capture((CUdeviceptr)q->a[0], (CUdeviceptr)q->a[1], (CUdeviceptr)q->a[2], r->v);
	case FREE_IN_CAPTURE:
		return free_in_capture(q, r->v);
	case CONTEXT_IDS:
		return context_ids(r->v);
	case EVENT_ROUNDS:
		return event_rounds(q->a[0], q->a[1], q->a[2], &r->v[0]);
	case GREEN_BEGIN:
		return green_begin(r->v, r->handle);
	case GREEN_END:
		TRY(green_end());
		return driver.p_cuCtxSetCurrent(mine.context);
	case GREEN_PUSH:
		return driver.p_cuCtxSetCurrent(mine.green_context);
	case GREEN_STREAM:
		return green_stream(r->v);
	case GREEN_WRONG:
		TRY(driver.p_cuCtxSetCurrent(mine.context));
		r->v[0] = (uint64_t)driver.p_cuCtxDestroy_v2(mine.green_context);
		return CUDA_SUCCESS;
	case GREEN_LAST:
		return green_last(r->v);
	case CONTEXT_OF:
		return context_of((CUdeviceptr)q->a[0], &r->v[0]);
	case EVENT_ORPHAN:
		return event_orphan(q->a[0]);
	case OPEN_CAPTURE:
		return open_capturing(q->handle, r->v);
	case GREEN_UNDER:
		return green_under(r->v);
	case GREEN_RESET:
		return green_reset(r->v);
	case POOL_NEW:
	case POOL_SHARE:
	case POOL_TAKE:
	case POOL_END:
	case POOL_LEAVE:
	case POOL_TRIM:
	case POOL_ALLOC:
	case POOL_ALLOC_CURRENT:
	case POOL_FREE:
	case POOL_EXPORT:
	case POOL_IMPORT:
	case POOL_ACCESS:
	case POOL_CAPTURE:
	case POOL_IN_CAPTURE:
	case POOL_COSTS:
		return pool_call(q, r);
	case POOL_NUMBERS:
	case POOL_ACCESS_OF:
	case POOL_TAKE_AGAIN:
	case POOL_RESET:
		return pool_fact_call(q, r);
	case VIRTUAL_NEW:
	case VIRTUAL_EXPORT:
	case VIRTUAL_RETAIN:
	case VIRTUAL_UNMAP:
	case VIRTUAL_END:
	case VIRTUAL_TAKE:
	case SEND_DESCRIPTOR:
	case CLOSE_DESCRIPTOR:
	case DMA_BUF:
	case RANGE:
	case ATTRIBUTE:
	case ASK_CAPTURING:
	case WHILE_FREEING:
		return virtual_call(q, r);
	case EVENT_BARE: {
		struct freeing freeing = { .event = event, .bare = true };
		pthread_t thread;

		if (pthread_create(&thread, NULL, free_in_thread, &freeing))
			return CUDA_ERROR_OPERATING_SYSTEM;
		pthread_join(thread, NULL);
		return freeing.result;
	}
	case LEAVE:
		break;
	}
	return CUDA_SUCCESS;
}

void serve(int from, int to)
{
	struct question q;
	struct answer r;

	while (read(from, &q, sizeof(q)) == (ssize_t)sizeof(q)) {
		uint64_t start_ns = now_ns();

		memset(&r, 0, sizeof(r));
		r.result = (int)do_it(&q, &r);
		r.ns = now_ns() - start_ns;
		if (write(to, &r, sizeof(r)) != (ssize_t)sizeof(r) || q.verb == LEAVE)
			break;
	}
	/* A normal exit: destructors run. */
	exit(0);
}

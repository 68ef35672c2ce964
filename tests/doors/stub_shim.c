/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shim that prints which of its functions was called, as "shim FUNCTION" on stderr, and
 * calls the driver.  It tests the preload alone.
 *
 * STUB_SHARING=1   the process shares from the start
 * STUB_TRACING=1   it writes a trace
 * STUB_MIRRORS=1   another process's virtual memory is open
 * STUB_RETRIES=N   the free-memory callbacks give something back N times
 * STUB_STATUS=N    the exit status that cl_process_end() wants
 */
#include <stdio.h>
#include <stdlib.h>
#include "shim/asked.h"
#include "shim/reclaim/callbacks.h"
#include "shim/self/outlive.h"
#include "shim/shim.h"

atomic_int cl_sharing_flag;
_Atomic uint64_t cl_mirrors_n, cl_pool_opens_n;

__attribute__((constructor)) static void share(void)
{
	if (getenv("STUB_MIRRORS"))
		cl_mirrors_n = 1;
	if (getenv("STUB_SHARING"))
		cl_sharing_flag |= CL_SHARES;
	if (getenv("STUB_TRACING"))
		cl_sharing_flag |= CL_TRACES;
}

static int number(const char *name, int otherwise)
{
	const char *value = getenv(name);

	return value ? atoi(value) : otherwise;
}

#define SAY(...) dprintf(2, "shim " __VA_ARGS__)

void cl_trace_begin(void)
{
}
uint64_t cl_trace_now(void)
{
	SAY("trace now\n");
	return 1;
}
void cl_trace_allocated(const CUdeviceptr *dptr, size_t bytes, CUresult result)
{
	SAY("trace allocated %p %zu %d\n", (const void *)dptr, bytes, (int)result);
}
void cl_trace_freed(CUdeviceptr dptr, uint64_t began)
{
	SAY("trace freed %#llx since %ju\n", (unsigned long long)dptr, (uintmax_t)began);
}

CUresult cl_memory_export(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	SAY("export\n");
	cl_sharing_flag = 1;
	return cl_driver.cuIpcGetMemHandle(handle, dptr);
}

CUresult cl_memory_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			  CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	SAY("import\n");
	cl_sharing_flag = 1;
	return open(dptr, handle, flags);
}

CUresult cl_memory_close(CUdeviceptr dptr)
{
	SAY("close\n");
	return cl_driver.cuIpcCloseMemHandle(dptr);
}

CUresult cl_pool_pointer_export(CUmemPoolPtrExportData *data, CUdeviceptr dptr)
{
	SAY("pool_export\n");
	cl_sharing_flag = 1;
	return cl_driver.cuMemPoolExportPointer(data, dptr);
}

CUresult cl_pool_pointer_import(CUdeviceptr *dptr, CUmemoryPool pool, CUmemPoolPtrExportData *data, bool *told)
{
	SAY("pool_import\n");
	cl_sharing_flag = 1;
	return cl_driver.cuMemPoolImportPointer(dptr, pool, data);
}

CUresult cl_pool_import(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags)
{
	return cl_driver.cuMemPoolImportFromShareableHandle(pool, shareable, type, flags);
}

CUresult cl_pool_destroy(CUmemoryPool pool)
{
	SAY("pool_destroy\n");
	return cl_driver.cuMemPoolDestroy(pool);
}

CUresult cl_memory_free(CUdeviceptr dptr)
{
	SAY("free\n");
	return cl_driver.cuMemFree_v2(dptr);
}

CUresult cl_memory_free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	SAY("free_async %s\n", per_thread ? "per_thread" : "legacy");
	return (per_thread ? cl_driver.cuMemFreeAsync_ptsz : cl_driver.cuMemFreeAsync)(dptr, stream);
}

CUresult cl_virtual_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			   unsigned long long flags)
{
	SAY("virtual_create\n");
	return cl_driver.cuMemCreate(handle, size, prop, flags);
}

CUresult cl_virtual_release(CUmemGenericAllocationHandle handle)
{
	SAY("virtual_release\n");
	return cl_driver.cuMemRelease(handle);
}

CUresult cl_virtual_unmap_now(CUdeviceptr dptr, size_t size)
{
	SAY("virtual_unmap\n");
	return cl_driver.cuMemUnmap(dptr, size);
}

CUresult cl_virtual_address_free(CUdeviceptr dptr, size_t size)
{
	SAY("virtual_address_free\n");
	return cl_driver.cuMemAddressFree(dptr, size);
}

void cl_virtual_reserved(CUdeviceptr dptr, size_t size)
{
	SAY("virtual_reserved %zu\n", size);
}

void cl_virtual_retained(CUmemGenericAllocationHandle handle, CUdeviceptr dptr)
{
	SAY("virtual_retained %llx\n", (unsigned long long)dptr);
}

void cl_virtual_mapped(CUdeviceptr dptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle)
{
	SAY("virtual_mapped %llu\n", (unsigned long long)handle);
}

void cl_virtual_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	SAY("virtual_properties %llu\n", (unsigned long long)handle);
}

bool cl_virtual_is_hidden(CUmemGenericAllocationHandle handle)
{
	SAY("virtual_is_hidden %llu\n", (unsigned long long)handle);
	return false;
}

CUresult cl_virtual_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr, CUresult result)
{
	SAY("virtual_attribute %d\n", (int)attribute);
	return result;
}

CUresult cl_virtual_attributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr dptr,
			       CUresult result)
{
	for (unsigned int i = 0; i < n; i++)
		cl_virtual_attribute(data[i], attributes[i], dptr, result);
	return result;
}

CUresult cl_virtual_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr dptr, CUresult result)
{
	SAY("virtual_address_range\n");
	return result;
}

void cl_virtual_peer_enabled(CUcontext peer)
{
	SAY("virtual_peer %p\n", (void *)peer);
}

CUresult cl_async_alloc_refused(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread)
{
	(void)dptr;
	(void)bytes;
	SAY("async_alloc_refused %s %p %p\n", per_thread ? "per_thread" : "legacy", (void *)pool, (void *)stream);
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cl_async_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	SAY("async_create\n");
	return cl_driver.cuMemPoolCreate(pool, props);
}

CUresult cl_async_destroy(CUmemoryPool pool)
{
	SAY("async_destroy\n");
	return cl_driver.cuMemPoolDestroy(pool);
}

CUresult cl_async_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SAY("async_get_attribute\n");
	return cl_driver.cuMemPoolGetAttribute(pool, attribute, value);
}

CUresult cl_async_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SAY("async_set_attribute\n");
	return cl_driver.cuMemPoolSetAttribute(pool, attribute, value);
}

_Atomic bool cl_async_made; /* false: each allocation calls cl_async_before() */
void cl_async_before(void)
{
	SAY("async_before\n");
}

CUmemoryPool cl_async_after(CUmemoryPool pool)
{
	SAY("async_after\n");
	return pool;
}

CUmemoryPool cl_async_to_export(CUmemoryPool pool)
{
	SAY("async_to_export\n");
	return pool;
}

bool cl_async_hides(CUdeviceptr dptr)
{
	SAY("async_hides %llx\n", (unsigned long long)dptr);
	return false;
}

CUresult cl_event_export(CUipcEventHandle *handle, CUevent event)
{
	SAY("event_export\n");
	cl_sharing_flag = 1;
	return cl_driver.cuIpcGetEventHandle(handle, event);
}

CUresult cl_event_import(CUevent *event, CUipcEventHandle handle)
{
	SAY("event_import\n");
	cl_sharing_flag = 1;
	return cl_driver.cuIpcOpenEventHandle(event, handle);
}

CUresult cl_event_destroy(CUevent event, CUresult (*destroy)(CUevent))
{
	SAY("event_destroy\n");
	return destroy(event);
}
CUresult cl_unshared_event_destroy(CUevent event, CUresult (*destroy)(CUevent))
{
	return destroy(event);
}

struct cl_context_end cl_context_end_begin(CUcontext ctx, CUdevice device)
{
	SAY("context_begin\n");
	return (struct cl_context_end){ .handle = ctx, .device = device };
}

void cl_context_end_done(const struct cl_context_end *end, bool gone)
{
	SAY("context_%s\n", gone ? "gone" : "stays");
}

struct cl_context_call cl_context_call_begin(CUdevice device)
{
	if (cl_sharing_flag)
		return (struct cl_context_call){ .unwatched = false };
	SAY("call_begin %d\n", device);
	return (struct cl_context_call){ .unwatched = true };
}

void cl_context_call_end(const struct cl_context_call *call)
{
	SAY("call_end\n");
}

/* STUB_BESIDE: the program has another reference */
static int beside_begin(CUdevice device, const char *what)
{
	if (!number("STUB_BESIDE", 0))
		return CL_NOT_BESIDE;
	SAY("%s_beside_begin %d\n", what, device);
	return PTHREAD_CANCEL_DEFERRED;
}

int cl_retain_beside_begin(CUdevice device)
{
	return beside_begin(device, "retain");
}

int cl_release_beside_begin(CUdevice device)
{
	return beside_begin(device, "release");
}

void cl_beside_end(CUdevice device, int cancel_type, bool retained)
{
	SAY("beside_end %d%s\n", device, retained ? " retained" : "");
}

struct cl_context_call cl_primary_release_begin(CUdevice device)
{
	return cl_context_call_begin(device);
}

void cl_gate_drop_references(CUdevice device)
{
	SAY("no_references %d\n", device);
}

void cl_gate_drop_references_and_wait(CUdevice device)
{
	SAY("no_references_wait %d\n", device);
}

uint64_t cl_context_last(void)
{
	return 0;
}

void cl_primary_ended_past_us(CUdevice device, uint64_t last)
{
	SAY("ended_past_us %d\n", device);
}

struct cl_context_creation cl_context_creation_begin(CUdevice device)
{
	SAY("make_begin %d\n", device);
	return (struct cl_context_creation){ .device = device };
}

void cl_context_creation_end(const struct cl_context_creation *creation, bool retained)
{
	SAY("make_end %d%s\n", creation->device, retained ? " retained" : "");
}

void cl_green_created(CUgreenCtx green, CUdevice device)
{
	SAY("green_created %d\n", device);
}

void cl_green_converted(CUcontext ctx, CUgreenCtx green)
{
	SAY("green_converted\n");
}

/* of which device it is, nothing was said, or STUB_GREEN */
struct cl_green_end cl_green_end_begin(CUgreenCtx green)
{
	return (struct cl_green_end){ .device = number("STUB_GREEN", -1), .green = green };
}

void cl_green_end_done(const struct cl_green_end *end, bool gone)
{
	SAY("green_%s\n", gone ? "gone" : "stays");
}

bool cl_retry_again(struct cl_retry *retry)
{
	unsigned int attempt = retry->attempt++;

	if (retry->want == CL_RETRY_EVENT)
		SAY("events %u\n", attempt);
	else
		SAY("callbacks %zu %u\n", retry->what.bytes, attempt);
	return (int)attempt < number("STUB_RETRIES", 0);
}

void cl_retry_end(struct cl_retry *retry)
{
	retry->attempt = 0;
}

void cl_memory_allocates(void)
{
	SAY("allocates\n");
}

void cl_event_created(CUevent event)
{
	SAY("event_is_new\n");
}

void cl_shareable_event_created(CUevent event)
{
	SAY("event_created\n");
}

int cl_callbacks_register(cl_free_memory_fn *fn, void *data)
{
	return fn ? 0 : -22;
}

int cl_callbacks_unregister(cl_free_memory_fn *fn, void *data)
{
	return -2;
}

bool cl_asked_collect(void)
{
	return false;
}

int cl_asked_report(int fd, bool json)
{
	return 0;
}

void cl_asked_stats(struct cl_asked_numbers *stats)
{
}

int cl_process_end(int status)
{
	static int ended;

	if (!cl_sharing_flag || ended++)
		return status;
	SAY("end\n");
	return number("STUB_STATUS", status);
}

void cl_outlive_watch_forks(void)
{
	SAY("watch forks\n");
}

atomic_uint cl_descriptors_waiting;
void cl_descriptor_note(enum cl_call call, CUmemGenericAllocationHandle handle)
{
	SAY("descriptor %d\n", (int)call);
	/* so a cuMemMap is looked at */
	cl_descriptors_waiting = 1;
}
void cl_descriptor_created(CUmemGenericAllocationHandle handle, size_t size)
{
	SAY("created %zu\n", size);
}
void cl_descriptor_mapped(CUmemGenericAllocationHandle handle, size_t size)
{
	SAY("mapped %llu %zu\n", (unsigned long long)handle, size);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuInit, devices and contexts, and the coming and going of the process.
 *
 * What must hold:
 * - a struct sim_context is never freed, so that a handle kept too long is an
 *   error (709) and not a crash; a device's primary context is the same one
 *   each time;
 * - ending a context waits for its work, then gives back all its memory, that
 *   of others (imports) included; what others have open of it stays theirs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define CONTEXT_MAGIC UINT32_C(0x63747830)
#define STACK_DEPTH 64
#define DRIVER_VERSION 13000

struct sim sim = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct sim_context primary[SIM_DEVICES_MAX];
static unsigned int primary_flags[SIM_DEVICES_MAX];
static uint64_t next_context;

static __thread struct {
	struct sim_context *stack[STACK_DEPTH];
	int depth;
} current;

/* ---- this process ---- */

CUresult sim_ready(void)
{
	if (!atomic_load_explicit(&sim.initialised, memory_order_acquire))
		return CUDA_ERROR_NOT_INITIALIZED;
	/* The page is wiped in a forked child. */
	if (!atomic_load_explicit(sim.here, memory_order_relaxed))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (atomic_load_explicit(&sim.exiting, memory_order_relaxed))
		return CUDA_ERROR_DEINITIALIZED;
	return CUDA_SUCCESS;
}

struct sim_context *sim_context_current(void)
{
	return current.depth ? current.stack[current.depth - 1] : NULL;
}

struct sim_context *sim_green_current(void)
{
	struct sim_context *context = sim_context_current();

	return context && context->whole ? context : NULL;
}

CUresult sim_enter(struct sim_context **context)
{
	CUresult result = sim_ready();

	if (result)
		return result;
	*context = sim_context_current();
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	if ((*context)->whole && (*context)->alive)
		*context = (*context)->whole;
	if (!(*context)->alive)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		result = (*context)->sticky;
	if (result)
		pthread_mutex_unlock(&sim.lock);
	return result;
}

struct sim_context *sim_context_of(CUcontext handle)
{
	struct sim_context *context = (struct sim_context *)handle;

	return context && context->magic == CONTEXT_MAGIC ? context : NULL;
}

/* An orderly end: nothing of ours is left behind. */
__attribute__((destructor)) static void leave(void)
{
	if (sim_ready())
		return;
	atomic_store(&sim.exiting, true);
	/* Nothing of ours may write into what others get from now on. */
	for (int i = 0; i < 1000 && atomic_load(&sim.running); i++)
		usleep(1000);
	sim_linger_stop();
	pool_detach();
}

SIM_CALL(cuInit, (unsigned int flags))
{
	static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_condattr_t attr;
	CUresult result = CUDA_SUCCESS;
	_Atomic int *here;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (atomic_load_explicit(&sim.initialised, memory_order_acquire))
		return sim_ready();
	pthread_mutex_lock(&init_lock);
	if (atomic_load(&sim.initialised))
		goto out;
	here = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (here == MAP_FAILED) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	madvise(here, 4096, MADV_WIPEONFORK);
	if (pool_attach()) {
		munmap(here, 4096);
		result = CUDA_ERROR_OPERATING_SYSTEM;
		goto out;
	}
	if (!pool_devices()) {
		pool_detach();
		munmap(here, 4096);
		result = CUDA_ERROR_NO_DEVICE;
		goto out;
	}
	result = sim_address_space_init();
	if (result)
		goto out;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&sim.changed, &attr);
	pthread_condattr_destroy(&attr);
	sim.here = here;
	atomic_store(here, 1);
	atomic_store_explicit(&sim.initialised, 1, memory_order_release);
out:
	pthread_mutex_unlock(&init_lock);
	return result;
}

SIM_CALL(cuDriverGetVersion, (int *version))
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = DRIVER_VERSION;
	return CUDA_SUCCESS;
}

/* ---- devices ---- */

static CUresult check_device(CUdevice device)
{
	CUresult result = sim_ready();

	if (result)
		return result;
	return device >= 0 && (unsigned int)device < pool_devices() ? CUDA_SUCCESS
								      : CUDA_ERROR_INVALID_DEVICE;
}

SIM_CALL(cuDeviceGetCount, (int *count))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)pool_devices();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGet, (CUdevice *device, int ordinal))
{
	CUresult result = check_device(ordinal);

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetName, (char *name, int length, CUdevice device))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	if (!name || length < 1)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "culimbo simulated device");
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memset(uuid, 0, sizeof(*uuid));
	memcpy(uuid->bytes, "culimbo-sim", 11);
	uuid->bytes[15] = (char)pool_physical((unsigned int)device);
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))
{
	return cuDeviceGetUuid(uuid, device);
}

SIM_CALL(cuDeviceGetLuid, (char *luid, unsigned int *mask, CUdevice device))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = pool_memory();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	if (!value || (int)attribute < 1)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
		*value = 1024;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
		*value = 64;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
		*value = 2147483647;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
		*value = 65535;
		break;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
		*value = 32;
		break;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		*value = 1000000;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
		*value = 49152;
		break;
	case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
	case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
		*value = 512;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = (int)pool_physical((unsigned int)device) + 1;
		break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
	case 102: /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED (VIRTUAL_ADDRESS_... before 11.3) */
	case 103: /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
	case 125: /* IPC_EVENT_SUPPORTED */
		*value = 1;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = 9;
	*minor = 0;
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))
{
	CUresult result = check_device(device);

	if (!result)
		result = check_device(peer);
	if (result)
		return result;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = device != peer;
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetPCIBusId, (char *name, int length, CUdevice device))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	if (!name || length < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "0000:%02x:00.0", pool_physical((unsigned int)device) + 1);
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetByPCIBusId, (CUdevice *device, const char *name))
{
	CUresult result = sim_ready();
	unsigned int domain, bus;

	if (result)
		return result;
	if (!device || !name || sscanf(name, "%x:%x:", &domain, &bus) != 2)
		return CUDA_ERROR_INVALID_VALUE;
	if (domain || bus < 1 || pool_visible(bus - 1) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = pool_visible(bus - 1);
	return CUDA_SUCCESS;
}

/* ---- making and ending contexts; under sim.lock ---- */

static void context_begin(struct sim_context *context, CUdevice device, unsigned int flags)
{
	context->magic = CONTEXT_MAGIC;
	context->device = device;
	context->flags = flags;
	context->alive = true;
	context->sticky = CUDA_SUCCESS;
	context->api_version = 3020;
	context->id = ++next_context;
	context->peers = 0;
	memset(context->limits, 0, sizeof(context->limits));
	sim_streams_init(context);
}

void sim_context_begin_green(struct sim_context *green, struct sim_context *whole)
{
	green->magic = CONTEXT_MAGIC;
	green->device = whole->device;
	green->whole = whole;
	green->alive = true;
	green->api_version = whole->api_version;
	green->id = ++next_context;
}

static void context_end(struct sim_context *context)
{
	sim_context_wait(context);
	if (!context->alive)
		return;
	context->alive = false;
	sim_streams_end(context);
	sim_events_end(context);
	sim_memory_free_context(context);
	context->last_chunk = NULL;
}

/* ---- primary contexts ---- */

SIM_CALL(cuDevicePrimaryCtxRetain, (CUcontext *handle, CUdevice device))
{
	CUresult result = check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim.lock);
	context = &primary[device];
	if (!context->alive) {
		result = sim_memory_needed(device);
		if (result)
			goto out;
		context->primary = true;
		context_begin(context, device, primary_flags[device]);
		context->references = 0;
	}
	context->references++;
	*handle = (CUcontext)context;
out:
	sim_leave();
	return result;
}

SIM_CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
	CUresult result = check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	context = &primary[device];
	if (!context->alive || !context->references)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (--context->references == 0)
		context_end(context);
	sim_leave();
	return result;
}

SIM_CALL(cuDevicePrimaryCtxRelease, (CUdevice device))
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_CALL(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
	CUresult result = check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	context = &primary[device];
	if (context->alive) {
		/* References stay: the context is there, and empty. */
		context_end(context);
		if (context->references)
			context_begin(context, device, primary_flags[device]);
	}
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDevicePrimaryCtxReset, (CUdevice device))
{
	return cuDevicePrimaryCtxReset_v2(device);
}

SIM_CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	pthread_mutex_lock(&sim.lock);
	primary_flags[device] = flags;
	primary[device].flags = flags;
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags))
{
	CUresult result = check_device(device);

	if (!result && primary[device].alive)
		return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
	return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

SIM_CALL(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))
{
	CUresult result = check_device(device);

	if (result)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim.lock);
	*flags = primary_flags[device];
	*active = primary[device].alive;
	sim_leave();
	return CUDA_SUCCESS;
}

/* ---- contexts of one's own ---- */

SIM_CALL(cuCtxCreate_v2, (CUcontext *handle, unsigned int flags, CUdevice device))
{
	CUresult result = check_device(device);
	struct sim_context *context;

	if (result)
		return result;
	if (!handle || current.depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_memory_needed(device);
	if (result)
		return result;
	context = calloc(1, sizeof(*context));
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim.lock);
	context_begin(context, device, flags);
	context->references = 1;
	current.stack[current.depth++] = context;
	*handle = (CUcontext)context;
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxCreate, (CUcontext *handle, unsigned int flags, CUdevice device))
{
	return cuCtxCreate_v2(handle, flags, device);
}

/* Parameter types that came with CUDA 11.4 and 12.5; elsewhere only their absence is known. */
#if CUDA_VERSION >= 11040
typedef CUexecAffinityParam affinity_param;
#else
typedef void affinity_param;
#endif
#if CUDA_VERSION >= 12050
typedef CUctxCreateParams create_params;
#else
typedef void create_params;
#endif

SIM_CALL(cuCtxCreate_v3, (CUcontext *handle, affinity_param *affinity, int affinities,
			  unsigned int flags, CUdevice device))
{
	if (affinities)
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuCtxCreate_v2(handle, flags, device);
}

SIM_CALL(cuCtxCreate_v4, (CUcontext *handle, create_params *params, unsigned int flags,
			  CUdevice device))
{
#if CUDA_VERSION >= 12050
	if (params && (params->numExecAffinityParams || params->cigParams))
#else
	if (params)
#endif
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuCtxCreate_v2(handle, flags, device);
}

static CUresult context_destroy(CUcontext handle)
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (context->primary || context->whole)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	if (context->alive)
		context_end(context);
	else
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	sim_leave();
	if (sim_context_current() == context)
		current.depth--;
	return result;
}

SIM_CALL(cuCtxDestroy_v2, (CUcontext handle))
{
	return context_destroy(handle);
}

SIM_CALL(cuCtxDestroy, (CUcontext handle))
{
	return context_destroy(handle);
}

SIM_CALL(cuCtxAttach, (CUcontext *handle, unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!handle || flags) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		context->references++;
		*handle = (CUcontext)context;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuCtxDetach, (CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);
	bool last;

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	last = context->references <= 1;
	if (!last)
		context->references--;
	sim_leave();
	return last ? context_destroy(handle) : CUDA_SUCCESS;
}

/* ---- the current context ---- */

/* Whether @context may become current: 0, or the error to return. */
static CUresult check_current(const struct sim_context *context)
{
	if (context->alive || context->primary)
		return CUDA_SUCCESS;
	/* (the driver goes on with a corrupt heap) */
	if (context->whole)
		sim_crash();
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SIM_CALL(cuCtxPushCurrent_v2, (CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);

	if (result)
		return result;
	if (!context || current.depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_current(context);
	if (result)
		return result;
	current.stack[current.depth++] = context;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxPushCurrent, (CUcontext handle))
{
	return cuCtxPushCurrent_v2(handle);
}

SIM_CALL(cuCtxPopCurrent_v2, (CUcontext *handle))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!current.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	current.depth--;
	if (handle)
		*handle = (CUcontext)current.stack[current.depth];
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxPopCurrent, (CUcontext *handle))
{
	return cuCtxPopCurrent_v2(handle);
}

SIM_CALL(cuCtxSetCurrent, (CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = sim_context_of(handle);

	if (result)
		return result;
	if (!handle) {
		if (current.depth)
			current.depth--;
		return CUDA_SUCCESS;
	}
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	result = check_current(context);
	if (result)
		return result;
	if (!current.depth)
		current.depth = 1;
	current.stack[current.depth - 1] = context;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetCurrent, (CUcontext *handle))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = (CUcontext)sim_context_current();
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetDevice, (CUdevice *device))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = sim_context_current()->device;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetDevice_v2, (CUdevice *device, CUcontext handle))
{
	CUresult result = sim_ready();
	struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxSynchronize, (void))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	result = sim_capture_forbids_all(context);
	if (!result) {
		sim_context_wait(context);
		result = context->sticky;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuCtxSynchronize_v2, (CUcontext handle))
{
	struct sim_context *context;
	CUresult result;

	if (!handle)
		return cuCtxSynchronize();
	result = sim_ready();
	if (result)
		return result;
	context = sim_context_of(handle);
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	if (context->whole && context->alive)
		context = context->whole;
	if (!context->alive) {
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	} else {
		sim_context_wait(context);
		result = context->sticky;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuCtxGetApiVersion, (CUcontext handle, unsigned int *version))
{
	struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = context->api_version;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetFlags, (unsigned int *flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (flags)
		*flags = context->flags;
	sim_leave();
	return flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_CALL(cuCtxSetFlags, (unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	context->flags = flags;
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetId, (CUcontext handle, unsigned long long *id))
{
	struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = context->id;
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxGetLimit, (size_t *value, CUlimit limit))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!value)
		result = CUDA_ERROR_INVALID_VALUE;
	else if ((unsigned int)limit >= 16)
		result = CUDA_ERROR_UNSUPPORTED_LIMIT;
	else
		*value = context->limits[limit];
	sim_leave();
	return result;
}

SIM_CALL(cuCtxSetLimit, (CUlimit limit, size_t value))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if ((unsigned int)limit >= 16)
		result = CUDA_ERROR_UNSUPPORTED_LIMIT;
	else if (limit == CU_LIMIT_STACK_SIZE && value > context->limits[limit])
		result = sim_memory_needed(context->device);
	if (!result)
		context->limits[limit] = value;
	sim_leave();
	return result;
}

SIM_CALL(cuCtxGetStreamPriorityRange, (int *least, int *greatest))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuCtxEnablePeerAccess, (CUcontext handle, unsigned int flags))
{
	struct sim_context *context, *peer = sim_context_of(handle);
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!peer || flags)
		result = peer ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
	else if (peer->device == context->device)
		result = CUDA_ERROR_INVALID_DEVICE;
	else if (context->peers >> peer->device & 1)
		result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	else
		context->peers |= UINT64_C(1) << peer->device;
	sim_leave();
	return result;
}

SIM_CALL(cuCtxDisablePeerAccess, (CUcontext handle))
{
	struct sim_context *context, *peer = sim_context_of(handle);
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!peer)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!(context->peers >> peer->device & 1))
		result = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	else
		context->peers &= ~(UINT64_C(1) << peer->device);
	sim_leave();
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for cuInit() and for calls that create, retain, release and end contexts.  The blocks and events of a context
 * end with it.
 *
 * What must hold: the shim forgets what belonged to a context if and only if the context has
 * ended.  A call that fails ends nothing.  After a call that only drops a reference, the hook asks
 * the driver whether that was the last one.  Until it has asked, no thread may create a new
 * primary context, which would be mistaken for the old one.  This holds also for calls that began
 * before the process shared.  The shim knows each green context from before the program gets its
 * handle until after its end, also in a process that shares nothing yet.
 */
#include "preload/hook_again.h"
#include "preload/hook_table.h"
#include "shim/base/hot.h"
#include "shim/self/outlive.h"

CUresult CUDAAPI cl_hook_cuInit(unsigned int flags)
{
	cl_outlive_watch_forks();
	return cl_driver.cuInit(flags);
}

/* The device of a call that names its context. */
enum { no_device = -1 };

static CUresult context_destroy(CUcontext ctx, CUresult(CUDAAPI *destroy)(CUcontext))
{
	struct cl_context_end end;
	CUresult result;

	end = cl_context_end_begin(ctx, no_device);
	result = destroy(ctx);
	cl_context_end_done(&end, result == CUDA_SUCCESS);
	return result;
}

CUresult CUDAAPI cl_hook_cuCtxDestroy(CUcontext ctx)
{
	if (!cl_sharing())
		return cl_driver.cuCtxDestroy(ctx);
	return context_destroy(ctx, cl_driver.cuCtxDestroy);
}

CUresult CUDAAPI cl_hook_cuCtxDestroy_v2(CUcontext ctx)
{
	if (!cl_sharing())
		return cl_driver.cuCtxDestroy_v2(ctx);
	return context_destroy(ctx, cl_driver.cuCtxDestroy_v2);
}

/*
 * Returns true if @ctx lives on after cuCtxDetach(): it is still current and a call in it succeeds.
 * cuCtxDetach() drops one reference to the thread's current context.  Dropping the last one destroys
 * the context, and then it is no longer current.
 */
static bool context_is_current(CUcontext ctx)
{
	CUcontext now = NULL;
	CUdevice device;

	return cl_driver.cuCtxGetCurrent && cl_driver.cuCtxGetDevice &&
	       cl_driver.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == ctx &&
	       cl_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS;
}

CUresult CUDAAPI cl_hook_cuCtxDetach(CUcontext ctx)
{
	struct cl_context_call call;
	struct cl_context_end end;
	CUresult result;

	/* it may drop a reference to a primary context */
	cl_gate_drop_references_and_wait(no_device);
	call = cl_context_call_begin(no_device);
	if (call.unwatched) {
		result = cl_driver.cuCtxDetach(ctx);
		cl_context_call_end(&call);
		return result;
	}
	end = cl_context_end_begin(ctx, no_device);
	result = cl_driver.cuCtxDetach(ctx);
	cl_context_end_done(&end, result == CUDA_SUCCESS && !context_is_current(ctx));
	return result;
}

static CUresult primary_retain(CUcontext *ctx, CUdevice device)
{
	struct cl_context_creation creation = cl_context_creation_begin(device);
	CUresult result = cl_driver.cuDevicePrimaryCtxRetain(ctx, device);

	cl_context_creation_end(&creation, result == CUDA_SUCCESS);
	return result;
}

/*
 * The first retain creates the context and needs memory.  If that fails, memory is reclaimed
 * outside of primary_retain(): a thread that gives memory back may need a context, and would
 * wait for the end of the creation.
 */
static __attribute__((noinline)) CUresult retain_the_long_way(CUcontext *ctx, CUdevice device)
{
	return CL_WITH_MEMORY(CL_SOME_OF(device), primary_retain(ctx, device));
}

CL_HOT_SHARING CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	int beside = cl_retain_beside_begin(device);
	CUresult result;

	if (__builtin_expect(beside == CL_NOT_BESIDE, 0))
		return retain_the_long_way(ctx, device);
	result = cl_driver.cuDevicePrimaryCtxRetain(ctx, device);
	cl_beside_end(device, beside, result == CUDA_SUCCESS);
	if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0))
		return retain_the_long_way(ctx, device);
	return result;
}

/* Returns true if @device has a primary context: other code may have retained it, too. */
static bool primary_is_active(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return cl_driver.cuDevicePrimaryCtxGetState &&
	       cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
	       active;
}

/* The release may be the last one. */
static __attribute__((noinline)) CUresult release_the_long_way(CUdevice device, CUresult(CUDAAPI *release)(CUdevice))
{
	struct cl_context_call call = cl_primary_release_begin(device);
	struct cl_context_end end;
	CUresult result;

	if (call.unwatched) {
		result = release(device);
		cl_context_call_end(&call);
		return result;
	}
	end = cl_context_end_begin(NULL, device);
	result = release(device);
	cl_context_end_done(&end, result == CUDA_SUCCESS && !primary_is_active(device));
	return result;
}

CL_HOT_SHARING static CUresult primary_release(CUdevice device, CUresult(CUDAAPI *release)(CUdevice))
{
	int beside = cl_release_beside_begin(device);
	uint64_t last;
	CUresult result;

	if (__builtin_expect(beside == CL_NOT_BESIDE, 0))
		return release_the_long_way(device, release);
	last = cl_context_last();
	result = release(device);
	/* before the call is over: until then the last release waits */
	if (cl_sharing() && result == CUDA_SUCCESS && !primary_is_active(device))
		cl_primary_ended_past_us(device, last);
	cl_beside_end(device, beside, false);
	return result;
}

CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxRelease(CUdevice device)
{
	return primary_release(device, cl_driver.cuDevicePrimaryCtxRelease);
}

CL_HOT_SHARING CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return primary_release(device, cl_driver.cuDevicePrimaryCtxRelease_v2);
}

/* A reset destroys the context even if other code has retained it. */
static CUresult primary_reset(CUdevice device, CUresult(CUDAAPI *reset)(CUdevice))
{
	struct cl_context_call call;
	struct cl_context_end end;
	CUresult result;

	cl_gate_drop_references_and_wait(device);
	call = cl_context_call_begin(device);
	if (call.unwatched) {
		result = reset(device);
		cl_gate_drop_references(device);
		cl_context_call_end(&call);
		return result;
	}
	end = cl_context_end_begin(NULL, device);
	result = reset(device);
	cl_gate_drop_references(device); /* those of retains that were under way */
	cl_context_end_done(&end, result == CUDA_SUCCESS);
	return result;
}

CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxReset(CUdevice device)
{
	return primary_reset(device, cl_driver.cuDevicePrimaryCtxReset);
}

CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return primary_reset(device, cl_driver.cuDevicePrimaryCtxReset_v2);
}

/* --------------------------------------------------------------- green contexts */
static CUresult green_create(CUgreenCtx *green, CUdevResourceDesc with, CUdevice device,
			     unsigned int flags)
{
	struct cl_context_creation creation = cl_context_creation_begin(device);
	CUresult result = cl_driver.cuGreenCtxCreate(green, with, device, flags);

	cl_context_creation_end(&creation, false); /* the reference is the green context's */
	if (result == CUDA_SUCCESS)
		cl_green_created(*green, device);
	return result;
}

/* This may create the primary context, so memory is reclaimed outside of green_create(), too. */
CUresult CUDAAPI cl_hook_cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc with,
					  CUdevice device, unsigned int flags)
{
	return CL_WITH_MEMORY(CL_SOME_OF(device), green_create(green, with, device, flags));
}

CUresult CUDAAPI cl_hook_cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green)
{
	CUresult result = cl_driver.cuCtxFromGreenCtx(ctx, green);

	if (result == CUDA_SUCCESS)
		cl_green_converted(*ctx, green);
	return result;
}

/* How many devices to consider if the device of a green context is not known. */
enum { most_devices = 64 };

static CUresult green_destroy_of(const struct cl_green_end *end, const CUdevice *devices, unsigned int n)
{
	struct cl_context_end ends[most_devices];
	CUresult result;

	for (unsigned int i = 0; i < n; i++)
		ends[i] = cl_context_end_begin(NULL, devices[i]);
	result = cl_driver.cuGreenCtxDestroy(end->green);
	/* at once: the work below may take a while, and a new green context may have the handle by now */
	cl_green_end_done(end, result == CUDA_SUCCESS);
	/* the last that began first: the first one lets this thread be cancelled again */
	while (n-- > 0)
		cl_context_end_done(&ends[n], result == CUDA_SUCCESS && !primary_is_active(devices[n]));
	return result;
}

/*
 * cuGreenCtxDestroy() releases the primary context that cuGreenCtxCreate() has retained, and may
 * end it.  What was made in the green context belongs to the primary one (measured) and ends
 * only with that.
 */
static CUresult green_destroy(const struct cl_green_end *end)
{
	CUdevice devices[most_devices];
	unsigned int n = 0;

	if (end->device >= 0)
		return green_destroy_of(end, &end->device, 1);
	/* the device is not known: any active primary context may be the one that ends */
	for (CUdevice device = 0; device < most_devices; device++)
		if (primary_is_active(device))
			devices[n++] = device;
	return green_destroy_of(end, devices, n);
}

CUresult CUDAAPI cl_hook_cuGreenCtxDestroy(CUgreenCtx green)
{
	struct cl_green_end end = cl_green_end_begin(green);
	struct cl_context_call call = cl_context_call_begin(end.device);
	CUresult result;

	if (!call.unwatched)
		return green_destroy(&end);
	result = green_destroy_of(&end, NULL, 0);
	cl_context_call_end(&call);
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of contexts, which take blocks and events with them.
 *
 * What must hold: the shim forgets what went with a context exactly when it is
 * gone.  A failed call ends nothing; of the calls that only count down, the
 * driver is asked afterwards whether that was the last; and meanwhile nobody makes
 * a new primary context, which would be taken for the old; also where such a call has
 * begun before the process shared.  And it knows of each
 * green context from before the program has its handle until after its end,
 * also in a process that shares nothing yet.
 */
#include "preload/hook_again.h"
#include "preload/hook_table.h"

/* For a call that names its context. */
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
 * Detaching takes one from the count of a context that must be this thread's
 * current one; at none it is destroyed, which takes it off the thread.  So it
 * lives on if it is current still and good for a call.
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
	struct cl_context_call call = cl_context_call_begin(no_device);
	struct cl_context_end end;
	CUresult result;

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

	cl_context_creation_end(&creation);
	return result;
}

/*
 * The first takes memory.  What gives some back may need a context, and wait for whoever makes
 * one: so nothing is given back in the middle of a creation.
 */
CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	return CL_WITH_MEMORY(CL_SOME_OF(device), primary_retain(ctx, device));
}

/* Others in the process may have retained it too. */
static bool primary_is_active(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return cl_driver.cuDevicePrimaryCtxGetState &&
	       cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
	       active;
}

static CUresult primary_release(CUdevice device, CUresult(CUDAAPI *release)(CUdevice))
{
	struct cl_context_call call = cl_context_call_begin(device);
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

CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxRelease(CUdevice device)
{
	return primary_release(device, cl_driver.cuDevicePrimaryCtxRelease);
}

CUresult CUDAAPI cl_hook_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return primary_release(device, cl_driver.cuDevicePrimaryCtxRelease_v2);
}

/* A reset destroys the context whoever has retained it. */
static CUresult primary_reset(CUdevice device, CUresult(CUDAAPI *reset)(CUdevice))
{
	struct cl_context_call call = cl_context_call_begin(device);
	struct cl_context_end end;
	CUresult result;

	if (call.unwatched) {
		result = reset(device);
		cl_context_call_end(&call);
		return result;
	}
	end = cl_context_end_begin(NULL, device);
	result = reset(device);
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

	cl_context_creation_end(&creation);
	if (result == CUDA_SUCCESS)
		cl_green_created(*green, device);
	return result;
}

/* As for a primary context: it may be that which takes the memory. */
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

/* Of how many devices the primary context may be the one, where it is not known which. */
enum { most_devices = 64 };

static CUresult green_destroy_of(const struct cl_green_end *end, const CUdevice *devices, unsigned int n)
{
	struct cl_context_end ends[most_devices];
	CUresult result;

	for (unsigned int i = 0; i < n; i++)
		ends[i] = cl_context_end_begin(NULL, devices[i]);
	result = cl_driver.cuGreenCtxDestroy(end->green);
	/* first, for what is to be forgotten may take a while: another context may have its address by now */
	cl_green_end_done(end, result == CUDA_SUCCESS);
	for (unsigned int i = 0; i < n; i++)
		cl_context_end_done(&ends[i],
				    result == CUDA_SUCCESS && !primary_is_active(devices[i]));
	return result;
}

/*
 * It gives back the primary context that cuGreenCtxCreate() has retained.  What was made
 * in the green context is the primary one's (measured), and goes only with that.
 */
static CUresult green_destroy(const struct cl_green_end *end)
{
	CUdevice devices[most_devices];
	unsigned int n = 0;

	if (end->device >= 0)
		return green_destroy_of(end, &end->device, 1);
	/* its own is active; none ends that is not, and that of a device which is not there */
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

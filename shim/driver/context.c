/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: see context.h and shim.h. */
#include <stdatomic.h>

#include "shim/driver/context.h"
#include "shim/driver/gate.h"
#include "shim/driver/green.h"
#include "shim/self/self.h"

/*
 * One a device is enough: what is not the one remembered is asked for.  Relaxed
 * atomics: a context is compared with, never used.  Before this process shares
 * nobody tells us of the end of a context, so nothing is remembered.
 */
enum { DEVICES = CL_ASKED_DEVICES };
void (*cl_context_lost)(CUdevice device);
static struct {
	_Atomic(CUcontext) primary[DEVICES];
	_Atomic(CUcontext) other[DEVICES]; /* the last one that was not */
} known;

static bool is(_Atomic(CUcontext) *remembered, CUcontext ctx)
{
	return atomic_load_explicit(remembered, memory_order_relaxed) == ctx;
}
static void remember(_Atomic(CUcontext) *to, CUcontext ctx)
{
	atomic_store_explicit(to, ctx, memory_order_relaxed);
}

/* The primary context of @device, NULL: it has none. */
static CUcontext ask_driver(CUdevice device)
{
	unsigned int flags;
	int active = 0;
	CUcontext primary = NULL;
	bool ended = false;

	/*
	 * Retaining an inactive one would make it; an active one is only counted,
	 * and counted back.
	 */
	if (!cl_driver.cuDevicePrimaryCtxGetState)
		return NULL;
	cl_gate_borrow_begin(device);
	if (cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active &&
	    cl_driver.cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS) {
		if (cl_driver.cuDevicePrimaryCtxRelease_v2)
			cl_driver.cuDevicePrimaryCtxRelease_v2(device);
		else
			cl_driver.cuDevicePrimaryCtxRelease(device);
		/* the program may have released it past our hooks, so that ours was the last */
		ended = cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
			!active;
	}
	cl_gate_borrow_end(device);
	if (ended && cl_context_lost)
		cl_context_lost(device);
	return primary;
}

/* Whether what is remembered of @ctx may be of one that is just ending, whose address it has got. */
static bool may_be_anothers(CUcontext ctx, CUdevice device)
{
	bool may;

	cl_lock(&cl_exports_lock);
	may = cl_gate_ends_locked(ctx, device, is(&known.primary[device], ctx));
	cl_unlock(&cl_exports_lock);
	return may;
}

bool cl_context_is_primary(CUcontext ctx, CUdevice device)
{
	bool primary;

	if (!ctx || device < 0 || device >= DEVICES)
		return false;
	if (!cl_sharing() || may_be_anothers(ctx, device))
		return ask_driver(device) == ctx;
	if (is(&known.primary[device], ctx))
		return true;
	if (is(&known.other[device], ctx))
		return false;
	primary = ask_driver(device) == ctx;
	remember(primary ? &known.primary[device] : &known.other[device], ctx);
	return primary;
}

bool cl_context_resolve(CUcontext *ctx, CUdevice device)
{
	bool primary;

	if (cl_green_resolve(ctx)) {
		/* (who does not share asks no such question, see cl_context_current_unasked()) */
		if (!*ctx && cl_sharing() && device >= 0 && device < DEVICES)
			*ctx = ask_driver(device);
		return *ctx != NULL;
	}
	primary = cl_context_is_primary(*ctx, device);
	if (!primary && cl_green_unsure())
		*ctx = NULL;
	return primary;
}

/* What a thread was told last. */
static __thread struct {
	CUcontext current; /* as the driver says; if that is of a green one, not the same as ... */
	CUcontext ctx;
	CUdevice device;
	uint32_t ends;
	bool primary;
} last __attribute__((tls_model("initial-exec")));

/* Of *ctx, which is current and was not the last one; NULL: none is known to be current. */
static __attribute__((noinline)) bool ask_for_device(CUcontext *ctx, CUdevice *device, bool *primary,
						     uint32_t now)
{
	CUcontext current = *ctx;

	*device = 0;
	*primary = false;
	if (*ctx && cl_driver.cuCtxGetDevice(device) == CUDA_SUCCESS)
		*primary = cl_context_resolve(ctx, *device);
	else
		*ctx = NULL;
	if (!*ctx) {
		*device = 0;
		return false;
	}
	if (cl_sharing()) {
		last.primary = *primary;
		last.device = *device;
		last.ctx = *ctx;
		last.current = current;
		last.ends = now;
	}
	return true;
}

bool cl_context_current(CUcontext *ctx, CUdevice *device, bool *primary)
{
	/* acquire, and before the driver is asked: what is remembered is not younger than what it says */
	uint32_t now = atomic_load_explicit(&cl_contexts_epoch, memory_order_acquire);

	*ctx = NULL;
	if (cl_driver.cuCtxGetCurrent(ctx) != CUDA_SUCCESS)
		*ctx = NULL;
	if (!*ctx || *ctx != last.current || now != last.ends)
		return ask_for_device(ctx, device, primary, now);
	*ctx = last.ctx;
	*device = last.device;
	*primary = last.primary;
	return true;
}

bool cl_context_current_unasked(CUcontext *ctx, CUdevice *device, bool *primary)
{
	if (cl_driver.cuCtxGetCurrent(ctx) != CUDA_SUCCESS || !*ctx ||
	    cl_driver.cuCtxGetDevice(device) != CUDA_SUCCESS)
		return false;
	*primary = cl_green_resolve(ctx);
	return *primary ? *ctx != NULL : !cl_green_unsure();
}

void cl_contexts_gone(CUcontext ctx, CUdevice device)
{
	for (int i = 0; i < DEVICES; i++) {
		/* the driver may give the same address to another context */
		if (ctx ? is(&known.primary[i], ctx) : i == device)
			remember(&known.primary[i], NULL);
		if (is(&known.other[i], ctx))
			remember(&known.other[i], NULL);
	}
	cl_contexts_changed();
}

void cl_contexts_forget(void)
{
	for (int i = 0; i < DEVICES; i++) {
		remember(&known.primary[i], NULL);
		remember(&known.other[i], NULL);
	}
	cl_contexts_changed();
	cl_green_forget();
}

CUresult cl_context_refusal(void)
{
	CUdeviceptr base;
	size_t size;
	CUresult result = cl_driver.cuMemGetAddressRange_v2(&base, &size, 0);

	return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND ? CUDA_ERROR_INVALID_VALUE :
									  result;
}

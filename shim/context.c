/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: see context.h and shim.h. */
#include <pthread.h>

#include "shim/collector.h"
#include "shim/context.h"
#include "shim/imports.h"
#include "shim/limbo.h"
#include "shim/self.h"

/* One a device is enough: what is not the one remembered is asked for. */
enum { DEVICES = 64 };
static struct {
	pthread_mutex_t lock;
	CUcontext primary[DEVICES];
	CUcontext other[DEVICES]; /* the last one that was not */
} known = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool ask_driver(CUcontext ctx, CUdevice device)
{
	unsigned int flags;
	int active = 0;
	CUcontext primary = NULL;

	/*
	 * Retaining an inactive one would make it; an active one is only counted,
	 * and counted back.
	 */
	if (!cl_driver.cuDevicePrimaryCtxGetState ||
	    cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active)
		return false;
	if (cl_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
		return false;
	if (cl_driver.cuDevicePrimaryCtxRelease_v2)
		cl_driver.cuDevicePrimaryCtxRelease_v2(device);
	else
		cl_driver.cuDevicePrimaryCtxRelease(device);
	/* the program may have released it in between, so that ours was the last */
	if (cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active)
		cl_context_end_done(NULL, device, true);
	return primary == ctx;
}

bool cl_context_is_primary(CUcontext ctx, CUdevice device)
{
	bool primary, other;

	if (!ctx || device < 0 || device >= DEVICES)
		return false;
	pthread_mutex_lock(&known.lock);
	primary = known.primary[device] == ctx;
	other = known.other[device] == ctx;
	pthread_mutex_unlock(&known.lock);
	if (primary || other)
		return primary;
	primary = ask_driver(ctx, device);
	pthread_mutex_lock(&known.lock);
	*(primary ? &known.primary[device] : &known.other[device]) = ctx;
	pthread_mutex_unlock(&known.lock);
	return primary;
}

void cl_context_end_begin(CUcontext ctx, CUdevice device)
{
	CL_UNCANCELLED;

	cl_limbo_context_hold_off(ctx, device);
}

void cl_context_end_done(CUcontext ctx, CUdevice device, bool gone)
{
	CL_UNCANCELLED;

	if (gone) {
		cl_imports_context_gone(ctx, device);
		pthread_mutex_lock(&known.lock);
		for (int i = 0; i < DEVICES; i++) {
			/* the driver may give the same address to another context */
			if (ctx ? known.primary[i] == ctx : i == device)
				known.primary[i] = NULL;
			if (known.other[i] == ctx)
				known.other[i] = NULL;
		}
		pthread_mutex_unlock(&known.lock);
	}
	cl_limbo_context_go_on(ctx, device, gone);
	cl_collector_wake();
}

void cl_contexts_forget(void)
{
	known.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (int i = 0; i < DEVICES; i++)
		known.primary[i] = known.other[i] = NULL;
}

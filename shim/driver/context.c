/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: see context.h and shim.h. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/limbo/collector.h"
#include "shim/driver/context.h"
#include "shim/driver/green.h"
#include "shim/importer/mappings.h"
#include "shim/limbo/limbo.h"
#include "shim/self/self.h"

/*
 * One a device is enough: what is not the one remembered is asked for.  Relaxed
 * atomics: a context is compared with, never used.  Before this process shares
 * nobody tells us of the end of a context, so nothing is remembered.
 */
enum { DEVICES = CL_ASKED_DEVICES };
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
	cl_limbo_ask_begin(device);
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
	cl_limbo_ask_end(device);
	if (ended)
		cl_context_end_done(NULL, device, true);
	return primary;
}

/* Whether what is remembered of @ctx may be of one that is just ending, whose address it has got. */
static bool may_be_anothers(CUcontext ctx, CUdevice device)
{
	bool may;

	pthread_mutex_lock(&cl_exports_lock);
	may = cl_limbo_context_ends_locked(ctx, device, is(&known.primary[device], ctx));
	pthread_mutex_unlock(&cl_exports_lock);
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

/*
 * What a thread was told last.  Counted up before and after a context ends, and with each
 * green one that comes or goes: the driver may give its address to another.
 */
static _Atomic uint32_t ends;
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
	uint32_t now = atomic_load_explicit(&ends, memory_order_acquire);

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

void cl_contexts_changed(void)
{
	/* release, and last: who sees it finds none of what was known before */
	atomic_fetch_add_explicit(&ends, 1, memory_order_release);
}

/* ------------------------------------- calls of a process that does not share yet */
/*
 * Sequentially consistent: either the call sees that it is watched, or who ends a context
 * in a process that shares sees the call.
 */
static _Atomic bool watched;
/* How many are in the driver: of each device, and of those that name none. */
static _Atomic uint32_t unwatched[DEVICES + 1];

static _Atomic uint32_t *unwatched_of(CUdevice device)
{
	return &unwatched[device >= 0 && device < DEVICES ? device : DEVICES];
}

struct cl_context_call cl_context_call_begin(CUdevice device)
{
	struct cl_context_call call = { .device = device };

	if (atomic_load_explicit(&watched, memory_order_relaxed))
		return call;
	/* (a thread that is cancelled in the driver would be waited for) */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call.cancel_state);
	atomic_fetch_add(unwatched_of(device), 1);
	call.unwatched = !atomic_load(&watched);
	if (!call.unwatched)
		cl_context_call_end(&call);
	return call;
}

void cl_context_call_end(const struct cl_context_call *call)
{
	_Atomic uint32_t *calls = unwatched_of(call->device);
	uint32_t n = atomic_load(calls);

	/* (a child that was forked in a signal handler amid the call has forgotten it) */
	while (n && !atomic_compare_exchange_weak(calls, &n, n - 1))
		;
	if (atomic_load(&watched))
		syscall(SYS_futex, calls, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	pthread_setcancelstate(call->cancel_state, NULL);
}

/* In a forked child, which may have calls of its parent's threads: nothing of CUDA works there. */
static bool driver_works(void)
{
	unsigned int flags;
	int active;

	return !cl_driver.cuDevicePrimaryCtxGetState ||
	       cl_driver.cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS;
}

static void await_unwatched(CUdevice device, uint64_t end)
{
	_Atomic uint32_t *calls = unwatched_of(device);
	struct timespec until = { (time_t)(end / 1000000000u), (long)(end % 1000000000u) };
	uint32_t n;

	while ((n = atomic_load(calls)) != 0 && cl_now() < end && driver_works())
		syscall(SYS_futex, calls, FUTEX_WAIT_BITSET_PRIVATE, n, &until, NULL,
			FUTEX_BITSET_MATCH_ANY);
}

void cl_contexts_watch(void)
{
	atomic_store(&watched, true);
}

/* ------------------------------------------------------------ ends and makings */
void cl_context_end_begin(CUcontext ctx, CUdevice device)
{
	CL_UNCANCELLED;
	uint64_t end = cl_now() + 5 * CL_END_WAIT;

	atomic_fetch_add_explicit(&ends, 1, memory_order_release);
	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return;
	}
	/* (first, for others wait for us after that; no new such call begins) */
	if (!ctx)
		await_unwatched(device, end);
	await_unwatched(-1, end);
	cl_imports_context_ends(ctx, device);
	cl_limbo_context_hold_off(ctx, device);
}

void cl_context_end_done(CUcontext ctx, CUdevice device, bool gone)
{
	CL_UNCANCELLED;

	if (cl_self_is_copy()) /* it has nothing that could go with a context */
		return;
	cl_imports_context_ended(ctx, device, gone);
	if (gone) {
		for (int i = 0; i < DEVICES; i++) {
			/* the driver may give the same address to another context */
			if (ctx ? is(&known.primary[i], ctx) : i == device)
				remember(&known.primary[i], NULL);
			if (is(&known.other[i], ctx))
				remember(&known.other[i], NULL);
		}
		cl_contexts_changed();
	}
	/* a program may release a primary context around each of its calls (UCX does): that costs no wake-up */
	if (cl_limbo_context_go_on(ctx, device, gone))
		cl_collector_wake();
}

struct cl_context_making cl_context_make_begin(CUdevice device)
{
	struct cl_context_making making = { .call = cl_context_call_begin(device), .device = device };

	if (making.call.unwatched || cl_self_is_copy() || device < 0 || device >= DEVICES)
		return making;
	/* (until make_end(), or who ends it would wait for a thread that is no more) */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &making.cancel_state);
	cl_limbo_ask_begin(device);
	making.begun = true;
	return making;
}

void cl_context_make_end(const struct cl_context_making *making)
{
	if (making->call.unwatched)
		cl_context_call_end(&making->call);
	if (!making->begun)
		return;
	cl_limbo_ask_end(making->device);
	pthread_setcancelstate(making->cancel_state, NULL);
}

void cl_contexts_forget(void)
{
	for (int i = 0; i < DEVICES; i++) {
		remember(&known.primary[i], NULL);
		remember(&known.other[i], NULL);
	}
	cl_contexts_changed();
	cl_green_forget();
	for (int i = 0; i <= DEVICES; i++)
		atomic_store(&unwatched[i], 0);
	atomic_store(&watched, false);
}

CUresult cl_context_refusal(void)
{
	CUdeviceptr base;
	size_t size;
	CUresult result = cl_driver.cuMemGetAddressRange_v2(&base, &size, 0);

	return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND ? CUDA_ERROR_INVALID_VALUE :
									  result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the hooks in preload/ ask of the shim: the whole contract between the two.
 *
 * Each function here stands behind one driver call: it takes that call's
 * arguments, calls the real driver through cl_driver (shim/driver/driver.h) itself,
 * and returns what the program is to see.  All may be called by any thread.
 * None holds a lock of ours while it is in the driver.
 *
 * The hooks call these only when cl_sharing() is true, except for those that
 * make it true: export and import.  So a process that shares nothing pays one
 * load and a branch.
 */
#ifndef CL_SHIM_H
#define CL_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/driver/driver.h"

/* ------------------------------------------------ does this process share? */
/*
 * CL_SHARES from the first export or import on; never cleared but in a forked child.
 * CL_TRACES where CULIMBO_TRACE says so.  One word, so that one load tells both.
 */
enum { CL_SHARES = 1, CL_TRACES = 2 };
extern atomic_int cl_sharing_flag;

static inline int cl_watched(void)
{
	/* relaxed: whoever freed a block after exporting it in another thread has synchronised */
	return __builtin_expect(atomic_load_explicit(&cl_sharing_flag, memory_order_relaxed), 0);
}
static inline bool cl_sharing(void)
{
	return cl_watched() & CL_SHARES;
}
static inline bool cl_tracing(void)
{
	return cl_watched() & CL_TRACES;
}

/* ------------------------------------------------------------------- memory */
CUresult cl_memory_export(CUipcMemHandle *handle, CUdeviceptr dptr);
/* @open is the form that the program called: cl_driver.cuIpcOpenMemHandle or _v2 */
CUresult cl_memory_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			  CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int));
CUresult cl_memory_close(CUdeviceptr dptr);
CUresult cl_memory_free(CUdeviceptr dptr);
/* @per_thread: the _ptsz form, whose stream 0 is the thread's own */
CUresult cl_memory_free_async(CUdeviceptr dptr, CUstream stream, bool per_thread);

/* ------------------------------------------------------------------- events */
CUresult cl_event_export(CUipcEventHandle *handle, CUevent event);
CUresult cl_event_import(CUevent *event, CUipcEventHandle handle);
/*
 * Any event was made (or opened or exported, where it is seen to here), in a process
 * that shares: its address may be that of an import that was destroyed, and is the
 * program's to destroy again.
 */
void cl_event_is_new(CUevent event);
/*
 * A pointer into a memory pool was exported.  Such memory is not protected: this counts, and
 * says so once.  Any thread; this makes no process one that shares.
 */
void cl_pool_exported(void);
/* An interprocess event was made, in the current context; also of a process that shares nothing yet. */
void cl_event_created(CUevent event);
/* @destroy is the form that the program called: cl_driver.cuEventDestroy or _v2 */
CUresult cl_event_destroy(CUevent event, CUresult (*destroy)(CUevent));

/* ----------------------------------------------------------------- contexts */
/*
 * Around a call that takes the primary context of @device or gives it back, or (-1) counts
 * another down, or one of a device that is not known.  Unwatched: this process shares nothing
 * yet, and none of the functions below is to be called.  Should it begin to share meanwhile,
 * who ends the same context waits for cl_context_call_end() (a second at most): or it would
 * not be known which of the two was the last that had it.
 */
struct cl_context_call {
	CUdevice device;
	int cancel_state;
	bool unwatched;
};
struct cl_context_call cl_context_call_begin(CUdevice device);
void cl_context_call_end(const struct cl_context_call *call); /* when unwatched, by the same thread */

/*
 * Around a call that may destroy contexts.  cl_context_end_begin() returns
 * when nothing of ours is in the driver with @ctx (NULL: any context of
 * @device, a primary one) and keeps it so; cl_context_end_done() forgets what
 * went with it when @gone, and must follow in the same thread.
 */
void cl_context_end_begin(CUcontext ctx, CUdevice device);
void cl_context_end_done(CUcontext ctx, CUdevice device, bool gone);

/*
 * Around a call that may make @device's primary context, watched or not.  It
 * waits (for a second at most) while another thread's call may be ending that, until that has
 * been asked about; and who ends it waits meanwhile.
 */
struct cl_context_making {
	struct cl_context_call call;
	CUdevice device;
	int cancel_state;
	bool begun;
};
struct cl_context_making cl_context_make_begin(CUdevice device);
void cl_context_make_end(const struct cl_context_making *making);

/*
 * Green contexts: see shim/driver/green.h.  Made, and got as a CUcontext; also by a process that
 * shares nothing yet.
 */
void cl_green_created(CUgreenCtx green, CUdevice device);
void cl_green_converted(CUcontext ctx, CUgreenCtx green);
/* Around the call that destroys one: of which device it is, -1: that is not known. */
struct cl_green_end {
	CUdevice device;
	uint64_t number; /* of its making: another may have its handle by the time it is gone */
	CUgreenCtx green;
};
struct cl_green_end cl_green_end_begin(CUgreenCtx green);
void cl_green_end_done(const struct cl_green_end *end, bool gone);

/* ------------------------------------------------- when memory, or an event, is short */
/*
 * A process that shares is about to allocate.  Where no collector thread runs
 * (CULIMBO_COLLECTOR=inline) its work is done first; else two loads.
 */
void cl_memory_allocates(void);

/*
 * A call failed for lack of memory (CUDA_ERROR_OUT_OF_MEMORY), or of an interprocess event, of
 * which a process has 4,096; the next fails likewise (both measured).  It is made again as long
 * as cl_retry_again() says so:
 *
 *	struct cl_retry retry;
 *
 *	cl_retry_begin(&retry, CL_RETRY_MEMORY, (struct cl_short){ .bytes = bytes });
 *	while (result == CUDA_ERROR_OUT_OF_MEMORY && cl_retry_again(&retry))
 *		result = ...;
 *	cl_retry_end(&retry);
 *
 * All three by one thread.  For memory, each time gives back what our own limbo can give, asks
 * the program's callbacks and the host's other exporters, and as the last resort gives back
 * blocks that could not be tracked.  It is true as long as something came free, here or there,
 * since the call was made the last time, and waits while something may come.  False at once
 * where nobody has anything; else after CULIMBO_PRESSURE_WAIT at most, for all times together
 * (and what it takes to give back what there is).  Only what is of the device goes, and nothing
 * at all for more than the driver and the limbos have together.
 *
 * For an event only this process's own can come free: destroyed ones that wait in the limbo
 * go, held or not, the oldest first.
 */
enum cl_retry_want { CL_RETRY_MEMORY, CL_RETRY_EVENT };
/* What was asked for. */
struct cl_short {
	size_t bytes;	 /* about as many, 0: that is not known; only the program's callbacks hear of it */
	size_t at_least; /* it takes no less of the device; 0: that is not known */
	int device;	 /* an ordinal, or: */
};
enum { CL_OF_CURRENT = -1 /* context's device */, CL_OF_ANY = -2 /* not known */, CL_OF_NONE = -3 };
struct cl_retry {
	enum cl_retry_want want;
	struct cl_short what;
	unsigned int attempt; /* how often cl_retry_again() was asked */
	uint64_t began, until; /* CLOCK_MONOTONIC, ns: beyond it nothing is waited for */
	uint64_t own;	      /* a count of what came free here, when it last said to try again */
	uint64_t returned;    /* what all limbos had given back, as of the last look */
	bool callbacks_gave;  /* the last time that they were asked */
	unsigned int device;  /* as our own file counts */
	bool pressed;	      /* our own limbo: see cl_limbo_press() */
	bool news;	      /* others' limbos have changed since the call was made */
	struct cl_pressure *others;
};
void cl_retry_begin(struct cl_retry *retry, enum cl_retry_want want, struct cl_short what);
bool cl_retry_again(struct cl_retry *retry);
void cl_retry_end(struct cl_retry *retry);

/* -------------------------------------------------------------------- trace */
/* After the options were read: makes cl_tracing() true where CULIMBO_TRACE is set.  No system call. */
void cl_trace_begin(void);
/* When cl_tracing(), for shim/diag/trace.h: */
uint64_t cl_trace_now(void); /* CLOCK_MONOTONIC, ns */
/* An allocation of @bytes had @result; then its address is at @dptr (NULL: not one that can be shared). */
void cl_trace_allocated(const CUdeviceptr *dptr, size_t bytes, CUresult result);
/* The driver, or the limbo, took @dptr in a call that began at @began (cl_trace_now). */
void cl_trace_freed(CUdeviceptr dptr, uint64_t began);

/* ------------------------------------------------------------------ process */
/*
 * The end of the process, by exit() (from our destructor) or by a call that
 * skips destructors.  Stops the collector, writes the report, takes our file
 * away; makes no CUDA call.  Only the first call does anything.  Never waits
 * without a bound; safe when the calling thread was interrupted inside one of
 * our functions (then it may do less).
 * Returns the exit status to use instead of @status.
 */
int cl_process_end(int status);

#endif

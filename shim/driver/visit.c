/* SPDX-License-Identifier: Apache-2.0 */
/* Visits to the driver: see visit.h. */
#ifdef CL_DEBUG
#include <stdio.h>
#endif
#include <stdlib.h>

#include "shim/base/hot.h"
#include "shim/driver/gate.h"
#include "shim/driver/visit.h"
#include "shim/self/self.h"

static unsigned int visits; /* under way, of all threads; under cl_exports_lock */
static __thread struct cl_visit *innermost __attribute__((tls_model("initial-exec")));

CL_HOT_SHARING CUresult cl_stay_begin(struct cl_stay *stay, CUcontext ctx, enum cl_stay_as as)
{
	CUcontext current = NULL;
	CUresult result = CUDA_SUCCESS;

	*stay = (struct cl_stay){ .mode = CU_STREAM_CAPTURE_MODE_RELAXED };
	if (as == CL_STAY_RELAXED && cl_driver.cuThreadExchangeStreamCaptureMode)
		stay->exchanged = cl_driver.cuThreadExchangeStreamCaptureMode(&stay->mode) == CUDA_SUCCESS;
	if (ctx && !(cl_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == ctx)) {
		result = cl_driver.cuCtxPushCurrent_v2(ctx);
		stay->pushed = result == CUDA_SUCCESS;
	}
	return result;
}

CL_HOT_SHARING void cl_stay_end(struct cl_stay *stay)
{
	CUcontext popped;

	if (stay->pushed)
		cl_driver.cuCtxPopCurrent_v2(&popped);
	if (stay->exchanged)
		cl_driver.cuThreadExchangeStreamCaptureMode(&stay->mode);
}

static void check_locked(const struct cl_context *context)
{
#ifdef CL_DEBUG
	if (cl_context_ends(context)) {
		fprintf(stderr, "culimbo: a visit to the context %p, which is ending\n", (void *)context->handle);
		abort();
	}
#endif
	(void)context;
}

/* Returns true if @context has ended past our hooks: the driver refused it with @result, or another has got its handle. */
static bool has_ended(const struct cl_context *context, CUresult result)
{
	unsigned long long now = 0;

	if (result == CUDA_SUCCESS && context->id) {
		result = cl_driver.cuCtxGetId(context->handle, &now);
		if (result == CUDA_SUCCESS)
			return now != context->id;
	}
	/* any other error, such as a context's that has failed, says nothing of that */
	return result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_CONTEXT;
}

void cl_visit_begin_locked(struct cl_visit *visit, struct cl_context *context)
{
	CUresult result;

	check_locked(context);
	*visit = (struct cl_visit){ .outer = innermost, .context = context };
	innermost = visit;
	context->visitors++;
	visits++;
	cl_unlock(&cl_exports_lock);
	cl_rank_none();
	result = cl_stay_begin(&visit->stay, context->handle, CL_STAY_RELAXED);
	visit->has_ended = has_ended(context, result);
	visit->is_there = result == CUDA_SUCCESS && !visit->has_ended;
}

void cl_visit_end_locked(struct cl_visit *visit)
{
	struct cl_context *context = visit->context;

	cl_stay_end(&visit->stay);
	cl_lock(&cl_exports_lock);
	innermost = visit->outer;
	visits--;
	if (!--context->visitors && context->forgotten)
		free(context);
	cl_gate_changed_locked();
}

unsigned int cl_visits_of_mine(const struct cl_context *context)
{
	unsigned int n = 0;

	for (const struct cl_visit *visit = innermost; visit; visit = visit->outer)
		n += visit->context == context;
	return n;
}

bool cl_visits_any_locked(void)
{
	return visits != 0;
}

CUstream cl_visit_free_stream(const struct cl_visit *visit)
{
	struct cl_context *context = visit->context;
	CUstream stream;

	if (!visit->is_there)
		return NULL;
	cl_lock(&cl_exports_lock);
	stream = context->free_stream;
	cl_unlock(&cl_exports_lock);
	if (stream || !context->handle || !cl_driver.cuMemFreeAsync || !cl_driver.cuStreamCreate ||
	    cl_driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
		return stream;
	cl_lock(&cl_exports_lock);
	/* another thread may have made one meanwhile: a second stream does no harm */
	context->free_stream = stream;
	cl_unlock(&cl_exports_lock);
	return stream;
}

void cl_visit_forget(void)
{
	visits = 0;
	innermost = NULL;
}

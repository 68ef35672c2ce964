/* SPDX-License-Identifier: Apache-2.0 */
/* A visit to the driver: see visit.h. */
#include <pthread.h>
#include <string.h>

#include "shim/driver/visit.h"
#include "shim/self/self.h"

struct cl_visit cl_visit_begin(CUcontext ctx)
{
	struct cl_visit visit = { .mode = CU_STREAM_CAPTURE_MODE_RELAXED };
	CUcontext current = NULL;

	cl_rank_none();
	if (cl_driver.cuThreadExchangeStreamCaptureMode)
		visit.exchanged = cl_driver.cuThreadExchangeStreamCaptureMode(&visit.mode) ==
				  CUDA_SUCCESS;
	if (ctx && !(cl_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == ctx))
		visit.pushed = cl_driver.cuCtxPushCurrent_v2(ctx) == CUDA_SUCCESS;
	return visit;
}
void cl_visit_end(struct cl_visit *visit)
{
	CUcontext popped;

	if (visit->pushed)
		cl_driver.cuCtxPopCurrent_v2(&popped);
	if (visit->exchanged)
		cl_driver.cuThreadExchangeStreamCaptureMode(&visit->mode);
}

/* Streams of our own, one a context, to free on. */
enum { STREAMS = 32 };
static struct {
	CUcontext ctx;
	CUdevice device;
	CUstream stream;
} free_streams[STREAMS];

CUstream cl_free_stream(CUcontext ctx, CUdevice device)
{
	CUstream stream = NULL;
	unsigned int at;

	cl_lock(&cl_exports_lock);
	for (at = 0; at < STREAMS && free_streams[at].ctx; at++)
		if (free_streams[at].ctx == ctx)
			stream = free_streams[at].stream;
	cl_unlock(&cl_exports_lock);
	if (stream || at == STREAMS || !cl_driver.cuMemFreeAsync || !cl_driver.cuStreamCreate ||
	    cl_driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
		return stream;
	cl_lock(&cl_exports_lock);
	for (at = 0; at < STREAMS && free_streams[at].ctx; at++)
		;
	/* another thread may have been faster: two of a context do no harm */
	if (at < STREAMS) {
		free_streams[at].ctx = ctx;
		free_streams[at].device = device;
		free_streams[at].stream = stream;
	}
	cl_unlock(&cl_exports_lock);
	return stream;
}

void cl_free_stream_forget_locked(CUcontext ctx, CUdevice device)
{
	unsigned int kept = 0;

	/* No other device's: what is forgotten while its context lives is left there, and another made. */
	for (unsigned int at = 0; at < STREAMS && free_streams[at].ctx; at++)
		if (ctx ? free_streams[at].ctx != ctx : free_streams[at].device != device)
			free_streams[kept++] = free_streams[at];
	for (; kept < STREAMS && free_streams[kept].ctx; kept++)
		free_streams[kept].ctx = NULL;
}

void cl_visit_forget(void)
{
	memset(free_streams, 0, sizeof free_streams);
}

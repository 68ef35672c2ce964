/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of streams: creation, waits, host functions, captures.  queue.c has the inside. */
#include <string.h>

#include "queue.h"

SIM_CALL(cuStreamCreateWithPriority, (CUstream *handle, unsigned int flags, int priority))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!handle || flags & ~(unsigned int)CU_STREAM_NON_BLOCKING)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		result = sim_memory_needed(context->device);
	if (!result)
		result = sim_stream_create(handle, context, sim_green_current(), flags, priority);
	sim_leave();
	return result;
}

SIM_CALL(cuStreamCreate, (CUstream *handle, unsigned int flags))
{
	return cuStreamCreateWithPriority(handle, flags, 0);
}

/* The stream's work goes on, but its handle becomes invalid. */
SIM_CALL(cuStreamDestroy_v2, (CUstream handle))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
		result = CUDA_ERROR_INVALID_HANDLE;
	else
		result = sim_stream_get(context, handle, &stream);
	if (!result) {
		sim_capture_end(stream);
		stream->destroyed = true;
		/* While it has work to do it stays in the list, so that waits include it. */
		sim_streams_forget_destroyed(stream->context);
		pthread_cond_broadcast(&sim.changed);
	}
	sim_leave();
	return result;
}

SIM_CALL(cuStreamDestroy, (CUstream handle))
{
	return cuStreamDestroy_v2(handle);
}

SIM_CALL(cuStreamSynchronize, (CUstream handle))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = sim_stream_get(context, handle, &stream);
	if (!result)
		result = sim_stream_captured_forbids(stream);
	if (!result) {
		if (stream == context->streams) {
			/* The legacy stream is done when all streams that it waits for are. */
			for (struct sim_stream *s = context->streams; s; s = s->next)
				if (!(s->flags & CU_STREAM_NON_BLOCKING))
					sim_stream_wait(s, s->submitted);
		}
		sim_stream_wait(stream, stream->submitted);
		sim_stream_settle(stream);
		sim_memory_waited();
		result = context->sticky;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuStreamSynchronize_ptsz, (CUstream handle))
{
	return cuStreamSynchronize(SIM_PER_THREAD(handle));
}

SIM_CALL(cuStreamQuery, (CUstream handle))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = sim_stream_get(context, handle, &stream);
	if (!result)
		result = sim_capture_forbids(); /* for any stream (measured) */
	if (!result)
		result = sim_stream_captured_forbids(stream);
	if (!result && stream->done < stream->last_work)
		result = CUDA_ERROR_NOT_READY;
	sim_leave();
	return result;
}

SIM_CALL(cuStreamQuery_ptsz, (CUstream handle))
{
	return cuStreamQuery(SIM_PER_THREAD(handle));
}

SIM_CALL(cuStreamGetCtx, (CUstream handle, CUcontext *owner))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = owner ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		struct sim_context *green = stream->green;

		/* a default stream belongs to the current context */
		if (stream == context->streams || stream->per_thread)
			green = sim_green_current();
		*owner = (CUcontext)(green ? green : stream->context);
	}
	sim_leave();
	return result;
}

SIM_CALL(cuStreamGetCtx_ptsz, (CUstream handle, CUcontext *owner))
{
	return cuStreamGetCtx(SIM_PER_THREAD(handle), owner);
}

SIM_CALL(cuStreamGetFlags, (CUstream handle, unsigned int *flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = flags ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*flags = stream->flags;
	sim_leave();
	return result;
}

SIM_CALL(cuStreamGetFlags_ptsz, (CUstream handle, unsigned int *flags))
{
	return cuStreamGetFlags(SIM_PER_THREAD(handle), flags);
}

SIM_CALL(cuStreamGetPriority, (CUstream handle, int *priority))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = priority ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*priority = stream->priority;
	sim_leave();
	return result;
}

SIM_CALL(cuStreamGetPriority_ptsz, (CUstream handle, int *priority))
{
	return cuStreamGetPriority(SIM_PER_THREAD(handle), priority);
}

SIM_CALL(cuStreamGetId, (CUstream handle, unsigned long long *id))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = id ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*id = stream->id;
	sim_leave();
	return result;
}

SIM_CALL(cuStreamGetId_ptsz, (CUstream handle, unsigned long long *id))
{
	return cuStreamGetId(SIM_PER_THREAD(handle), id);
}

/* ---- host functions ---- */

static void run_host_function(struct sim_operation *op)
{
	CUhostFn function;

	memcpy(&function, &op->p[0], sizeof(function));
	/* The program's code may take for ever, so the end of the process does not wait for it. */
	atomic_fetch_sub(&sim.running, 1);
	function(op->p[1]);
	atomic_fetch_add(&sim.running, 1);
}

SIM_CALL(cuLaunchHostFunc, (CUstream handle, CUhostFn function, void *data))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;
	struct sim_operation *op;

	if (result)
		return result;
	result = function ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		op = sim_operation_new(run_host_function);
		if (op) {
			memcpy(&op->p[0], &function, sizeof(function));
			op->p[1] = data;
			op->by_worker = true;
		}
		result = sim_submit(stream, op, NULL);
	}
	sim_leave();
	return result;
}

SIM_CALL(cuLaunchHostFunc_ptsz, (CUstream handle, CUhostFn function, void *data))
{
	return cuLaunchHostFunc(SIM_PER_THREAD(handle), function, data);
}

static void run_callback(struct sim_operation *op)
{
	CUstreamCallback callback;

	memcpy(&callback, &op->p[0], sizeof(callback));
	atomic_fetch_sub(&sim.running, 1);
	callback((CUstream)(uintptr_t)op->a[0], CUDA_SUCCESS, op->p[1]);
	atomic_fetch_add(&sim.running, 1);
}

SIM_CALL(cuStreamAddCallback, (CUstream handle, CUstreamCallback callback, void *data,
			       unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;
	struct sim_operation *op;

	if (result)
		return result;
	result = callback && !flags ? sim_stream_get(context, handle, &stream)
				    : CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		op = sim_operation_new(run_callback);
		if (op) {
			memcpy(&op->p[0], &callback, sizeof(callback));
			op->p[1] = data;
			op->a[0] = (uint64_t)(uintptr_t)handle;
			op->by_worker = true;
		}
		result = sim_submit(stream, op, NULL);
	}
	sim_leave();
	return result;
}

SIM_CALL(cuStreamAddCallback_ptsz, (CUstream handle, CUstreamCallback callback, void *data,
				    unsigned int flags))
{
	return cuStreamAddCallback(SIM_PER_THREAD(handle), callback, data, flags);
}

/* ---- capturing ---- */

SIM_CALL(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!mode || (unsigned int)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = sim_capture_exchange_mode(*mode);
	return CUDA_SUCCESS;
}

SIM_CALL(cuStreamBeginCapture_v2, (CUstream handle, CUstreamCaptureMode mode))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = sim_stream_get(context, handle, &stream);
	if (!result && (unsigned int)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && stream == context->streams)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!result && stream->capture != CU_STREAM_CAPTURE_STATUS_NONE)
		result = CUDA_ERROR_ILLEGAL_STATE;
	if (!result)
		sim_capture_begin(stream, mode);
	sim_leave();
	return result;
}

SIM_CALL(cuStreamBeginCapture_v2_ptsz, (CUstream handle, CUstreamCaptureMode mode))
{
	return cuStreamBeginCapture_v2(SIM_PER_THREAD(handle), mode);
}

SIM_CALL(cuStreamBeginCapture, (CUstream handle))
{
	return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

SIM_CALL(cuStreamEndCapture, (CUstream handle, CUgraph *graph))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = graph ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result)
		goto out;
	*graph = NULL;
	if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) {
		result = CUDA_ERROR_ILLEGAL_STATE;
	} else if (stream->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
		   !pthread_equal(stream->capturer, pthread_self())) {
		result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	} else if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
		sim_capture_end(stream);
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else {
		sim_capture_end(stream);
		result = sim_graph_new(graph);
	}
out:
	sim_leave();
	return result;
}

SIM_CALL(cuStreamEndCapture_ptsz, (CUstream handle, CUgraph *graph))
{
	return cuStreamEndCapture(SIM_PER_THREAD(handle), graph);
}

SIM_CALL(cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus *status))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = status ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	/* documented: this question invalidates no capture */
	if (!result && stream == context->streams)
		result = sim_legacy_forbidden(context, true);
	if (!result)
		*status = stream->capture;
	sim_leave();
	return result;
}

SIM_CALL(cuStreamIsCapturing_ptsz, (CUstream handle, CUstreamCaptureStatus *status))
{
	return cuStreamIsCapturing(SIM_PER_THREAD(handle), status);
}

SIM_CALL(cuStreamGetCaptureInfo_v2, (CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
				     CUgraph *graph, const CUgraphNode **dependencies, size_t *count))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = status ? sim_stream_get(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		*status = stream->capture;
		if (id)
			*id = stream->capture_id;
		if (graph)
			*graph = NULL;
		if (dependencies)
			*dependencies = NULL;
		if (count)
			*count = 0;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuStreamGetCaptureInfo_v2_ptsz, (CUstream handle, CUstreamCaptureStatus *status,
					  cuuint64_t *id, CUgraph *graph,
					  const CUgraphNode **dependencies, size_t *count))
{
	return cuStreamGetCaptureInfo_v2(SIM_PER_THREAD(handle), status, id, graph, dependencies, count);
}

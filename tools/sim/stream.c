/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: queues of operations that run in order.
 *
 * What must hold:
 * - an operation runs when all before it in its stream are done, and what it
 *   depends on beside them: the legacy default stream waits for all blocking
 *   streams of its context and they for it; cuStreamWaitEvent adds one more;
 * - what can run at once and takes no time is run by the caller; only what
 *   takes time (kernels, host functions) or must wait gets the stream a thread,
 *   so that a program without asynchronous work has no thread of ours;
 * - what is submitted to a stream that is captured is not run; a capture that
 *   meets a call that it forbids is spoiled (cuStreamEndCapture says so);
 * - under sim.lock, which waiting lets go of; sim.changed is told of each
 *   operation that is done.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

#define STREAM_MAGIC UINT32_C(0x73747230)
#define IDLE_SECONDS 5   /* a worker without work ends after so long */
#define POLL_NS 100000   /* how often other processes' events are looked at */

struct sim_stream {
	uint32_t magic;
	struct sim_context *context;
	struct sim_context *green; /* the one it was made in, which is a part of that; or NULL */
	struct sim_stream *next;
	unsigned int flags;
	int priority;
	uint64_t id;
	pthread_t owner; /* of a per-thread default stream */
	bool per_thread;
	bool destroyed;
	bool worker;
	CUstreamCaptureStatus capture;
	CUstreamCaptureMode capture_mode;
	pthread_t capturer;
	uint64_t capture_id;
	struct sim_stream *next_captured;
	uint64_t submitted, done;
	struct sim_operation *head, *tail;
	uint64_t *owed; /* blocks freed in this stream, back when it is synchronised */
	size_t owed_count, owed_room;
};

static uint64_t next_stream, next_capture;
static struct sim_stream *captured; /* all streams that are captured, spoiled ones too */
static __thread CUstreamCaptureMode capture_mode;

uint64_t sim_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void sim_wait_changed(uint64_t ns)
{
	uint64_t until = sim_now_ns() + ns;
	struct timespec at = { .tv_sec = (time_t)(until / 1000000000),
			       .tv_nsec = (long)(until % 1000000000) };

	if (ns)
		pthread_cond_timedwait(&sim.changed, &sim.lock, &at);
	else
		pthread_cond_wait(&sim.changed, &sim.lock);
}

struct sim_context *sim_stream_context(struct sim_stream *stream)
{
	return stream->context;
}

uint64_t sim_stream_id(struct sim_stream *stream)
{
	return stream->id;
}

/* ---- frees in a stream's order ---- */

bool sim_stream_owes(struct sim_stream *stream, uint64_t address)
{
	if (stream->owed_count == stream->owed_room) {
		size_t room = stream->owed_room ? 2 * stream->owed_room : 64;
		uint64_t *grown = realloc(stream->owed, room * sizeof(*grown));

		if (!grown)
			return false;
		stream->owed = grown;
		stream->owed_room = room;
	}
	stream->owed[stream->owed_count++] = address;
	return true;
}

static void settle(struct sim_stream *stream)
{
	struct sim_block block;

	for (size_t i = 0; i < stream->owed_count; i++)
		/* (of another context than the stream, it may have gone with that, and its address be a new block's) */
		if (sim_block_at(stream->owed[i], &block) && block.base == stream->owed[i] &&
		    sim_memory_doomed(&block))
			sim_memory_free(stream->owed[i]);
	stream->owed_count = 0;
}

/* Streams that were destroyed with work to do, and are done now, leave the list. */
static void forget_destroyed(struct sim_context *context)
{
	struct sim_stream **at = &context->streams;

	while (*at) {
		struct sim_stream *stream = *at;

		if (stream->destroyed && stream->done == stream->submitted) {
			settle(stream);
			*at = stream->next;
		} else {
			at = &stream->next;
		}
	}
}

static struct sim_stream *stream_new(struct sim_context *context, unsigned int flags)
{
	struct sim_stream *stream = calloc(1, sizeof(*stream));
	struct sim_stream **at = &context->streams;

	if (!stream)
		return NULL;
	forget_destroyed(context);
	stream->magic = STREAM_MAGIC;
	stream->context = context;
	stream->flags = flags;
	stream->id = ++next_stream;
	while (*at)
		at = &(*at)->next;
	*at = stream;
	return stream;
}

void sim_streams_init(struct sim_context *context)
{
	context->streams = NULL;
	stream_new(context, CU_STREAM_DEFAULT);
}

/* ---- captures ---- */

static void spoil(struct sim_stream *stream)
{
	stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

CUresult sim_capture_forbids(void)
{
	CUresult result = CUDA_SUCCESS;

	for (struct sim_stream *s = captured; s; s = s->next_captured) {
		bool own = pthread_equal(s->capturer, pthread_self());

		if (s->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
		    capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		/* Another thread's capture forbids it when both are in global mode. */
		if (!own && (s->capture_mode != CU_STREAM_CAPTURE_MODE_GLOBAL ||
			     capture_mode != CU_STREAM_CAPTURE_MODE_GLOBAL))
			continue;
		spoil(s);
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

CUresult sim_capture_forbids_all(struct sim_context *context)
{
	CUresult result = CUDA_SUCCESS;

	for (struct sim_stream *s = captured; s; s = s->next_captured) {
		if (s->context != context)
			continue;
		spoil(s);
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

static void end_capture(struct sim_stream *stream)
{
	for (struct sim_stream **at = &captured; *at; at = &(*at)->next_captured) {
		if (*at != stream)
			continue;
		*at = stream->next_captured;
		break;
	}
	stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
}

/* For calls that ask about or wait for @stream itself. */
static CUresult captured_forbids(struct sim_stream *stream)
{
	if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
		return CUDA_SUCCESS;
	spoil(stream);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* The legacy stream can't wait for blocking streams that are captured; @asks: nothing is asked of it. */
static CUresult legacy_forbidden(struct sim_context *context, bool asks)
{
	CUresult result = CUDA_SUCCESS;

	for (struct sim_stream *s = captured; s; s = s->next_captured) {
		if (s->context != context || s->flags & CU_STREAM_NON_BLOCKING)
			continue;
		if (!asks)
			spoil(s);
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return result;
}

/* The structures stay: a worker may still look at one, and a program at its handle. */
void sim_streams_end(struct sim_context *context)
{
	for (struct sim_stream *s = context->streams; s; s = s->next) {
		end_capture(s);
		s->destroyed = true;
		s->owed_count = 0; /* the context's memory goes as a whole */
	}
	context->streams = NULL;
	pthread_cond_broadcast(&sim.changed);
}

static struct sim_stream *per_thread_stream(struct sim_context *context)
{
	struct sim_stream *stream;

	for (stream = context->streams; stream; stream = stream->next)
		if (stream->per_thread && pthread_equal(stream->owner, pthread_self()))
			return stream;
	stream = stream_new(context, CU_STREAM_DEFAULT);
	if (stream) {
		stream->per_thread = true;
		stream->owner = pthread_self();
	}
	return stream;
}

CUresult sim_stream_get(struct sim_context *context, CUstream handle, struct sim_stream **stream)
{
	if (!handle || handle == CU_STREAM_LEGACY) {
		*stream = context->streams;
		return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (handle == CU_STREAM_PER_THREAD) {
		*stream = per_thread_stream(context);
		return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	*stream = (struct sim_stream *)handle;
	if ((*stream)->magic != STREAM_MAGIC || (*stream)->destroyed)
		return CUDA_ERROR_INVALID_HANDLE;
	if ((*stream)->green && !(*stream)->green->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return CUDA_SUCCESS;
}

/* ---- operations ---- */

struct sim_operation *sim_operation_new(void (*run)(struct sim_operation *op))
{
	struct sim_operation *op = calloc(1, sizeof(*op));

	if (op)
		op->run = run;
	return op;
}

bool sim_core_done(struct sim_event_core *core, uint64_t recorded)
{
	uint32_t recorder;

	if (atomic_load_explicit(&core->done, memory_order_acquire) >= recorded)
		return true;
	recorder = atomic_load(&core->recorder);
	/* A recording that died with its process will never be done. */
	return recorder && recorder != pool_client() && !pool_client_alive(recorder);
}

/* Whether @op may run; *poll is set when only another process can tell. */
static bool runnable(struct sim_operation *op, bool *poll)
{
	for (unsigned int i = 0; i < op->dependencies; i++) {
		struct sim_dependency *d = &op->dependency[i];

		if (d->stream && d->stream->done >= d->ticket)
			continue;
		if (d->core) {
			if (sim_core_done(d->core, d->ticket))
				continue;
			*poll = true;
		}
		return false;
	}
	return true;
}

static void finish(struct sim_stream *stream, struct sim_operation *op)
{
	stream->done = op->ticket;
	free(op);
	pthread_cond_broadcast(&sim.changed);
}

static void *work(void *argument)
{
	struct sim_stream *stream = argument;

	pthread_mutex_lock(&sim.lock);
	for (;;) {
		struct sim_operation *op = stream->head;
		uint64_t idle_from = sim_now_ns();
		bool poll = false;

		while (!op) {
			uint64_t idle = sim_now_ns() - idle_from;

			if (stream->destroyed || idle >= IDLE_SECONDS * UINT64_C(1000000000)) {
				stream->worker = false;
				pthread_mutex_unlock(&sim.lock);
				return NULL;
			}
			sim_wait_changed(IDLE_SECONDS * UINT64_C(1000000000));
			op = stream->head;
		}
		while (!runnable(op, &poll)) {
			sim_wait_changed(poll ? POLL_NS : 0);
			poll = false;
		}
		/* Counted, so that the end of the process can wait for what touches memory. */
		atomic_fetch_add(&sim.running, 1);
		if (atomic_load(&sim.exiting)) {
			atomic_fetch_sub(&sim.running, 1);
			pthread_mutex_unlock(&sim.lock);
			return NULL;
		}
		if (op->under_lock) {
			op->run(op);
		} else {
			pthread_mutex_unlock(&sim.lock);
			op->run(op);
			pthread_mutex_lock(&sim.lock);
		}
		atomic_fetch_sub(&sim.running, 1);
		stream->head = op->next;
		if (!stream->head)
			stream->tail = NULL;
		finish(stream, op);
	}
}

static bool start_worker(struct sim_stream *stream)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int error;

	if (stream->worker)
		return true;
	/* The program's signals are for its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	error = pthread_create(&thread, &attr, work, stream);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	stream->worker = !error;
	return !error;
}

static void depend(struct sim_operation *op, struct sim_stream *stream)
{
	if (stream->done >= stream->submitted)
		return;
	op->dependency[op->dependencies++] =
		(struct sim_dependency){ .stream = stream, .ticket = stream->submitted };
}

CUresult sim_submit_after(struct sim_stream *stream, struct sim_operation *op,
			  struct sim_event_core *core, uint64_t recorded, uint64_t *ticket)
{
	struct sim_context *context = stream->context;
	struct sim_stream *legacy = context->streams;
	unsigned int room = 2;
	struct sim_operation *grown;
	bool poll = false;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (stream == legacy && captured && legacy_forbidden(context, false)) {
		free(op);
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) {
		free(op);
		if (ticket)
			*ticket = stream->done;
		return stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE
			       ? CUDA_SUCCESS
			       : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	for (struct sim_stream *s = legacy; s; s = s->next)
		room++;
	grown = realloc(op, sizeof(*op) + room * sizeof(op->dependency[0]));
	if (!grown) {
		free(op);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	op = grown;
	op->next = NULL;
	op->context = context;
	if (core && !sim_core_done(core, recorded))
		op->dependency[op->dependencies++] =
			(struct sim_dependency){ .core = core, .ticket = recorded };
	if (stream == legacy) {
		for (struct sim_stream *s = legacy->next; s; s = s->next)
			if (!(s->flags & CU_STREAM_NON_BLOCKING))
				depend(op, s);
	} else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
		depend(op, legacy);
	}
	op->ticket = ++stream->submitted;
	if (ticket)
		*ticket = op->ticket;
	if (!stream->head && !op->by_worker && runnable(op, &poll)) {
		op->run(op);
		finish(stream, op);
		return CUDA_SUCCESS;
	}
	if (!start_worker(stream)) {
		stream->submitted--;
		free(op);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (stream->tail)
		stream->tail->next = op;
	else
		stream->head = op;
	stream->tail = op;
	pthread_cond_broadcast(&sim.changed);
	return CUDA_SUCCESS;
}

CUresult sim_submit(struct sim_stream *stream, struct sim_operation *op, uint64_t *ticket)
{
	return sim_submit_after(stream, op, NULL, 0, ticket);
}

void sim_stream_wait(struct sim_stream *stream, uint64_t ticket)
{
	while (stream->done < ticket)
		sim_wait_changed(0);
}

void sim_context_wait(struct sim_context *context)
{
	struct {
		struct sim_stream *stream;
		uint64_t ticket;
	} few[64];
	bool more;

	/* Only what was submitted before we were called; streams are never freed. */
	do {
		unsigned int n = 0;

		more = false;
		for (struct sim_stream *s = context->streams; s; s = s->next) {
			if (s->done >= s->submitted)
				continue;
			if (n == 64) {
				more = true;
				break;
			}
			few[n].stream = s;
			few[n++].ticket = s->submitted;
		}
		for (unsigned int i = 0; i < n; i++)
			sim_stream_wait(few[i].stream, few[i].ticket);
	} while (more);
	for (struct sim_stream *s = context->streams; s; s = s->next)
		settle(s);
}

/* ---- the calls ---- */

CUresult sim_stream_create(CUstream *handle, struct sim_context *context, struct sim_context *green,
			   unsigned int flags, int priority)
{
	struct sim_stream *stream = stream_new(context, flags);

	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->green = green;
	stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	*handle = (CUstream)stream;
	return CUDA_SUCCESS;
}

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

/* Its work goes on; the handle is of no use from now on. */
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
		end_capture(stream);
		stream->destroyed = true;
		/* What is still to be done keeps it in the list that is waited for. */
		forget_destroyed(stream->context);
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
		result = captured_forbids(stream);
	if (!result) {
		if (stream == context->streams) {
			/* The legacy stream is done when all that it waits for is. */
			for (struct sim_stream *s = context->streams; s; s = s->next)
				if (!(s->flags & CU_STREAM_NON_BLOCKING))
					sim_stream_wait(s, s->submitted);
		}
		sim_stream_wait(stream, stream->submitted);
		settle(stream);
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
		result = captured_forbids(stream);
	if (!result && stream->done < stream->submitted)
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

		/* a default stream is the current context's */
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
	/* The program's own code may take for ever: no end waits for it. */
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
	CUstreamCaptureMode before = capture_mode;

	if (result)
		return result;
	if (!mode || (unsigned int)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	capture_mode = *mode;
	*mode = before;
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
	if (!result) {
		stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
		stream->capture_mode = mode;
		stream->capturer = pthread_self();
		stream->capture_id = ++next_capture;
		stream->next_captured = captured;
		captured = stream;
	}
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
		end_capture(stream);
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else {
		end_capture(stream);
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
	/* (documented: no capture is invalidated by the question) */
	if (!result && stream == context->streams && captured)
		result = legacy_forbidden(context, true);
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

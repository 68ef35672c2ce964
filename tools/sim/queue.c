/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of streams: queues of operations that run in order, and the calls that a
 * capture forbids.  stream.c has the calls of streams.
 *
 * What must hold:
 * - an operation runs when all earlier ones in its stream and its other dependencies
 *   are done.  The legacy default stream waits for all blocking streams of its
 *   context, and they wait for it; cuStreamWaitEvent adds a dependency;
 * - the caller runs an operation that can run at once and takes no time.  Only one
 *   that takes time (kernels, host functions) or must wait gives the stream a thread,
 *   so a program without asynchronous work has no thread of ours;
 * - operations submitted to a captured stream are not run; a call that a capture
 *   forbids spoils the capture (cuStreamEndCapture says so);
 * - sim.lock protects everything here, and a wait releases it; each operation that is
 *   done signals sim.changed.
 */
#include <signal.h>
#include <stdlib.h>

#include "queue.h"

#define STREAM_MAGIC UINT32_C(0x73747230)
#define IDLE_SECONDS 5   /* a worker without work ends after this time */
#define POLL_NS 100000   /* how often other processes' events are polled */

static uint64_t next_stream, next_capture;
static struct sim_stream *captured; /* all streams that are captured, even spoiled ones */
static __thread CUstreamCaptureMode capture_mode;

struct sim_context *sim_stream_context(struct sim_stream *stream)
{
	return stream->context;
}

uint64_t sim_stream_id(struct sim_stream *stream)
{
	return stream->id;
}

/* ---- stream-ordered frees ---- */

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

void sim_stream_settle(struct sim_stream *stream)
{
	struct sim_block block;

	for (size_t i = 0; i < stream->owed_count; i++)
		/*
		 * a block of another context may have gone with it, and a new block may have its
		 * address
		 */
		if (sim_block_at(stream->owed[i], &block) && block.base == stream->owed[i] &&
		    sim_memory_doomed(&block))
			sim_memory_free(stream->owed[i]);
	stream->owed_count = 0;
}

void sim_streams_forget_destroyed(struct sim_context *context)
{
	struct sim_stream **at = &context->streams;

	while (*at) {
		struct sim_stream *stream = *at;

		if (stream->destroyed && stream->done == stream->submitted) {
			sim_stream_settle(stream);
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
	sim_streams_forget_destroyed(context);
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

CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode)
{
	CUstreamCaptureMode before = capture_mode;

	capture_mode = mode;
	return before;
}

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
		/* Another thread's capture forbids the call if both are in global mode. */
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

void sim_capture_begin(struct sim_stream *stream, CUstreamCaptureMode mode)
{
	stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	stream->capture_mode = mode;
	stream->capturer = pthread_self();
	stream->capture_id = ++next_capture;
	stream->next_captured = captured;
	captured = stream;
}

void sim_capture_end(struct sim_stream *stream)
{
	for (struct sim_stream **at = &captured; *at; at = &(*at)->next_captured) {
		if (*at != stream)
			continue;
		*at = stream->next_captured;
		break;
	}
	stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult sim_stream_captured_forbids(struct sim_stream *stream)
{
	if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
		return CUDA_SUCCESS;
	spoil(stream);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_legacy_forbidden(struct sim_context *context, bool asks)
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

/* The structures stay: a worker may still use one, and a program may still use its handle. */
void sim_streams_end(struct sim_context *context)
{
	for (struct sim_stream *s = context->streams; s; s = s->next) {
		sim_capture_end(s);
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
	/* A recording of a process that has died will never be done. */
	return recorder && recorder != pool_client() && !pool_client_alive(recorder);
}

/* Returns true if @op may run; sets *poll if that depends on another process. */
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
		/*
		 * Count it, so that the end of the process can wait for operations that touch
		 * memory.
		 */
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
	/* Only the program's own threads handle its signals. */
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
	uint64_t was;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (stream == legacy && captured && sim_legacy_forbidden(context, false)) {
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
	was = stream->last_work;
	if (!op->is_record || stream == legacy)
		stream->last_work = op->ticket;
	if (!stream->head && !op->by_worker && runnable(op, &poll)) {
		op->run(op);
		finish(stream, op);
		return CUDA_SUCCESS;
	}
	if (!start_worker(stream)) {
		stream->submitted--;
		stream->last_work = was;
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

	/* Wait only for what was submitted before this call; streams are never freed. */
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
		sim_stream_settle(s);
}

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

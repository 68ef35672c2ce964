/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a stream, only for queue.c and stream.c.  All other files use the declarations of
 * sim.h.  sim.lock protects everything here.
 */
#ifndef CULIMBO_SIM_QUEUE_H
#define CULIMBO_SIM_QUEUE_H

#include "sim.h"

struct sim_stream {
	uint32_t magic;
	struct sim_context *context;
	struct sim_context *green; /* the green context, a part of `context`, it was made in; or NULL */
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
	uint64_t last_work; /* the last of them for which cuStreamQuery() says that the stream is busy */
	struct sim_operation *head, *tail;
	uint64_t *owed; /* blocks freed in this stream, given back when it is synchronised */
	size_t owed_count, owed_room;
};

/* Gives back the blocks that were freed in the order of @stream. */
void sim_stream_settle(struct sim_stream *stream);
/* Removes streams from the list that were destroyed with work to do, and have done it. */
void sim_streams_forget_destroyed(struct sim_context *context);

/* Sets the calling thread's mode to @mode.  Returns the old one. */
CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode);
void sim_capture_begin(struct sim_stream *stream, CUstreamCaptureMode mode);
void sim_capture_end(struct sim_stream *stream);
/*
 * Returns the error for calls that ask about @stream itself, or wait for it, while it is
 * captured; or 0.
 */
CUresult sim_stream_captured_forbids(struct sim_stream *stream);
/*
 * Returns the error for calls that involve the legacy stream while a blocking stream is captured,
 * for which it can't wait; or 0.  With @asks, the call only asks.
 */
CUresult sim_legacy_forbidden(struct sim_context *context, bool asks);

#endif

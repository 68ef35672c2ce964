/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stream has inside, for queue.c and stream.c alone: everybody else calls what sim.h
 * declares.  All of it is under sim.lock.
 */
#ifndef CULIMBO_SIM_QUEUE_H
#define CULIMBO_SIM_QUEUE_H

#include "sim.h"

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

/* What was freed in @stream's order is back. */
void sim_stream_settle(struct sim_stream *stream);
/* Streams that were destroyed with work to do, and are done now, leave the list. */
void sim_streams_forget_destroyed(struct sim_context *context);

/* The calling thread's mode is @mode now; returns what it was. */
CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode);
void sim_capture_begin(struct sim_stream *stream, CUstreamCaptureMode mode);
void sim_capture_end(struct sim_stream *stream);
/* For calls that ask about or wait for @stream itself. */
CUresult sim_stream_captured_forbids(struct sim_stream *stream);
/*
 * The legacy stream can't wait for blocking streams that are captured; @asks: nothing is asked
 * of it.
 */
CUresult sim_legacy_forbidden(struct sim_context *context, bool asks);

#endif

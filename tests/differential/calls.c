/* SPDX-License-Identifier: Apache-2.0 */
/* Events, streams, contexts, forks. */
#include <stdio.h>
#include <string.h>

#include "tests/differential/calls.h"
#include "tests/differential/stage.h"

/* ---------------------------------------------------------------------- events */
void play_event_create(void)
{
	static const uint32_t flags[] = { CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
					  CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
					  CU_EVENT_DEFAULT, CU_EVENT_INTERPROCESS };
	struct order o = { .call = DO_EVENT_CREATE, .slot = op.a % EVENTS, .flags = flags[op.b % 4] };
	struct answer a;

	if (me()->event[o.slot].life >= 0)
		return;
	a = tell(op.player, &o);
	with("event %u, flags %u", o.slot, o.flags);
	print("cuEventCreate", &a, NULL);
	if (a.result)
		return;
	event_life[event_lives] = (struct event_life){ .alive = true, .player = op.player };
	me()->event[o.slot] = (struct event){ event_lives++, whole(current()) };
}

static struct event *event_at(struct order *o)
{
	for (unsigned int i = 0; i < EVENTS; i++) {
		o->slot = (uint8_t)((op.a + i) % EVENTS);
		if (me()->event[o->slot].life >= 0)
			return &me()->event[o->slot];
	}
	return NULL;
}

void play_event_destroy(void)
{
	struct order o = { .call = DO_EVENT_DESTROY };
	struct event *event = event_at(&o);
	struct answer a;

	if (!event)
		return;
	a = tell(op.player, &o);
	with("event %u", o.slot);
	print("cuEventDestroy", &a, NULL);
	if (event_life[event->life].player == op.player)
		event_life[event->life].alive = false;
	event->life = -1;
}

void play_event(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_EVENT_RECORD, "cuEventRecord" }, { DO_EVENT_RECORD, "cuEventRecord" },
		      { DO_EVENT_QUERY, "cuEventQuery" }, { DO_EVENT_WAIT, "cuEventSynchronize" },
		      { DO_STREAM_WAIT_EVENT, "cuStreamWaitEvent" } };
	unsigned int which = op.b % 5;
	struct order o = { .call = calls[which].call, .other = op.c % STREAMS };
	struct event *event = event_at(&o);
	struct event_life *l = event ? &event_life[event->life] : NULL;
	bool on_stream = o.call == DO_EVENT_RECORD || o.call == DO_STREAM_WAIT_EVENT;
	struct answer a;

	if (!event || l->spoilt || ((o.call == DO_EVENT_WAIT || o.call == DO_STREAM_WAIT_EVENT) && anybody_busy()) || (on_stream && !usable(o.other)) ||
	    (o.call == DO_EVENT_RECORD && me()->stream[o.other].captures) ||
	    (settings->gpu && context_of(o.other) != event->ctx)) /* bare, cuStreamWaitEvent may crash (measured) */
		return;
	a = tell(op.player, &o);
	if (on_stream)
		with("event %u, stream %u", o.slot, o.other);
	else
		with("event %u", o.slot);
	print(calls[which].name, &a, NULL);
	l->spoilt |= o.call == DO_EVENT_RECORD && a.result;
}

void play_event_export(void)
{
	unsigned int slot = op.b % HANDLES;
	struct order o = { .call = DO_EVENT_EXPORT };
	const struct event *event = event_at(&o);
	struct answer a;

	if (!event)
		return;
	/* bare, the driver crashes (measured) */
	if (event->ctx != whole(current()) && context_alive(me(), current()))
		return;
	a = tell(op.player, &o);
	with("event %u, handle %u", o.slot, slot);
	print("cuIpcGetEventHandle", &a, NULL);
	if (a.result)
		return;
	event_handles[slot].life = event->life;
	memcpy(event_handles[slot].bytes, a.handle, sizeof(event_handles[slot].bytes));
}

void play_event_open(void)
{
	unsigned int slot = op.b % HANDLES;
	struct order o = { .call = DO_EVENT_OPEN, .slot = op.a % EVENTS };
	int number = event_handles[slot].life;
	const struct event_life *l;
	bool stale;
	struct answer a, b;

	if (number < 0)
		return;
	l = &event_life[number];
	if (settings->players > 1 && op.c % 5 && l->player == op.player)
		op.player = !op.player;
	if (me()->event[o.slot].life >= 0)
		return;
	stale = !l->alive;
	if (stale && (settings->gpu || settings->tail))
		return;
	memcpy(o.handle, event_handles[slot].bytes, sizeof(o.handle));
	a = tell(op.player, &o);
	with("handle %u%s, event %u", slot, l->player == op.player ? " own" : stale ? " destroyed" : "", o.slot);
	if (stale && !a.result) {
		promised(!l->gone, "a stale handle opens");
		o.call = DO_EVENT_DESTROY;
		b = tell(op.player, &o);
		promised(!b.result, "what was opened is not destroyed");
	}
	print("cuIpcOpenEventHandle", &a, stale && l->player != op.player &&
	      context_alive(me(), current()) ? "stale" : NULL);
	if (!a.result && !stale)
		me()->event[o.slot] = (struct event){ number, whole(current()) };
}

/* --------------------------------------------------------------------- streams */
void play_stream_create(void)
{
	struct order o = { .call = DO_STREAM_CREATE, .other = MADE_A + op.a % 2, .flags = op.b % 2 };
	struct answer a;

	if (me()->stream[o.other].alive)
		return;
	a = tell(op.player, &o);
	with("stream %u, flags %u", o.other, o.flags);
	print("cuStreamCreate", &a, NULL);
	if (!a.result)
		me()->stream[o.other] = (struct stream){ .alive = true, .ctx = current() };
}

void play_stream(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_STREAM_DESTROY, "cuStreamDestroy" }, { DO_STREAM_QUERY, "cuStreamQuery" },
		      { DO_STREAM_WAIT, "cuStreamSynchronize" }, { DO_STREAM_WAIT, "cuStreamSynchronize" } };
	unsigned int which = op.b % 4;
	struct order o = { .call = calls[which].call, .other = op.a % STREAMS };
	struct answer a;

	if (!usable(o.other) || (o.call == DO_STREAM_DESTROY && o.other < MADE_A) ||
	    (me()->busy && o.call != DO_STREAM_QUERY))
		return;
	a = tell(op.player, &o);
	with("stream %u", o.other);
	print(calls[which].name, &a, NULL);
	if (o.call == DO_STREAM_DESTROY && !a.result)
		me()->stream[o.other] = (struct stream){ 0 };
}

void play_capture(void)
{
	struct order o = { .call = DO_CAPTURE, .other = MADE_A + op.a % 2, .flags = op.b % 3 };
	struct stream *stream = &me()->stream[o.other];
	struct answer a;

	if (!usable(o.other) || me()->busy)
		return;
	o.call = stream->captures ? DO_CAPTURE_END : DO_CAPTURE;
	a = tell(op.player, &o);
	if (stream->captures) {
		with("stream %u", o.other);
		print("cuStreamEndCapture", &a, NULL);
		if (!a.result || a.result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
			stream->captures = false;
	} else {
		with("stream %u, mode %u", o.other, o.flags);
		print("cuStreamBeginCapture", &a, NULL);
		stream->captures = !a.result;
		stream->mode = (uint8_t)o.flags;
	}
}

void play_capture_mode(void)
{
	struct order o = { .call = DO_CAPTURE_MODE, .flags = op.a % 3 };
	struct answer a = tell(op.player, &o);

	with("mode %u", o.flags);
	print("cuThreadExchangeStreamCaptureMode", &a, NULL);
	me()->mode = (uint8_t)o.flags;
}

/* -------------------------------------------------------------------- contexts */
/*
 * A GPU's driver refuses to make a context, even bare, while other processes start and end, or have its
 * memory.  Then the sequence is played again, as if the process had got no context at all.
 */
static void must_make_context(const char *call, const struct answer *a)
{
	if (a->result == CUDA_ERROR_OUT_OF_MEMORY || a->result == CUDA_ERROR_UNKNOWN)
		die_without_context("player %u has no context: %s gave %d", op.player, call, a->result);
}

void play_ctx_create(void)
{
	struct order o = { .call = DO_CTX_CREATE, .slot = OWN_A + op.a % 2,
			   .other = (uint8_t)(op.b % settings->devices) };
	struct answer a;

	if (me()->own[o.slot] || me()->depth == DEPTH)
		return;
	/*
	 * Alone, cuCtxCreate returns while a host function runs, and cuGreenCtxCreate does not
	 * (measured); but two runs hung at this place.
	 */
	if (settings->gpu && me()->busy)
		return;
	a = tell(op.player, &o);
	with("context %u, device %u", o.slot, o.other);
	must_make_context("cuCtxCreate", &a);
	print("cuCtxCreate", &a, NULL);
	if (a.result)
		return;
	me()->own[o.slot] = true;
	me()->own_device[o.slot] = o.other;
	me()->stack[me()->depth++] = o.slot;
}

void play_ctx_destroy(void)
{
	struct order o = { .call = DO_CTX_DESTROY, .slot = OWN_A + op.a % 2 };
	bool is_current = current() == o.slot;
	struct answer a;

	if (!me()->own[o.slot] || on_stack(o.slot) > is_current || me()->busy)
		return;
	a = tell(op.player, &o);
	with("context %u", o.slot);
	print("cuCtxDestroy", &a, NULL);
	if (a.result)
		return;
	end_context(o.slot);
	me()->own[o.slot] = false;
	me()->depth -= is_current;
}

void play_ctx_current(void)
{
	struct order o = { .call = op.b % 2 ? DO_CTX_SET : DO_CTX_PUSH, .slot = op.a % (CONTEXTS + 1) };
	bool set = o.call == DO_CTX_SET, none = o.slot == NOWHERE;
	struct answer a;

	if ((none && (!set || op.c % 6)) || (!none && !context_alive(me(), o.slot)) ||
	    (!set && me()->depth == DEPTH))
		return;
	a = tell(op.player, &o);
	with("context %u", o.slot);
	print(set ? "cuCtxSetCurrent" : "cuCtxPushCurrent", &a, NULL);
	if (a.result)
		return;
	if (none)
		me()->depth -= me()->depth > 0;
	else if (set && me()->depth)
		me()->stack[me()->depth - 1] = o.slot;
	else
		me()->stack[me()->depth++] = o.slot;
}

void play_ctx(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_CTX_POP, "cuCtxPopCurrent" }, { DO_CTX_GET, "cuCtxGetCurrent" },
		      { DO_CTX_WAIT, "cuCtxSynchronize" } };
	unsigned int which = op.a % 3;
	struct order o = { .call = calls[which].call };
	struct answer a;

	if ((o.call == DO_CTX_POP && me()->depth == 1 && op.b % 3) || (o.call == DO_CTX_WAIT && me()->busy))
		return;
	a = tell(op.player, &o);
	with("%s", "");
	print(calls[which].name, &a, NULL);
	if (o.call == DO_CTX_POP && !a.result)
		me()->depth--;
}

void play_primary(void)
{
	static const struct {
		enum call call;
		const char *name;
	} calls[] = { { DO_RETAIN, "cuDevicePrimaryCtxRetain" }, { DO_RETAIN, "cuDevicePrimaryCtxRetain" },
		      { DO_RETAIN, "cuDevicePrimaryCtxRetain" },
		      { DO_RELEASE, "cuDevicePrimaryCtxRelease" }, { DO_RELEASE, "cuDevicePrimaryCtxRelease" },
		      { DO_RESET, "cuDevicePrimaryCtxReset" } };
	unsigned int which = op.b % 6, device = op.a % settings->devices;
	struct order o = { .call = calls[which].call, .slot = (uint8_t)device };
	unsigned int *references = &me()->references[device];
	bool green = device == 0 && me()->own[GREEN];
	struct answer a;

	if (me()->busy && o.call != DO_RETAIN)
		return;
	if ((o.call == DO_RESET && (green || op.c % 2)) || (o.call == DO_RELEASE && !*references && green))
		return;
	if (o.call != DO_RETAIN && *references <= 1 && op.d % 3)
		return;
	if (settings->gpu && o.call != DO_RETAIN && (on_stack((uint8_t)device) || !*references))
		return;
	a = tell(op.player, &o);
	with("device %u", device);
	print(calls[which].name, &a, NULL);
	if (a.result)
		return;
	if (o.call == DO_RETAIN)
		++*references;
	else if (o.call == DO_RESET || (--*references == 0 && !green))
		end_context((uint8_t)device);
}

void play_green(void)
{
	struct order o = { .call = me()->own[GREEN] ? DO_GREEN_DESTROY : DO_GREEN_CREATE, .slot = GREEN };
	struct answer a;

	if (me()->own[GREEN] && (on_stack(GREEN) || me()->busy || (settings->gpu && !me()->references[0] && on_stack(0))))
		return;
	if (settings->gpu && me()->busy) /* as in play_ctx_create() */
		return;
	/* its stream would capture forever, because nobody could end the capture */
	for (unsigned int s = MADE_A; me()->own[GREEN] && s < STREAMS; s++)
		if (me()->stream[s].ctx == GREEN && me()->stream[s].captures)
			return;
	a = tell(op.player, &o);
	if (o.call == DO_GREEN_CREATE)
		must_make_context("cuGreenCtxCreate", &a);
	with("%s", "");
	print(o.call == DO_GREEN_CREATE ? "cuGreenCtxCreate" : "cuGreenCtxDestroy", &a, NULL);
	if (a.result)
		return;
	me()->own[GREEN] = o.call == DO_GREEN_CREATE;
	if (o.call == DO_GREEN_CREATE)
		return;
	/* its streams must not be used any more; everything else belongs to the primary context */
	for (unsigned int s = MADE_A; s < STREAMS; s++)
		if (me()->stream[s].ctx == GREEN)
			me()->stream[s] = (struct stream){ 0 };
	if (!me()->references[0])
		end_context(PRIMARY_0);
}

/*
 * On a GPU the child continues without CUDA.  Where it ended by exit(), the driver's handlers crashed there, and once the
 * parent's next kernel failed with 719, bare (doc/results/2026-11-27-h100-580.159.04/differential-share-fda237fd-failed.tap).
 */
void play_fork(void)
{
	struct order o = { .call = DO_FORK, .at = AT_BLOCK, .slot = op.a % BLOCKS, .flags = op.b };
	struct answer a;

	if (op.c % 3 || me()->busy || (settings->gpu && op.b % 3))
		return;
	if (handles[op.d % HANDLES].life >= 0)
		memcpy(o.handle, handles[op.d % HANDLES].bytes, sizeof(o.handle));
	else
		o.flags = settings->gpu ? 0 : op.b % 2;
	a = tell(op.player, &o);
	with("block %u, way %u", o.slot, o.flags % 3);
	print("fork", &a, NULL);
}

/* The stream is busy from here on, until it is let go. */
void play_hold(void)
{
	struct order o = { .call = DO_HOLD, .other = op.a % STREAMS };
	struct answer a;

	if (me()->busy || !usable(o.other) || captures(me()) || !context_alive(me(), current()))
		return;
	a = tell(op.player, &o);
	with("stream %u", o.other);
	print("cuLaunchHostFunc", &a, NULL);
	me()->busy = !a.result;
}

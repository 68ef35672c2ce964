/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of shared events (11).
 */
#include <stdio.h>
#include <string.h>

#include "stage.h"

#define SHARED_EVENT (2 | 4) /* CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS */
#define MS UINT64_C(1000000)

static uint64_t event_create(struct actor *actor)
{
	const struct wire_reply *reply = ASK(actor, event_create, SHARED_EVENT);

	if (reply->result)
		break_off("cuEventCreate failed with %d", reply->result);
	return reply->v[0];
}

static struct handle event_export(struct actor *actor, uint64_t event)
{
	const struct wire_reply *reply = ASK(actor, event_export, event);
	struct handle handle;

	if (reply->result)
		break_off("cuIpcGetEventHandle failed with %d", reply->result);
	memcpy(handle.bytes, reply->handle, sizeof(handle.bytes));
	return handle;
}

static uint64_t event_open(struct actor *actor, const struct handle *handle)
{
	const struct wire_reply *reply;

	reply = ask(actor, OP_event_open, handle->bytes, (const uint64_t[6]){ 0 });
	if (reply->result)
		break_off("cuIpcOpenEventHandle failed with %d", reply->result);
	return reply->v[0];
}

static void event_destroyed(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		const char *mode = bare ? "control: bare, " : "11 ";
		struct actor *p = ENTER("P", .bare = bare, .door = "getproc");
		struct actor *c = ENTER("C", .bare = bare);
		uint64_t event = event_create(p), import, late;
		struct handle handle = event_export(p, event);
		int before = 0, after = 0;
		bool runs;

		import = event_open(c, &handle);
		/* If the kernel ended before C asked, the result says nothing: try a longer one. */
		for (uint64_t ms = 150; ms <= 9600; ms *= 2) {
			ASK(p, spin, ms * MS);
			if (ASK(p, event_record, event)->result)
				break_off("cuEventRecord failed with %d", p->reply.result);
			before = ASK(c, event_query, import)->result;
			runs = ASK(p, kernel_query)->result == NOT_READY;
			after = ASK(c, event_sync, import)->result;
			if (before == NOT_READY || runs)
				break;
		}
		ok(before == NOT_READY && !after && !ASK(p, kernel_query)->result,
		   "%sC waits for P's kernel by P's event", mode);
		ASK(p, spin, 150 * MS);
		ASK(p, event_record, event);
		ok(!ASK(p, event_destroy, event)->result, "%sP destroys the event while C has it open",
		   mode);
		after = ASK(c, event_sync, import)->result;
		if (bare)
			note("bare, waiting for a destroyed event gives %d", after);
		else
			ok(!after && !ASK(c, event_query, import)->result && !ASK(p, kernel_query)->result,
			   "11 C still waits for P's kernel by it (%d)", after);
		late = event_create(p);
		ASK(p, spin, 100 * MS);
		ASK(p, event_record, late);
		if (!bare)
			ok(!ASK(c, event_query, import)->result,
			   "11 P's next event is not the one that C has open");
		ok(!ASK(c, event_destroy, import)->result, "%sC destroys its own", mode);
		ASK(p, kernel_wait);
		ASK(p, event_destroy, late);
		leave(c);
		leave(p);
		if (!bare)
			ok(!*said(p) && !*said(c) && files() == 0, "11 nothing to report, no file left");
	}
}

/* The first index at which each step of a long loop failed; -1: none. */
struct failures {
	int create, export, open, destroy;
	int codes[4];
};

static void first(int *where, int *code, int i, int result)
{
	if (result && *where < 0) {
		*where = i;
		*code = result;
	}
}

static void many_once(bool bare, int rounds, struct failures *f)
{
	struct actor *p = ENTER("P", .bare = bare);
	struct actor *c = ENTER("C", .bare = bare, .door = "getproc");

	*f = (struct failures){ -1, -1, -1, -1, { 0 } };
	for (int i = 0; i < rounds; i++) {
		const struct wire_reply *reply = ASK(p, event_create, SHARED_EVENT);
		struct handle handle;
		uint64_t event = reply->v[0];

		first(&f->create, &f->codes[0], i, reply->result);
		if (reply->result)
			break;
		reply = ASK(p, event_export, event);
		memcpy(handle.bytes, reply->handle, sizeof(handle.bytes));
		first(&f->export, &f->codes[1], i, reply->result);
		if (!reply->result) {
			reply = ask(c, OP_event_open, handle.bytes, (const uint64_t[6]){ 0 });
			first(&f->open, &f->codes[2], i, reply->result);
		}
		first(&f->destroy, &f->codes[3], i, ASK(p, event_destroy, event)->result);
	}
	leave(c);
	leave(p);
	if (!bare)
		ok(no_file_is_left(), "11 no file is left");
}

static void not_earlier(const char *what, int with, int with_code, int bare, int bare_code)
{
	if (bare >= 0)
		note("bare, %s fails first at %d with %d", what, bare, bare_code);
	ok(with < 0 || (bare >= 0 && with >= bare), "11 6,000 events: %s fails no earlier than bare (%d: %d)",
	   what, with, with_code);
}

static void events_many(void)
{
	enum { ROUNDS = 6000 };
	struct failures bare, with;

	many_once(true, ROUNDS, &bare);
	many_once(false, ROUNDS, &with);
	not_earlier("create", with.create, with.codes[0], bare.create, bare.codes[0]);
	not_earlier("export", with.export, with.codes[1], bare.export, bare.codes[1]);
	not_earlier("open", with.open, with.codes[2], bare.open, bare.codes[2]);
	not_earlier("destroy", with.destroy, with.codes[3], bare.destroy, bare.codes[3]);
}

/* How many events can be live beside those in the limbo, which C has open? */
static int live_events(bool bare, int waiting)
{
	struct actor *p = ENTER("P", .bare = bare);
	struct actor *c = ENTER("C", .bare = bare);
	int n = 0;

	for (int i = 0; i < waiting; i++) {
		uint64_t event = event_create(p);
		struct handle handle = event_export(p, event);

		event_open(c, &handle);
		ASK(p, event_destroy, event);
	}
	while (n < 5000) {
		uint64_t event;
		const struct wire_reply *reply = ASK(p, event_create, SHARED_EVENT);

		if (reply->result)
			break;
		event = reply->v[0];
		/* some drivers refuse only here */
		if (ASK(p, event_export, event)->result)
			break;
		n++;
	}
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return n;
}

static void events_live(void)
{
	int bare = live_events(true, 800), with = live_events(false, 800);

	note("live events beside 800 destroyed ones: %d bare, %d with culimbo", bare, with);
	ok(bare > 0 && with >= bare, "11 as many events can live as bare: those in limbo make room");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

const struct scene event_scenes[] = {
	{ "event-destroyed", event_destroyed, 0 },
	{ "events-many", events_many, 0 },
	{ "events-live", events_live, 0 },
	{ .name = NULL },
};

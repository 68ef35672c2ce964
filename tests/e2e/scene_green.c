/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of green contexts.  A green context is a part of the primary context, and its end may end
 * the primary one.  What was created in a green context lives on in the primary one.  culimbo must never
 * make a destroyed green context current: the simulated driver then crashes; on a real one the
 * heap is corrupted.
 */
#include <stdio.h>
#include <string.h>

#include "stage.h"

#define ENV "CULIMBO_GRACE=100ms CULIMBO_REPORT=always"
#define SHARED_EVENT (2 | 4) /* CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS */
#define SOON_MS 5000
#define NOT_SUPPORTED 801

/* Creates a green context and makes it current; 0 (and a skip line): this driver has none. */
static uint64_t green_begin(struct actor *actor, const char *scene)
{
	const struct wire_reply *reply = ASK(actor, green_begin);

	if (reply->result == NOT_SUPPORTED) {
		ok(true, "%s # SKIP this driver has no green contexts", scene);
		return 0;
	}
	if (reply->result)
		break_off("no green context: %d", reply->result);
	return reply->v[0];
}

/* Destroys it; true on success.  Then the primary context is current, or none if this was its @last user. */
static bool green_end(struct actor *actor, uint64_t green, bool last)
{
	return !ASK(actor, green_end, green, last)->result;
}

static void skip_end(struct actor *p, struct actor *c)
{
	leave(c);
	leave(p);
}

static bool report_says(const struct actor *actor, const char *number)
{
	return strstr(said(actor), number) != NULL;
}

/* @late: the event was created before P shared anything. */
static void event_once(const char *door, bool late)
{
	struct actor *p = ENTER("P", .env = ENV, .door = door), *c = ENTER("C", .env = ENV);
	uint64_t green = green_begin(p, "green-event"), neighbour, block, event, import, import_of_event;
	struct handle handle, event_handle;

	if (!green) {
		skip_end(p, c);
		return;
	}
	neighbour = alloc(p, SMALL);
	block = alloc_filled(p, SMALL, OWN);
	if (!late)
		export_block(p, block);
	event = ASK(p, event_create, SHARED_EVENT)->v[0];
	if (p->reply.result)
		break_off("cuEventCreate failed with %d", p->reply.result);
	if (ASK(p, event_export, event)->result)
		break_off("cuIpcGetEventHandle failed with %d", p->reply.result);
	memcpy(event_handle.bytes, p->reply.handle, sizeof(event_handle.bytes));
	handle = export_block(p, block); /* exported last, so that the event's grace period ends before the block's */
	import = open_block(c, &handle);
	if (ask(c, OP_event_open, event_handle.bytes, (const uint64_t[6]){ 0 })->result)
		break_off("cuIpcOpenEventHandle failed with %d", c->reply.result);
	import_of_event = c->reply.v[0];
	ok(!ASK(p, event_destroy, event)->result, "P (%s) destroys an event made in a green context, C has it%s",
	   door, late ? "; it was made before P shared" : "");
	free_block(p, block);
	ok(green_end(p, green, false), "and destroys the green context");
	ok(!ASK(c, event_destroy, import_of_event)->result, "C destroys its import of the event");
	/* the event was destroyed first, so it is released first */
	close_block(c, import);
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "P's collector releases both");
	free_block(p, block);
	free_block(p, neighbour);
	ok(leave_by(c, END_EXIT, 0) == 0 && leave_by(p, END_EXIT, 0) == 0, "both end well");
	ok(!report_says(p, " limbo=") && report_says(p, " released=2 ") && report_says(p, " findings=0"),
	   "P's report: both were released, nothing is left");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void green_event(void)
{
	event_once("dlsym", false);
	event_once("getproc", true);
	event_once("linked", true);
}

/* The green context in which a block was opened is destroyed; the primary context lives on. */
static void green_import(void)
{
	struct actor *p = ENTER("P", .env = ENV), *c = ENTER("C", .env = ENV, .door = "getproc");
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import;
	uint64_t green = green_begin(c, "green-import");
	struct handle handle;

	if (!green) {
		skip_end(p, c);
		return;
	}
	handle = export_block(p, block);
	import = open_block(c, &handle);
	free_block(p, block);
	ok(green_end(c, green, false), "C destroys the green context in which it opened P's block");
	ok(!claim(p, block, SMALL, NEXT) && reads(c, import, SMALL, OWN, NULL),
	   "C still holds the block and reads P's bytes");
	/* another green context */
	green = green_begin(c, "green-import");
	ok(green_end(c, green, false) && reads(c, import, SMALL, OWN, NULL), "and the same after another green context's end");
	ok(!try_close(c, import), "C closes the import from the primary context");
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "then P gets the address back");
	free_block(p, block);
	free_block(p, neighbour);
	ok(leave_by(c, END_EXIT, 0) == 0 && leave_by(p, END_EXIT, 0) == 0, "both end well");
	ok(!report_says(c, " not_closed=") && report_says(c, " findings=0"), "nothing to report");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* The last user of the primary context is a green one: its end also ends the imports. */
static void green_last(void)
{
	struct actor *p = ENTER("P", .env = ENV), *c = ENTER("C", .env = ENV);
	uint64_t neighbour = alloc(p, SMALL), block = alloc_filled(p, SMALL, OWN), import;
	uint64_t green = green_begin(c, "green-last");
	struct handle handle;

	if (!green) {
		skip_end(p, c);
		return;
	}
	handle = export_block(p, block);
	import = open_block(c, &handle);
	free_block(p, block);
	ok(!ASK(c, ctx_release)->result && reads(c, import, SMALL, OWN, NULL) && !claim(p, block, SMALL, NEXT),
	   "C releases the primary context: a green one still uses it, so C still holds and reads the block");
	ok(green_end(c, green, true), "C destroys the green context");
	ok(!c->reply.v[0], "which ends the primary context");
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "C's hold is gone: P gets the address back");
	ASK(c, ctx_again);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	ok(reads(c, import, SMALL, NEXT, NULL) && !try_close(c, import), "C opens P's next block in a new context");
	free_block(p, block);
	free_block(p, neighbour);
	ok(leave_by(c, END_EXIT, 0) == 0 && leave_by(p, END_EXIT, 0) == 0, "both end well");
	ok(!report_says(c, " not_closed=") && report_says(c, " findings=0"), "nothing to report");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* @last: the green context is the last user of the exporter's primary context, whose end also frees the limbo. */
static void block_once(const char *door, bool last)
{
	struct actor *p = ENTER("P", .env = ENV, .door = door), *c = ENTER("C", .env = ENV);
	uint64_t green = green_begin(p, "green-block"), neighbour, block, new, import;
	struct handle handle;

	if (!green) {
		skip_end(p, c);
		return;
	}
	neighbour = alloc(p, SMALL);
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	free_block(p, block);
	if (last)
		ASK(p, ctx_release);
	ok(green_end(p, green, last), "P (%s) destroys the green context in which it made and freed what C holds%s",
	   door, last ? ", the last user of the primary one" : "");
	ok(reads(c, import, SMALL, OWN, NULL), "C reads its own bytes");
	if (last) {
		ok(!p->reply.v[0], "the primary context has ended");
		ASK(p, ctx_again);
		new = alloc_filled(p, SMALL, NEXT);
		close_block(c, import);
		handle = export_block(p, new);
		import = open_block(c, &handle);
		ok(reads(c, import, SMALL, NEXT, NULL) && reads(p, new, SMALL, NEXT, NULL), "P continues to share");
		close_block(c, import);
		free_block(p, new);
	} else {
		ok(!claim(p, block, SMALL, NEXT), "and P's driver does not give its address out");
		close_block(c, import);
		ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "P's driver gives the address out after C's close");
		free_block(p, block);
		free_block(p, neighbour);
	}
	ok(leave_by(c, END_EXIT, 0) == 0 && leave_by(p, END_EXIT, 0) == 0, "both end well");
	/* the collector may not have noticed the ended context's block as closed before the exit */
	ok(!report_says(p, " kept=") && !report_says(p, " misuse=") && (last || report_says(p, " findings=0")),
	   "nothing to report");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void green_block(void)
{
	block_once("linked", false);
	block_once("dlsym", true);
	block_once("getproc", true);
}

const struct scene green_scenes[] = {
	{ "green-event", green_event, 0 },
	{ "green-import", green_import, 0 },
	{ "green-last", green_last, 0 },
	{ "green-block", green_block, 0 },
	{ .name = NULL },
};

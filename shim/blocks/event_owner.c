/* SPDX-License-Identifier: Apache-2.0 */
/* Whose an event is: see event_owner.h. */
#include <stdlib.h>
#include <string.h>

#include "shim/base/hash.h"
#include "shim/blocks/event_owner.h"
#include "shim/driver/context.h"
#include "shim/self/self.h"
#include "shim/self/sharing.h"

/*
 * The context that each interprocess event was made in: an event must not be
 * destroyed after its context (a crash, measured), and no call tells it.
 */
struct event_note {
	UT_hash_handle hh;
	uint64_t event;
	CUcontext ctx;
	CUdevice device;
	bool primary, asked; /* asked: whether it is */
};
static struct event_note *event_notes; /* under cl_exports_lock */

static struct event_note *event_note_locked(CUevent event)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct event_note *note;

	HASH_FIND(hh, event_notes, &key, sizeof key, note);
	return note;
}

void cl_event_owner_note(CUevent event)
{
	CUcontext ctx = NULL;
	CUdevice device = 0;
	struct event_note *note;
	bool primary = false, asks = cl_sharing();

	if (!(asks ? cl_context_current(&ctx, &device, &primary) :
		     cl_context_current_unasked(&ctx, &device, &primary)))
		return;
	cl_lock(&cl_exports_lock);
	note = event_note_locked(event);
	if (!note && (note = calloc(1, sizeof *note)) != NULL) {
		note->event = (uint64_t)(uintptr_t)event;
		HASH_ADD(hh, event_notes, event, sizeof note->event, note);
		if (!note->hh.tbl) {
			free(note);
			note = NULL;
		}
	}
	if (note) {
		note->ctx = ctx;
		note->device = device;
		note->primary = primary;
		note->asked = asks || primary;
	}
	cl_unlock(&cl_exports_lock);
}

void cl_event_owner_ask(CUevent event)
{
	const struct event_note *found;
	struct event_note as = { .asked = true }, *note;

	cl_lock(&cl_exports_lock);
	found = event_note_locked(event);
	if (found)
		as = *found;
	cl_unlock(&cl_exports_lock);
	if (as.asked)
		return;
	as.primary = cl_context_is_primary(as.ctx, as.device);
	cl_lock(&cl_exports_lock);
	note = event_note_locked(event);
	if (note && !note->asked && note->ctx == as.ctx && note->device == as.device) {
		note->primary = as.primary;
		note->asked = true;
	}
	cl_unlock(&cl_exports_lock);
}

bool cl_event_owner_locked(CUevent event, struct cl_event_owner *owner)
{
	const struct event_note *note = event_note_locked(event);

	if (note)
		*owner = (struct cl_event_owner){ note->ctx, note->device, note->primary };
	return note != NULL;
}

void cl_event_owner_drop(CUevent event)
{
	struct event_note *note;

	cl_lock(&cl_exports_lock);
	note = event_note_locked(event);
	if (note)
		HASH_DELETE(hh, event_notes, note);
	cl_unlock(&cl_exports_lock);
	free(note);
}

/* (also those that have gone with their context) */
uint64_t cl_events_alive(void)
{
	uint64_t n;

	cl_lock(&cl_exports_lock);
	n = HASH_COUNT(event_notes);
	cl_unlock(&cl_exports_lock);
	return n;
}

void cl_events_forget(void)
{
	event_notes = NULL; /* their memory is left, see cl_blocks_forget() */
}

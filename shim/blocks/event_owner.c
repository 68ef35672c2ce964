/* SPDX-License-Identifier: Apache-2.0 */
/* Whose an event is: see event_owner.h. */
#include <stdlib.h>
#include <string.h>

#include "shim/base/hash.h"
#include "shim/blocks/event_owner.h"
#include "shim/self/self.h"

/*
 * The context that each interprocess event was made in: an event must not be
 * destroyed after its context (a crash, measured), and no call tells it.
 */
struct event_note {
	UT_hash_handle hh;
	uint64_t event;
	struct cl_context_name owner;
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
	struct cl_context_name owner = cl_context_name_current();
	struct event_note *note;

	/* by the time it is exported another may be current */
	if (!owner.handle || cl_driver.cuCtxGetDevice(&owner.device) != CUDA_SUCCESS)
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
	if (note)
		note->owner = owner;
	cl_unlock(&cl_exports_lock);
}

struct cl_context_name cl_event_owner(CUevent event)
{
	struct cl_context_name owner = { .handle = NULL };
	const struct event_note *note;

	cl_lock(&cl_exports_lock);
	note = event_note_locked(event);
	if (note)
		owner = note->owner;
	cl_unlock(&cl_exports_lock);
	return owner;
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

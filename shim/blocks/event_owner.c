/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers the context of each interprocess event: see event_owner.h. */
#include <stdlib.h>
#include <string.h>

#include "shim/base/hash.h"
#include "shim/blocks/event_owner.h"
#include "shim/self/self.h"

struct made_event {
	UT_hash_handle hh;
	uint64_t event;
	struct cl_context_name owner;
};
static struct made_event *made_events; /* under cl_exports_lock */

static struct made_event *made_event_locked(CUevent event)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct made_event *made;

	HASH_FIND(hh, made_events, &key, sizeof key, made);
	return made;
}

void cl_event_owner_note(CUevent event)
{
	struct cl_context_name owner = cl_context_name_current();
	struct made_event *made;

	/* the context is asked for now: at the export another may be current */
	if (!owner.handle || cl_driver.cuCtxGetDevice(&owner.device) != CUDA_SUCCESS)
		return;
	cl_lock(&cl_exports_lock);
	made = made_event_locked(event);
	if (!made && (made = calloc(1, sizeof *made)) != NULL) {
		made->event = (uint64_t)(uintptr_t)event;
		HASH_ADD(hh, made_events, event, sizeof made->event, made);
		if (!made->hh.tbl) {
			free(made);
			made = NULL;
		}
	}
	if (made)
		made->owner = owner;
	cl_unlock(&cl_exports_lock);
}

struct cl_context_name cl_event_owner(CUevent event)
{
	struct cl_context_name owner = { .handle = NULL };
	const struct made_event *made;

	cl_lock(&cl_exports_lock);
	made = made_event_locked(event);
	if (made)
		owner = made->owner;
	cl_unlock(&cl_exports_lock);
	return owner;
}

void cl_event_owner_drop(CUevent event)
{
	struct made_event *made;

	cl_lock(&cl_exports_lock);
	made = made_event_locked(event);
	if (made)
		HASH_DELETE(hh, made_events, made);
	cl_unlock(&cl_exports_lock);
	free(made);
}

uint64_t cl_events_alive(void)
{
	uint64_t n;

	cl_lock(&cl_exports_lock);
	n = HASH_COUNT(made_events);
	cl_unlock(&cl_exports_lock);
	return n;
}

void cl_events_forget(void)
{
	made_events = NULL; /* their memory is not freed, see cl_blocks_forget() */
}

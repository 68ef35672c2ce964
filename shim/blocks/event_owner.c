/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers the context of each interprocess event: see event_owner.h. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/hash.h"
#include "shim/blocks/event_owner.h"
#include "shim/self/self.h"

struct cl_made_event {
	UT_hash_handle hh;
	uint64_t event;
	struct cl_context_name owner;
};

_Atomic uint64_t cl_event_owners;

static void count_locked(const struct cl_blocks *blocks)
{
	atomic_store_explicit(&cl_event_owners, HASH_COUNT(blocks->made_events), memory_order_relaxed);
}

static struct cl_made_event *made_event_locked(const struct cl_blocks *blocks, CUevent event)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct cl_made_event *made;

	HASH_FIND(hh, blocks->made_events, &key, sizeof key, made);
	return made;
}

void cl_event_owner_set(struct cl_blocks *blocks, CUevent event)
{
	struct cl_context_name owner = cl_context_name_current();
	struct cl_made_event *made;

	/* the context is asked for now: at the export another may be current */
	if (!owner.handle || cl_driver.cuCtxGetDevice(&owner.device) != CUDA_SUCCESS)
		return;
	cl_lock(&cl_exports_lock);
	made = made_event_locked(blocks, event);
	if (!made && (made = calloc(1, sizeof *made)) != NULL) {
		made->event = (uint64_t)(uintptr_t)event;
		HASH_ADD(hh, blocks->made_events, event, sizeof made->event, made);
		if (!made->hh.tbl) {
			free(made);
			made = NULL;
		}
	}
	if (made)
		made->owner = owner;
	count_locked(blocks);
	cl_unlock(&cl_exports_lock);
}

struct cl_context_name cl_event_owner(const struct cl_blocks *blocks, CUevent event)
{
	struct cl_context_name owner = { .handle = NULL };
	const struct cl_made_event *made;

	cl_lock(&cl_exports_lock);
	made = made_event_locked(blocks, event);
	if (made)
		owner = made->owner;
	cl_unlock(&cl_exports_lock);
	return owner;
}

void cl_event_owner_drop(struct cl_blocks *blocks, CUevent event)
{
	struct cl_made_event *made;

	cl_lock(&cl_exports_lock);
	made = made_event_locked(blocks, event);
	if (made)
		HASH_DELETE(hh, blocks->made_events, made);
	count_locked(blocks);
	cl_unlock(&cl_exports_lock);
	free(made);
}

uint64_t cl_events_alive(const struct cl_blocks *blocks)
{
	uint64_t n;

	cl_lock(&cl_exports_lock);
	n = HASH_COUNT(blocks->made_events);
	cl_unlock(&cl_exports_lock);
	return n;
}

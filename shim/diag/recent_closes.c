/* SPDX-License-Identifier: Apache-2.0 */
/* Recent closes: see recent_closes.h.  All of this is under cl_imports_lock. */
#include <stdlib.h>
#include <string.h>

#include "shim/base/hash.h"
#include "shim/base/hot.h"
#include "shim/diag/recent_closes.h"
#include "shim/self/self.h"

enum { CLOSED = 1024 };

/*
 * The closes of memory are in a ring.  It is searched only when a program closes an address that is not open.  Its pages
 * take no memory before they are used.
 */
static struct cl_about closed[CLOSED];
static uint32_t closes; /* how many were written, modulo 2^32 */

/* The closes of events are in a hash table, since each event that the program makes or destroys is looked up. */
struct closed_event {
	UT_hash_handle hh;
	struct cl_about what;
};
static struct closed_event *closed_events, *events_by_age[CLOSED]; /* a ring */
static uint32_t next_event;

void cl_recent_closes_add_event(const struct cl_about *what)
{
	struct closed_event *entry;

	HASH_FIND(hh, closed_events, &what->key, sizeof what->key, entry);
	if (entry) {
		entry->what = *what;
		return;
	}
	entry = events_by_age[next_event];
	if (entry) {
		HASH_DELETE(hh, closed_events, entry);
	} else {
		entry = malloc(sizeof *entry);
		if (!entry)
			return;
	}
	entry->what = *what;
	HASH_ADD(hh, closed_events, what.key, sizeof entry->what.key, entry);
	if (!entry->hh.tbl) { /* uthash had no memory */
		free(entry);
		entry = NULL;
	}
	events_by_age[next_event] = entry;
	next_event = (next_event + 1) % CLOSED;
}

CL_HOT_SHARING struct cl_about *cl_recent_closes_add_memory(void)
{
	return &closed[closes++ % CLOSED];
}

static struct cl_about *find_closed_event_locked(uint64_t key)
{
	struct closed_event *entry;

	HASH_FIND(hh, closed_events, &key, sizeof key, entry);
	return entry && entry->what.kind ? &entry->what : NULL;
}

static struct cl_about *find_closed_memory_locked(enum cl_kind kind, uint64_t key)
{
	for (uint32_t back = 1; back <= CLOSED; back++) {
		struct cl_about *entry = &closed[(closes - back) % CLOSED];

		if (entry->kind == kind && entry->key == key)
			return entry;
	}
	return NULL;
}

static struct cl_about *find_closed_locked(enum cl_kind kind, uint64_t key)
{
	return kind == CL_EVENT ? find_closed_event_locked(key) : find_closed_memory_locked(kind, key);
}

bool cl_recent_closes_find(enum cl_kind kind, uint64_t key, struct cl_about *what)
{
	const struct cl_about *found;

	cl_lock(&cl_imports_lock);
	found = find_closed_locked(kind, key);
	if (found)
		*what = *found;
	cl_unlock(&cl_imports_lock);
	return found != NULL;
}

void cl_recent_closes_remove(enum cl_kind kind, uint64_t key)
{
	struct cl_about *found;

	cl_lock(&cl_imports_lock);
	/* a loop: memory may have been closed at this address many times */
	while ((found = find_closed_locked(kind, key)) != NULL)
		found->kind = 0; /* the entry stays until its turn comes */
	cl_unlock(&cl_imports_lock);
}

void cl_recent_closes_forget(void)
{
	/* not freed: a thread of the parent may have been changing them when it forked */
	if (closes)
		memset(closed, 0, sizeof closed);
	closes = 0;
	closed_events = NULL;
	memset(events_by_age, 0, sizeof events_by_age);
	next_event = 0;
}

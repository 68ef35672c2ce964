/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context that each interprocess event was made in: an event must not be
 * destroyed after its context (a crash, measured), and no call tells it.
 *
 * Functions that end in _locked want cl_exports_lock held; the others take it.
 */
#ifndef CL_EVENT_OWNER_H
#define CL_EVENT_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/driver.h"

/* An interprocess event was made, in the current context; also of a process that shares nothing yet. */
void cl_event_owner_note(CUevent event);

struct cl_event_owner {
	CUcontext ctx;
	CUdevice device;
	bool primary;
};
/* False, and @owner is as it was: it was not seen when it was made. */
bool cl_event_owner_locked(CUevent event, struct cl_event_owner *owner);
/* Asks whether the context of @event is primary, where it was made before this process shared. */
void cl_event_owner_ask(CUevent event);
/* @event is destroyed. */
void cl_event_owner_drop(CUevent event);

/* How many interprocess events a process can have (measured), and how many are known to live outside the limbo. */
enum { CL_EVENT_PLACES = 4096 };
uint64_t cl_events_alive(void);

void cl_events_forget(void); /* in a forked child */

#endif

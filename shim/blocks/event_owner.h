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
#include "shim/driver/context.h"
#include "shim/driver/driver.h"

/* An interprocess event was made, in the current context; also of a process that shares nothing yet. */
void cl_event_owner_note(CUevent event);

/* The context that @event was made in; none: it was not seen when it was made. */
struct cl_context_name cl_event_owner(CUevent event);
/* @event is destroyed. */
void cl_event_owner_drop(CUevent event);

/* How many interprocess events a process can have (measured), and how many are known to live outside the limbo. */
enum { CL_EVENT_PLACES = 4096 };
uint64_t cl_events_alive(void);

void cl_events_forget(void); /* in a forked child */

#endif

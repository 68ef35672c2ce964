/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remembers the context in which each interprocess event was made.  To destroy an event after
 * its context crashes (measured), and no call of the driver tells the context.
 *
 * Any thread may call these functions; they take cl_exports_lock.  Without memory an event is
 * not remembered, and its owner is unknown.
 */
#ifndef CL_EVENT_OWNER_H
#define CL_EVENT_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/blocks/blocks.h"
#include "shim/driver/context.h"
#include "shim/driver/driver.h"

/* Remembers that @event was made in the current context; also if this process shares nothing yet. */
void cl_event_owner_set(struct cl_blocks *blocks, CUevent event);

/* Returns the context that @event was made in, or handle NULL if it is not known. */
struct cl_context_name cl_event_owner(const struct cl_blocks *blocks, CUevent event);
/* Forgets @event, which is destroyed. */
void cl_event_owner_drop(struct cl_blocks *blocks, CUevent event);

/* How many events are remembered; read without a lock, by a thread that destroys one. */
extern _Atomic uint64_t cl_event_owners;

/* How many interprocess events a process can have (measured).  As many are remembered, also of ended contexts. */
enum { CL_EVENT_PLACES = 4096 };
/* Returns how many events are remembered.  Takes cl_exports_lock. */
uint64_t cl_events_alive(const struct cl_blocks *blocks);

#endif

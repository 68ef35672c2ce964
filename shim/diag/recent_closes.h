/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last 1,024 closes of memory and as many of events: the report of a second close says where
 * the last one was.
 *
 * Nothing here fails: without memory, one close is not remembered.  No system call.  Any thread,
 * with the locks that are named below.  A forked child forgets all of it.
 */
#ifndef CL_RECENT_CLOSES_H
#define CL_RECENT_CLOSES_H

#include <stdbool.h>
#include "shim/diag/happened.h"

/* Remembers a close of an event.  The caller holds cl_imports_lock. */
void cl_recent_closes_add_event(const struct cl_about *closed);
/* Returns an entry, never NULL, into which the caller writes a close of memory under cl_imports_lock. */
struct cl_about *cl_recent_closes_add_memory(void);
/*
 * Forgets the closes of @key: something new is at this address, or the driver did not close it.
 * Takes cl_imports_lock.  Looks through all entries unless @kind is CL_EVENT.
 */
void cl_recent_closes_remove(enum cl_kind kind, uint64_t key);
/*
 * Returns true with the last close of @key in *closed, or false if none is remembered: then *closed
 * is as it was.  Takes cl_imports_lock.  Looks through all entries unless @kind is CL_EVENT.
 */
bool cl_recent_closes_find(enum cl_kind kind, uint64_t key, struct cl_about *closed);

void cl_recent_closes_forget(void); /* in a forked child */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last 1,024 closes of memory and of events, so that who closes twice can be told where the
 * first one was.
 *
 * Nothing is decided by them, and nothing here fails: without memory there is one fewer.  No
 * system call.  Any thread, with the locks that are said; a forked child forgets.
 */
#ifndef CL_RECENT_CLOSES_H
#define CL_RECENT_CLOSES_H

#include <stdbool.h>
#include "shim/diag/happened.h"

/* Notes one of an event.  The caller of this and of the next has cl_imports_lock. */
void cl_notes_closed_event(const struct cl_about *closed);
/* One of memory is noted: returns where it is to be written.  Never NULL. */
struct cl_about *cl_notes_closed_memory(void);
/*
 * @key is something else from here on, or was not closed after all.  Takes cl_imports_lock, as the
 * next does.  Of memory both look through all.
 */
void cl_notes_not_closed(enum cl_kind kind, uint64_t key);
/* Where @key was closed last.  False: that is not known, or no longer, and @closed is as it was. */
bool cl_notes_find_closed(enum cl_kind kind, uint64_t key, struct cl_about *closed);

void cl_notes_closes_forget(void); /* in a forked child */

#endif

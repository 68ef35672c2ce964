/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's own exporter file: made when it is first needed, found by its number.
 *
 * Functions that end in _locked want cl_exports_lock held.
 */
#ifndef CL_OWN_FILE_H
#define CL_OWN_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/region.h"

/* Made at the first export or import; .header is NULL before, and as long as it can't be made. */
extern struct cl_region cl_own;
/*
 * Makes sure that it is there.  False: it can't be made just now, which is an error for who
 * exports and is said once; an @importer has it for reports only, and nothing is said.  It is
 * tried again at later calls, see backoff.h: who has it once has it to the end.
 */
bool cl_own_need_locked(bool importer);
/* The number of our file, 0 as long as there is none. */
extern _Atomic uint32_t cl_own_id;
/*
 * Whether a handle whose stamp names file @file_id may be of this process.  False
 * is certain, for a handle that was exported before: of a name in the directory it is
 * not, the file has its own before this is known.  Any thread, without the lock.
 */
static inline bool cl_own_may_be(uint32_t file_id)
{
	return atomic_load_explicit(&cl_own_id, memory_order_acquire) == file_id;
}

void cl_own_forget(void); /* in a forked child */

#endif

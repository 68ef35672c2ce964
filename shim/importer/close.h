/* SPDX-License-Identifier: Apache-2.0 */
/* Closing what others export, before and after the driver's call.  No lock is held. */
#ifndef CL_CLOSE_H
#define CL_CLOSE_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/driver.h"
#include "shim/shm/layout.h"

struct cl_mapping;

/* Whether @key is this process's own, exported by itself: the exporter knows. */
typedef bool cl_is_own_fn(enum cl_kind kind, uint64_t key);

/* What a close of @key closes; NULL: nothing that is open here.  *last: nothing of it stays open, as far as can be said now. */
struct cl_mapping *cl_close_begin(enum cl_kind kind, uint64_t key, cl_is_own_fn *is_own, bool *last);
/* The driver has closed it, or not (!@closed). */
void cl_close_end(enum cl_kind kind, struct cl_mapping *mapping, bool closed, bool last);
/* The driver has refused to close @dptr, which is not open: that is noted as misuse. */
void cl_close_again(CUdeviceptr dptr);

/*
 * If @event is an imported one: destroys it by @destroy with the driver's
 * answer in @result, gives the hold back, and returns true.
 */
bool cl_import_event_destroy(CUevent event, CUresult (*destroy)(CUevent), cl_is_own_fn *is_own,
			     CUresult *result);
/*
 * Whether @event was an imported one, is destroyed, and nothing else is known to
 * have been made at that address since: then that is noted as misuse.
 */
bool cl_import_event_destroyed_again(CUevent event);

/*
 * Any event was made (or opened or exported, where it is seen to here), in a process
 * that shares: its address may be that of an import that was destroyed, and is the
 * program's to destroy again.
 */
void cl_import_event_is_new(CUevent event);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that come before and after the driver's call that closes an import.  Any thread may call them.
 * It must hold no lock of ours.
 */
#ifndef CL_CLOSE_H
#define CL_CLOSE_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/driver.h"
#include "shim/shm/layout.h"

struct cl_mapping;

/* Returns true if @key is an address or event of this process's own, so that the exporter closes it. */
typedef bool cl_is_own_fn(enum cl_kind kind, uint64_t key);

/*
 * Returns the mapping that a close of @key closes, or NULL if no import is open there.  Sets *last
 * if this close looks like the last one of the mapping.
 */
struct cl_mapping *cl_close_begin(enum cl_kind kind, uint64_t key, cl_is_own_fn *is_own, bool *last);
/* After the driver's call; @closed is false if the driver refused it. */
void cl_close_end(enum cl_kind kind, struct cl_mapping *mapping, bool closed, bool last);
/* The driver has refused to close @dptr, which is not open: reports a second close. */
void cl_close_again(CUdeviceptr dptr);

/*
 * Returns true if @event is an import: then @destroy was called, *result is the driver's
 * answer, and the hold is given back.  Returns false, having done nothing, if it is not.
 */
bool cl_import_event_destroy(CUevent event, CUresult (*destroy)(CUevent), cl_is_own_fn *is_own,
			     CUresult *result);
/*
 * Returns true, and reports a second destroy, if @event was an import that is destroyed already, and no
 * other event is known to have been made at its address since.
 */
bool cl_import_event_destroyed_again(CUevent event);

/*
 * A hook has seen that the program made, opened or exported @event.  If an import was destroyed at that
 * address before, this is another event, which the program may destroy.
 */
void cl_import_event_created(CUevent event);

#endif
